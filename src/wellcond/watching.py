"""Does somebody watch? Bars move only for eyes: not in a log, and not over the pager that reads our output. Floor 0."""

import sys

from rich.console import Console


def watched(console: Console) -> bool:
    """Is it a terminal; and for the one on standard error, where bars are, is standard output one too?"""
    return console.is_terminal and (not console.stderr or sys.stdout.isatty())
