"""Bugs of replication planted on purpose, most of which storms once found: they must be noticed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from mlfabric.model.specs import Method
from mlfabric.model.update_rules import RuleSpec
from mlfabric.scheduler.followers.replication_state import Replication
from mlfabric.server.gate_lead import LeadGate
from mlfabric.server.replica import ReplicaModel
from mlfabric.simulator import SimulationConfig
from mlfabric.simulator.config import MOMENTUM
from mlfabric.worker_daemon.kept_updates import Keeping
from tests.simulator.test_planted_bugs import caught


def within(updates: int, rule: RuleSpec = MOMENTUM, **often: float) -> Callable[[int], SimulationConfig]:
    """Return how to draw a fabric whose primary may be so many updates ahead; ``often`` are rates of faults."""

    def draw(seed: int) -> SimulationConfig:
        config = SimulationConfig.drawn_with_replicas(3000 + seed, method=Method.ASYNCHRONOUS)
        faults = replace(config.faults, **often)
        return replace(
            config, div_max=math.inf, div_max_updates=updates, rule=rule, aggregators=0, workers=4, faults=faults
        )

    return draw


def test_a_primary_without_a_gate_is_caught(monkeypatch):
    monkeypatch.setattr(LeadGate, "refusal", lambda self, version, members, lrs: "")
    caught("can recover", within(1))


def test_a_replica_that_forgets_what_it_holds_when_a_scheduler_begins_is_caught(monkeypatch):
    begin_term = ReplicaModel.begin_term

    def forgetful(self):
        for name in list(self.transfers):
            yield from self.void(name)
        yield from begin_term(self)

    monkeypatch.setattr(ReplicaModel, "begin_term", forgetful)
    caught("can recover", within(0, scheduler_hz=5.0))


def test_folds_that_forget_what_others_did_between_are_caught(monkeypatch):
    fold = Replication._fold

    def short(self, update, entry, window):
        order = fold(self, update, entry, window)
        return replace(order, lrs=order.lrs[-1:])

    monkeypatch.setattr(Replication, "_fold", short)
    caught("makes another version", within(8))


def test_a_window_that_is_sent_in_spite_of_a_hole_is_caught(monkeypatch):
    not_kept = Keeping._not_kept
    monkeypatch.setattr(Keeping, "_not_kept", lambda self, update: iter([next(not_kept(self, update))]))
    caught("nothing is folded", within(3, worker_stream_hz=40.0), first=4)
