"""What the server answers at all. gradio has some sixty routes, of which the page uses a dozen; the rest are closed.

Closed are above all those that hand out files (`/file=`, `/gradio_api/file=`), fetch addresses (`/proxy=`), or call
functions without the page (`/call`, `/run`): pictures and figures travel inside the answers, so no file needs a route.

A request is refused
- if its Host is not ours while we listen on loopback: a web page elsewhere may point its own name at 127.0.0.1;
- if it changes something and its Origin is another page;
- if it is too large, or its length is not said;
- if it uploads what is neither an image nor safetensors: the file is removed at once;
- if it names a file that was not uploaded here, or an address that the server should fetch.
"""

import ipaddress
import json
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.concurrency import run_in_threadpool

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

API = "/gradio_api"
JOIN, UPLOAD = f"{API}/queue/join", f"{API}/upload"
GET = {"/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", f"{API}/queue/data", f"{API}/upload_progress"}
GET_UNDER = ("/assets/", "/static/", f"{API}/heartbeat/")
POST = {JOIN, UPLOAD, f"{API}/cancel", f"{API}/reset"}
MAX_CALL = 1 << 20  # bytes of a request that is no upload
ENVELOPE = 1 << 16  # bytes of an upload beside the file itself
POLICY = (  # of the browser: nothing from anywhere else, whatever gradio's page would like to fetch
    "default-src 'self'",
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'",  # gradio fills its templates by eval
    "style-src 'self' 'unsafe-inline'",
    "img-src 'self' data: blob:",
    "font-src 'self' data:",
    "object-src 'none'",
    "frame-ancestors 'none'",
    "form-action 'none'",
)
HEADERS = {
    "Content-Security-Policy": "; ".join(POLICY),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Refused(Exception):
    """The request is not answered; the status, and one line that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Guard:
    """An ASGI application in front of another one."""

    def __init__(
        self, inner: Any, *, host: str, uploads: Path, max_bytes: int, check_upload: Callable[[Path], None]
    ) -> None:
        self.inner = inner
        self.names = {"localhost", "127.0.0.1", "::1", host} if is_loopback(host) else None
        self.uploads = uploads.resolve()
        self.max_bytes = max_bytes
        self.check_upload = check_upload

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
        elif scope["type"] == "http":
            try:
                await self._answer(scope, receive, send)
            except Refused as refusal:
                await _respond(send, refusal.status, str(refusal))
        elif scope["type"] == "websocket":  # the page uses none
            await send({"type": "websocket.close"})

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        method, path = scope["method"], scope["path"]
        check_address(method, path)
        self._check_sender(method, headers)
        if method == "POST":
            self._check_length(path, headers)
        send = _with_headers(send)
        if path == UPLOAD:
            await self._upload(scope, receive, send)
        elif path == JOIN:
            body = await _body(receive)
            self._check_call(body)
            await self.inner(scope, _again(body, receive), send)
        else:
            await self.inner(scope, receive, send)

    def _check_sender(self, method: str, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if self.names is not None and _split(f"//{host}").hostname not in self.names:
            raise Refused(403, f"this is not {host!r}; open it by the address that wellcond app printed")
        origin = headers.get("origin")
        if method == "POST" and origin is not None and _split(origin).netloc != host:
            raise Refused(403, f"a request from another page, {origin!r}")

    def _check_length(self, path: str, headers: dict[str, str]) -> None:
        length = headers.get("content-length", "")
        in_chunks = "transfer-encoding" in headers  # then the length that is said does not bind
        if in_chunks or not (length.isascii() and length.isdigit()):
            raise Refused(411, "the length of the request is not said")
        if path == UPLOAD and int(length) > self.max_bytes + ENVELOPE:
            raise Refused(413, f"larger than {self.max_bytes >> 20} MB; say wellcond app --max-upload to take more")
        if path != UPLOAD and int(length) > MAX_CALL:
            raise Refused(413, f"larger than {MAX_CALL >> 20} MB")

    async def _upload(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Let gradio write the files, look at them, and only then tell the page where they are."""
        told: list[Message] = []

        async def keep(message: Message) -> None:
            told.append(message)

        await self.inner(scope, receive, keep)
        if told and told[0].get("status") == 200:
            body = b"".join(message.get("body", b"") for message in told[1:])
            await run_in_threadpool(self._check_files, body)
        for message in told:
            await send(message)

    def _check_files(self, body: bytes) -> None:
        paths = [Path(path) for path in json.loads(body)]
        try:
            for path in paths:
                if not self._is_ours(path):
                    raise ValueError(f"{path.name!r} would lie outside the folder of the uploads")
                self.check_upload(path)
        except ValueError as error:
            for path in filter(self._is_ours, paths):
                path.unlink(missing_ok=True)
            raise Refused(415, str(error)) from None

    def _check_call(self, body: bytes) -> None:
        try:
            paths = list(_file_paths(json.loads(body)))
        except (ValueError, RecursionError):  # lists in lists without end
            raise Refused(400, "not JSON") from None
        for path in paths:
            if not isinstance(path, str) or not self._is_ours(Path(path)):
                raise Refused(403, "a file that was not uploaded here")

    def _is_ours(self, path: Path) -> bool:
        try:
            return path.resolve().is_relative_to(self.uploads)
        except (OSError, ValueError):  # a name that no file can have
            return False


def check_address(method: str, path: str) -> None:
    """Refused unless the page needs it. `path` is decoded already, so %2e%2e is seen as what it is."""
    if {"..", "."} & set(path.replace("\\", "/").split("/")) or "\0" in path:
        raise Refused(404, "nothing there")
    known = path in POST if method == "POST" else path in GET or path.startswith(GET_UNDER)
    if method not in ("GET", "HEAD", "POST") or not known:
        raise Refused(404, "nothing there")


def _split(address: str) -> SplitResult:
    """Refused where it is no address at all, such as "//["."""
    try:
        return urlsplit(address)
    except ValueError:
        raise Refused(400, f"{address!r} is no address") from None


def is_loopback(host: str) -> bool:
    """
    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "192.168.0.2", "here.example")]
    [True, True, True, False, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _file_paths(value: Any) -> Iterator[Any]:
    """Every `path` in a call: that is how gradio names a file, and an address that it would fetch."""
    if isinstance(value, dict):
        if value.get("path") is not None:
            yield value["path"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _file_paths(item)


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, for the application behind; then whatever comes."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        await send(message)

    return sent


async def _respond(send: Send, status: int, line: str) -> None:
    """The connection stays: closed on a body that is still coming, it would be reset, and the line never be read."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(line.encode())).encode())]
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": line.encode()})
