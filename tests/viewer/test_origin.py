"""The live viewer answers the WebSocket of its own page, and of no other."""

from __future__ import annotations

import http.client
import sys
import types
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gbinet.errors import GBiNetError
from gbinet.pointcloud import PointCloud
from gbinet.viewer.origin import guarded, own_page
from gbinet.viewer.server import serve


class Headers(dict[str, list[str]]):
    """As websockets gives them: a name may stand there several times."""

    def get_all(self, key: str) -> list[str]:
        return self.get(key, [])


def asked(origin: str | None, host: str = "localhost:8080") -> bool:
    return own_page(Headers(Host=[host], **({} if origin is None else {"Origin": [origin]})))


@pytest.mark.parametrize("name", ["localhost:8080", "127.0.0.1:8081", "[::1]:8080", "LOCALHOST:9"])
def test_the_own_page_is_answered(name: str) -> None:
    assert asked(f"http://{name}", name)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://evil.example", "localhost:8080"),
        ("http://localhost:9090", "localhost:8080"),  # another program of this machine
        ("http://evil.example:8080", "evil.example:8080"),  # a name that was made to lead here
        ("http://localhost.evil.example:8080", "localhost.evil.example:8080"),
        ("http://localhost:8080@evil.example", "localhost:8080"),
        ("null", "localhost:8080"),
        ("file://localhost:8080", "localhost:8080"),
        ("http://[::1", "localhost:8080"),
        (None, "localhost:8080"),
        ("", ""),
    ],
)
def test_other_pages_are_refused(origin: str | None, host: str) -> None:
    assert not asked(origin, host)


def test_two_origins_are_refused() -> None:
    two = ["http://localhost:8080", "http://localhost:8080"]
    assert not own_page(Headers(Host=["localhost:8080"], Origin=two))


@given(st.text(), st.text())
def test_any_text_is_answered_with_yes_or_no(origin: str, host: str) -> None:
    assert not asked(origin, host) or any(name in host.lower() for name in ("localhost", "127.0.0.1", "::1"))


# ---- with a stand-in for viser and websockets ----


@pytest.fixture
def fake_viser(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """A viser that starts a server of `websockets` as the real one does, or in a way that is not known."""
    started: list[dict[str, Any]] = []
    sockets = types.ModuleType("websockets.asyncio.server")
    sockets.serve = lambda *_, **options: started.append(options)  # type: ignore[attr-defined]
    parent = types.ModuleType("websockets.asyncio")
    parent.server = sockets  # type: ignore[attr-defined]
    modules = {"websockets": types.ModuleType("websockets"), "websockets.asyncio": parent}
    for name, module in {**modules, "websockets.asyncio.server": sockets}.items():
        monkeypatch.setitem(sys.modules, name, module)
    state = types.SimpleNamespace(started=started, known=True, stopped=False, sockets=sockets)

    class Server:
        def __init__(self, **_: Any) -> None:
            if state.known:
                sockets.serve(None, "127.0.0.1", 8080, process_request=lambda *_: "page")  # type: ignore[attr-defined]

        def stop(self) -> None:
            state.stopped = True

    viser = types.ModuleType("viser")
    viser.ViserServer, viser.__version__ = Server, "9.9"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "viser", viser)
    yield state


class Connection:
    def respond(self, status: int, _: str) -> int:
        return status


def test_the_check_comes_before_visers_own_answer(fake_viser: types.SimpleNamespace) -> None:
    plain = fake_viser.sockets.serve
    with guarded() as guard:
        sys.modules["viser"].ViserServer()
    assert guard.active and fake_viser.sockets.serve is plain
    answer = fake_viser.started[0]["process_request"]

    def request(**headers: str) -> Any:
        return types.SimpleNamespace(headers=Headers({k: [v] for k, v in headers.items()}))

    assert answer(Connection(), request(Host="localhost:8080")) == "page"
    upgrade = {"Upgrade": "websocket", "Host": "localhost:8080"}
    assert answer(Connection(), request(**upgrade, Origin="http://localhost:8080")) == "page"
    assert answer(Connection(), request(**upgrade, Origin="http://evil.example")) == 403
    assert answer(Connection(), request(**upgrade)) == 403


def test_a_viser_that_cannot_be_guarded_is_not_used(fake_viser: types.SimpleNamespace) -> None:
    fake_viser.known = False
    with pytest.raises(GBiNetError, match=r"viser 9\.9 .* cannot guard"):
        serve(PointCloud(torch.zeros(3, 3)), None, None)
    assert fake_viser.stopped


# ---- the real one, where it is installed ----


def status_of_handshake(port: int, origin: str | None) -> int:
    connection = http.client.HTTPConnection("localhost", port, timeout=20)
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        **({} if origin is None else {"Origin": origin}),
    }
    try:
        connection.request("GET", "/", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_real_viewer() -> None:
    pytest.importorskip("viser")
    server = serve(PointCloud(torch.rand(20, 3)), None, None, 8193, "</script> {a} `b` *c* [/b]")
    try:
        port = server.get_port()
        assert status_of_handshake(port, f"http://localhost:{port}") == 101
        for foreign in ("http://evil.example", f"http://localhost:{port + 1}", "null", None):
            assert status_of_handshake(port, foreign) == 403
        connection = http.client.HTTPConnection("localhost", port, timeout=20)
        connection.request("GET", "/")
        page = connection.getresponse()
        assert page.status == 200 and b"<html" in page.read()[:2000].lower()
        connection.close()
    finally:
        server.stop()
