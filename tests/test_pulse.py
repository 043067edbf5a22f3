"""Signs of life: what the process beside a member's sends, when, and when it ends."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric import pulse
from mlfabric.pulse import beat, keeper
from tests.fabric.harness import wait_until

KEY = secrets.token_bytes(beat.KEY_BYTES)
OTHER = secrets.token_bytes(beat.KEY_BYTES)
keys = st.binary(min_size=beat.KEY_BYTES, max_size=beat.KEY_BYTES)
longs = st.integers(0, (1 << 64) - 1)


@given(keys, longs, st.integers(0, (1 << 32) - 1), st.booleans())
def test_a_pulse_says_what_was_put_in(key: bytes, sent_ns: int, stopped_ms: int, ended: bool) -> None:
    datagram = beat.pulse(key, sent_ns, stopped_ms, ended)
    assert beat.pulse_id(datagram) == beat.id_of(key)
    assert beat.open_pulse(key, datagram) == (sent_ns, stopped_ms, ended)


def test_a_process_stopped_for_months_fits_in() -> None:
    assert beat.open_pulse(KEY, beat.pulse(KEY, 1, 1 << 40, False)) == (1, (1 << 32) - 1, False)


@given(st.integers(0, beat.MOST_BYTES - 1), st.integers(1, 255))
def test_a_changed_bit_or_another_key_makes_it_none(at: int, change: int) -> None:
    datagram = bytearray(beat.pulse(KEY, 5, 0, False))
    assert beat.open_pulse(OTHER, bytes(datagram)) is None
    datagram[at] ^= change
    assert beat.open_pulse(KEY, bytes(datagram)) is None


@given(st.binary(max_size=80))
def test_whatever_comes_is_a_pulse_or_none(datagram: bytes) -> None:
    assert beat.pulse_id(datagram) in (b"", datagram[4:12])
    assert beat.open_pulse(KEY, datagram) is None
    assert beat.open_recall(KEY, datagram) is None


def test_a_recall_is_no_pulse_and_a_pulse_no_recall() -> None:
    assert beat.open_recall(KEY, beat.recall(KEY, 7)) == 7
    assert beat.open_recall(KEY, beat.pulse(KEY, 7, 0, False)) is None
    assert beat.open_pulse(KEY, beat.recall(KEY, 7)) is None


class Heard(NamedTuple):
    """A pulse that came."""

    sent_ns: int
    stopped_ms: int
    ended: bool


class Ear:
    """Where pulses arrive."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(15)
        self.port: int = self._socket.getsockname()[1]
        self.sender: tuple[str, int] = ("", 0)

    def next(self, key: bytes = KEY) -> Heard:
        while True:
            datagram, self.sender = self._socket.recvfrom(1000)
            if (opened := beat.open_pulse(key, datagram)) is not None:
                return Heard(*opened)

    def until(self, found: Callable[[Heard], bool]) -> Heard:
        while not found(heard := self.next()):
            pass
        return heard

    def recall(self, sent_ns: int) -> None:
        self._socket.sendto(beat.recall(KEY, sent_ns), self.sender)

    def is_silent(self) -> bool:
        """Tell whether nothing has come that was sent half a second from now or later, in twice that time."""
        since_ns = time.monotonic_ns() + 500_000_000
        self._socket.settimeout(1)
        with suppress(TimeoutError):
            while self.next().sent_ns < since_ns:
                pass
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


def to(ear: Ear, recalled: Callable[[int], None] = lambda _: None) -> pulse.Watch:
    return pulse.Watch(key=KEY, address="127.0.0.1", port=ear.port, recalled=recalled)


@pytest.fixture
def watched(ear: Ear) -> Iterator[Ear]:
    pulse.watch(to(ear))
    yield ear
    pulse.forget(KEY)


def test_pulses_come_one_after_the_other_until_they_are_not_wanted_any_more(watched: Ear) -> None:
    heard = [watched.next() for _ in range(5)]
    assert all(before.sent_ns < after.sent_ns for before, after in pairwise(heard))
    assert {(one.stopped_ms, one.ended) for one in heard} == {(0, False)}
    pulse.forget(KEY)
    assert watched.is_silent()


def test_one_watched_again_is_heard_where_it_is_wanted_now(watched: Ear) -> None:
    watched.next()
    second = Ear()
    try:
        pulse.watch(to(second))
        second.next()
        assert watched.is_silent()
    finally:
        second.close()


def test_a_recall_reaches_whoever_asked_for_it(ear: Ear) -> None:
    recalled: list[int] = []
    pulse.watch(to(ear, recalled=recalled.append))
    sent_ns = ear.next().sent_ns
    ear.recall(sent_ns)
    wait_until(lambda: recalled == [sent_ns], "it is told")
    pulse.forget(KEY)


