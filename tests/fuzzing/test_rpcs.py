"""Every call of the scheduler's service, and its sessions, with messages that anybody could send."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlfabric.scheduler.limits import Limits
from mlfabric.scheduler.state import SchedulerState

from .messages import Words
from .stand import WORDS, Honest, Hostile, Stand, stand

ACTIONS = 60
MANY_NAMES = tuple(f"n{number}" for number in range(200))
TIGHT = Limits(
    members=30,
    departed=20,
    models=16,
    updates=60,
    updates_per_worker=4,
    outcomes_per_worker=6,
    gets_per_worker=4,
    reduces_per_worker=4,
    outbox=200,
)


async def _storm(
    seed: int,
    actions: int,
    *,
    limits: Limits | None = None,
    words: Words = WORDS,
    watch: Callable[[SchedulerState], None] = SchedulerState.validate,
) -> None:
    async with stand(limits=limits or Limits()) as at:
        honest, hostile = Honest(at), Hostile(at, random.Random(seed), words)
        await honest.join()
        await hostile.join()
        for _ in range(actions):
            await hostile.act()
            at.check()
            watch(at.state)
        await honest.is_served()
        await hostile.leave()
        await honest.is_served()
        at.check()
        _check_shell(at)


def _check_shell(at: Stand) -> None:
    """Fail if places are kept for more members than there can be."""
    assert len(at.service._seats) <= at.state.context.config.limits.members


def _is_bounded(state: SchedulerState) -> None:
    """Fail if there is more of anything than the limits say; a server's word about what it holds is believed."""
    limits, members = state.context.config.limits, state.context.members
    assert sum(record.state.value != "left" for record in members.values()) <= limits.members
    assert len(members) <= limits.members + limits.departed + 1
    assert len(state.context.network.hosts) <= 2 * limits.members
    assert len(state.context.network._seen_ns) <= 4 * limits.members
    assert len(state.models) + len(state.reductions) <= limits.models
    updates, gets = Counter[str](), Counter[str]()
    for model in state.models.values():
        asked = {update for update, planned in model.pushes.planned.items() if not planned.adopted}
        updates.update(update.worker for update in asked | model.pushes.waiting.keys())
        gets.update(get.worker for get in {*model.gets.waiting, *model.gets.planned})
        outcomes = Counter(update[:2] for update, _ in model.pushes.settled.items())
        assert max(outcomes.values(), default=0) <= limits.outcomes_per_worker + limits.updates_per_worker
    assert max(updates.values(), default=0) <= limits.updates_per_worker
    assert max(gets.values(), default=0) <= limits.gets_per_worker
    for rounds in state.reductions.values():
        assert all(rounds.asked_by(name) <= limits.reduces_per_worker for name in members)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
@example(10248363).via("a part of a cut model is gone when the status is asked for")
def test_whatever_is_called_the_status_fits_and_other_members_go_on(seed: int) -> None:
    asyncio.run(_storm(seed, ACTIONS))


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
@example(8827).via("noise in a term that a member has seen")
def test_whatever_is_called_nothing_grows_beyond_its_limit(seed: int) -> None:
    words = replace(WORDS, names=(*WORDS.names, *MANY_NAMES), wildness=0.01)
    asyncio.run(_storm(seed, 2 * ACTIONS, limits=TIGHT, words=words, watch=_is_bounded))
