"""One process at a time: a lock on a file; the system takes it back with the process, also after kill -9. Floor 0."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

# Of file systems without locks. Any other error is a fault: two that went on all the same could write over each other.
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextmanager
def locked(path: Path, held: Callable[[], None], *, patience: float = 0.0) -> Iterator[bool]:
    """Hold the lock of the file `path`, made if it is missing; False where there are no locks: nobody can be kept out.

    Where another process goes on holding it for `patience` seconds, `held` is called; unless that raises, it is waited
    for.
    """
    with path.open("a") as file:
        yield _taken(file, held, patience)


def _taken(file: IO[str], held: Callable[[], None], patience: float) -> bool:
    if fcntl is None:
        return False
    until, operation = time.monotonic() + patience, fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        try:
            fcntl.flock(file, operation)
            return True
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return False
        if time.monotonic() < until:
            time.sleep(0.01)
        else:
            held()
            operation = fcntl.LOCK_EX  # this one waits
