"""A tiny run through the command line: what the tests of `wellcond train` share."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wellcond.cli import main
from wellcond.training import trainer

# 16 px, 2 blocks, 2 epochs of 3 steps
TRAIN = ["train", "procedural-vit", "--data.train=procedural:24", "--data.val=procedural:11", "--device=cpu"]
TRAIN += ["--model.image-size=16", "--data.image-size=16", "--epochs=2", "--batch-size=8", "--monitor-images=2"]
TRAIN += ["--model.options", "embed_dim", "16", "depth", "2", "num_heads", "2", "--log-every=1"]


def trained(out: Path, *words: str) -> Path:
    """A finished run."""
    assert main([*TRAIN, *words, "--out", str(out)]) == 0
    return out


@contextmanager
def terminated(monkeypatch: Any, at: int, by: int = signal.SIGTERM) -> Iterator[None]:
    """The training inside is told to stop before step `at`."""
    advance = trainer.Trainer.advance

    def interrupted(self, stop):
        if self.tally.step == at:
            os.kill(os.getpid(), by)
        return advance(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "advance", interrupted)
        yield
