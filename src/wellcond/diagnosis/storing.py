"""A diagnosis or verification ⇄ JSON, exactly: a line for each row, so that two files can be compared line by line."""

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from wellcond.atomic import write_bytes
from wellcond.config import decode
from wellcond.results import by_lines

Result = TypeVar("Result")


class Stored:
    """A dataclass that is written to a file and read again; `FORMAT` is what the file calls itself."""

    FORMAT: ClassVar[str]

    def as_json(self) -> str:
        """The text that `to_json` writes and `from_json` reads."""
        return text(self, self.FORMAT)

    def to_json(self, path: Path | str) -> Path:
        """Write the whole of it, or nothing; returns where it is. `from_json` gives an equal one back."""
        write_bytes(Path(path), self.as_json().encode())
        return Path(path)

    @classmethod
    def from_json(cls, path_or_text: Path | str) -> Self:
        """From a file or from its text (what begins with a brace); ValueError naming the file and the field."""
        return read(path_or_text, cls, cls.FORMAT)


def text(result: Any, form: str) -> str:
    """`form` is what the file calls itself: "wellcond diagnosis 1"."""
    content = {"format": form, **dataclasses.asdict(result)}
    lists = [key for key, value in content.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    return by_lines(content, one_a_line=lists)


def read(path_or_text: Path | str, kind: type[Result], form: str) -> Result:
    what = form.split()[1]
    is_text = isinstance(path_or_text, str) and path_or_text.lstrip().startswith("{")
    where = "the text" if is_text else repr(str(path_or_text))
    try:
        text = str(path_or_text) if is_text else Path(path_or_text).read_text(encoding="utf-8")
        value = json.loads(text, parse_constant=_refuse)
    except UnicodeDecodeError:
        raise ValueError(f"{where} is no text, so no {what}; give a file that {what}.to_json wrote") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is no JSON ({error}); give a file that {what}.to_json wrote") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not isinstance(value, dict) or "format" not in value:
        raise ValueError(f'{where} holds no {what}: it has no field "format"; give one that to_json wrote')
    if value["format"] != form:
        raise ValueError(
            f"{where} has format {str(value['format'])[:60]!r}; this version reads {form!r}; diagnose again"
        )
    del value["format"]
    try:
        return decode(value, kind, what)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}, which is no JSON; a number that is not finite must be null")
