"""Resident and streamed batches: the same bits, in the order asked for."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wellcond.data.arrays import ArraySource
from wellcond.data.augment import evaluation
from wellcond.data.cache import open_cache
from wellcond.data.feeds import Resident, Streamed, check_labels, fits, open_feed
from wellcond.data.generated import GeneratedSource
from wellcond.data.readers import Readers
from wellcond.data.sampling import Sampling, evaluation_batches

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return open_cache(GeneratedSource(50, size=16), 16, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_both_feeds_give_the_same_batches(cache, workers):
    sampling = Sampling(length=50, batch_size=8, seed=0)
    chosen = [sampling.indices(t) for t in range(15)]
    resident, streamed = Resident(cache, CPU), Streamed(cache, CPU, workers)
    assert len(resident) == len(streamed) == 50
    both = zip(resident.batches(iter(chosen)), streamed.batches(iter(chosen)), chosen, strict=True)
    for (raw, labels), (other_raw, other_labels), indices in both:
        assert torch.equal(raw, torch.from_numpy(np.asarray(cache.images[indices.numpy()])))
        assert torch.equal(raw, other_raw) and torch.equal(labels, other_labels)
        assert torch.equal(labels, torch.from_numpy(cache.labels)[indices]) and raw.dtype == torch.uint8


def test_parts_of_a_batch_are_read_alone(cache):
    indices = Sampling(length=50, batch_size=8, seed=0).indices(3)
    whole = next(Streamed(cache, CPU).batches([indices]))[0]
    halves = [next(Streamed(cache, CPU).batches([indices.chunk(2)[i]]))[0] for i in range(2)]
    assert torch.equal(torch.cat(halves), whole)


def test_evaluation_covers_the_set_in_order(cache):
    feed = open_feed(cache, "cpu", "no", workers=2)
    found = list(feed.batches(evaluation_batches(len(feed), 16)))
    assert [len(raw) for raw, _ in found] == [16, 16, 16, 2]
    assert torch.equal(torch.cat([labels for _, labels in found]), torch.from_numpy(cache.labels))
    assert evaluation(found[0][0], 16, (0.5,) * 3, (0.25,) * 3).shape == (16, 3, 16, 16)


def test_streaming_reads_ahead_but_not_without_end(cache):
    asked = []

    def endless():
        t = 0
        while True:
            asked.append(t)
            yield torch.arange(4)
            t += 1

    batches: Any = Streamed(cache, CPU, workers=2).batches(endless())
    next(batches)
    assert len(asked) <= 5
    batches.close()


# processes


@pytest.fixture
def started(monkeypatch):
    """The reading processes that were started."""
    found: list[subprocess.Popen[bytes]] = []
    start = Readers._started
    monkeypatch.setattr(Readers, "_started", lambda self: found.append(start(self)) or found[-1])
    return found


def alive(number: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def ended(numbers, seconds=10.0) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, numbers)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(alive, numbers))


def forever():
    while True:
        yield torch.arange(4)


def test_images_are_read_in_processes_of_their_own_that_end_with_the_batches(cache, started):
    batches: Any = Streamed(cache, CPU, workers=3).batches(forever())
    next(batches)
    assert len({process.pid for process in started} - {os.getpid()}) == 3
    batches.close()
    assert ended([process.pid for process in started])
    assert not any(thread.name.startswith("wellcond-carry") for thread in threading.enumerate())


def test_one_batch_takes_one_process_and_none_takes_none(cache, started):
    assert list(Streamed(cache, CPU, workers=8).batches([])) == [] and not started
    ((raw, labels),) = Streamed(cache, CPU, workers=8).batches([torch.tensor([49, 0, 49])])
    assert len(started) == 1 and started[0].returncode is not None
    assert torch.equal(raw, torch.from_numpy(np.asarray(cache.images[[49, 0, 49]])))
    assert torch.equal(labels, torch.from_numpy(cache.labels[[49, 0, 49]]))
    ((raw, labels),) = Streamed(cache, CPU).batches([torch.arange(0)])
    assert raw.shape == (0, 3, 16, 16) and labels.shape == (0,)


def test_a_batch_is_not_changed_by_later_ones_in_its_slot(cache):
    chosen = [torch.tensor([i, 49 - i]) for i in range(25)]
    kept = list(Streamed(cache, CPU, workers=1).batches(chosen))
    for (raw, _), rows in zip(kept, chosen, strict=True):
        assert torch.equal(raw, torch.from_numpy(np.asarray(cache.images[rows.numpy()])))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_that_ask_a_run_to_stop_leave_the_readers_alone(cache, started, number):
    batches: Any = Streamed(cache, CPU, workers=2).batches(forever())
    next(batches)
    for process in started:
        process.send_signal(number)
    for _ in range(20):
        next(batches)
    assert [process.poll() for process in started] == [None, None]
    batches.close()


def test_a_reader_that_was_killed_ends_the_batches_with_one_line(cache, started):
    batches = Streamed(cache, CPU, workers=2).batches(forever())
    next(batches)
    started[1].kill()
    with pytest.raises(ChildProcessError, match=r"reads images of procedural has ended \(signal 9\); .* again$"):
        list(itertools.islice(batches, 20))
    assert ended([process.pid for process in started])


@pytest.mark.parametrize("early", [True, False])
def test_a_file_that_became_shorter_is_told(early, tmp_path):
    """Before or after it was opened to be read; else its images would be shifted."""
    cache = open_cache(GeneratedSource(6, size=16), 16, tmp_path)
    file = cache.folder / "images.npy"
    if early:
        os.truncate(file, file.stat().st_size - 700)
    readers = Readers(cache, count=1, slots=1, size=6)
    if not early:
        os.truncate(file, file.stat().st_size - 700)
    with closing(readers):
        readers.ask(0, np.arange(6))
        with pytest.raises(ChildProcessError, match=r"EOFError: the file of decoded images is shorter"):
            readers.wait(0)


@pytest.mark.parametrize("lost", [7, 700, 3000])
def test_a_file_that_was_shorter_already_is_told(lost, tmp_path):
    """An evaluation opens it anew each time: rows counted from its end would be other pixels, without a word."""
    cache = open_cache(GeneratedSource(6, size=16), 16, tmp_path)
    os.truncate(cache.folder / "images.npy", (cache.folder / "images.npy").stat().st_size - lost)
    with pytest.raises(ChildProcessError, match=r"EOFError: the file of decoded images is shorter"):
        list(Streamed(cache, CPU, workers=1).batches([torch.arange(6)]))


def test_the_reason_of_a_reader_goes_to_who_waits_for_it(tmp_path, started):
    """Its last words can be read once; asking it for more had taken them, and the run was told an exit status."""
    cache = open_cache(GeneratedSource(6, size=16), 16, tmp_path)
    with closing(Readers(cache, count=1, slots=3, size=6)) as readers:
        readers.ask(0, np.arange(6))
        readers.wait(0)
        os.truncate(cache.folder / "images.npy", 1000)
        readers.ask(1, np.arange(6))
        started[0].wait()
        readers.ask(2, np.arange(6))
        with pytest.raises(ChildProcessError, match="EOFError"):
            readers.wait(1)


def test_readers_end_with_a_run_that_was_killed(tmp_path):
    """Also: the script has no `if __name__ == "__main__"`, which multiprocessing would ask of it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import itertools, sys, torch\n"
        "from pathlib import Path\n"
        "from wellcond.data.cache import open_cache\n"
        "from wellcond.data.feeds import Streamed\n"
        "from wellcond.data.generated import GeneratedSource\n"
        "cache = open_cache(GeneratedSource(8, size=16), 16, Path(sys.argv[1]))\n"
        "for _ in Streamed(cache, torch.device('cpu'), 2).batches(itertools.repeat(torch.arange(4))):\n"
        "    print('batch', flush=True)\n"
    )
    run = subprocess.Popen([sys.executable, script, tmp_path], stdout=subprocess.PIPE)
    assert run.stdout is not None and run.stdout.readline() == b"batch\n"
    readers: list[int] = []
    until = time.monotonic() + 30
    while len(readers) != 2 and time.monotonic() < until:  # Linux may leave one out while another starts
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        readers = [int(n) for n in children if b"reader.py" in Path(f"/proc/{n}/cmdline").read_bytes()]
    assert len(readers) == 2
    run.kill()
    run.wait()
    run.stdout.close()
    assert ended(readers)


