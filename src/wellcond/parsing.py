"""Options → config dataclass, through tyro, with mistakes as exceptions instead of boxes. Floor 0.

tyro prints a framed message and exits; here the frame is captured and its first paragraph becomes the
message of one exception, so that the command line can say it in one line. Unknown options come through
tyro's public `return_unknown_args`, so that we can name the nearest known one.
"""

import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import tyro

from . import wording

Config = TypeVar("Config")
ONE_FRAME = 120  # columns; on a wider terminal tyro sets frames side by side


class BadArguments(Exception):
    """A value is missing or wrong; the message says which."""


class MissingArgument(BadArguments):
    """The argument without which the verb has nothing to do."""


class UnknownArguments(Exception):
    """Arguments that no option claims, and the options there are."""

    def __init__(self, unknown: list[str], options: list[str]) -> None:
        super().__init__(f"unknown arguments {unknown}")
        self.unknown = unknown
        self.options = options


def parse(kind: type[Config], verb: str, arguments: list[str], default: Config | None = None) -> Config | None:
    """A config of class `kind` from the arguments after the verb; None when they asked for help.

    With `default`, a whole config whose fields may be configs themselves, every option is an override of it.
    """
    if "-h" in arguments or "--help" in arguments:
        print(help_text(kind, verb, default))
        return None
    options = ["--help", *option_names(kind, default)]
    if unknown := _unknown_options(arguments, options):  # before tyro, which would first miss something else
        raise UnknownArguments(unknown, options)
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught), wide():
            config, unknown = _run_tyro(kind, verb, arguments, default)
    except SystemExit:
        message = wording.first_paragraph(caught.getvalue())
        if own := re.fullmatch(r"Error parsing (?!-)[\w.]+: (.*)", message):  # a config's own check, with its remedy
            raise ValueError(own[1]) from None
        nothing_given = re.match(r"Missing from|Missing value for argument '(?!-)", message)
        kind_of = MissingArgument if nothing_given else BadArguments
        raise kind_of(wording.plain(message)) from None
    if unknown:
        raise UnknownArguments(unknown, options)
    return config


def _unknown_options(arguments: list[str], options: list[str]) -> list[str]:
    """Long options that there are not; tyro takes --patch_size for --patch-size."""
    given = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return [a for a in given if a.startswith("--") and a.split("=")[0].replace("_", "-") not in options]


def help_text(kind: type[Config], verb: str, default: Config | None = None) -> str:
    """tyro's help, as wide as the terminal; with bold titles on one that wants them."""
    bold = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return wording.laid_out(_ruled(kind, verb, default), max(40, shutil.get_terminal_size().columns), bold=bold)


def _ruled(kind: type[Config], verb: str, default: Config | None = None) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit), wide(ONE_FRAME):
        _run_tyro(kind, verb, ["--help"], default)
    return shown.getvalue()


def _run_tyro(
    kind: type[Config], verb: str, arguments: list[str], default: Config | None = None
) -> tuple[Config, list[str]]:
    pairs = () if default is not None else (tyro.conf.FlagCreatePairsOff,)  # an override switches off, too
    given: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(
        kind,
        prog=f"wellcond {verb}",
        args=arguments,
        return_unknown_args=True,
        config=(tyro.conf.PositionalRequiredArgs, tyro.conf.PositionalMetavarFromFieldName, *pairs),
        registry=_registry(),
        **given,
    )


def _registry() -> tyro.constructors.ConstructorRegistry:
    """`Path | None`, `int | None`, … read like Path, int, …; the word none, where it is no name of a file, is None."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def whole(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
        if info.type is not int:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda words: _whole(words[0]),
            is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )

    @registry.primitive_rule
    def optional(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec | None:
        for kind, metavar in ((Path, "PATH"), (int, "INT"), (float, "FLOAT"), (str, "STR")):
            read = _whole if kind is int else kind
            if info.type == kind | None:
                return tyro.constructors.PrimitiveConstructorSpec(
                    nargs=1,
                    metavar=metavar,
                    instance_from_str=lambda words, read=read: _or_none(words[0], read),
                    is_instance=lambda value, kind=kind: value is None or isinstance(value, kind),
                    str_from_instance=lambda value: ["none" if value is None else str(value)],
                )
        return None

    @registry.primitive_rule
    def bool_or_contrast(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec | None:
        if info.type != bool | Literal["contrast"]:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="{True,False,contrast}",
            instance_from_str=lambda words: _bool_or_contrast(words[0]),
            is_instance=lambda value: isinstance(value, bool) or value == "contrast",
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _or_none(word: str, read: Callable[[str], Any]) -> Any:
    return None if word.lower() == "none" and read is not Path else read(word)


def _whole(word: str) -> int:
    """Of 64 bits, as the libraries count: what Python takes beyond breaks anywhere in them."""
    number = int(word)
    if abs(number) >= 1 << 63:
        raise ValueError(f"{word if len(word) < 30 else word[:27] + '…'} is too large a number")
    return number


def _bool_or_contrast(word: str) -> bool | str:
    """True and False in any case: `--rescale false` is what people type."""
    values: dict[str, bool | str] = {"true": True, "false": False, "contrast": "contrast"}
    if word.lower() not in values:
        raise ValueError(f"{word!r} is none of True, False, contrast")
    return values[word.lower()]


@contextlib.contextmanager
def wide(columns: int = 2000) -> Iterator[None]:
    """A terminal so wide that the captured message is not wrapped inside a word."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def option_names(kind: type[Config], default: Config | None = None) -> list[str]:
    """The long options of a config class, as tyro lists them.

    >>> from wellcond.config import DemoConfig
    >>> option_names(DemoConfig)
    ['--out', '--count', '--size', '--seed', '--quick']
    """
    return [name for name in wording.options(_ruled(kind, "", default)) if name != "--help"]


def with_value(option: str, value: str, arguments: list[str]) -> list[str]:
    """The arguments with `value` after an `option` that has none: at the end, or before another option.

    >>> with_value("--json", "-", ["vit", "--json", "--seed", "1"]), with_value("--json", "-", ["vit", "--json", "a"])
    (['vit', '--json', '-', '--seed', '1'], ['vit', '--json', 'a'])
    """
    found: list[str] = []
    for i, word in enumerate(arguments):
        bare = word == option and (i + 1 == len(arguments) or arguments[i + 1].startswith("--"))
        found += [word, value] if bare else [word]
    return found
