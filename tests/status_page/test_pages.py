"""The status page's server on a real socket: routes, the stream, bad requests."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from mlfabric.status_page import StatusPages
from mlfabric.status_page import pages as pages_module
from mlfabric.telemetry import MetricsPage
from mlfabric.telemetry import page as page_module
from mlfabric.telemetry.history import History

STATUS = {"status": {"term": 7, "members": []}, "open": []}


class Served:
    """The pages, with a state that a test may change."""

    def __init__(self, token: str = "") -> None:
        self.history, self.asked, self.answers = History(), 0, True
        self._page = MetricsPage(CollectorRegistry(), others=StatusPages(self.history, self._ask, token).add_to)
        self.port = self._page.start()

    async def _ask(self) -> dict[str, Any]:
        self.asked += 1
        if not self.answers:
            raise TimeoutError
        return dict(STATUS)

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def raw(self, request: bytes) -> bytes:
        """Return all that comes until the connection ends."""
        with self.connected() as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def get(self, path: str, **headers: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        return urllib.request.urlopen(request, timeout=10)

    def stop(self) -> None:
        self._page.stop()


@pytest.fixture
def served(monkeypatch) -> Iterator[Served]:
    monkeypatch.setattr(pages_module, "EVERY_S", 0.02)
    made = Served()
    yield made
    made.stop()


def _events(stream: Any) -> Iterator[tuple[str, str, Any]]:
    """Give the messages of a stream: id, event, data."""
    fields: dict[str, str] = {}
    for line in stream:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif fields:
            yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
            fields = {}


def _code(call: Callable[[], Any]) -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        call()
    caught.value.close()
    return caught.value.code


PARTS = {"/": "text/html", "/page.js": "text/javascript", "/charts.js": "text/javascript", "/page.css": "text/css"}


@pytest.mark.parametrize(("path", "kind"), PARTS.items())
def test_the_page_and_its_parts_are_served_and_may_load_nothing_from_elsewhere(served, path, kind):
    with served.get(path) as answer:
        assert answer.headers.get_content_type() == kind
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_the_state_and_what_is_over_come_as_json(served):
    served.history.add({"kind": "note", "at": 1, "about": "a", "text": "joined"})
    with served.get("/status") as answer:
        state = json.load(answer)
    assert {name: state[name] for name in STATUS} == STATUS
    with served.get("/history") as answer:
        assert json.load(answer) == {"next": 1, "entries": [{"kind": "note", "at": 1, "about": "a", "text": "joined"}]}


def test_who_watches_gets_all_that_is_kept_and_then_what_is_new(served):
    for number in range(3):
        served.history.add({"kind": "note", "number": number})
    with served.get("/events") as stream:
        events = _events(stream)
        _, name, first = next(events)
        assert (name, [entry["number"] for entry in first["entries"]]) == ("entries", [0, 1, 2])
        _, name, state = next(events)
        assert (name, state["status"]) == ("state", STATUS["status"])
        served.history.add({"kind": "note", "number": 3})
        fresh = next(data for _, name, data in events if name == "entries")
        assert [entry["number"] for entry in fresh["entries"]] == [3]


def test_a_browser_that_comes_back_gets_what_it_missed_and_from_another_process_everything(served):
    served.history.add({"kind": "note", "number": 0})
    with served.get("/events") as stream:
        last_id = next(_events(stream))[0]
    served.history.add({"kind": "note", "number": 1})
    for known, numbers in ((last_id, [1]), ("another:1", [0, 1]), ("nonsense", [0, 1])):
        with served.get("/events", **{"Last-Event-ID": known}) as stream:
            entries = next(data for _, name, data in _events(stream) if name == "entries")
        assert [entry["number"] for entry in entries["entries"]] == numbers


def test_the_scheduler_is_asked_only_while_somebody_watches_and_once_for_all(served):
    streams = [served.get("/events") for _ in range(4)]
    for stream in streams:
        next(_events(stream))
    states, asked = 0, served.asked
    for _, name, _ in _events(streams[0]):
        states += name == "state"
        if states == 10:
            break
    assert served.asked - asked <= 14
    for stream in streams:
        stream.close()
    _until(lambda: _is_quiet(served))


def _is_quiet(served: Served) -> bool:
    asked = served.asked
    time.sleep(0.2)
    return served.asked == asked


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_scheduler_that_does_not_answer_is_said(served):
    served.answers = False
    assert _code(lambda: served.get("/status")) == 503


@pytest.mark.parametrize("path", ["/nothing", "/../pages.py", "/static/page.js", "/%2e%2e/pages.py", "//etc/passwd"])
def test_there_are_no_other_paths(served, path):
    assert _code(lambda: served.get(path)) == 404


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"POST /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", b"403"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"\x16\x03\x01 no HTTP at all\r\n\r\n", b"400"),
    ],
    ids=["method", "host", "header", "path", "no HTTP"],
)
def test_a_bad_request_gets_a_clear_status(served, request_, code):
    assert served.raw(request_).split(b" ", 2)[1] == code
    with served.get("/status") as answer:
        assert answer.status == 200


def test_of_200_connections_the_last_are_refused_and_those_that_are_there_go_on(served):
    open_ = [served.connected() for _ in range(200)]
    try:
        _until(lambda: sum(map(_is_refused, open_)) == 200 - page_module.MOST_CONNECTIONS)
        first = open_[0]
        first.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        for connection in open_:
            connection.close()
    _until(lambda: _is_served(served))


def _is_refused(connection: socket.socket) -> bool:
    """Tell whether a connection was answered without a request; what it was told stays to be read."""
    connection.setblocking(False)
    try:
        return connection.recv(100, socket.MSG_PEEK).startswith(b"HTTP/1.1 503")
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(10)


def _is_served(served: Served) -> bool:
    try:
        with served.get("/status") as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False


def test_a_connection_that_sends_no_request_is_broken_off(monkeypatch):
    monkeypatch.setattr(page_module, "SILENCE_S", 0.2)
    monkeypatch.setattr(page_module, "LOOK_S", 0.05)
    served = Served()
    try:
        with served.connected() as silent, served.connected() as slow:
            slow.sendall(b"GET /status HT")
            assert [_end_of(connection) for connection in (silent, slow)] == [b"", b""]
    finally:
        served.stop()


def _end_of(connection: socket.socket) -> bytes:
    """Return what still comes before the connection is broken off."""
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_who_reads_too_slowly_is_let_go(served, monkeypatch):
    monkeypatch.setattr(pages_module, "WRITTEN_WITHIN_S", 0.2)
    large = {"kind": "note", "text": "x" * 1_000_000}
    with served.connected() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(60):
            served.history.add(large)
        slow.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _until(lambda: _is_quiet(served) and served.asked > 0)


def test_stopping_ends_the_streams():
    served = Served()
    with served.get("/events") as stream:
        next(_events(stream))
        served.stop()
        stream.read()  # it ends
    with pytest.raises(ConnectionRefusedError):
        served.connected()


def test_where_there_is_a_token_only_who_has_it_may_look():
    served = Served(token="open sesame")
    try:
        for path in ("/", "/status", "/history", "/events", "/?token=guessed"):
            assert _code(partial(served.get, path)) == 401
        assert _code(lambda: served.get("/status", Authorization="Bearer guessed")) == 401
        with served.get("/status", Authorization="Bearer open sesame") as answer:
            assert answer.status == 200
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(f"http://127.0.0.1:{served.port}/?token=open%20sesame", timeout=10) as answer:
            assert (answer.status, answer.url) == (200, f"http://127.0.0.1:{served.port}/")
        with browser.open(f"http://127.0.0.1:{served.port}/status", timeout=10) as answer:
            assert answer.status == 200
        with served.get("/metrics") as answer:
            assert answer.status == 200
    finally:
        served.stop()
