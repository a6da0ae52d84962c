"""What the names of the numbers mean: one paragraph under the tables, on the terminal and on the page."""

from collections.abc import Sequence

from .album import Album

COUNTS = ("images", "k")
WORDS = {  # of names that do not speak for themselves
    "k": "k: neighbours that vote",
    "rate": "rate: the probe's learning rate, chosen on a part of the training half",
    "miou_multi_scale": "miou_multi_scale: four layers seen by one probe",
    "corloc": "corloc: pictures whose found box overlaps a true one, IoU ≥ 0.5",
    "tied": "tied: pictures whose cut is not unique, where chance decides",
    "explained": "explained: variance in three components",
}


def legend(albums: Sequence[Album]) -> str:
    """What the names of the numbers mean, in one paragraph."""
    names = dict.fromkeys(key.partition("@")[0] for a in albums for values in a.values.values() for key in values)
    plain = [name for name in (*COUNTS, "rate") if name in names]
    but = f", but for {', '.join(plain)}" if plain else ""
    return "; ".join([f"In percent{but}", *(WORDS[name] for name in names if name in WORDS)]) + "."
