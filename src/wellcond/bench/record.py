"""A results file: what was run, where, on what, every row, and which bars it meets.

Parts are measured in separate runs (a big GPU is seldom free long), so a file is merged: a new run of part
"a" on "cuda" replaces the rows of that part on that device and leaves the others. The file is rewritten,
whole or not at all, after every part.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import results
from .bars import Bar


@dataclass(frozen=True, kw_only=True)
class Record:
    """``results/bench-WHAT.json`` of one run: one command, device and commit for all the parts it adds."""

    what: str
    out: Path
    device: str
    command: str
    quick: bool
    bars: tuple[Bar, ...]
    commit: str | None = None

    @property
    def path(self) -> Path:
        return self.out / f"bench-{self.what}.json"

    def refuse_overwriting(self, parts: list[str]) -> None:
        """A quick run shows that the benchmark works; it must not replace a real measurement."""
        old = self._read()["parts"]
        kept = [p for p in parts if self._key(p) in old and not old[self._key(p)]["quick"]]
        if self.quick and kept:
            raise ValueError(
                f"{str(self.path)!r} holds full measurements of part {', '.join(kept)}: "
                "a quick run would replace them. Give another --out."
            )

    def add(self, part: str, rows: list[dict[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Merge the rows of one part, judge all bars again and rewrite the file. Returns its content."""
        merged = self._read()
        key = self._key(part)
        origin = results.origin(self.command, self.device, self.commit)
        merged["parts"][key] = {
            "part": part,
            "device": self.device,
            "quick": self.quick,
            **origin,
            **settings,
        }
        rows = [{"part": part, "device": self.device, **row} for row in rows]
        others = [r for r in merged["rows"] if (r["part"], r["device"]) != (part, self.device)]
        merged["rows"] = sorted(others + rows, key=lambda r: (r["device"] != "cuda", r["part"]))
        head = {"what": self.what, **origin, "images": settings["images"], "seeds": settings["seeds"]}
        bars = [bar.judge(merged["rows"], merged["parts"]) for bar in self.bars]
        content = {**head, "bars": bars, "parts": merged["parts"], "rows": merged["rows"]}
        return results.write(self.path, content, one_a_line=("bars", "parts", "rows"))

    def _key(self, part: str) -> str:
        return f"{part}-{self.device}"

    def _read(self) -> dict[str, Any]:
        found = results.read(self.path, {"parts", "rows"}, "benchmark")
        return {"parts": {}, "rows": []} if found is None else found
