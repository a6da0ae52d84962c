"""Batched symmetric eigenproblems, by the best solver at hand.

`torch.linalg.eigh` on CUDA loops over matrices larger than 32 (pytorch #174674, #175585; torch 2.11 and older).
cuSOLVER has solved whole batches at once since CUDA 12.6: `cusolverDnXsyevBatched`. The library is already in
the process, loaded by torch, so calling it through `ctypes` needs neither a compiler nor a dependency.

    CPU   LAPACK through torch, matrices of a batch side by side (`team.py`)
    CUDA  cuSOLVER's XsyevBatched if the loaded library has it, else torch

Nothing here waits for the GPU. Each call leaves a small health record (cuSOLVER's info codes, residual and
orthogonality of one matrix) that is read when it has arrived, at a later call; a bad one gives one warning and
sends that device back to torch's solver. A matrix with NaN or inf gets NaN eigenpairs and leaves its neighbours alone.
"""

import ctypes
import functools
import itertools
import math
import threading
import warnings
from collections import deque

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch._subclasses import FakeTensor

from wellcond.spectral import team

_CUDA_TYPE = {torch.float32: 0, torch.float64: 1}  # CUDA_R_32F, CUDA_R_64F
_LOWER, _VALUES, _VECTORS = 0, 0, 1
_MAX_WORKSPACE = 1 << 30  # bytes; larger batches are solved in chunks
_TOLERANCE = 1e3  # in units of eps, times √n; a healthy solve stays far below
_MAX_BATCH = 16_384  # matrices in one call

_lock = threading.Lock()  # a cuSOLVER handle serves one thread at a time
_handles: dict[torch.device, tuple[ctypes.c_void_p, ctypes.c_void_p]] = {}
_calls = itertools.count()
_pending: deque[tuple[torch.cuda.Event, Tensor, torch.device]] = deque()
_retired: set[torch.device] = set()  # devices whose cuSOLVER path has failed


class _CusolverError(RuntimeError):
    """cuSOLVER refused a call; torch's solver takes over."""


def eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (…, n), ascending, and eigenvectors (…, n, n) in columns of symmetric matrices A (…, n, n).

    >>> values, vectors = eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> values
    tensor([1., 3.])
    """
    values, vectors = _solve(A, vectors=True)
    assert vectors is not None
    return values, vectors


def eigvalsh(A: Tensor) -> Tensor:
    """Eigenvalues (…, n), ascending, of symmetric matrices A (…, n, n)."""
    return _solve(A, vectors=False)[0]


def solver_name(device: torch.device | str) -> str:
    """The solver that a call on `device` takes: "lapack", "cusolver-XsyevBatched" or "torch"."""
    device = torch.device(device)
    if device.type == "cpu":
        return "lapack"
    if device.type == "cuda" and _indexed(device) not in _retired and _library() is not None:
        return "cusolver-XsyevBatched"
    return "torch"


def _solve(A: Tensor, vectors: bool) -> tuple[Tensor, Tensor | None]:
    assert A.ndim >= 2 and A.shape[-1] == A.shape[-2], f"square matrices expected, got {tuple(A.shape)}"
    n, batch = A.shape[-1], A.shape[:-2]
    if A.numel() == 0:
        return A.new_empty(*batch, n), A.new_empty(A.shape) if vectors else None
    if A.device.type == "cpu" and is_readable(A) and all_finite(A):
        return _by_torch(A, vectors)
    # LAPACK raises on NaN and cuSOLVER may spin on it: such a matrix is solved as zero and answered with NaN.
    finite = A.isfinite().all(-1).all(-1)[..., None]
    A = torch.where(finite[..., None], A, 0.0)
    if A.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        _report_pending()
    values, V = _by_cusolver(A, vectors) or _by_torch(A, vectors)
    values = torch.where(finite, values, torch.nan)
    return values, None if V is None else torch.where(finite[..., None], V, torch.nan)


def all_finite(X: Tensor) -> bool:
    """Is every entry finite? A finite sum says yes in one pass without a copy; an overflow asks each entry."""
    return math.isfinite(X.sum().item()) or bool(X.isfinite().all())


def is_readable(X: Tensor) -> bool:
    """May Python ask for numbers of X? Not while it is traced, nor for fake tensors, nor inside vmap."""
    if torch.compiler.is_compiling() or isinstance(X, FakeTensor) or _is_recorded():
        return False
    wrapped = torch._C._are_functorch_transforms_active()  # a cheap question; the next is not
    while wrapped and is_functorch_wrapped_tensor(X):  # grad inside vmap wraps what vmap has wrapped
        if is_batchedtensor(X):
            return False
        X = get_unwrapped(X)
    return True


def is_plain(X: Tensor) -> bool:
    """Does X hold its numbers itself? Tensors of tracing and wrapping libraries may not, nor does X.conj().imag."""
    if type(X) not in (Tensor, torch.nn.Parameter) or X.is_neg() or torch.compiler.is_compiling():
        return False
    # the wrappers of torch.func are of type Tensor, too
    return not torch._C._are_functorch_transforms_active() and not _is_recorded()


def _is_recorded() -> bool:
    """Inside `make_fx` (`torch.func.linearize`), which keeps operations and no numbers?"""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def _by_torch(A: Tensor, vectors: bool) -> tuple[Tensor, Tensor | None]:
    if A.device.type == "cpu" and is_plain(A):
        return _by_lapack(A, vectors)
    return torch.linalg.eigh(A) if vectors else (torch.linalg.eigvalsh(A), None)


def _by_lapack(A: Tensor, vectors: bool) -> tuple[Tensor, Tensor | None]:
    """Matrices of a batch side by side; without vectors a small one is quicker in one thread even if it is alone."""
    *batch, n, _ = A.shape
    parts = team.parts(A.reshape(math.prod(batch), n, n))
    if not vectors:
        values = team.joined(team.each(torch.linalg.eigvalsh, parts, alone=n <= team.FOR_ONE))
        return values.reshape(*batch, n), None
    values, V = map(team.joined, zip(*team.each(torch.linalg.eigh, parts), strict=True))
    return values.reshape(*batch, n), V.reshape(A.shape)


def _by_cusolver(A: Tensor, vectors: bool) -> tuple[Tensor, Tensor | None] | None:
    """The solution, or None where cuSOLVER cannot be used: that is said once for each device."""
    if A.device.type != "cuda" or _indexed(A.device) in _retired:
        return None
    if _library() is None:
        _retire(_indexed(A.device), "the loaded library has no XsyevBatched; that of CUDA 12.6 and newer does")
        return None
    try:
        with _lock:
            values, V = _xsyev_batched(A.reshape(-1, *A.shape[-2:]), vectors)
    except _CusolverError as error:
        _retire(_indexed(A.device), str(error))
        return None
    return values.reshape(A.shape[:-1]), None if V is None else V.reshape(A.shape)


def _xsyev_batched(A: Tensor, vectors: bool) -> tuple[Tensor, Tensor | None]:
    """cuSOLVER on contiguous (B, n, n). A symmetric matrix reads the same by rows and by columns; the
    eigenvectors come back by columns, so the row-major view of the result is transposed."""
    library, handle, params = _handle(A.device)
    B, n = A.shape[:2]
    V = A.clone(memory_format=torch.contiguous_format)  # overwritten with the eigenvectors
    values = A.new_empty(B, n)
    info = torch.empty(B, dtype=torch.int32, device=A.device)
    size = A.element_size()
    job = _VECTORS if vectors else _VALUES

    def arguments(first: int):
        kind = _CUDA_TYPE[A.dtype]
        A_first = ctypes.c_void_p(V.data_ptr() + first * n * n * size)
        values_first = ctypes.c_void_p(values.data_ptr() + first * n * size)
        order = ctypes.c_int64(n)
        return handle, params, job, _LOWER, order, kind, A_first, order, kind, values_first, kind

    with torch.cuda.device(A.device):
        _check(library.cusolverDnSetStream(handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))
        chunk, on_device, on_host = _chunk(
            A.device, job, n, A.dtype, B, lambda count: _workspace(library, arguments(0), count)
        )
        work = torch.empty(on_device, dtype=torch.uint8, device=A.device)
        host = _host_workspace(max(on_host, 1))
        for first in range(0, B, chunk):
            count = min(chunk, B - first)
            _check(library.cusolverDnXsyevBatched(
                *arguments(first), ctypes.c_void_p(work.data_ptr()), ctypes.c_size_t(on_device), host,
                ctypes.c_size_t(on_host), ctypes.c_void_p(info.data_ptr() + 4 * first), ctypes.c_int64(count),
            ))  # fmt: skip
        _leave_health_record(A, values, V.mT if vectors else None, info)
    return values, V.mT if vectors else None


_chunks: dict[tuple, tuple[int, int, int]] = {}


def _chunk(device, job, n, dtype, B, workspace) -> tuple[int, int, int]:
    """How many matrices a call may take, and its workspace (bytes on the device, bytes on the host)."""
    key = (device, job, n, dtype, B)
    if key not in _chunks:
        count = min(B, _MAX_BATCH)
        on_device, on_host = workspace(count)
        while on_device > _MAX_WORKSPACE and count > 1:
            count = (count + 1) // 2
            on_device, on_host = workspace(count)
        _chunks[key] = (count, on_device, on_host)
    return _chunks[key]


def _workspace(library: ctypes.CDLL, arguments: tuple, count: int) -> tuple[int, int]:
    on_device, on_host = ctypes.c_size_t(), ctypes.c_size_t()
    _check(library.cusolverDnXsyevBatched_bufferSize(
        *arguments, ctypes.byref(on_device), ctypes.byref(on_host), ctypes.c_int64(count)
    ))  # fmt: skip
    return on_device.value, on_host.value


@functools.cache
def _host_workspace(size: int) -> ctypes.Array:
    """Kept for good: cuSOLVER may still read it after its call has returned."""
    return ctypes.create_string_buffer(size)


def _leave_health_record(A: Tensor, values: Tensor, V: Tensor | None, info: Tensor) -> None:
    """Queue, without waiting: did a solve fail, and how good is one solution (a different one each time)?"""
    if torch.cuda.is_current_stream_capturing():
        return
    eps = torch.finfo(A.dtype).eps
    bad = (info != 0).any()
    if V is not None:
        k = next(_calls) * 7919 % len(A)
        residual = (A[k] @ V[k] - V[k] * values[k]).abs().amax() / A[k].abs().amax().clamp_min(
            torch.finfo(A.dtype).tiny
        )
        defect = (V[k].mT @ V[k]).diagonal().sub(1).abs().amax()
        # `~(<=)` rather than `>`: NaN counts as bad
        bad = bad | ~(torch.maximum(residual, defect) <= _TOLERANCE * eps * max(1.0, A.shape[-1] ** 0.5))
    record = torch.empty((), dtype=torch.bool, pin_memory=True)
    record.copy_(bad, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    _pending.append((event, record, _indexed(A.device)))


def _report_pending() -> None:
    """Read the health records that have arrived; never wait for the others."""
    with _lock:
        arrived = []
        while _pending and _pending[0][0].query():
            arrived.append(_pending.popleft())
    for _, record, device in arrived:
        if record.item() and device not in _retired:
            _retire(device, "an earlier batch failed its residual check")


def _retire(device: torch.device, why: str) -> None:
    _retired.add(device)
    warnings.warn(
        f"torch.linalg.eigh, correct but slow, stands in for cuSOLVER's batched eigensolver on {device}: {why}",
        RuntimeWarning,
        stacklevel=4,
    )


def _handle(device: torch.device) -> tuple[ctypes.CDLL, ctypes.c_void_p, ctypes.c_void_p]:
    library, device = _library(), _indexed(device)
    assert library is not None
    if device not in _handles:
        handle, params = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            _check(library.cusolverDnCreate(ctypes.byref(handle)))
            _check(library.cusolverDnCreateParams(ctypes.byref(params)))
        _handles[device] = (handle, params)
    return library, *_handles[device]


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The cuSOLVER that torch has loaded, if it has XsyevBatched."""
    torch.linalg.eigvalsh(torch.eye(2, device="cuda"))  # torch loads its linear algebra at the first use
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split()[-1] for line in maps if "libcusolver.so" in line}
        libraries = [ctypes.CDLL(path) for path in sorted(paths)]
    except OSError:  # not Linux
        return None
    return next((library for library in libraries if hasattr(library, "cusolverDnXsyevBatched")), None)


def _indexed(device: torch.device) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def _check(status: int) -> None:
    if status != 0:
        raise _CusolverError(f"it returned status {status}")
