"""Pictures that `wellcond gray` left beside photos: they are no photos, and would count as some. Floor 6."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

SOFTWARE = "wellcond"  # written into every PNG, so that our own pictures are known again
GRAYED, STRIP = "-grayed", "-strip"
NAMES = f"*{GRAYED}.png, *{STRIP}.png beside a photo"


def leftovers(paths: Sequence[Path]) -> list[Path]:
    """a-grayed.png and a-strip.png beside a picture a: what `wellcond gray` left there."""
    ends = (f"{GRAYED}.png", f"{STRIP}.png")
    named = [p for p in paths if p.name.endswith(ends)]
    if not named:  # as in ImageNet, whose million names need no second look
        return []
    pictures = {p.with_suffix("") for p in paths}
    beside = (p for p in named for end in ends if p.name.endswith(end) and Path(str(p).removesuffix(end)) in pictures)
    return [p for p in beside if is_ours(p)]


def told(source: object) -> str:
    """One line on what a folder of photos holds of ours and does not count; empty where there is nothing."""
    num = len(getattr(source, "leftovers", ()))
    return f"ignored {num} of {getattr(source, 'title', '')} that wellcond gray left there ({NAMES})" if num else ""


def is_ours(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            return image.info.get("Software") == SOFTWARE
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError):
        return False
