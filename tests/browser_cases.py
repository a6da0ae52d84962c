"""The machine's own Chromium, driven by playwright, for the tests that open pages. No browser is downloaded."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
ARTEFACTS = Path(os.environ.get("WELLCOND_ARTEFACTS") or Path(__file__).parent / "artefacts")
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


@contextmanager
def watched(browser: Any, written: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """(name, …) → a page, drawn. At the end no page may have said anything, failed, or asked for another address."""
    contexts, troubles = [], []

    def open_page(name: str, viewport=DESKTOP, **options):
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page, address = context.new_page(), written[name].as_uri()

        def asked(url: str) -> None:
            if url != address and not url.startswith("data:"):
                troubles.append(f"request: {url}")

        page.on("console", lambda message: troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("request", lambda request: asked(request.url))
        page.goto(address)
        page.wait_for_function(
            "Array.from(document.querySelectorAll('.plot')).every(p => p.querySelector('.main-svg'))"
        )
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not troubles, troubles
