"""What the scheduler makes of pulses that arrive, by real datagrams."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace

import grpc
import pytest

from mlfabric.model.specs import Member, Role
from mlfabric.pulse import beat
from mlfabric.scheduler.members.pulse_socket import Listener, listen_for_pulses
from mlfabric.scheduler.members.silence import Found, LostBy
from tests.fabric.harness import Fabric, RawWorker, fabric, small_model, spec_of, wait_until

HOST = "127.0.0.1"
KEY = secrets.token_bytes(beat.KEY_BYTES)
A = Member(name="a", role=Role.WORKER, incarnation=5, host="h-a", pulse_key=KEY)


class Beside:
    """Sends pulses that the test makes."""

    def __init__(self, port: int, key: bytes = KEY) -> None:
        self.key, self.sent_ns = key, 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((HOST, port))
        self.socket.setblocking(False)

    def send(self, stopped_ms: int = 0, *, ended: bool = False) -> bytes:
        self.sent_ns += 1
        datagram = beat.pulse(self.key, self.sent_ns, stopped_ms, ended)
        self.socket.send(datagram)
        return datagram


class Scheduler:
    """A listener, and whom it found."""

    def __init__(self) -> None:
        self.found: list[tuple[Found, int]] = []
        self.news = asyncio.Event()
        self.listener = Listener(listen_for_pulses(HOST, 0), self._found, nullcontext)
        self.beside = Beside(self.listener.port)

    def _found(self, found: Found, incarnation: int) -> None:
        self.found.append((found, incarnation))
        self.news.set()

    async def next(self) -> tuple[Found, int]:
        await asyncio.wait_for(self.news.wait(), 15)
        self.news.clear()
        return self.found[-1]

    async def read_all(self) -> None:
        """Let everything that was sent be read."""
        marker = Beside(self.listener.port, secrets.token_bytes(beat.KEY_BYTES))
        self.listener.watch(replace(A, name="marker", pulse_key=marker.key))
        marker.send(ended=True)
        assert (await self.next())[0].member == "marker"
        self.listener.forget("marker")
        marker.socket.close()


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    """Yield one that listens for a."""
    scheduler = Scheduler()
    scheduler.listener.watch(A)
    yield scheduler
    scheduler.listener.close()
    scheduler.beside.socket.close()


async def test_who_is_stopped_is_found_with_its_incarnation(scheduler: Scheduler) -> None:
    scheduler.beside.send(stopped_ms=1)
    scheduler.beside.send(stopped_ms=300)
    assert await scheduler.next() == (Found("a", LostBy.STOPPED), 5)
    assert scheduler.listener.is_stopped(A)
    assert not scheduler.listener.is_stopped(replace(A, pulse_key=b""))


async def test_who_is_not_heard_any_more_is_found(scheduler: Scheduler) -> None:
    for _ in range(20):
        scheduler.beside.send()
    assert await scheduler.next() == (Found("a", LostBy.SILENT), 5)


async def is_told_to_join_again_once_it_runs(scheduler: Scheduler) -> None:
    scheduler.beside.send(stopped_ms=400)
    await scheduler.read_all()
    with pytest.raises(BlockingIOError):
        scheduler.beside.socket.recv(100)
    scheduler.beside.send()
    await scheduler.read_all()
    assert beat.open_recall(KEY, scheduler.beside.socket.recv(100)) == scheduler.beside.sent_ns


async def test_who_was_found_and_runs_is_told_to_join_again_until_it_does(scheduler: Scheduler) -> None:
    scheduler.beside.send(stopped_ms=300)
    await scheduler.next()
    await is_told_to_join_again_once_it_runs(scheduler)
    assert not scheduler.listener.is_stopped(A)
    scheduler.listener.watch(A)
    scheduler.beside.send()
    await scheduler.read_all()
    with pytest.raises(BlockingIOError):
        scheduler.beside.socket.recv(100)


async def test_what_is_repeated_old_or_forged_counts_for_nothing(scheduler: Scheduler) -> None:
    stopped = scheduler.beside.send(stopped_ms=100)
    scheduler.beside.send()
    scheduler.beside.socket.send(stopped)
    scheduler.beside.socket.send(stopped[:-1] + b"\0")
    scheduler.beside.socket.send(b"")
    scheduler.beside.socket.send(b"mlf\x01" * 100)
    await scheduler.read_all()
    assert not scheduler.listener.is_stopped(A)
    scheduler.listener.watch(A)
    scheduler.beside.socket.send(stopped)
    await scheduler.read_all()
    assert not scheduler.listener.is_stopped(A), "nor when its member has come back"


async def test_a_member_with_another_one_s_key_is_not_listened_to(scheduler: Scheduler) -> None:
    scheduler.listener.watch(replace(A, name="b"))
    scheduler.listener.forget("b")
    scheduler.beside.send(stopped_ms=300)
    assert (await scheduler.next())[0].member == "a"


async def test_one_that_begins_anew_with_another_key_is_listened_to_under_that(scheduler: Scheduler) -> None:
    again = Beside(scheduler.listener.port, secrets.token_bytes(beat.KEY_BYTES))
    scheduler.listener.watch(replace(A, incarnation=6, pulse_key=again.key))
    scheduler.beside.send(ended=True)
    await scheduler.read_all()
    again.send(ended=True)
    assert await scheduler.next() == (Found("a", LostBy.ENDED), 6)
    assert len(scheduler.found) == 2, "the marker, and this one"
    again.socket.close()


async def test_one_without_a_key_or_that_left_is_not_judged(scheduler: Scheduler) -> None:
    scheduler.listener.watch(replace(A, pulse_key=b""))
    scheduler.listener.watch(replace(A, name="short", pulse_key=b"short"))
    scheduler.listener.watch(A)
    scheduler.listener.forget("a")
    scheduler.listener.forget("a")
    scheduler.beside.send(ended=True)
    await scheduler.read_all()
    assert len(scheduler.found) == 1, "only the marker"


async def test_a_port_that_is_taken_is_no_reason_not_to_listen() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        listener = Listener(listen_for_pulses(HOST, port), lambda *_: None, nullcontext)
        assert listener.port not in (0, port)
        listener.close()


async def test_where_no_datagrams_can_be_had_nobody_is_judged() -> None:
    assert listen_for_pulses("192.0.2.1", 0) is None  # an address for documentation: of no machine
    listener = Listener(None, lambda *_: None, nullcontext)
    assert listener.port == 0
    listener.watch(A)
    assert not listener.is_stopped(A)
    listener.close()


class Pulsing(RawWorker):
    """A worker played by hand that sends pulses, too."""

    def __init__(self, running: Fabric) -> None:
        super().__init__(running.scheduler.address, spec_of(small_model()), "raw")
        self.member = replace(self.member, pulse_key=KEY)


def test_a_member_whose_process_is_stopped_is_not_let_in_before_it_runs() -> None:
    with fabric() as running, Pulsing(running) as raw:
        raw.join()
        beside = Beside(raw.admission.pulse_port)
        beside.send(stopped_ms=300)

        def refusal() -> tuple[object, str] | None:
            beside.send(stopped_ms=400)
            try:
                raw.register()
            except grpc.RpcError as error:
                return error.code(), error.details() or ""
            return None

        why = "waiting for a process of raw, which is stopped"
        assert wait_until(refusal, "it is refused") == (grpc.StatusCode.FAILED_PRECONDITION, why)
        assert raw.told("send") is None, "its session has ended"
        (shown,) = [m for m in running.status().members if m.name == "raw"]
        assert (shown.state, shown.activity) == ("left", "its process is stopped")
        beside.send()
        wait_until(raw._admitted, "it is let in")
        assert [m.state for m in running.status().members if m.name == "raw"] == ["here"]
        beside.socket.close()


async def test_whose_name_another_process_has_taken_is_told_to_join_again_and_not_judged(scheduler: Scheduler) -> None:
    scheduler.beside.send(stopped_ms=300)
    await scheduler.next()
    scheduler.listener.watch(replace(A, incarnation=6, pulse_key=secrets.token_bytes(beat.KEY_BYTES)))
    await is_told_to_join_again_once_it_runs(scheduler)
    assert [found for found, _ in scheduler.found if found.member == "a"] == [Found("a", LostBy.STOPPED)]
