"""For mkdocstrings: doctests in our docstrings are code, which in Markdown they are only inside a fence."""

import re
from typing import Any

from griffe import Extension

_DOCTEST = re.compile(r"(?:^[ ]*>>> .*\n?(?:^[ ]*\S.*\n?)*)+", re.MULTILINE)


class Doctests(Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""
    >>> fenced("Twice.\n\n>>> twice(2)\n4\n")
    'Twice.\n\n```pycon\n>>> twice(2)\n4\n```\n'
    """
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
