"""The command `wellcond`: parse → config → one call. Floor 10.

Exit status: 0 done, 1 a finding over the user's threshold, 2 a mistake in the input, told in one line on
stderr; `train` has more (recipes/starting.py). The verbs are in `verbs.py`. The overview is plain text, so
`wellcond --help` imports nothing; a verb's own help comes from tyro, and torch is imported only when work begins.
"""

import difflib
import errno
import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from . import __version__
from .verbs import VERBS

_REMEDY = {
    errno.ENOENT: "check the path",
    errno.EACCES: "choose a place that you may read and write",
    errno.EPERM: "choose a place that you may read and write",
    errno.EROFS: "choose a place that you may write with --out",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EEXIST: "a part of the path is a file, not a folder",
    errno.ENOSPC: "free some space or choose another --out",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit with ulimit -n; in training fewer --data.workers need fewer, too",
}


class Mistake(Exception):
    """The user's input is wrong; the message is the one line to print."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # κ and ∞ on a terminal that has neither: "?" instead of a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # on a busy machine threads that spin keep others from working
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return _dispatch(arguments)
    except (Mistake, ValueError) as error:  # ValueError is for users throughout the package
        return _complain(str(error))
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as ended:  # of rich, which has done the same, but with 1: a finding
        if isinstance(ended.__context__, BrokenPipeError):
            return 0
        raise
    except MemoryError as error:
        return _complain(f"too little memory{f' ({error})' if str(error) else ''}; choose smaller or fewer pictures")
    except OverflowError as error:  # of a config.json; the command line takes no such number
        return _complain(f"a number is too large ({error}); choose a smaller one")
    except OSError as error:
        return _complain(_describe(error))
    except KeyboardInterrupt:
        return 130


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        raise Mistake(f"nothing to do; say one of {', '.join(VERBS)}, or wellcond --help")
    name, *rest = arguments
    if name == "help" and rest:
        return _dispatch([rest[0], "--help"])
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if name == "--version":
        print(f"wellcond {__version__}")
        return 0
    config = parse(name, *rest)
    if config is None:  # help was asked for
        print(f"example:\n  {VERBS[name].example}")
        return 0
    module = VERBS[name].module.format(what=getattr(config, "what", ""))
    status = import_module(f"{__package__}.{module}").run(config)
    return status if isinstance(status, int) else 0


def parse(name: str, *arguments: str) -> Any:
    """The config that a command line stands for, without running it; None when its help was asked for.

    >>> parse("gray", "photo.jpg", "--method", "svd").epsilon
    0.95
    """
    if name not in VERBS:
        kind = "option" if name.startswith("-") else "verb"
        raise Mistake(f"unknown {kind} {name!r}; {_nearest(name, [*VERBS, '--help', '--version'])}")
    return _parse(name, list(arguments))


def _overview() -> str:
    """It fits a terminal of 80 columns and 24 to 40 lines."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    return (
        "usage: wellcond VERB [options]\n\n"
        "See and fix the conditioning of vision transformers and of what they are fed.\n\n"
        f"verbs:\n{verbs}\n\n"
        "options:\n  -h, --help  this text; wellcond VERB --help: its options, and an example\n"
        "  --version   the version\n\n"
        "example:\n"
        "  wellcond diagnose vit_tiny_patch16_224    on drawn pictures; yours: --data DIR"
    )


def _parse(name: str, arguments: list[str]):
    """The verb's config, or None when its help was asked for."""
    from . import parsing

    if any(a == "" or (a.startswith("--") and a.endswith("=")) for a in arguments):  # "" as a path is this folder
        raise Mistake(f"{name}: an argument is empty; write its value, or '.' for this folder")
    try:
        if not VERBS[name].config:
            return import_module(f"{__package__}.{VERBS[name].module}").parse(arguments)
        return parsing.parse(getattr(import_module(".config", __package__), VERBS[name].config), name, arguments)
    except parsing.UnknownArguments as error:
        option = next((a for a in error.unknown if a.startswith("-")), error.unknown[0])
        raise Mistake(f"{name}: unknown argument {option!r}; {_nearest(option, error.options, see=name)}") from None
    except parsing.MissingArgument:
        raise Mistake(f"{name} needs {VERBS[name].needs}") from None
    except parsing.BadArguments as error:
        said = str(error)
        raise Mistake(
            f"{name}: {said}" if said.endswith("?") else f"{name}: {said}; see wellcond {name} --help"
        ) from None


def _nearest(word: str, known: Sequence[str], see: str = "") -> str:
    known = [k for k in known if k != word]  # an option after a bare -- is none
    word = word.split("=")[0].lower()
    near = [k for k in known if len(word) > 2 and k.startswith(word)]
    near = near or [k for k in known if k.endswith(f".{word.lstrip('-')}")]  # --lr for --optim.lr
    bare = {k.lstrip("-"): k for k in known}  # two dashes alike would make any two words alike
    near = near or [bare[k] for k in difflib.get_close_matches(word.lstrip("-"), bare, n=1)]
    command = f"wellcond {see} --help" if see else "wellcond --help"
    return f"did you mean {near[0]!r}?" if near else f"see {command}"


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error)
    where = f" {str(error.filename)!r}" if error.filename is not None else ""
    remedy = _REMEDY.get(error.errno or 0, "")
    return f"{reason}{where}{'; ' + remedy if remedy else ''}"


def _warn(message: Warning | str, *_place: Any) -> None:
    """A warning is for the user: one line, without the place in the code."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _complain(message: str) -> int:
    line = " ".join(message.split())  # one line, whatever the message held
    print(f"wellcond: {line}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
