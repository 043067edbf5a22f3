"""A replica follows its primary over real sockets: equal at each version, never further behind than its bound."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import mlfabric
from mlfabric.channels import TcpOptions
from mlfabric.model.update_rules import RuleSpec
from mlfabric.protocol import TransferEnded
from tests.fabric.harness import Fabric, wait_until
from tests.fabric.replicas import (
    RULES,
    apart_from,
    at_version,
    divergence,
    remember,
    replica,
    replication,
    trainers,
    version_of,
    wait_for_gate,
    wait_for_primary,
    wait_for_replica,
)

ROUNDING = 1e-12


@pytest.mark.parametrize("updates", [0, 1, 6])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_replica_holds_what_its_primary_held_at_that_version(rule: RuleSpec, updates: int):
    with Fabric() as fabric:
        server = fabric.server()
        with trainers(fabric, rule) as found, replica(fabric.scheduler.address, div_max_updates=updates) as follower:
            wait_for_gate(server)
            versions = remember(server)
            for _ in range(20):
                for trainer in found:
                    trainer.step()
            last = max(versions)
            wait_for_replica(follower, last - updates)
            assert last >= 30
            assert apart_from(versions, follower) < 1e-10


@pytest.mark.parametrize("elements", [64, 100_000])
@pytest.mark.parametrize(
    "bound", [{"div_max": 0.0}, {"div_max": 0.5}, {"div_max_updates": 3}, {"div_max": 2.0, "div_max_updates": 9}]
)
def test_at_no_moment_is_the_primary_further_ahead_than_its_bound(bound: dict[str, Any], elements: int):
    dice, rule = random.Random(elements), RULES["momentum at the server"]
    with Fabric() as fabric:
        server = fabric.server()
        with (
            trainers(fabric, rule, elements=elements) as found,
            replica(fabric.scheduler.address, **bound) as follower,
        ):
            wait_for_gate(server)
            for trainer in found:
                trainer.start()
            begin = at_version(server)
            for stop in range(1, 9):
                wait_for_primary(server, begin + stop * 4)
                threading.Event().wait(dice.uniform(0, 0.01))
                distance, ahead = divergence(server, follower, found)
                assert distance <= bound.get("div_max", float("inf")) * (1 + 1e-9) + ROUNDING
                assert ahead <= bound.get("div_max_updates", 1 << 30)


def arrivals(follower: mlfabric.ReplicaServer) -> list[Any]:
    """Return a list of what arrives at a replica, which grows."""
    service, found = follower._service, []
    report = service._report

    def note(event: Any) -> None:
        if isinstance(event, TransferEnded):
            found.append(event.transfer)
        report(event)

    service._report = note
    return found


@pytest.mark.parametrize("rule", ["plain", "momentum at the server", "adadelay", "adam"])
@pytest.mark.parametrize("share", [0.4, 3.0])
def test_training_goes_on_within_a_bound_that_is_close_to_one_step(rule: str, share: float):
    """Plans do not know the weights that decay, and Adam's steps only by a bound; the primary's gate does."""
    with Fabric() as fabric:
        server = fabric.server()
        with trainers(fabric, RULES[rule]) as found:
            commits: list[Any] = []
            server.register_update_callback(lambda _, commit, _view: commits.append(commit))
            for trainer in found:
                trainer.step()
            wait_until(lambda: len(commits) == 2, "both are committed")
            bound = share * commits[-1].step_norm
            with replica(fabric.scheduler.address, div_max=bound) as follower:
                wait_for_gate(server)
                came, begin = arrivals(follower), at_version(server)
                for trainer in found:
                    trainer.start()
                for stop in range(1, 5):
                    wait_for_primary(server, begin + stop * 8)
                    assert divergence(server, follower, found)[0] <= bound * (1 + 1e-9) + ROUNDING
                for trainer in found:
                    trainer.end()
                assert replication(fabric).terms_begun_by_hole == 0
                # The worst is each update by itself: no more than that is ever sent, and nothing twice.
                assert len(came) <= at_version(server) - begin + len(found)


@pytest.mark.parametrize(("rule", "updates"), [("plain", 0), ("momentum at the server", 6), ("adam", 2)])
def test_a_replica_follows_a_primary_that_is_sent_sums(rule: str, updates: int):
    fast, slow = 200_000_000, 20_000_000
    with Fabric() as fabric:
        server = fabric.server(host="server-host", tcp=TcpOptions(up_bps=fast, down_bps=slow))
        fabric.aggregator(host="between", tcp=TcpOptions(up_bps=fast, down_bps=fast))
        wait_until(lambda: len(fabric.status().members) == 2, "they joined")
        with (
            trainers(fabric, RULES[rule], count=4, elements=4000) as found,
            replica(fabric.scheduler.address, div_max_updates=updates) as follower,
        ):
            wait_for_gate(server)
            for trainer in found:
                trainer.start()
            for _ in range(4):
                wait_for_primary(server, at_version(server) + 4)
                assert divergence(server, follower, found)[1] <= updates


def test_a_second_replica_of_one_server_is_refused():
    with Fabric() as fabric:
        fabric.server()
        with replica(fabric.scheduler.address, div_max=1.0):
            wait_until(lambda: len(fabric.status().members) == 2, "it joined")
            other = mlfabric.ReplicaOptions(
                scheduler=fabric.scheduler.address, replica_of="server-0", name="other", div_max=1.0
            )
            with pytest.raises(mlfabric.RefusedError, match="has a replica: 'replica-0'"):
                mlfabric.register_as_replica(other)


def test_the_scheduler_may_restart_and_the_replica_is_seeded_anew():
    with Fabric() as fabric:
        server = fabric.server()
        with (
            trainers(fabric, RULES["plain"]) as found,
            replica(fabric.scheduler.address, div_max_updates=2) as follower,
        ):
            wait_for_gate(server)
            for trainer in found:
                trainer.start()
            fabric.restart_scheduler()
            version = version_of(follower)
            wait_for_replica(follower, version + 20)
