"""Bugs planted in the account of samples: the simulation notices each (see test_planted_bugs.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.samples import SampleAccount
from mlfabric.scheduler.samples.sample_table import ModelSamples
from mlfabric.scheduler.updates.push_table import PushTable
from mlfabric.server.replica import ReplicaModel
from mlfabric.simulator import SimulationConfig
from mlfabric.worker_daemon.state import DaemonState
from tests.simulator.test_planted_bugs import caught


def test_a_server_that_is_not_told_what_sums_are_computed_from_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    expect = PushTable._expect

    def without(self, planned, after, reason):
        order = expect(self, planned, after, reason)
        lone = planned.sum is None
        members = order.members if lone else tuple(m._replace(samples=()) for m in order.members)
        return replace(order, members=members)

    monkeypatch.setattr(PushTable, "_expect", without)
    caught("was trained on", lambda seed: SimulationConfig.drawn_with_sums(400 + seed))


def test_an_account_that_now_and_then_counts_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    train, times = SampleAccount.train, [0]

    def twice(self, samples):
        times[0] += 1
        for _ in range(1 + (times[0] % 50 == 0)):
            train(self, samples)

    monkeypatch.setattr(SampleAccount, "train", twice)
    caught("was trained on")


def test_a_replica_that_forgets_what_its_seed_was_trained_on_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = ReplicaModel.planted

    def empty(self):
        yield from planted(self)
        self.samples = SampleAccount()

    monkeypatch.setattr(ReplicaModel, "planted", empty)
    caught("was trained on", SimulationConfig.drawn_with_replicas, first=3)


def test_a_worker_that_does_not_tell_the_next_scheduler_of_drops_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    holds = DaemonState.holds
    monkeypatch.setattr(DaemonState, "holds", lambda self: replace(holds(self), dropped=()))
    caught("no word that")


def test_a_scheduler_that_does_not_tell_a_server_what_it_missed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self, counts):
        self.reported(counts)
        return iter(())

    monkeypatch.setattr(ModelSamples, "server_back", forgets)
    caught("no word that", first=12)