@pytest.mark.parametrize("closed", [1, 3])
def test_a_process_without_standard_files_streams(closed, tmp_path):
    """As a daemon, or after `<&-`: the first files that are opened take their numbers."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, torch\n"
        "from pathlib import Path\n"
        "from wellcond.data.cache import open_cache\n"
        "from wellcond.data.feeds import Streamed\n"
        "from wellcond.data.generated import GeneratedSource\n"
        "cache = open_cache(GeneratedSource(8, size=16), 16, Path(sys.argv[1]))\n"
        "os.closerange(0, int(sys.argv[2]))\n"
        "((raw, labels),) = Streamed(cache, torch.device('cpu'), 1).batches([torch.arange(8)])\n"
        "assert torch.equal(raw, torch.from_numpy(cache.images))\n"
    )
    assert subprocess.run([sys.executable, script, tmp_path, str(closed)]).returncode == 0


def test_readers_end_though_a_forked_process_keeps_their_pipe_open(cache, started):
    """As the workers of a user's DataLoader do; closing waited until they had ended."""
    batches: Any = Streamed(cache, CPU, workers=1).batches(forever())
    next(batches)
    (process,) = started
    assert process.stdin is not None
    held = os.dup(process.stdin.fileno())  # what a fork holds
    closing = threading.Thread(target=batches.close)
    closing.start()
    closing.join(10)
    stuck = closing.is_alive()
    os.close(held)
    closing.join()
    assert not stuck and process.returncode is not None


