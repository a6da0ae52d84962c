"""Train on Slurm through submitit: one task for each GPU, back into the queue until the run is done.

    pip install '.[slurm]'  # in the checkout
    python examples/slurm/submit.py --nodes 2 --processes 8 --hours 24 train imagenet-vit-b --data DIR --out runs/vit-b

After the options comes a `wellcond train` command, which is parsed before it is submitted: a typo is told now, not when
the queue comes to it. The run directory must be on a file system that all nodes see. A minute and a half before its
time is up, or after `scancel --signal=USR2 JOB`, a job ends its step, saves and goes back into the queue; when its turn
comes, it goes on.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import submitit
from submitit.helpers import TorchDistributedEnvironment

from wellcond import cli

REQUEUE = 75  # exit status of a run that was asked to stop and has saved


@dataclass(frozen=True)
class Training:
    """One task: what torchrun would set, then the command."""

    command: tuple[str, ...]

    def __call__(self) -> None:
        # Each task keeps sight of all GPUs of its node: the loop takes the one of its LOCAL_RANK.
        place = TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        # submitit's signal is SIGUSR2; the training loop listens to SIGTERM.
        signal.signal(signal.SIGUSR2, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        status = cli.main(self.command)
        if status == REQUEUE:
            if place.rank == 0 and (job := os.environ.get("SLURM_JOB_ID")):
                subprocess.run(["scontrol", "requeue", job], check=True)
            sys.exit(REQUEUE)  # no exception: submitit writes no result for a job that goes on
        if status:
            raise RuntimeError(f"wellcond {' '.join(self.command)} ended with {status}; its log says why")


def submit(arguments: Sequence[str] | None = None) -> submitit.Job[Any]:
    """Parse, check, submit; the job may be waited for with `job.result()`."""
    parser = argparse.ArgumentParser("submit.py", description="Submit wellcond train to Slurm.")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="of each node, one for each GPU")
    parser.add_argument("--cpus", type=int, default=8, help="of each process")
    parser.add_argument("--hours", type=float, default=24, help="of one turn; the job may take several")
    parser.add_argument("--partition", help="of the cluster; none: its default")
    parser.add_argument("--no-gpu", action="store_true", help="for a trial on CPUs")
    parser.add_argument("--cluster", choices=["slurm", "local"], default="slurm", help="local: here, without Slurm")
    parser.add_argument("--logs", default="slurm-logs", help="folder of the jobs' logs, seen by all nodes")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="train RECIPE …, as after the word wellcond")
    given = parser.parse_args(arguments)
    try:
        if not given.command or cli.parse(*given.command) is None:
            parser.error("name the command to submit: train procedural-vit --out runs/x")
    except (cli.Mistake, ValueError) as error:
        parser.error(str(error))

    executor = submitit.AutoExecutor(folder=given.logs, cluster=given.cluster)
    executor.update_parameters(
        name="wellcond",
        nodes=given.nodes,
        tasks_per_node=given.processes,
        gpus_per_node=0 if given.no_gpu else given.processes,
        cpus_per_task=given.cpus,
        timeout_min=max(1, round(60 * given.hours)),
        slurm_partition=given.partition,
    )
    job = executor.submit(Training(tuple(given.command)))
    print(f"job {job.job_id}; its log: {job.paths.stderr}")
    return job


if __name__ == "__main__":
    submit()
