"""A folder of photographs as a source. Floor 6.

If every picture lies in a folder of its own inside, those folders are the classes (torchvision's ImageFolder
counts them the same way: sorted by name). Tiny-ImageNet's val/ has a list of them instead: val_annotations.txt.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .files import find_images, read_image
from .ours import leftovers
from .records import Record, refuse_extras


class FolderSource:
    """The images under `folder`, sorted by path; `unreadable` names folders inside that may not be read, `leftovers`
    what `wellcond gray` wrote beside the images, which is not counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.title = f"folder:{folder.resolve().name}"
        self.unreadable: list[str] = []
        found = find_images(folder, self.unreadable)
        self.leftovers = leftovers(found)
        ours = set(self.leftovers)
        self.paths = [path for path in found if path not in ours]
        self.fingerprint, kinds = _listed(folder, self.paths)
        kinds = kinds or _by_folder(folder, self.paths)
        names = sorted(set(kinds))
        # a name of bytes that are no text could be written into no file of a run
        self.classes = tuple(os.fsencode(name).decode(errors="replace") for name in names)
        numbers = {name: number for number, name in enumerate(names)}
        self._labels = np.array([numbers[kind] for kind in kinds], np.int64) if kinds else None

    def __len__(self) -> int:
        return len(self.paths)

    def labels(self) -> NDArray[np.int64] | None:
        return self._labels

    def records(self, indices: Sequence[int], extras: Sequence[str] = ()) -> Iterator[Record]:
        refuse_extras(self.title, extras, ())
        for index in indices:
            path = self.paths[index]
            yield Record(
                index=index,
                name=str(path.relative_to(self.folder)),
                label=None if self._labels is None else int(self._labels[index]),
                read=partial(read_image, path),
            )


def _by_folder(folder: Path, paths: Sequence[Path]) -> list[str]:
    """The class of each picture; none where one lies in no folder."""
    parts = [path.relative_to(folder).parts for path in paths]
    return [part[0] for part in parts] if all(len(part) > 1 for part in parts) else []


def _listed(folder: Path, paths: Sequence[Path]) -> tuple[str, list[str]]:
    """What Tiny-ImageNet's list says, and the class of each picture; none where it does not name them all.

    A line is a picture's name, its class and a box.
    """
    try:
        text = (folder / "val_annotations.txt").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "", []
    known = {words[0]: words[1] for line in text.splitlines() if len(words := line.split()) > 1}
    kinds = [known.get(path.name, "") for path in paths]
    return (text, kinds) if all(kinds) else ("", [])