MEMBER = """
    import sys, time
    from mlfabric import pulse

    key, port = bytes.fromhex(sys.argv[1]), int(sys.argv[2])
    pulse.watch(pulse.Watch(key=key, address="127.0.0.1", port=port, recalled=print))
    if sys.argv[3] == "lock":
        import ctypes
        ctypes.PyDLL(None).usleep(1000_000_000)
    while sys.argv[3] == "busy":
        pass
    sys.stdin.read()
"""


@pytest.fixture
def member(ear: Ear, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [KEY.hex(), str(ear.port), getattr(request, "param", "")]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(MEMBER), *arguments],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("member", ["lock"], indirect=True)
def test_a_process_that_holds_the_interpreter_s_lock_is_heard(ear: Ear, member: subprocess.Popen[bytes]) -> None:
    heard = [ear.next() for _ in range(10)]
    assert not any(one.stopped_ms or one.ended for one in heard)


def test_a_process_that_is_stopped_is_heard_as_that_and_as_running_when_it_goes_on(
    ear: Ear, member: subprocess.Popen[bytes]
) -> None:
    ear.next()
    member.send_signal(signal.SIGSTOP)
    ear.until(lambda heard: heard.stopped_ms >= 200)
    member.send_signal(signal.SIGCONT)
    ear.until(lambda heard: heard.stopped_ms == 0)


@pytest.mark.parametrize("member", ["busy"], indirect=True)
def test_a_process_that_is_stopped_and_continued_all_the_time_is_slow_and_not_stopped(
    ear: Ear, member: subprocess.Popen[bytes]
) -> None:
    ear.next()
    ended_ns = time.monotonic_ns() + 2_000_000_000
    longest_ms = 0
    while time.monotonic_ns() < ended_ns:
        stopped_ns = time.monotonic_ns()
        member.send_signal(signal.SIGSTOP)
        said = ear.until(lambda heard, stopped_ns=stopped_ns: heard.sent_ns > stopped_ns)  # type: ignore[misc]
        longest_ms = max(longest_ms, said.stopped_ms)
        member.send_signal(signal.SIGCONT)
        before = beat.look(member.pid)
        wait_until(lambda before=before: beat.look(member.pid) > before, "it runs")  # type: ignore[misc]
    assert longest_ms < 200


def test_a_process_that_is_killed_is_heard_as_ended_and_nothing_is_left_behind(
    ear: Ear, member: subprocess.Popen[bytes]
) -> None:
    ear.next()
    beside = children(member.pid)
    assert len(beside) == 1
    member.kill()
    ear.until(lambda heard: heard.ended)
    wait_until(lambda: beat.look(beside[0]) is None, "it has ended with its parent")
    assert ear.is_silent()


def test_neither_a_terminal_s_signals_nor_those_that_ask_to_end_reach_it(
    ear: Ear, member: subprocess.Popen[bytes]
) -> None:
    ear.next()
    (beside,) = children(member.pid)
    assert os.getsid(beside) == beside
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(beside, number)
    assert [ear.next().ended for _ in range(5)] == [False] * 5


def test_one_that_was_killed_is_replaced(ear: Ear, member: subprocess.Popen[bytes]) -> None:
    ear.next()
    (beside,) = children(member.pid)
    os.kill(beside, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    ear.until(lambda heard: heard.sent_ns > killed_ns)
    assert children(member.pid) != [beside]


@pytest.mark.parametrize(("number", "level"), [(signal.SIGTERM, "INFO"), (signal.SIGKILL, "WARNING")])
def test_one_that_was_asked_to_end_with_its_parent_while_it_was_started_is_replaced_without_a_warning(
    number: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "beat.py"
    script.write_text(f"import os\nos.kill(os.getpid(), {int(number)})\n")
    monkeypatch.setattr(beat, "__file__", str(script))
    caplog.set_level("INFO", logger=keeper.__name__)
    one = keeper._Keeper()
    one.watch(keeper.Watch(key=bytes(beat.KEY_BYTES), address="127.0.0.1", port=9, recalled=lambda _: None))
    wait_until(lambda: len(caplog.records) >= 2, "it was started once more")
    one._end()
    assert {record.levelname for record in caplog.records} == {level}


def test_a_process_that_ends_in_order_leaves_nothing_behind(ear: Ear, member: subprocess.Popen[bytes]) -> None:
    ear.next()
    (beside,) = children(member.pid)
    assert member.stdin is not None
    member.stdin.close()
    assert member.wait(15) == 0
    wait_until(lambda: beat.look(beside) is None, "it has ended too")


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
