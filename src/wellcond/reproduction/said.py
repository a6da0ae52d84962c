"""What judges have said of a finished run, kept in its directory: a portion that ends in the middle of a look at all
layers loses one judge, not the look.

An answer counts for the same question about the same checkpoint, asked of the same code: where the commit is not known,
or files differ from it, every judge is asked anew.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import results
from ..atomic import write_bytes
from ..finite import finite
from ..runs import LOOK, Run

Values = dict[str, float]


class Said:
    """Answers of one run. `before` is how many seconds those took that were given in an earlier portion."""

    def __init__(self, out: Path) -> None:
        self.path, self.before = out / LOOK, 0.0
        commit = results.git_commit()
        steps = sorted(path.name for path in Run(out).checkpoints.glob("step-*"))
        self.of = {"commit": commit, "versions": results.versions(), "checkpoints": steps}
        self.answers = self._read() if commit and not commit.endswith("+") else {}

    def answer(self, question: Mapping[str, Any], ask: Callable[[], Mapping[str, float]]) -> Values:
        """What was said to the question, else what is said now."""
        asked = json.dumps(finite(question), sort_keys=True, default=str)
        if asked in self.answers:
            self.before += self.answers[asked]["seconds"]
        else:
            began = time.perf_counter()
            values = dict(ask())
            self.answers[asked] = {"values": values, "seconds": time.perf_counter() - began}
            write_bytes(self.path, json.dumps({"of": self.of, "answers": self.answers}, indent=1).encode())
        return self.answers[asked]["values"]

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text())
            return found["answers"] if found["of"] == self.of else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
