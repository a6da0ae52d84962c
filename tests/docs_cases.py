"""What README and the pages of docs/ say to type: blocks of code, and command lines word by word."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

from wellcond.verbs import VERBS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


def commands(page: Path, *kinds: str) -> list[list[str]]:
    """Each line of an `sh` block, which is to be typed, and each behind a prompt of a `console` block, a transcript; of
    both kinds unless one is named, in their order, as words without the comment."""
    found = re.findall(
        rf"^```({'|'.join(kinds) or 'sh|console'})\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
    )
    lines = [(kind, line) for kind, block in found for line in block.splitlines()]
    typed = [line.removeprefix("$ ") for kind, line in lines if kind == "sh" or line.startswith("$ ")]
    return [words for line in typed if (words := shlex.split(line, comments=True))]


def promised(page: Path) -> list[str]:
    """Files and folders that comments beside commands name."""
    lines = "\n".join(blocks(page, "sh"))
    return re.findall(r"# .*?\b((?:runs|results|diagnosis)/[\w./-]*)", lines)


def mentioned(page: Path) -> list[list[str]]:
    """Commands inside sentences; `wellcond VERB` alone is the name of a verb, and … stands for something left out."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"`((?:\.venv/bin/)?(?:wellcond|make|pip|python|torchrun|apt) [^`…]+)`", prose)
    return [words for words in map(shlex.split, found) if len(words) > 2 or words[-1] not in VERBS]


def program(words: list[str]) -> str:
    return Path(words[0]).name


def ours(words: list[str]) -> list[str]:
    """What comes after the word wellcond; torchrun's own options go through its own parser."""
    if program(words) == "wellcond":
        return words[1:]
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(words[1:])
    assert given.module and given.training_script == "wellcond"
    return given.training_script_args


def script(path: str) -> ModuleType:
    """A script of the project as a module, under no name that others could import."""
    found = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
