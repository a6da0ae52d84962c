"""A trained DINO run → everything that its claims ask: numbers of every layer on three sets, and maps of the first.

    tiny-imagenet             k-NN, linear probe; CorLoc against its boxes
    voc2012-animals-seg-320   its pictures with official boxes: dense probe (mIoU, of one layer and of four), CorLoc
    oxford-pets-128-subset    foreground IoU of the object found, its border left out

`maps`: principal components of the patches of the first pictures of VOC as colours, and how well the first component
alone tells the object from the rest: the area under its curve against the mask of the patches, whichever sign.
"""

import time
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..config import TrainConfig
from ..judging.options import EvaluateCommand, JudgeName
from ..report import as_png
from .dino_cells import AT_ONCE, PETS, SIDE, SMALL, TINY, VOC, WHERE, stands_in
from .said import Said
from .statistics import ranks

if TYPE_CHECKING:
    from ..judging.album import Album

PICTURES, KEPT = 64, 8  # that the first component is judged on; that are kept as maps
VOID = 255


@dataclass(frozen=True, kw_only=True)
class Look:
    """Judges on one set, and how its pictures are read."""

    data: str
    judges: tuple[JudgeName, ...]
    size: int | None = None
    where: tuple[str, ...] = ()
    foreground: tuple[int, ...] = ()
    void: tuple[int, ...] = (VOID,)


LOOKS = (
    Look(data=TINY, judges=("knn", "linear", "discovery")),
    Look(data=VOC, judges=("segmentation", "discovery"), size=SIDE, where=WHERE),
    Look(data=PETS, judges=("discovery",), foreground=(1,), void=(3,)),
)
MAPS = Look(data=VOC, judges=("pca",), size=SIDE, where=WHERE)


def judge_all(out: Path, config: TrainConfig, images: Any, *, sources: dict[str, str], quick: bool) -> dict[str, Any]:
    """{"judged": {set: {judge: {name: value}}}, "maps": {…}}; a name has its layer after @, but for the last."""
    from ..evaluation import JUDGES
    from ..judging.subjects import examine

    judged: dict[str, dict[str, Any]] = {}
    began, said = time.perf_counter(), Said(out)
    for look in LOOKS:
        command = evaluation(out, config, look, sources, layers="all", quick=quick)
        examined = cache(partial(examine, out, command))  # only where something is still to be asked
        for name in look.judges:
            question = {**asdict(command), "judges": name}
            values = said.answer(question, lambda name=name, examined=examined: dict(JUDGES[name](examined()[0])))
            judged.setdefault(look.data, {})[name] = {key: round(value, 3) for key, value in values.items()}
    command = evaluation(out, config, MAPS, sources, layers="last", quick=quick)
    subject, album, _ = examine(out, command)
    album.values["pca"] = dict(JUDGES["pca"](subject))
    assert config.model.patch_size is not None  # DINO's config sees to it
    maps = maps_of(album, config.model.patch_size)
    return {"judged": judged, "maps": maps, "seconds": time.perf_counter() - began + said.before}


def evaluation(
    out: Path, config: TrainConfig, look: Look, sources: dict[str, str], *, layers: str, quick: bool
) -> EvaluateCommand:
    """The look as `wellcond evaluate` would have it."""
    source = sources[look.data]
    size = SMALL if look.size and quick else look.size
    own: dict[str, Any] = {"where": look.where, "foreground": look.foreground, "void": look.void, "size": size}
    if stands_in(source):
        own = {}
    own |= {"probe_epochs": 1, "segmentation_epochs": 1} if quick else {}
    return EvaluateCommand(
        runs=(out,), judges=look.judges, data=source, layers=(layers,), pictures=PICTURES, device=config.device,
        batch_size=AT_ONCE, **own,
    )  # fmt: skip


def maps_of(album: "Album", patch: int) -> dict[str, Any]:
    """The first maps as PNG files, and the mean area under the curve of the first component, in percent."""
    (of_layer,) = album.found["pca"].values()
    areas = []
    for index, sight in enumerate(album.scenes):
        if sight.mask is not None:
            area = separation(of_layer[index][..., 0], sight.mask, patch)
            areas += [] if area is None else [area]
    return {
        "png": [_png(of_layer[index]) for index in sorted(of_layer)[:KEPT]],
        "names": [sight.name for sight in album.scenes[:KEPT]],
        "auc": round(100 * float(np.mean(areas)), 3) if areas else None,
        "pictures": len(areas),
        "explained": round(album.values["pca"]["explained"], 3),
    }


def separation(component: np.ndarray, mask: np.ndarray, patch: int) -> float | None:
    """Area under the ROC curve of a component (h, w) against a mask (H, W: 1 object, 0 not, 255 void), ½ … 1.

    A patch is of the object where more than half of its known pixels are. None where all patches are of one kind.

    >>> separation(np.array([[0.1, 0.2], [0.3, 0.9]]), np.array([[1, 0], [0, 0]]), 1)
    1.0
    """
    h, w = component.shape
    rows, columns = (np.arange(side) // patch for side in mask.shape)
    place = (rows[:, None] * w + columns).ravel()
    seen = np.bincount(place, (mask != VOID).ravel(), minlength=h * w)
    inside = np.bincount(place, (mask == 1).ravel(), minlength=h * w) > seen / 2
    score, truth = component.ravel()[seen > 0].astype(np.float64), inside[seen > 0]
    positive, negative = int(truth.sum()), int((~truth).sum())
    if not positive or not negative:
        return None
    area = (ranks(score)[truth].sum() - positive * (positive + 1) / 2) / (positive * negative)
    return float(max(area, 1 - area))


def _png(colours: np.ndarray) -> str:
    return as_png(Image.fromarray((255 * colours).round().astype(np.uint8)))
