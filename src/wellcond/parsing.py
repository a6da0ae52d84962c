"""Options → config dataclass, through tyro, with mistakes as exceptions instead of boxes. Floor 0.

tyro prints a framed message and exits; here the frame is captured and its first paragraph becomes the
message of one exception, so that the command line can say it in one line. Unknown options come through
tyro's public `return_unknown_args`, so that we can name the nearest known one.
"""

import contextlib
import difflib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import tyro

Config = TypeVar("Config")


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
        print(help_text(kind, verb, default), end="")
        return None
    options = ["--help", *option_names(kind, default)]
    if unknown := _unknown_options(arguments, options):  # before tyro, which would first miss something else
        raise UnknownArguments(unknown, options)
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught), _wide():
            config, unknown = _run_tyro(kind, verb, arguments, default)
    except SystemExit:
        message = _first_paragraph(caught.getvalue())
        if own := re.fullmatch(r"Error parsing (?!-)[\w.]+: (.*)", message):  # a config's own check, with its remedy
            raise ValueError(own[1]) from None
        raise (MissingArgument if message.startswith("Missing from") else BadArguments)(_plain(message)) from None
    if unknown:
        raise UnknownArguments(unknown, options)
    return config


def _unknown_options(arguments: list[str], options: list[str]) -> list[str]:
    """Long options that there are not; tyro takes --patch_size for --patch-size."""
    given = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return [a for a in given if a.startswith("--") and a.split("=")[0].replace("_", "-") not in options]


def help_text(kind: type[Config], verb: str, default: Config | None = None) -> str:
    """tyro's help. tyro does not look at NO_COLOR, but writes plainly into what is no terminal."""
    shown = io.StringIO()
    plain = contextlib.redirect_stdout(shown) if os.environ.get("NO_COLOR") else contextlib.nullcontext()
    with plain, contextlib.suppress(SystemExit):
        _run_tyro(kind, verb, ["--help"], default)
    return _without_colour(shown.getvalue())


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
    def optional(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec | None:
        for kind, metavar in ((Path, "PATH"), (int, "INT"), (float, "FLOAT"), (str, "STR")):
            if info.type == kind | None:
                return tyro.constructors.PrimitiveConstructorSpec(
                    nargs=1,
                    metavar=metavar,
                    instance_from_str=lambda words, kind=kind: _or_none(words[0], kind),
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


def _or_none(word: str, kind: type) -> Any:
    return None if word.lower() == "none" and kind is not Path else kind(word)


def _bool_or_contrast(word: str) -> bool | str:
    """True and False in any case: `--rescale false` is what people type."""
    values: dict[str, bool | str] = {"true": True, "false": False, "contrast": "contrast"}
    if word.lower() not in values:
        raise ValueError(f"{word!r} is none of True, False, contrast")
    return values[word.lower()]


@contextlib.contextmanager
def _wide(columns: int = 2000) -> Iterator[None]:
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


def _without_colour(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _first_paragraph(framed: str) -> str:
    """The text of tyro's frame up to the rule under it; without UTF-8 the frame is a title over rules of "-".

    >>> _first_paragraph("╭─ Value ─╮\\n│ bad  │\\n│  x   │\\n│ ──── │\\n│ help │\\n╰──────╯")
    'bad x'
    >>> _first_paragraph("  Value\\n  -----\\n  bad\\n  -----\\n  help")
    'bad'
    """
    rows = [line.strip().strip("│").strip() for line in _without_colour(framed).splitlines()]
    text: list[str] = []
    for row in rows[1:]:
        if not set(row) <= set("─-╰╯ "):
            text.append(row)
        elif text:
            break
    message = re.sub(r"\s*\(required\)", "", " ".join(" ".join(text).split()))
    return message.rstrip(".") or "the arguments could not be read"


def _plain(message: str) -> str:
    """tyro's and Python's words in ours.

    >>> _plain("Error parsing --size: invalid literal for int() with base 10: 'big'")
    "--size is 'big', not a whole number"
    >>> _plain("Missing value for argument '--size'. Expected 1 values")
    '--size needs a value'
    >>> _plain("Missing value for argument '--betas'. Expected 2 values")
    '--betas needs 2 values'
    >>> _plain("invalid choice 'discovry' for argument '--with'. Expected one of ('knn', 'discovery')")
    "--with is 'discovry'; did you mean 'discovery'?"
    >>> _plain("invalid choice 'tpu' for argument '--device'. Expected one of ('cpu', 'cuda')")
    "--device is 'tpu'; choose one of cpu, cuda"
    """
    if wrong := re.fullmatch(r"Error parsing (--\S+): (invalid literal for int|could not convert).*?: ('.*')", message):
        option, cause, value = wrong.groups()
        return f"{option} is {value}, not a {'whole number' if 'int' in cause else 'number'}"
    if missing := re.fullmatch(r"Missing value for argument '(--\S+)'\. Expected (\d+|.*) values", message):
        return f"{missing[1]} needs {missing[2]} values" if missing[2] in "23456789" else f"{missing[1]} needs a value"
    if wrong := re.fullmatch(r"Error parsing (--\S+): Could not find valid parse for arguments: \[(.*)\]", message):
        return f"{wrong[1]} is {wrong[2]}, which cannot be read"
    if wrong := re.fullmatch(r"invalid choice (.*) for argument '(.*?)'\. Expected one of (\(.*\))", message):
        value, option, known = wrong[1], wrong[2], re.findall(r"'([^']*)'", wrong[3])
        near = difflib.get_close_matches(value.strip("'").lower(), known, n=1, cutoff=0.7)
        return f"{option} is {value}; " + (
            f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"
        )
    return message


def option_names(kind: type[Config], default: Config | None = None) -> list[str]:
    """The long options of a config class, as tyro lists them.

    >>> from wellcond.config import DemoConfig
    >>> option_names(DemoConfig)
    ['--out', '--count', '--size', '--seed', '--quick']
    """
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit), _wide(100):
        _run_tyro(kind, "", ["--help"], default)
    rows = re.findall(r"^[│| ]{0,4}(?:-h, )?(--[a-z].*)$", _without_colour(shown.getvalue()), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"(?:^|, )(--[a-z][a-z0-9.-]*)", row)]
    return [name for name in names if name != "--help"]
