"""A diagnosis or verification ⇄ JSON, exactly: a line for each row, so that two files can be compared line by line."""

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar, Self

from wellcond.atomic import write_bytes
from wellcond.config import decode
from wellcond.results import by_lines


class Stored:
    """A dataclass that is written to a file and read again; `FORMAT` is what the file calls itself."""

    FORMAT: ClassVar[str]  # "wellcond diagnosis 1"
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def as_json(self) -> str:
        """The text that `to_json` writes and `from_json` reads."""
        content = {"format": self.FORMAT, **dataclasses.asdict(self)}
        lists = [name for name, of in content.items() if isinstance(of, list) and of and isinstance(of[0], dict)]
        return by_lines(content, one_a_line=lists)

    def to_json(self, path: Path | str) -> Path:
        """Write the whole of it, or nothing; returns where it is. `from_json` gives an equal one back."""
        write_bytes(Path(path), self.as_json().encode())
        return Path(path)

    @classmethod
    def from_json(cls, path_or_text: Path | str) -> Self:
        """From a file or from its text (what begins with a brace); ValueError naming the file and the field."""
        what = cls.FORMAT.split()[1]
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
        if value["format"] != cls.FORMAT:
            told = str(value["format"])[:60]
            raise ValueError(f"{where} has format {told!r}; this version reads {cls.FORMAT!r}; diagnose again")
        del value["format"]
        try:
            return decode(value, cls, what)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}, which is no JSON; a number that is not finite must be null")
