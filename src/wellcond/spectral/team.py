"""One thread for each matrix: a batch over the threads that torch computes with on the CPU.

torch decomposes a batch one matrix after the other, each with all threads. But LAPACK's threads gain little on matrices
of some hundred rows and lose on smaller ones, so a batch is better cut into parts, one for each thread, and a single
matrix of moderate size is better left to one.

The threads are those of the OpenMP library that torch has loaded, called through `ctypes`: after each of torch's own
calls they wait actively for some milliseconds, so threads of Python's would share the cores with them. How many of them
a call may take is a setting of the calling thread; it is put back, and no other thread sees it. Where torch has loaded
another library (macOS, Windows), a batch is one part and threads are left alone.

In a part only torch may multiply and decompose: numpy's BLAS does not know these threads and may hang.
"""

import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Found = TypeVar("Found")
FOR_ONE = 192  # up to so many rows or columns LAPACK's own threads are worth little
_WORTH = 6400  # m² of all matrices, m = min(n, d), from which on several threads save more than they cost: some 0.2 ms
_Callback = ctypes.CFUNCTYPE(None)  # GOMP_parallel passes a pointer, which nobody reads


def size() -> int:
    """How many parts can be computed at once: torch's threads, where they can be asked."""
    return torch.get_num_threads() if _library() is not None else 1


def worth(B: int, m: int) -> bool:
    """Are B matrices with m = min(n, d) better shared out? Large ones, fewer than threads, are left to all together."""
    return B > 1 and B * m * m >= _WORTH and size() > 1 and (m <= FOR_ONE or size() <= B)


def parts(X: Tensor) -> list[Tensor]:
    """Matrices X (B, n, d) cut for `each`, if that is worth it."""
    B, n, d = X.shape
    return list(X.chunk(size())) if worth(B, min(n, d)) else [X]


def each(work: Callable[[Tensor], Found], parts: list[Tensor], alone: bool = False) -> list[Found]:
    """`work` of each part, in one thread. A single part has all of them, unless it shall be `alone`.

    >>> each(torch.neg, [torch.ones(2), torch.ones(1)])
    [tensor([-1., -1.]), tensor([-1.])]
    """
    library = _library()
    if library is None or (len(parts) == 1 and not alone):
        return [work(part) for part in parts]
    found: list[Any] = [None] * len(parts)
    (_together if len(parts) > 1 else _alone)(work, enumerate(parts), found, library)
    return found


def joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _together(
    work: Callable[[Tensor], Found], places: Iterable[tuple[int, Tensor]], found: list[Found], library: ctypes.CDLL
) -> None:
    """`_alone` in as many threads as there are parts.

    No exception may leave what a thread calls: its caller is no Python and would only print it. A Ctrl-C is raised at
    the first step of Python's after it, so already at the first of a function, before any `try`. A generator is within
    its `try` before the thread comes, and goes on from there without such a step.
    """
    places = list(places)
    waiting = iter(places)  # for all of them: fewer threads may come than were asked for
    errors: list[BaseException] = []

    def work_off() -> Iterator[None]:
        try:
            yield
            _alone(work, waiting, found, library)
        except GeneratorExit:  # its thread has not come
            return
        except BaseException as error:
            errors.append(error)
        yield

    threads = [work_off() for _ in places]
    for thread in threads:
        next(thread)
    library.GOMP_parallel(_Callback(map(next, threads).__next__), None, len(threads), 0)
    if errors:
        raise errors[0]


def _alone(
    work: Callable[[Tensor], Found], places: Iterable[tuple[int, Tensor]], found: list[Found], library: ctypes.CDLL
) -> None:
    """`found[place]` of each part; what the calling thread asks of torch meanwhile is computed by it alone.

    A Ctrl-C may come as any of these calls returns.
    """
    torch.get_num_threads()  # torch sets this thread up at the first call, which would undo what follows
    before, before_mkl = library.omp_get_max_threads(), 0  # 0: MKL asks its general setting
    try:
        before_mkl = library.MKL_Set_Num_Threads_Local(1)
        library.omp_set_num_threads(1)
        for place, part in places:
            found[place] = work(part)
    finally:
        try:
            library.omp_set_num_threads(before)
        finally:
            library.MKL_Set_Num_Threads_Local(before_mkl)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """torch's library, through which those that it was linked with are found, if they are GNU's OpenMP and MKL."""
    try:
        library = ctypes.CDLL(torch._C.__file__)
    except OSError:
        return None
    needed = ("GOMP_parallel", "omp_get_max_threads", "omp_set_num_threads", "MKL_Set_Num_Threads_Local")
    return library if all(hasattr(library, name) for name in needed) else None
