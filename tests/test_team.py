"""Batches over torch's threads: the numbers of one matrix at a time, whatever threads there are; nothing stays set."""

import ctypes
import functools
import operator
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import wellcond as wc
from wellcond.spectral import team


@pytest.fixture(params=[2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch has loaded another OpenMP."""
    monkeypatch.setattr(team, "_library", lambda: None)


def matrices(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


needs_team = pytest.mark.skipif(team._library() is None, reason="torch has not loaded GNU's OpenMP and MKL here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 64, 192), (5, 192, 64), (2, 3, 96, 96), (9, 130, 130), (3, 210, 230)])
def test_a_batch_is_what_its_matrices_are(threads: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    X = matrices(*shape, dtype=dtype)
    sigma = np.linalg.svd(X.double().numpy(), compute_uv=False)
    U, _, Vh = np.linalg.svd(X.double().numpy(), full_matrices=False)
    mapped = (U * np.sqrt(sigma)[..., None, :]) @ Vh
    precise = 1e-10 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(wc.singular_values(X), sigma, rtol=precise)
    np.testing.assert_allclose(wc.condition_number(X), sigma[..., 0] / sigma[..., -1], rtol=precise)
    Y = wc.spectral_map(X, torch.sqrt)
    assert Y.dtype == dtype and Y.shape == X.shape
    error = np.linalg.norm(Y.double().numpy() - mapped) / np.linalg.norm(mapped)
    assert error < (1e-2 if dtype == torch.bfloat16 else precise)


@needs_team
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(99, 8, 8), (100, 8, 8), (3000, 4, 16), (40, 30, 13), (2, 3, 70, 16)])
def test_many_small_matrices_are_shared_out_from_some_count_on(
    threads: int, shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = matrices(*shape, dtype=dtype)
    counts, parts = [], team.parts
    monkeypatch.setattr(team, "parts", lambda *given: counts.append(len(parts(*given))) or parts(*given))
    found = wc.singular_values(X)
    shared = X[..., 0, 0].numel() * min(shape[-2:]) ** 2 >= 6400
    assert counts == ([threads] if shared else []), "the others are numpy's"
    np.testing.assert_allclose(found, np.linalg.svd(X.double().numpy(), compute_uv=False), rtol=1e-6, atol=0)
    mapped = wc.spectral_map(X, torch.sqrt)
    U, sigma, Vh = np.linalg.svd(X.double().numpy(), full_matrices=False)
    expected = (U * np.sqrt(sigma)[..., None, :]) @ Vh
    error = np.linalg.norm(mapped.numpy() - expected) / np.linalg.norm(expected)
    assert error <= (1e-10 if dtype == torch.float64 else 1e-5)


def test_the_same_without_the_library(threads: int, without_library: None) -> None:
    X = matrices(6, 64, 192, dtype=torch.float64)
    np.testing.assert_allclose(wc.condition_number(X), np.linalg.cond(X.numpy()), rtol=1e-10)
    assert team.size() == 1


@needs_team
def test_parts_run_in_several_threads_each_alone(threads: int) -> None:
    together = threading.Barrier(threads, timeout=60)  # broken unless as many threads are in it at once

    def work(part: torch.Tensor) -> tuple[int, float]:
        together.wait()
        return torch.get_num_threads(), float(part.sum())

    assert team.size() == threads
    found = team.each(work, [torch.full((2,), float(i)) for i in range(threads)])
    assert found == [(1, 2.0 * i) for i in range(threads)]
    assert torch.get_num_threads() == threads


def test_more_parts_than_threads_come_back_in_order(threads: int) -> None:
    parts = [torch.full((1,), float(i)) for i in range(20)]
    assert [float(found) for found in team.each(torch.neg, parts)] == [-float(i) for i in range(20)]


@pytest.mark.parametrize("error", [ValueError("of its own"), KeyboardInterrupt()])
def test_an_error_of_a_part_is_raised_and_nothing_stays_set(threads: int, error: BaseException) -> None:
    def work(part: torch.Tensor) -> None:
        if part[0] == 1:
            raise error

    with pytest.raises(type(error)):
        team.each(work, [torch.tensor([i]) for i in range(4)])
    with pytest.raises(type(error)):
        team.each(work, [torch.tensor([1])], alone=True)
    assert torch.get_num_threads() == threads


@pytest.fixture
def interrupted() -> Iterator[Callable[[], int]]:
    """A function of C that sends this process a signal, whose handler raises as soon as Python gets the word again."""

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    yield functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@needs_team
def test_an_interrupt_between_two_calls_is_not_lost(
    threads: int, interrupted: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until Python's next step, which is the first of the callback."""

    class Library:
        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

        def GOMP_parallel(self, callback: Any, *_: Any) -> None:  # noqa: N802
            calls = [interrupted, functools.partial(callback, None), functools.partial(callback, None)]
            list(map(operator.call, calls))  # without a step of Python's in between

    library = team._library()
    monkeypatch.setattr(team, "_library", Library)
    with pytest.raises(KeyboardInterrupt):
        team.each(torch.neg, [torch.ones(1), torch.ones(1)])


@needs_team
@pytest.mark.parametrize("nth", range(1, 6))
def test_an_interrupt_leaves_nothing_set(threads: int, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised as one of the library's functions returns."""
    calls = iter(range(1, 100))

    class Library:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                found = getattr(library, name)(*arguments)
                if next(calls) == nth:
                    raise KeyboardInterrupt
                return found

            return call

    library: Any = team._library()
    monkeypatch.setattr(team, "_library", Library)
    with pytest.raises(KeyboardInterrupt):
        team.each(torch.neg, [torch.ones(1)], alone=True)
    assert torch.get_num_threads() == library.MKL_Get_Max_Threads() == threads


@needs_team
def test_one_part_has_all_threads_unless_it_shall_be_alone(threads: int) -> None:
    def how_many(_: torch.Tensor) -> int:
        return torch.get_num_threads()

    assert team.each(how_many, [torch.ones(1)]) == [threads]
    assert team.each(how_many, [torch.ones(1)], alone=True) == [1]
    assert torch.get_num_threads() == threads


def test_from_several_threads_at_once(threads: int) -> None:
    X = matrices(8, 64, 192, dtype=torch.float64)
    expected = np.linalg.cond(X.numpy())
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(wc.condition_number, [X] * 9):
            np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_under_gradients_and_inference_mode(threads: int) -> None:
    X = matrices(8, 64, 192).requires_grad_()
    expected = wc.condition_number(X)
    assert not expected.requires_grad and not wc.spectral_map(X, torch.sqrt).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(wc.condition_number(X), expected)
        wc.spectral_map(X.detach().clone(), torch.sqrt)
