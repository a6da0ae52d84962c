"""A claim, small, through the command line."""

import json
from pathlib import Path

from wellcond.cli import main


def reproduce(claim: str, out: Path, *words, seeds=1):
    """Status and the content of the file, if there is one."""
    runs = [] if "--runs" in words else ["--runs", str(out / "runs")]
    status = main(["reproduce", claim, "--quick", "--seeds", str(seeds), "--out", str(out), *runs, *map(str, words)])
    path = out / f"{claim}.json"
    return status, json.loads(path.read_text()) if path.exists() else {}
