"""``wellcond bench knn`` → ``results/bench-knn.json``: 20 nearest neighbours among 100,000 features of width 384.

10,000 queries, as many as Tiny-ImageNet's validation set has; the baseline is scikit-learn's brute-force search with
the same votes, on the CPU with as many threads as it likes, for fewer queries; times are for all queries. Features are
16 × 16 patches of real photographs under one random projection. ``error_top1`` is the share of queries whose first
class is not that of the same votes in float64; a patch of one colour has more than 20 neighbours that are equally near.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import BenchConfig
from .bars import Bar
from .command import Part, check_device, chosen_parts, main, run_parts
from .images import load_pictures, normalise
from .timing import clock_for, interleave, timing_row

if TYPE_CHECKING:
    from torch import Tensor

PARTS = ["100000"]
SEED, CLASSES, WIDTH, SIDE, PATCH = 0, 200, 384, 64, 16
SIZES = {"cpu": (100_000, 10_000, 100, 3), "cuda": (100_000, 10_000, 500, 5)}  # training, queries, the other's, rounds
QUICK = (2_000, 100, 20, 1)

BARS = tuple(
    Bar(
        f"k-NN, 10,000 queries among 100,000 features of width 384, {device}: seconds",
        "100000", device, "seconds", 10, where={"ours": True},
    )
    for device in ("cuda", "cpu")
)  # fmt: skip


def run(config: BenchConfig, *, parts: str | None = None, commit: str | None = None) -> dict[str, Any]:
    """Measure and merge into the results file."""
    check_device(config.device)
    chosen = chosen_parts(parts, PARTS, PARTS)
    _classifier()  # without scikit-learn nothing can be compared
    return run_parts(config, chosen, lambda _: _measure(config), bars=BARS, commit=commit, parts=parts)


def _measure(config: BenchConfig) -> Part:
    num_train, queries, few, rounds = QUICK if config.quick else SIZES[config.device]
    features, images = _features(config, num_train + queries)
    rows = compare(features[:num_train], features[num_train:], few=few, rounds=rounds)
    seeds = {"images": SEED, "projection": SEED, "bootstrap": SEED}
    return rows, {"images": images, "seeds": seeds, "training": num_train, "queries": queries, "width": WIDTH}


def compare(train: "Tensor", test: "Tensor", *, few: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of scikit-learn and of ``knn_votes`` for all of ``test`` (M, d) among ``train`` (N, d)."""
    import torch

    from ..evaluation.knn import knn_votes

    labels = torch.arange(len(train), device=train.device) % CLASSES
    theirs = _classifier().fit(train.cpu().numpy(), labels.cpu().numpy())
    alone = test[:few].cpu().numpy()
    names = {"scikit-learn, brute force": few, "knn_votes": len(test)}
    calls = {
        "scikit-learn, brute force": lambda: theirs.predict(alone),
        "knn_votes": lambda: knn_votes(train, labels, test, CLASSES),
    }
    raw = interleave(calls, rounds=rounds, warmup=1, clock=clock_for(train.device.type))
    timings = {name: timing.times(len(test) / names[name]) for name, timing in raw.items()}
    first, ours = timings
    rows = [timing_row(one, timings[first]) | {"ours": name == ours} for name, one in timings.items()]
    for row in rows:
        row |= {"seconds": row["median_ms"] / 1e3, "speedup": 1 / row["ratio"]}
        print(f"  {row['name']}: {row['seconds']:.3f} s, {row['speedup']:.1f}×", flush=True)
    oracle = knn_votes(train.double(), labels, test[:few].double(), CLASSES).argmax(1)
    found = knn_votes(train, labels, test[:few], CLASSES).argmax(1)
    by_sklearn = torch.from_numpy(theirs.predict(alone)).to(oracle)
    rows[0]["error_top1"] = float((by_sklearn != oracle).double().mean())
    rows[1] |= {"error_top1": float((found != oracle).double().mean()), "num_checked": few}
    return rows


def _classifier() -> Any:
    """scikit-learn's classifier with our votes: cosine, k = 20, exp(s / T)."""
    try:
        from sklearn.neighbors import KNeighborsClassifier
    except ImportError:
        raise ValueError("bench knn is against scikit-learn, which is not here; pip install scikit-learn") from None
    from ..evaluation.knn import TEMPERATURE, K

    votes: Any = lambda distance: np.exp(-distance / TEMPERATURE)  # noqa: E731 (its stub knows only words)
    return KNeighborsClassifier(K, metric="cosine", algorithm="brute", weights=votes)


def _features(config: BenchConfig, count: int) -> "tuple[Tensor, str]":
    """(count, 384) float32 on the device, and the source of the pictures."""
    import torch

    each = (SIDE // PATCH) ** 2
    pictures = load_pictures(config.data, count=-(-count // each), size=SIDE, seed=SEED)
    images = normalise(pictures.pixels, config.device)
    patches = torch.nn.functional.unfold(images, PATCH, stride=PATCH).mT.flatten(0, 1)[:count]
    projection = torch.randn(patches.shape[1], WIDTH, generator=torch.Generator().manual_seed(SEED))
    return patches @ projection.to(patches), pictures.source


if __name__ == "__main__":
    main(run, "knn", PARTS)
