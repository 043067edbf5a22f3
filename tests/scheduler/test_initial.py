"""Who brings initial weights: asked again as long as they are wanted, and no longer."""

from __future__ import annotations

import pytest

from mlfabric.protocol import Initialise
from tests.scheduler.stage import Stage, initial


def asks(worker: str) -> Initialise:
    return Initialise(to=worker, model="net", reason="")


@pytest.fixture
def waiting():
    """Return a stage at which a model waits for the weights of the first of three workers."""
    stage = Stage()
    stage.server()
    stage.worker("a")
    stage.worker("b", holds_initial=False)
    stage.worker("c")
    return stage


def later(stage):
    stage.now_ns += stage.state.context.config.silence_ns
    return [told for told in stage.tick() if isinstance(told, Initialise)]


def test_the_next_worker_is_asked_for_weights_that_do_not_come(waiting):
    assert later(waiting) == [asks("c")]
    assert later(waiting) == [asks("a")]


def test_who_is_on_the_way_with_them_is_asked_again_and_nobody_else(waiting):
    waiting.ask(initial("a"))
    assert later(waiting) == [asks("a")]


def test_nobody_is_asked_again_before_it_is_time_or_once_they_are_here(waiting):
    silence_ns = waiting.state.context.config.silence_ns
    assert waiting.state.next_wakeup_ns(waiting.now_ns) == waiting.now_ns + silence_ns
    assert [told for told in waiting.tick() if isinstance(told, Initialise)] == []
    waiting.weights()
    assert waiting.state.next_wakeup_ns(waiting.now_ns) is None
    assert later(waiting) == []


def test_a_worker_that_is_silent_is_not_asked(waiting):
    for worker in ("a", "c"):
        waiting.silent(worker)
    assert later(waiting) == []
