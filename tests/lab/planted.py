"""Bugs that somebody might make: each patches the product, and the storms must find it.

With each stand seeds that have found it, to be played first; they lose that as the product changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mlfabric import clock
from mlfabric.channels.progress import ProgressOfPieces
from mlfabric.methods.gossip import Neighbours
from mlfabric.protocol import PassReduce, Reduce, ReduceSettled, RoundArrived
from mlfabric.scheduler import runner
from mlfabric.scheduler.members.membership import Membership
from mlfabric.scheduler.rounds.model_states import ModelStates
from mlfabric.scheduler.rounds.round_carrier import RoundCarrier
from mlfabric.scheduler.rounds.round_table import Rounds
from mlfabric.scheduler.rounds.running_round import RunningRound
from mlfabric.scheduler.rounds.standings import Standings
from mlfabric.scheduler.rounds.step_rounds import StepRounds
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.actions import Request
from mlfabric.worker_daemon.attempts import Attempt
from mlfabric.worker_daemon.open_reductions import Reducing, _Attempt
from mlfabric.worker_daemon.reductions import Reductions
from mlfabric.worker_daemon.round_lines import RoundLines
from mlfabric.worker_daemon.state_transfers import StateTransfers

__all__ = ["BUGS", "GOSSIP_BUGS", "STEP_BUGS"]

Patch = pytest.MonkeyPatch


def settled_before_all_have_it(patch: Patch) -> None:
    """The round is over when all workers but one have the result."""

    def arrive(self: Any, running: Any, worker: str, now_ns: int) -> Any:
        running.arrived.add(worker)
        if len(running.arrived) >= max(1, len(running.parts) - 1):
            yield from self._settle(now_ns)

    patch.setattr(Rounds, "_arrive", arrive)


def result_before_it_is_whole(patch: Patch) -> None:
    """A worker says that it has the result when it begins to fetch it."""
    begin = Reducing._begin

    def hasty(self: Any, event: Reduce) -> Any:
        for action in begin(self, event):
            yield action
            if isinstance(action, act.StartAttempt):
                self._attempt.has_arrived = True
                yield Request(event=RoundArrived(worker=self.worker, model="net", round=event.round))

    patch.setattr(Reducing, "_begin", hasty)


def void_attempt_goes_on(patch: Patch) -> None:
    """An attempt that is cancelled is not stopped."""

    def stop(self: Any) -> Any:
        self._attempt = None
        yield from ()

    patch.setattr(Reducing, "_stop", stop)


def void_result_counts(patch: Patch) -> None:
    """A worker keeps the result of an attempt that is void, and says that it has the next one's."""

    def stop(self: Any) -> Any:
        if self._attempt is not None and not self._attempt.has_arrived:
            yield act.StopAttempt(round=self._attempt.plan.round)

    def begin(self: Any, event: Reduce) -> Any:
        attempt = self._attempt
        if attempt is not None and attempt.has_arrived:
            attempt.plan = event
            yield Request(event=RoundArrived(worker=self.worker, model="net", round=event.round))
        else:
            self._attempt = _Attempt(event)
            yield act.StartAttempt(plan=event)

    patch.setattr(Reducing, "_stop", stop)
    patch.setattr(Reducing, "_begin", begin)


def tickets_not_checked(patch: Patch) -> None:
    """Whoever comes is taken for whom somebody expects, and bytes of one range for those of another."""
    take_in = RoundLines._take_in

    async def blind(self: Any, visit: Any) -> bool:
        if self._expected:
            visit = replace(visit, frame=replace(visit.frame, ticket=next(iter(self._expected))))
        return await take_in(self, visit)

    layout = Attempt._layout
    patch.setattr(RoundLines, "_take_in", blind)
    patch.setattr(
        Attempt, "_layout", lambda self, part: layout(self, replace(part, start=0, end=part.end - part.start))
    )


def settled_round_forgotten(patch: Patch) -> None:
    """A scheduler does not ask workers what was settled before it was started."""
    request = Rounds.request
    patch.setattr(Rounds, "request", lambda self, event, now_ns: request(self, replace(event, settled=None), now_ns))


def missed_round_not_told(patch: Patch) -> None:
    """A worker that others did a round without is not told."""
    patch.setattr(Rounds, "_catch_up", lambda *_: iter(()))


def silent_worker_not_left_out(patch: Patch) -> None:
    """A worker that was silent for long takes part again as if nothing had been done without it."""
    plan = Rounds.plan

    def kind(self: Any, now_ns: int) -> Any:
        yield from plan(self, now_ns)
        self._left_out.clear()

    patch.setattr(Rounds, "plan", kind)


def dead_worker_is_waited_for(patch: Patch) -> None:
    """A round is not void when one of its workers is gone, nor when it takes far too long."""
    patch.setattr(Rounds, "is_reducing", lambda self, worker: False)
    patch.setattr(RoundCarrier, "overdue_ns", lambda self: None)


def left_worker_is_waited_for(patch: Patch) -> None:
    """A worker that has left still counts as here."""
    patch.setattr(Membership, "left", lambda self, name, incarnation, detail, now_ns: iter(()))


def term_used_again(patch: Patch) -> None:
    """A scheduler takes its term from the time of day alone, and somebody sets that back."""
    patch.setattr(runner, "next_term", lambda state_dir, seen=0: clock.wall_ns() // 10**10)


def steps_settled_before_all_have_it(patch: Patch) -> None:
    """A round that workers apply is over when all of them but one have the result."""

    def arrive(self: Any, running: Any, worker: str, now_ns: int) -> Any:
        running.arrived.add(worker)
        if len(running.arrived) >= max(1, len(running.parts) - 1):
            yield from self._settle(now_ns)

    patch.setattr(StepRounds, "_arrive", arrive)


def state_before_it_is_applied(patch: Patch) -> None:
    """A worker gives its model to a peer though results wait to be applied to it, and says that it has them."""
    copied = StateTransfers._give

    async def give(self: Any, plan: Any) -> None:
        copy = self._inbox.copy_state
        self._inbox.copy_state = lambda: replace(copy(), version=plan.version)
        self._applied, applied = plan.version, self._applied
        try:
            await copied(self, plan)
        finally:
            self._inbox.copy_state, self._applied = copy, applied

    patch.setattr(StateTransfers, "_give", give)


def kept_gradient_joins_too(patch: Patch) -> None:
    """A worker is told to keep a gradient that is in the running round."""
    settle = StepRounds._settle

    def keep(self: Any, now_ns: int) -> Any:
        running = self._running
        for told in settle(self, now_ns):
            if isinstance(told, ReduceSettled) and told.reduce is not None and len(running.members) > 2:
                yield PassReduce(to=told.to, reduce=told.reduce, keep=True, reason="it is late")
            else:
                yield told

    patch.setattr(StepRounds, "_settle", keep)


def outcome_of_the_former_scheduler_forgotten(patch: Patch) -> None:
    """A new scheduler does not tell workers that have the last round's result that it was settled."""
    place = ModelStates._place
    patch.setattr(ModelStates, "_place", lambda self, worker, held: place(self, worker, replace(held, arrived=None)))


def gradient_sent_before_it_is_made(patch: Patch) -> None:
    """Of a gradient that is offered while it grows everything is sent at once."""
    patch.setattr(ProgressOfPieces, "_look", lambda self: self.progress.advance(self.progress.size_bytes))


def withdrawn_gradient_is_carried_on(patch: Patch) -> None:
    """A worker whose gradient will never be whole lets the round go on with what there is of it."""

    def withdraw(self: Any, growth: Any, reason: str) -> None:
        growth.progress.advance(growth.progress.size_bytes)

    patch.setattr(Reductions, "withdraw", withdraw)


def everybody_pulls_from_one(patch: Patch) -> None:
    """Workers average with the first one, who does not average with as many."""
    patch.setattr(Neighbours, "groups", lambda self, workers, version: {w: sorted({w, workers[0]}) for w in workers})


def mean_of_other_models(patch: Patch) -> None:
    """A worker's sum counts as that of all models of the round."""
    told = RunningRound.told
    patch.setattr(RunningRound, "told", lambda self, worker: replace(told(self, worker), weight=len(self.members)))


def agreement_of_some(patch: Patch) -> None:
    """What is for a round of all is in the next round, whoever that has."""
    patch.setattr(Standings, "heads", Standings.offers)


GOSSIP_BUGS: dict[Callable[[Patch], None], tuple[int, ...]] = {
    everybody_pulls_from_one: (),
    mean_of_other_models: (),
    agreement_of_some: (),
}
"""In jobs whose workers have models of their own."""
STEP_BUGS: dict[Callable[[Patch], None], tuple[int, ...]] = {
    steps_settled_before_all_have_it: (5, 15, 19, 28),
    state_before_it_is_applied: (6, 9, 23, 24),
    kept_gradient_joins_too: (0, 6, 7, 9),
    outcome_of_the_former_scheduler_forgotten: (459, 509, 837),
    gradient_sent_before_it_is_made: (6, 7, 13, 15),
    withdrawn_gradient_is_carried_on: (6, 7, 13, 15),
}
"""In jobs whose workers apply rounds by themselves, to a model that they share."""

BUGS: dict[Callable[[Patch], None], tuple[int, ...]] = {
    settled_before_all_have_it: (1, 8, 11, 14),
    result_before_it_is_whole: (1, 2, 3, 4),
    void_attempt_goes_on: (1, 4, 8, 11),
    void_result_counts: (1, 2, 12, 18),
    tickets_not_checked: (12, 17, 1, 2),
    settled_round_forgotten: (14, 18, 20, 21),
    missed_round_not_told: (18, 20, 21, 27),
    silent_worker_not_left_out: (1, 2, 8, 11),
    dead_worker_is_waited_for: (1, 32, 33, 53),
    left_worker_is_waited_for: (1, 3, 11, 12),
    term_used_again: (4, 10, 18, 20),
}
