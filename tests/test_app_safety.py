"""`wellcond app` from outside: what it must not listen to, take, open, serve or send. Each test tries to."""

import asyncio
import io
import json
import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from app_cases import Served, pickled, png_claiming, served
from PIL import Image
from run_cases import config, write_run
from safetensors.torch import save

from wellcond.app import model, photo, watch
from wellcond.app.guard import Guard, check_address, is_loopback
from wellcond.app.uploads import MAX_PIXELS, check_upload

HOSTILE = {  # what gradio would obey
    "GRADIO_SERVER_NAME": "0.0.0.0",
    "GRADIO_SHARE": "True",
    "GRADIO_ALLOWED_PATHS": "/",
    "GRADIO_ANALYTICS_ENABLED": "True",
    "GRADIO_ROOT_PATH": "https://example.invalid",
    "GRADIO_MCP_SERVER": "True",
}


@pytest.fixture(scope="module")
def outside():
    """Names that were looked up while the server ran: a call home begins with one."""
    return []


@pytest.fixture(scope="module")
def app(tmp_path_factory, outside):
    folder = tmp_path_factory.mktemp("app")
    write_run(folder / "runs" / "x", config())
    (folder / "secret.txt").write_text("secret")
    look_up = socket.getaddrinfo

    def watched(host, *rest, **options):
        if host not in (None, "127.0.0.1", "localhost", "::1"):
            outside.append(host)
        return look_up(host, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", watched)
        for name, value in HOSTILE.items():
            patch.setenv(name, value)
        with served(folder / "runs") as running:
            yield running


def test_it_listens_on_loopback_and_its_page_opens(app: Served):
    assert app.host == "127.0.0.1"
    status, page = app.ask("GET", "/")
    assert status == 200 and "wellcond" in page and "example.invalid" not in page
    other = socket.gethostbyname(socket.gethostname())
    if not is_loopback(other):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((other, app.port), timeout=5)


FILES = ["/etc/passwd", "../secret.txt", "runs/x/config.json", "{root}/x/config.json", "{root}/../secret.txt"]
ROUTES = [
    "/file={}",
    "/file/{}",
    "/gradio_api/file={}",
    "/gradio_api/file/{}",
    "/gradio_api/proxy={}",
    "/gradio_api/stream/{}",
    "/static/{}",
    "/assets/{}",
    "/static/..%2f..%2f{}",
    "/assets/%2e%2e/%2e%2e/{}",
    "/svelte/{}",
    "/custom_component/{}",
]


@pytest.mark.parametrize("route", ROUTES)
def test_no_route_hands_out_a_file(app: Served, route):
    for file in FILES:
        name = file.format(root=app.uploads)
        status, text = app.ask("GET", route.format(name))
        assert status in (403, 404), name
        assert "root:" not in text and "secret" not in text and "recipe" not in text


def test_what_was_uploaded_is_not_handed_out_either(app: Served):
    status, text = app.upload("flat.png", picture())
    assert status == 200
    [path] = json.loads(text)
    assert Path(path).is_file()
    for route in ("/file={}", "/gradio_api/file={}"):
        assert app.ask("GET", route.format(path))[0] == 404


@pytest.mark.parametrize(
    "route",
    ["/docs", "/openapi.json", "/monitoring", "/gradio_api/info", "/gradio_api/call/show", "/gradio_api/run/show",
     "/gradio_api/vibe-edit", "/gradio_api/process_recording", "/gradio_api/deep_link", "/gradio_api/mcp/sse",
     "/gradio_api/file=http://example.invalid/", "/gradio_api/proxy=http://example.invalid/"],
)  # fmt: skip
def test_what_the_page_does_not_need_is_closed(app: Served, route):
    for method in ("GET", "POST", "PUT", "OPTIONS"):
        assert app.ask(method, route, b"{}" if method != "GET" else b"", content_type="application/json")[0] == 404


def test_a_name_that_points_here_from_elsewhere_is_refused(app: Served):
    for host in ("evil.example", f"evil.example:{app.port}", "127.0.0.1.evil.example", ""):
        assert app.ask("GET", "/", host=host)[0] in (400, 403)
    assert app.ask("GET", "/", host=f"localhost:{app.port}")[0] == 200


def test_what_is_no_address_is_a_bad_request_and_no_error_of_ours(app: Served):
    for host in ("[", "[::1"):
        status, said = app.ask("GET", "/", host=host)
        assert status == 400 and "no address" in said
        status, said = app.ask("POST", "/gradio_api/queue/join", b"{}", origin=f"http://{host}")
        assert status == 400 and "no address" in said


def test_a_websocket_is_refused_and_no_error_of_ours(app: Served):
    asked = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
    asked["sec_websocket_key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    assert app.ask("GET", "/queue/join", b"", **asked)[0] in (403, 404)  # 404: a server that knows no websockets
    told = []

    async def send(message):
        told.append(message)

    guard = Guard(None, host="127.0.0.1", uploads=app.uploads, max_bytes=1, check_upload=check_upload)
    asyncio.run(guard({"type": "websocket", "path": "/queue/join"}, None, send))  # type: ignore[arg-type]
    assert told == [{"type": "websocket.close"}]


def test_another_page_cannot_act_here(app: Served):
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{app.port + 1}"):
        assert app.upload("flat.png", picture(), origin=origin)[0] == 403
        assert app.ask("POST", "/gradio_api/queue/join", b"{}", origin=origin)[0] == 403
    assert app.upload("flat.png", picture(), origin=f"http://127.0.0.1:{app.port}")[0] == 200


def test_only_images_and_safetensors_are_taken_and_nothing_else_is_kept(app: Served, tmp_path):
    before = app.kept()
    mark = tmp_path / "mark"
    torch.save({"x": torch.ones(2)}, tmp_path / "model.pt")
    zipped = (tmp_path / "model.pt").read_bytes()
    wrong = {
        "page.html": b"<script>alert(1)</script>",
        "model.pt": zipped,
        "model.pth": pickled(mark),
        "model.safetensors": pickled(mark),
        "old.safetensors": pickled(mark, 0),
        "zip.safetensors": zipped,
        "empty.safetensors": b"",
        "short.safetensors": b"\xff" * 20,
        "none.safetensors": save({}),
        "photo.png": pickled(mark),
        "script.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        "empty.jpg": b"",
        "photo": picture(),
        "damaged.avif": picture(format="AVIF").replace(b"av01", b"av99"),
    }
    for name, content in wrong.items():
        status, text = app.upload(name, content)
        assert status == 415 and name in text and "\n" not in text, (name, status, text)
    assert not mark.exists()
    assert app.kept() == before
    assert app.upload("right.safetensors", save({"x": torch.ones(2)}))[0] == 200


def test_decompression_bombs_are_refused(app: Served):
    before = app.kept()
    for side in (60_000, 7_100):  # what Pillow refuses, and what it does not
        status, text = app.upload("bomb.png", png_claiming(side, side))
        assert status == 415 and "pixels" in text and side**2 > MAX_PIXELS
    assert app.kept() == before


@pytest.mark.parametrize(
    ("route", "header", "status"),
    [
        ("upload", f"Content-Length: {3 << 20}", b" 413 "),
        ("upload", "Transfer-Encoding: chunked", b" 411 "),
        ("upload", "Content-Length: 5\r\nTransfer-Encoding: chunked", b" 411 "),  # chunks may be as many as they like
        ("queue/join", "Transfer-Encoding: chunked\r\nContent-Length: 5", b" 411 "),
        ("queue/join", f"Content-Length: {2 << 20}", b" 413 "),
    ],
)
def test_size_is_limited_before_anything_is_read(app: Served, route, header, status):
    head = f"POST /gradio_api/{route} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n"
    with socket.create_connection((app.host, app.port), timeout=10) as connection:
        connection.sendall(head.encode())
        assert status in connection.recv(200)


def test_size_of_a_file_is_limited_exactly(app: Served):
    before = app.kept()
    status, text = app.upload("large.safetensors", bytes((2 << 20) + 1))  # within what the envelope may take
    assert status == 413 and "maximum allowed size" in text
    assert app.kept() == before


def test_a_call_cannot_name_a_file_of_the_machine_or_an_address(app: Served):
    for path in ("/etc/passwd", "../secret.txt", "http://example.invalid/a.png", str(app.uploads / ".." / "x"), 7):
        data = {"data": [{"path": path, "meta": {"_type": "gradio.FileData"}}], "fn_index": 1, "session_hash": "x"}
        assert app.ask("POST", "/gradio_api/queue/join", json.dumps(data).encode())[0] == 403, path
    for body in (b"no json", b"\xff", b"[" * 400_000, b"[" * 950 + b"]" * 950):
        status, said = app.ask("POST", "/gradio_api/queue/join", body)
        assert status in (400, 422) and "Error" not in said


def test_the_browser_is_told_to_fetch_nothing_from_elsewhere(app: Served):
    with urllib.request.urlopen(app.address, timeout=20) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "http" not in policy and "*" not in policy
    assert "googleapis" not in app.ask("GET", "/theme.css")[1]


def test_nobody_was_called(app: Served, outside):
    """Last in the file: whatever was looked up by then."""
    assert outside == []


@pytest.mark.parametrize("path", ["/assets/../../x", "/static/..\\x", "/assets/./x", "/file=/etc/passwd", "/a\0", ""])
def test_addresses_that_climb(path):
    with pytest.raises(Exception, match="nothing there"):
        check_address("GET", path)


# Without a server: the functions behind the page trust nothing either.


def picture(side: int = 48, format: str = "PNG") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=format)
    return buffer.getvalue()


def test_weights_are_never_unpickled(tmp_path):
    mark = tmp_path / "mark"
    for name in ("a.safetensors", "a.pth"):
        (tmp_path / name).write_bytes(pickled(mark))
        with pytest.raises(ValueError, match=r"a\.(safetensors|pth)") as told:
            model.diagnosis_of("test_vit", str(tmp_path / name), False, 2, False)
        assert str(tmp_path) not in str(told.value)
    with pytest.raises(ValueError, match="neither"):
        check_upload(tmp_path / "a.pth")
    assert not mark.exists()


@pytest.mark.parametrize("name", ["resnet18", "hf-hub:x/y", "local-dir:/etc", "/etc", "vit_base_patch16_xp_224", ""])
def test_only_models_of_the_list(name):
    with pytest.raises(ValueError, match="list"):
        model.diagnosis_of(name, None, False, 2, False)


def test_a_photo_is_looked_at_again(tmp_path):
    (tmp_path / "x.png").write_bytes(png_claiming(7_100, 7_100))
    with pytest.raises(ValueError, match="million pixels"):
        photo.grayed(str(tmp_path / "x.png"), "", "svd", 0.7, 16)


@pytest.fixture
def root(tmp_path):
    """Runs, and ways out of their folder."""
    write_run(tmp_path / "runs" / "x", config())
    write_run(tmp_path / "outside", config())
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "runs" / "round").symlink_to(tmp_path / "runs" / "round")
    for file in ("metrics.jsonl", "config.json", "env.json"):
        run = write_run(tmp_path / "runs" / f"linked-{file}", config())
        (run / file).unlink()
        (run / file).symlink_to(tmp_path / "outside" / file)
    return tmp_path / "runs"


def test_runs_outside_the_root_are_not_opened(root):
    out = root.parent / "outside"
    names = [
        "../outside",
        str(out),
        "x/../../outside",
        "..",
        "/",
        "link",
        "link/.",
        "round",
        "a\0b",
        "",
        " ",
        "x" * 9999,
    ]
    names += ["..\\outside", "~", "linked-metrics.jsonl", "linked-config.json", "linked-env.json", "nothing", None]
    for name in names:
        with pytest.raises(ValueError, match="run"):
            watch.locate(root, name)
    assert watch.find_runs(root) == ["x"]
    assert watch.locate(root, "x") == (root / "x").resolve()


def test_a_damaged_run_does_not_tell_where_it_lies(root):
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"broken/config\.json: not JSON") as told:
        watch.story(watch.locate(root, "broken"))
    assert str(root.resolve()) not in str(told.value)
