"""Something that is wrong on this machine, and what to do about it."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One line, and one that helps; fatal: wellcond cannot work."""

    text: str
    remedy: str
    fatal: bool = False
