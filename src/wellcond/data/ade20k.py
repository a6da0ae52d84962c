"""ADE20K as in the scene-parsing challenge (Zhou et al., 2017): 150 classes; 0 in its masks is "other", void here."""

from functools import partial
from pathlib import Path

from .layouts import LaidOut, mask_beside

NUM_CLASSES = 150
NAMES = {"train": "training", "val": "validation"}


def is_here(folder: Path) -> bool:
    return all((folder / kind).is_dir() for kind in ("images", "annotations")) and any(
        (folder / "images" / name).is_dir() for name in NAMES.values()
    )


def refuse_whole(folder: Path) -> None:
    """ValueError for the whole ADE20K: its masks, pictures beside the pictures, would be taken for some of them."""
    whole = any((folder / "images" / name).is_dir() for name in ("ADE", *NAMES.values()))
    if whole and next(folder.glob("images/**/ADE_*_seg.png"), None):
        raise ValueError(
            f"{str(folder)!r} is the whole ADE20K, with masks of thousands of names; give the challenge's 150 classes, "
            "ADEChallengeData2016"
        )


def open_half(root: Path, half: str) -> LaidOut:
    name = NAMES[half]
    pictures = sorted((root / "images" / name).glob("[!.]*.jpg"))
    masks = root / "annotations" / name
    return LaidOut(
        f"ade20k:{name}",
        pictures,
        masks=partial(mask_beside, masks, first_is_void=True) if masks.is_dir() else None,
        num_segments=NUM_CLASSES,
    )
