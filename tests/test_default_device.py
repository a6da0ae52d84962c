"""torch.set_default_device: what is drawn on the CPU stays there, and answers are where the question was.

The device "meta" stands in for a GPU: what forgets to say where it is made ends up on it, and has no numbers there.
"""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

import wellcond as wc
from wellcond.evaluation import Backbone
from wellcond.evaluation.linear import probes

GENERATOR, X = torch.Generator(), torch.randn(2, 16, 12)


def vit() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **sizes).eval()


def trained(model, images) -> list[Tensor]:
    optimizer = wc.SOAP(model.parameters(), precondition_frequency=2)
    for _ in range(5):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def weights(change: Callable[..., Any]) -> Callable[..., list[Tensor]]:
    return lambda model, _: list(change(model, generator=GENERATOR.manual_seed(0)).parameters())


def numbers(found: Any) -> list[float | None]:
    return [row.value for row in found.rows]


CALLS: dict[str, Callable[[Any, Tensor], Any]] = {
    "init_skipless_": weights(wc.init_skipless_),
    "init_skipless_, uniform": weights(
        lambda model, generator: wc.init_skipless_(model, z="uniform", generator=generator)
    ),
    "init_skipless_, positions": weights(
        lambda model, generator: wc.init_skipless_(model, positions=0.3, generator=generator)
    ),
    "mimetic_": weights(wc.mimetic_),
    "suo_": lambda *_: wc.suo_(torch.empty(3, 4, device="cpu"), GENERATOR.manual_seed(0)),
    "calibrate_": lambda model, images: wc.calibrate_(model, images),
    "SOAP": trained,
    "verify_init": lambda model, images: numbers(wc.verify_init(model, images)),
    "diagnose": lambda model, images: numbers(wc.diagnose(model, images)),
    "keys of a block": lambda model, images: Backbone(model).read(images, (1,), "keys")[1],
    "a linear probe": lambda *_: probes(X, torch.arange(16, device="cpu") % 2, 2)[1].head.weight,
    "gray_tokens, dct": lambda *_: wc.gray_tokens(X, "dct", 0.9),
    "gray_tokens, svd": lambda *_: wc.gray_tokens(X, "svd", 0.9),
    "numerical_floor": lambda *_: wc.numerical_floor(X[0]),
    "condition_number": lambda *_: wc.condition_number(X[0], log=True),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_default_device_decides_nothing(call):
    (one, other), images = (vit(), vit()), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    want = call(one, images)
    torch.set_default_device("meta")
    try:
        got = call(other, images)
    finally:
        torch.set_default_device(None)
    same = torch.equal if isinstance(want, Tensor) else lambda a, b: len(a) == len(b) and all(map(_equal, a, b))
    assert same(got, want)


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b
