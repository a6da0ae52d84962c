"""The only training loop, from one CPU to many nodes. Floor 7.

loop        train: config, run directory → Summary; resumes by itself; beginning: may it, and what it writes first
trainer     one run in flight: steps, rows, checkpoints, rollback
step        one step as a function of its inputs; capture: the same as a CUDA graph; dropping: its dropped paths
records     numbers of steps, fetched without waiting; tally: what the host counts of them
checkpoints whole or not at all; state: what is in them; sharding: whole tensors of sharded ones
processes   torchrun, DDP, FSDP2; signals: stop, save, requeue; surroundings: torch's global state
supply      what is asked of data; feeding: real images; contents: whether they are the same, wherever they lie
models      a config's model; loading: load a run's model; adopting: start from one;
            exported: load what was pushed; fetching: get it from the hub
along       judges while it trains; subjects: a model and pictures for judges; pictures, annotated: those pictures
monitoring  conditioning of every block while it trains; telling: bar, lines, TensorBoard
"""

from wellcond.training.loading import config_of, load
from wellcond.training.loop import Summary, train
from wellcond.training.models import build_model
from wellcond.training.signals import Stopped
from wellcond.training.trainer import Diverged

__all__ = ["Diverged", "Stopped", "Summary", "build_model", "config_of", "load", "train"]
