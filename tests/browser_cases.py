"""The machine's own Chromium, driven by playwright, for the tests that open pages. No browser is downloaded."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def works() -> bool:
    """Some distributions have a `chromium` that only says where to get one."""
    return (
        CHROMIUM is not None
        and subprocess.run([CHROMIUM, "--version"], capture_output=True, timeout=60).returncode == 0
    )


NEEDS_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(not works(), reason=f"no Chromium: none of {', '.join(NAMES)} runs"),
]


@contextmanager
def launched() -> Iterator:
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()
