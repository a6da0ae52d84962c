"""Measure one claim of the papers on this machine and read the verdict.

"Always Skip Attention" says that the output of attention is far worse conditioned than its sum with the skip. The
quick version takes random weights, few pictures and two seeds; `wellcond reproduce asa-kappa` is the whole one.
"""

import json
from pathlib import Path

from wellcond.cli import main

OUT = Path("example-results")

if main(["reproduce", "asa-kappa", "--quick", "--seeds", "2", "--out", str(OUT)]) != 0:
    raise SystemExit("it said why")

claim = json.loads((OUT / "asa-kappa.json").read_text())
print("\nThat was the quick version, too small to judge by: README has the whole one, with its verdict.")
print("the paper says:", claim["says"])
print("what is smaller here:", claim["scaled_down"])
print("measured with:", claim["command"])