def test_a_reader_that_hangs_holds_nobody_up(cache, started):
    """As with a network disk that does not answer: the second Ctrl-C ends a run at once."""
    batches: Any = Streamed(cache, CPU, workers=1).batches(forever())
    next(batches)
    (process,) = started
    process.send_signal(signal.SIGSTOP)
    closing = threading.Thread(target=batches.close)
    closing.start()
    closing.join(10)
    stuck = closing.is_alive()
    process.send_signal(signal.SIGCONT)
    closing.join()
    assert not stuck and process.returncode is not None


@pytest.mark.parametrize(
    ("chosen", "error", "words"),
    [
        ([torch.zeros(2)], TypeError, "int64 indices, not float32"),
        ([torch.zeros(2, 2, dtype=torch.int64)], TypeError, "shape"),
        ([torch.tensor([0, 50])], IndexError, "images 0 to 50 of procedural are asked for, which has 50"),
        ([torch.tensor([-1])], IndexError, "images -1 to -1"),
        ([torch.arange(2), torch.arange(3)], ValueError, "the first must be the largest"),
    ],
)
def test_what_cannot_be_read_is_refused(cache, chosen, error, words):
    with pytest.raises(error, match=words):
        list(Streamed(cache, CPU).batches(chosen))


def test_which_feed(cache, monkeypatch):
    assert isinstance(open_feed(cache, "cpu"), Resident)
    assert isinstance(open_feed(cache, "cpu", "no"), Streamed)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    assert fits(400, torch.device("cuda")) and not fits(401, torch.device("cuda"))


def test_labels_and_classes_are_checked(cache, tmp_path):
    check_labels(cache, 10)
    check_labels(cache, 12)
    with pytest.raises(ValueError, match="procedural has 10 classes, but the model has 4"):
        check_labels(cache, 4)
    unlabelled = ArraySource("bare", np.zeros((3, 8, 8), np.uint8), np.full(3, -1), ())
    with pytest.raises(ValueError, match=r"bare has no labels; .* in the folder of its class"):
        check_labels(open_cache(unlabelled, 8, tmp_path), 10)
    partly = ArraySource("partly", np.zeros((3, 8, 8), np.uint8), np.array([0, -1, 1]), ())
    with pytest.raises(ValueError, match="1 images without a label"):
        check_labels(open_cache(partly, 8, tmp_path), 10)
