"""A running `wellcond app` for the tests that knock at it, and files that it should not take. Needs gradio."""

import http.client
import pickle
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("gradio", reason="gradio is not installed")

from wellcond.app.serving import listening
from wellcond.config import AppConfig

BOUNDARY = "wellcond-test"


class Served(NamedTuple):
    host: str
    port: int
    uploads: Path  # the folder in which gradio keeps what it is sent

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}/"

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
        """Status and text; the path goes out as it is written, dots and all."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.request(method, path, body or None, {k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def upload(self, name: str, content: bytes, **headers: str) -> tuple[int, str]:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'
        body = f"{head}Content-Type: application/octet-stream\r\n\r\n".encode() + content
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        return self.ask(
            "POST", "/gradio_api/upload", body + f"\r\n--{BOUNDARY}--\r\n".encode(), content_type=kind, **headers
        )

    def kept(self) -> list[Path]:
        return [path for path in self.uploads.rglob("*") if path.is_file()]


@contextmanager
def served(runs: Path, *, max_upload: int = 2) -> Iterator[Served]:
    """A server in a thread, on a port that is free."""
    with listening(AppConfig(runs=runs, port=0, max_upload=max_upload)) as (server, listener):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until = time.monotonic() + 60
        while not server.started and time.monotonic() < until:
            time.sleep(0.02)
        assert server.started
        yield Served(*listener.getsockname()[:2], uploads=server.config.app.uploads)  # pyright: ignore
        server.should_exit = True
        thread.join(10)


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self):
        return Path.touch, (Path(self.mark),)


def pickled(mark: Path, protocol: int = 4) -> bytes:
    return pickle.dumps(Bomb(mark), protocol)


def png_claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )
