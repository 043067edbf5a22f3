from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest

from mlfabric.cli.orderly_end import ending_when_told, undisturbed

TOLD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers():
    """Leave this process' handlers as they were, whatever a test does."""
    before = {number: signal.getsignal(number) for number in TOLD}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ctrl_c_is_a_keyboard_interrupt():
    with pytest.raises(KeyboardInterrupt), ending_when_told():
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("kind", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_end_with_the_code_of_a_process_that_they_ended(kind, code):
    with pytest.raises(SystemExit) as caught, ending_when_told():
        os.kill(os.getpid(), kind)
    assert caught.value.code == code


def test_a_second_signal_does_not_disturb_the_tidying_up():
    tidied = []

    def told_again() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        tidied.append(True)

    with ExitStack() as stack:
        stack.enter_context(pytest.raises(KeyboardInterrupt))
        stack.enter_context(ending_when_told())
        stack.callback(told_again)
        os.kill(os.getpid(), signal.SIGINT)

    assert tidied == [True]


def test_afterwards_signals_are_handled_as_before():
    before = [signal.getsignal(number) for number in TOLD]
    with pytest.raises(KeyboardInterrupt), ending_when_told():
        os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in TOLD] == before


def test_what_the_parent_had_us_ignore_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ending_when_told():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_ctrl_c_is_heard_by_what_a_shell_has_started_behind():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), ending_when_told():
        os.kill(os.getpid(), signal.SIGINT)


def test_what_takes_a_moment_is_finished_first():
    done = []

    def start_and_go_on() -> None:
        with undisturbed():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("started")
        done.append("gone on")

    with pytest.raises(SystemExit) as caught, ending_when_told():
        start_and_go_on()
    assert done == ["started"]
    assert caught.value.code == 143
