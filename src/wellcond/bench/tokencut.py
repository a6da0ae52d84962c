"""``wellcond bench tokencut`` → ``results/bench-tokencut.json``: object discovery, batched, against scipy.

    400    20 × 20 patches        1600    40 × 40 patches

The baseline takes one picture at a time through ``scipy.linalg.eigh`` (only the eigenvector it needs) and
``scipy.ndimage.label``, on the CPU with as many threads as it likes; both get the same features, the keys of the last
attention of a ViT-S/16 with random weights on real photographs, where they are computed. Times are for one picture.
``error_boxes`` is the share of pictures whose box differs, among those whose answer is unique.
"""

from typing import TYPE_CHECKING, Any

from ..config import BenchConfig
from .bars import Bar
from .command import Part, check_device, chosen_parts, main, run_parts
from .images import load_pictures, normalise
from .scipy_cut import baseline
from .timing import clock_for, interleave, timing_row

if TYPE_CHECKING:
    from torch import Tensor

PARTS = ["400", "1600"]
SEED = 0
SIZES = {  # (device, part) → pictures batched, pictures one at a time, rounds
    ("cpu", "400"): (64, 64, 7),
    ("cpu", "1600"): (8, 4, 5),
    ("cuda", "400"): (1024, 200, 9),
    ("cuda", "1600"): (128, 4, 3),
}
QUICK = (4, 2, 1)


OURS = {"ours": True}
BARS = (
    Bar(
        "TokenCut, 400 tokens: times faster than scipy on the GPU's host",
        "400", "cuda", "speedup", 100, "at least", where=OURS,
    ),
    Bar(
        "TokenCut, 400 tokens, on the CPU: times faster than scipy",
        "400", "cpu", "speedup", 5, "at least", where=OURS,
    ),
    *(
        Bar(f"TokenCut, {part} tokens, {device}: share of other boxes", part, device, "error_boxes", 0.005, where=OURS)
        for device in ("cuda", "cpu")
        for part in PARTS
    ),
)  # fmt: skip


def run(config: BenchConfig, *, parts: str | None = None, commit: str | None = None) -> dict[str, Any]:
    """Measure ``parts`` ("400"; None: all) and merge them into the results file."""
    check_device(config.device)
    chosen = chosen_parts(parts, PARTS, PARTS)
    baseline()  # without scipy nothing can be compared
    return run_parts(config, chosen, lambda part: _measure(part, config), bars=BARS, commit=commit, parts=parts)


def _measure(part: str, config: BenchConfig) -> Part:
    many, few, rounds = QUICK if config.quick else SIZES[config.device, part]
    side = (4 if config.quick else 20) * (1 if part == "400" else 2)
    features, images = _features(config, many, side)
    rows = compare(features, (side, side), few=few, rounds=rounds)
    seeds = {"images": SEED, "weights": SEED, "bootstrap": SEED}
    return rows, {"images": images, "seeds": seeds, "tokens": side**2, "width": features.shape[2], "num_images": many}


def compare(features: "Tensor", grid: tuple[int, int], *, few: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of scipy and of ``token_cut`` on the same features (B, n, d), times for one picture."""
    import torch

    from ..evaluation.tokencut import token_cut

    cut = baseline()
    alone = features[:few].cpu().numpy()
    names = {"scipy, one at a time": few, "token_cut, batched": len(features)}
    calls = {
        "scipy, one at a time": lambda: [cut(one, grid) for one in alone],
        "token_cut, batched": lambda: token_cut(features, grid),
    }
    raw = interleave(calls, rounds=rounds, warmup=1, clock=clock_for(features.device.type))
    timings = {name: timing.times(1 / names[name]) for name, timing in raw.items()}
    first, ours = timings
    found = token_cut(features[:few], grid)
    differs = (found.box.cpu() != torch.tensor([cut(one, grid) for one in alone])).any(1) & ~found.tied.cpu()
    unique = int((~found.tied).sum())
    rows = [timing_row(timing, timings[first]) | {"ours": name == ours} for name, timing in timings.items()]
    for row in rows:
        row |= {"speedup": 1 / row["ratio"], "images_per_s": 1e3 / row["median_ms"], "tokens": grid[0] * grid[1]}
        print(f"  {row['name']}: {row['images_per_s']:.1f} images/s, {row['speedup']:.1f}×", flush=True)
    error = float(differs.sum()) / unique if unique else None
    rows[-1] |= {"error_boxes": error, "num_checked": unique, "num_tied": few - unique}
    return rows


def _features(config: BenchConfig, count: int, side: int) -> "tuple[Tensor, str]":
    """Keys (count, side², 384) on the device, float32, and the source of the pictures."""
    import timm
    import torch

    from ..evaluation.features import Backbone

    torch.manual_seed(SEED)
    size = 16 * side
    model = timm.create_model("vit_small_patch16_224", img_size=size, num_classes=0).to(config.device).eval()
    backbone = Backbone(model)
    pictures = load_pictures(config.data, count=count, size=size, seed=SEED)
    parts = [
        backbone.read(normalise(pixels, config.device), backbone.layers("last"), "keys").popitem()[1]
        for pixels in (pictures.pixels[low : low + 16] for low in range(0, count, 16))
    ]
    return torch.cat(parts), pictures.source


if __name__ == "__main__":
    main(run, "tokencut", PARTS)
