"""Before and after: a run's own validation images as its model sees them, grayed with its own settings."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import timm
import torch

from wellcond import report
from wellcond.config import TrainConfig
from wellcond.data.augment import evaluation
from wellcond.data.filling import squared, stored_side
from wellcond.data.splits import open_split
from wellcond.graying import TokenGraying, unfold_patches
from wellcond.graying.models import patch_size_of
from wellcond.pictures import spectrum
from wellcond.runs_page.groups import Group

COUNT = 4
SHOWN = 96  # pixels: a smaller picture is enlarged in whole pixels


def galleries(groups: Sequence[Group], troubles: list[str]) -> list[report.Gallery]:
    """One for each way of graying among the runs; where the images are not here the reason goes to `troubles`."""
    found: dict[str, report.Gallery] = {}
    for g in groups:
        graying = g.config.model.graying
        name = f"{graying.method.upper()} {graying.epsilon:g}, {g.config.data.val}"
        if graying.method == "none" or name in found:
            continue
        try:
            found[name] = gallery(g.config)
        except Exception as error:  # data that is gone, of whatever kind, must not cost the page
            troubles.append(f"no pictures of {name}: {' '.join(str(error).split())}")
    return list(found.values())


def gallery(config: TrainConfig, count: int = COUNT) -> report.Gallery:
    """Pairs of a validation image and what graying makes of it, each with log κ of its patches."""
    data, settings = config.data, config.model.graying
    patch_size = patch_sizes(config)
    graying = TokenGraying(
        patch_size, settings.method, settings.epsilon, rescale=settings.rescale, precision=settings.precision
    )
    images = _images(config, count)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (data.mean, data.std))
    before = (images - mean) / std
    after = graying(before)
    pictures = []
    for number, (left, right) in enumerate(zip(before, after, strict=True), 1):
        for title, pixels in ((f"image {number}", left), (f"{settings.method.upper()} {settings.epsilon:g}", right)):
            shown = ((pixels * std[0] + mean[0]).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
            kappa = spectrum(unfold_patches(pixels[None], patch_size)[0]).log_kappa
            pictures.append(report.Picture(pixels=_enlarged(shown), title=title, note=f"log κ {kappa:.2f}"))
    caption = f"Validation images of {data.val}, {data.image_size} px, patches of {patch_size[0]} × {patch_size[1]}."
    return report.Gallery(
        pictures=pictures, columns=2, caption=caption + " Colours off the screen's range are clipped."
    )


def patch_sizes(config: TrainConfig) -> tuple[int, int]:
    """Of the config, or of the model, which is built without memory for its weights."""
    if config.model.patch_size is not None:
        return config.model.patch_size, config.model.patch_size
    options: dict[str, Any] = dict(config.model.options)
    with torch.device("meta"):
        return patch_size_of(timm.create_model(config.model.name, num_classes=config.model.num_classes, **options))


def _images(config: TrainConfig, count: int) -> torch.Tensor:
    """(B, 3, S, S) in 0 … 1, spread over the validation set and cut as evaluation cuts them."""
    size = config.data.image_size
    source = open_split(config.data.val, "val", image_size=size)
    chosen = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int)).tolist()
    side = stored_side(source, size)
    raw = np.stack([squared(record.read(), side) for record in source.records(chosen)])
    return evaluation(torch.from_numpy(raw), size, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def _enlarged(pixels: np.ndarray) -> np.ndarray:
    times = max(1, SHOWN // pixels.shape[0])
    return pixels.repeat(times, 0).repeat(times, 1)
