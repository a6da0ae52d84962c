"""What torchrun starts in test_training: two processes, of which one is killed in the first attempt."""

import os
import sys
from pathlib import Path

import torch
from training_cases import _before, _nth, run, tiny

from wellcond.training import trainer

if __name__ == "__main__":
    torch.set_num_threads(1)
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        trainer.Trainer.advance = _nth(trainer.Trainer.advance, 8, _before)
    run(tiny(), Path(sys.argv[1]))
