"""A process of `abreast.py`: a config, then variants and seeds come in, a line of JSON each; [run, mistake] goes out.

Its standard output is for the answers alone; whatever else is printed goes to its standard error.
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator

from ..config import ReproduceConfig, from_json
from . import claim_of
from .assembling import origin_here, run_of
from .portions import Key


def main() -> None:
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        config = from_json(json.loads(sys.stdin.readline()), ReproduceConfig)
        claim = claim_of(config)
        origin = origin_here(claim)
        for variant, seed in asked():
            try:
                answer = run_of(claim, variant, seed, config.quick, origin) | {"jobs": config.jobs}, ""
            except ValueError as mistake:
                answer = None, str(mistake)
            print(json.dumps(answer), file=answers, flush=True)


def asked() -> Iterator[Key]:
    """What is to be measured, until the input ends; where that is during a run, the run is asked to stop."""
    lines: queue.Queue[str] = queue.Queue()
    turn = threading.Lock()
    working = ended = False

    def listen() -> None:
        nonlocal ended
        for line in sys.stdin:
            lines.put(line)
        with turn:
            ended = True
            if working:
                os.kill(os.getpid(), signal.SIGTERM)
        lines.put("")

    threading.Thread(target=listen, daemon=True).start()
    while line := lines.get():
        with turn:
            if ended:
                return
            working = True
        variant, seed = json.loads(line)
        yield variant, seed
        with turn:
            working = False


if __name__ == "__main__":
    main()
