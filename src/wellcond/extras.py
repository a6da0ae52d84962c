"""How to get an extra (optional-dependencies of pyproject.toml). Floor 0: every room may use it.

The package is on no index, where the name may be somebody else's: an extra comes from the checkout.
"""

from pathlib import Path

from .invoked import typed

CHECKOUT = Path(__file__).parents[2]


def install(extra: str) -> str:
    """What to type; `-e` where the package is used as it lies in its checkout, which a copy would come before.

    >>> install("app").endswith("'.[app]'")
    True
    """
    editable = "-e " if (CHECKOUT / "pyproject.toml").is_file() else ""
    return f"in wellcond's checkout say {typed('pip', CHECKOUT)} install {editable}'.[{extra}]'"
