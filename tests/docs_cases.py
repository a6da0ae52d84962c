"""What README and the pages of docs/ say to type: blocks of code, and command lines word by word."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


def commands(page: Path) -> list[list[str]]:
    """Each line of a shell block, and each line behind a prompt, as words without the comment."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    lines += [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


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
