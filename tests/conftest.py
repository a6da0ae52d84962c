"""The hypothesis profile, a skip for `gpu` tests on machines without CUDA, and shared fixtures."""

import fcntl
import functools
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from PIL import Image

from wellcond.data.procedural import procedural

_CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("quick", max_examples=15, deadline=None, derandomize=True, suppress_health_check=_CHECKS)
settings.register_profile("explore", max_examples=300, deadline=None, suppress_health_check=_CHECKS)
settings.load_profile(os.environ.get("WELLCOND_HYPOTHESIS", "quick"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "longest" not in item.keywords)  # or the other workers would wait for it at the end
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """Decoded pictures of one file of tests, apart from those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A 64 × 64 picture on disk."""
    path = tmp_path / "photo.png"
    Image.fromarray(procedural(1, size=64).image).save(path)
    return path


@pytest.fixture(scope="session")
def decoded(tmp_path_factory) -> str:
    """The option that keeps decoded pictures for all runs of the tests."""
    return f"--data.cache={tmp_path_factory.mktemp('cache')}"


@pytest.fixture(scope="session")
def demo_checkout(tmp_path_factory) -> Path:
    """A checkout in which `make demo` was typed, once for all workers; nobody changes it."""
    from checkout_cases import lay_out, type_in

    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "demo-checkout"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "demo" / "report.html").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker in which it failed
            said = type_in(lay_out(folder), "make demo", DEMO_OPTIONS="--quick --count 1 --size 64")
            assert " s → demo/report.html\n" in said
    return folder


@pytest.fixture(scope="module")
def browser():
    """A running Chromium; asked for only by tests that need one."""
    from browser_cases import launched

    with launched() as started:
        yield started


@pytest.fixture
def opened(browser, written):
    """(name, …) → the page that the test's module has `written` under that name; nothing may go wrong on it."""
    from browser_cases import watched

    with watched(browser, written) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def read(browser, written):
    """name → that page, opened once for all tests that do nothing but read it: to start plotly takes seconds."""
    from browser_cases import watched

    with watched(browser, written) as open_page:
        yield functools.cache(open_page)
