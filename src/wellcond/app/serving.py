"""The server: a port, a folder for the uploads that goes away with it, and gradio behind the guard.

gradio's own `launch` is not used: it reads a dozen environment variables (a share link, folders to serve, another
host), asks the network, and cannot run where a proxy is set. Here the page is mounted and served by uvicorn.
"""

import errno
import os
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fastapi
import gradio
import uvicorn

from wellcond.app.guard import Guard, is_loopback
from wellcond.app.page import CSS, build_page, theme
from wellcond.app.uploads import check_upload
from wellcond.config import AppConfig
from wellcond.stopping import handled

TRIED_PORTS = 100
NO_DOCS: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}


def serve(config: AppConfig) -> None:
    """Until Ctrl-C, or SIGTERM."""
    with listening(config) as (server, listener):
        host, port = listener.getsockname()[:2]
        if config.port not in (0, port):
            print(f"port {config.port} is taken, so the next free one is used")
        if not is_loopback(config.host):
            print("anyone who can reach this machine can use it: there is no password")
        print(f"wellcond app → {address(host, port)}   (Ctrl-C ends it)", flush=True)
        # uvicorn raises its signal again when it is done, and SIGTERM would end us before the uploads are removed
        with handled([signal.SIGTERM], signal.default_int_handler), suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


@contextmanager
def listening(config: AppConfig) -> Iterator[tuple[uvicorn.Server, socket.socket]]:
    """A server that is ready to run, and its socket; afterwards the uploads are gone."""
    with (
        bound(config.host, config.port) as listener,
        tempfile.TemporaryDirectory(prefix="wellcond-app-", ignore_cleanup_errors=True) as folder,
        _environment({"GRADIO_TEMP_DIR": folder, "GRADIO_ANALYTICS_ENABLED": "False"}),
    ):
        app = build_app(config, Path(folder), port=listener.getsockname()[1])
        settings = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, proxy_headers=False)
        yield uvicorn.Server(settings), listener


def build_app(config: AppConfig, uploads: Path, *, port: int) -> Guard:
    """gradio's application with everything closed that can be closed, behind the guard."""
    max_bytes = config.max_upload << 20
    inner = gradio.mount_gradio_app(
        fastapi.FastAPI(**NO_DOCS),
        build_page(config),
        path="/",
        server_name=config.host,
        server_port=port,
        footer_links=[],
        run_history=False,
        app_kwargs=dict(NO_DOCS),
        root_path="",
        allowed_paths=[],
        show_error=False,
        max_file_size=max_bytes,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=theme(),
        css=CSS,
    )
    return Guard(inner, host=config.host, uploads=uploads, max_bytes=max_bytes, check_upload=check_upload)


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket on the port, or on the next free one; 0 is any. ValueError if there is none, or no such address."""
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise ValueError(f"host is {host!r}, which is no address of this machine; say 127.0.0.1") from None
    for number in range(port, min(port + TRIED_PORTS, 65536)):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((where[0], number))
            listener.listen()
        except PermissionError:
            listener.close()
            raise ValueError(f"port is {number}, which only the administrator may take; choose 1024 or more") from None
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise ValueError(f"host is {host!r}, which is no address of this machine; say 127.0.0.1") from None
        else:
            with listener:
                yield listener
            return
    raise ValueError(f"port {port} and those after it are taken; choose another --port")


def address(host: str, port: int) -> str:
    """What to type into the browser; for all addresses of the machine, the one that works here.

    >>> address("127.0.0.1", 7860), address("0.0.0.0", 80), address("::1", 7860)
    ('http://127.0.0.1:7860', 'http://127.0.0.1:80', 'http://[::1]:7860')
    """
    here: Mapping[str, str] = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    host = here.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before: dict[str, Any] = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
