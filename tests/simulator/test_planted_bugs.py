"""Bugs planted on purpose: a simulation that does not notice them proves nothing by being green."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mlfabric.aggregator.aggregator_sums import Sums
from mlfabric.model.specs import Method
from mlfabric.model.stepping import Coefficients
from mlfabric.protocol import TransferEnd, UpdateId, UpdateKind
from mlfabric.scheduler.members.membership import Membership
from mlfabric.scheduler.updates.commit_order import Sequencing
from mlfabric.scheduler.updates.dispatch import Arranging
from mlfabric.scheduler.updates.push_ends import PushEnds
from mlfabric.scheduler.updates.push_table import PushTable
from mlfabric.scheduler.updates.pushes import Pushes
from mlfabric.server.applied import AppliedSet
from mlfabric.server.expected_transfers import Incoming
from mlfabric.server.grants import grants
from mlfabric.server.hosted import HostedModel
from mlfabric.server.served_models import Servings
from mlfabric.simulator import FaultRates, Simulation, SimulationConfig
from mlfabric.simulator.config import MOMENTUM, PLAIN
from mlfabric.simulator.payloads import Adding
from mlfabric.simulator.worker import SimulatedWorker
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.open_gets import Getting

SEEDS = 150


def slow_news(seed: int) -> SimulationConfig:
    """Return a fabric in which connections often break and everybody hears late of it."""
    faults = FaultRates(connection_hz=20.0, outcome_lost=0.1, late=0.05)
    return SimulationConfig(
        seed=seed,
        workers=4,
        tau_max=2,
        notice_ns=60_000_000,
        latency_ns=5_000_000,
        compute_ns=5_000_000,
        model_bytes=300_000,
        faults=faults,
    )


def with_sums(method: Method, first: int = 0, **changes: Any) -> Callable[[int], SimulationConfig]:
    """Return how to draw a fabric that sums updates on their way; seeds are counted from ``first``."""
    return lambda seed: replace(SimulationConfig.drawn_with_sums(first + seed, method=method), **changes)


def caught(expected: str, draw: Callable[[int], SimulationConfig] = SimulationConfig.drawn, first: int = 0) -> None:
    """Play storms until one fails with ``expected`` in what it says; ``first`` is a seed that notices it soon."""
    said = []
    for seed in range(first, first + SEEDS):
        try:
            Simulation(draw(seed)).run(2500)
        except AssertionError as error:
            said.append(str(error))
            if expected in said[-1]:
                return
    pytest.fail(f"none of {SEEDS} seeds noticed; they said {said}")


def test_a_server_that_forgets_what_it_applied_is_caught(monkeypatch):
    monkeypatch.setattr(AppliedSet, "knows", lambda self, update: False)
    monkeypatch.setattr(AppliedSet, "outcome", lambda self, update: None)
    caught("is applied twice", slow_news)


def test_a_scheduler_that_forgets_the_delay_bound_is_caught(monkeypatch):
    expect = PushTable._expect
    monkeypatch.setattr(PushTable, "_expect", lambda *args: replace(expect(*args), tau_max=10**6))
    caught("the bound in force is", slow_news)


def test_a_server_without_a_gate_is_caught(monkeypatch):
    monkeypatch.setattr(HostedModel, "_gate", lambda self, transfer: None)
    caught("the bound in force is", slow_news)


def test_commits_in_the_order_of_arrival_are_caught(monkeypatch):
    def by_arrival(self):
        def key(transfer):
            return transfer.kind is not UpdateKind.INITIAL, not transfer.is_complete, transfer.seq

        return [[transfer] for transfer in sorted(self.transfers.values(), key=key)]

    monkeypatch.setattr(Incoming, "places", by_arrival)
    caught("which are earlier in the plan", first=7)


def test_pins_that_are_ignored_are_caught(monkeypatch):
    monkeypatch.setattr(Servings, "may_pin", lambda self, version: True)
    monkeypatch.setattr(Servings, "validate", lambda self, version: None)
    caught("copies are pinned")


def test_a_worker_that_pushes_again_under_a_new_counter_is_caught(monkeypatch):
    take_in = SimulatedWorker._take_in

    def under_a_new_counter(self, event):
        is_broken = isinstance(event, act.SendBroken) and event.update in self.state.pushing.parts
        if is_broken and self.state.pushing.parts[event.update].request.kind is UpdateKind.GRADIENT:
            request = self.state.pushing.parts.pop(event.update).request
            del self.state.pushing.pushes[event.update]
            update = UpdateId(event.update.worker, event.update.incarnation, self._updates)
            self._updates += 1
            self.witness.truths[update] = self.witness.truths[event.update]
            self.witness.told[event.update] = None
            for part in (part for get in self.state.getting.gets.values() for part in get.parts.values()):
                if part.request.after_update == event.update:
                    part.request = replace(part.request, after_update=None)
            event = replace(request, update=update)
        take_in(self, event)

    monkeypatch.setattr(SimulatedWorker, "_take_in", under_a_new_counter)
    caught("is in the weights already")


def test_a_broken_update_that_is_planned_again_without_being_voided_is_caught(monkeypatch):
    ended = PushEnds.ended

    def at_once(self, event, update):
        if event.end is TransferEnd.BROKEN:
            self._release(update)
            return None
        return (yield from ended(self, event, update))

    monkeypatch.setattr(PushEnds, "ended", at_once)
    caught("Dropped", slow_news, first=29)


def test_a_scheduler_that_refuses_before_it_knows_what_the_server_holds_is_caught(monkeypatch):
    monkeypatch.setattr(Membership, "_admit_server", lambda self, event, now_ns: iter(()))
    caught("the scheduler says Dropped", first=333)


def test_transfers_that_nobody_comes_for_are_caught(monkeypatch):
    monkeypatch.setattr(HostedModel, "expire", lambda self, now_ns: iter(()))
    monkeypatch.setattr(HostedModel, "next_wakeup_ns", lambda self: None)
    caught("still")


def test_a_model_without_the_update_that_it_was_to_follow_is_caught(monkeypatch):
    def at_once(self, get):
        (version,) = get.versions()
        if version is not None:
            del self.gets[get.first.get]
            yield act.Deliver(get=get.first.get, version=version)

    monkeypatch.setattr(Getting, "_deliver", at_once)
    caught("without")


def test_two_steps_at_once_are_caught(monkeypatch):
    def both(self, now_ns):
        yield from self._advance_sequence()
        yield from grants(self.incoming, self._budget_bytes)
        if self.initialised and not self.incoming.applying():
            yield from self.gets.advance(self.version, self.incoming.transfer_of, now_ns)

    monkeypatch.setattr(HostedModel, "advance", both)
    caught("has no buffer")


# Sums and methods


def test_a_wrong_coefficient_is_caught(monkeypatch):
    def unweighted(self, commits, lrs):
        return {commit.update: Coefficients(-lr, -lr) for commit, lr in zip(commits, lrs, strict=True)}

    monkeypatch.setattr(Arranging, "_coefficients", unweighted)
    caught("led to other weights", with_sums(Method.ASYNCHRONOUS, rule=MOMENTUM, server_share=0.2))


def test_a_sum_that_is_passed_on_before_all_inputs_have_brought_their_part_is_caught(monkeypatch):
    monkeypatch.setattr(Adding, "_is_ready", lambda self, place: place < self.chunks and max(self._come) > place)
    caught("led to other weights", with_sums(Method.SYNCHRONOUS, server_share=0.2))


def test_outcomes_that_go_to_the_wrong_inputs_are_caught(monkeypatch):
    monkeypatch.setattr(Sums, "_part_of", lambda self, transfer, known: known[:1])
    with pytest.raises(KeyError):
        caught("nothing", with_sums(Method.SYNCHRONOUS, server_share=0.2))


def test_an_iteration_that_forgets_what_it_is_owed_is_caught(monkeypatch):
    standing = Pushes.standing

    def forgetful(self):
        return replace(standing(self), is_under_way=bool(self.planned))

    monkeypatch.setattr(Pushes, "standing", forgetful)
    caught("two updates of one worker", with_sums(Method.SYNCHRONOUS, 210))


# Making way


def slow_links(seed: int) -> SimulationConfig:
    """Return a fabric whose links change so often that sums are late, with coefficients that let them be put behind."""
    drawn = SimulationConfig.drawn_with_sums(seed)
    faults = FaultRates(link_hz=12.0, connection_hz=0.5)
    return replace(drawn, faults=faults, rule=PLAIN, workers=8, in_flight=1, tau_max=20, server_share=0.5)


def test_a_sum_that_is_put_behind_without_its_place_is_caught(monkeypatch):
    put_behind = Sequencing._put_behind

    def forgetful(self, transfer, now_ns):
        root = transfer[0].sum
        seq = None if root is None else self.sums.whole(root).seq
        yield from put_behind(self, transfer, now_ns)
        if root is not None:
            self.sums.whole(root).seq = seq

    monkeypatch.setattr(Sequencing, "_put_behind", forgetful)
    caught("is not as its sum", slow_links)


def test_updates_that_are_left_out_for_good_once_their_sum_was_late_are_caught(monkeypatch):
    ready = Pushes.ready
    monkeypatch.setattr(Pushes, "ready", lambda self: [w for w in ready(self) if not self.late[w.request.update]])
    caught("wait though nothing is under way", slow_links)
