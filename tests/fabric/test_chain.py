"""Chain replication over real sockets: the primary itself hands on what it commits, and commits nothing before."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import mlfabric
from mlfabric.channels import TcpOptions
from mlfabric.protocol import ReplicationKind
from mlfabric.rules import RuleSpec
from mlfabric.scheduler.planning import warm_up
from mlfabric.specs import Mode
from tests.fabric.harness import Fabric, wait_until
from tests.fabric.replicas import (
    RULES,
    Trainer,
    apart_from,
    at_version,
    divergence,
    is_gated,
    remember,
    replica,
    replication,
    trainers,
    version_of,
    wait_for_gate,
    wait_for_primary,
    wait_for_replica,
)

CHAIN: dict[str, Any] = {"replication": ReplicationKind.CHAIN}
ROUNDING = 1e-12


def received(running: Any, host: str) -> float:
    """Return how many payload bytes a replica got from a host."""
    sample = running._service._metrics.registry.get_sample_value("mlfabric_received_bytes_total", {"peer": host})
    return sample or 0.0


def together(found: list[Trainer]) -> None:
    """Let all push at once, and get the model that follows."""
    for handle in [trainer.push() for trainer in found]:
        handle.result(15)
    for trainer in found:
        trainer.worker.get()


@pytest.mark.parametrize("elements", [64, 100_000])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_the_replica_holds_every_commit_and_got_it_from_the_primary_alone(rule: RuleSpec, elements: int):
    with Fabric() as fabric:
        server = fabric.server(host="primary-host")
        with (
            trainers(fabric, rule, elements=elements) as found,
            replica(fabric.scheduler.address, host="replica-host", **CHAIN) as follower,
        ):
            wait_for_gate(server)
            versions = remember(server)
            for _ in range(6):
                for trainer in found:
                    trainer.step()
            last = max(versions)
            wait_for_replica(follower, last)
            assert apart_from(versions, follower) < 1e-10
            assert last >= 12
            assert not any(received(follower, f"host-w{rank}") for rank in range(len(found)))
            if elements > 16 * 1024 // 8:  # what is smaller comes with its offer
                assert received(follower, "primary-host") >= last * 8 * elements


@pytest.mark.timeout(600)  # the planner may have to be compiled first
@pytest.mark.parametrize("mode", [Mode.ASYNCHRONOUS, Mode.SYNCHRONOUS])
@pytest.mark.parametrize("rule", ["plain", "momentum at the server", "adam"])
def test_sums_are_handed_on_as_they_came(rule: str, mode: Mode):
    fast, slow = 200_000_000, 20_000_000
    warm_up(print)
    with Fabric() as fabric:
        server = fabric.server(host="primary-host", tcp=TcpOptions(up_bps=fast, down_bps=slow))
        options = mlfabric.AggregatorOptions(
            scheduler=fabric.scheduler.address, host="between", tcp=TcpOptions(up_bps=fast, down_bps=fast)
        )
        fabric.enter(mlfabric.register_as_aggregator(options))
        wait_until(lambda: len(fabric.status().members) == 2, "they joined")
        with (
            trainers(fabric, RULES[rule], count=6, elements=4000, mode=mode) as found,
            replica(fabric.scheduler.address, **CHAIN) as follower,
        ):
            wait_for_gate(server)
            versions = remember(server)
            groups = fabric.scheduler.state.count.groups
            for _ in range(60):
                together(found)
                if sum(count for (_, size), count in groups.items() if size > 1) >= 3:
                    break
            else:
                raise AssertionError(f"updates were hardly summed: {groups}")
            wait_for_replica(follower, max(versions))
            assert apart_from(versions, follower) < 1e-9


def test_at_no_moment_is_the_primary_ahead():
    dice = random.Random(3)
    with Fabric() as fabric:
        server = fabric.server()
        with (
            trainers(fabric, RULES["momentum at the server"], elements=20_000) as found,
            replica(fabric.scheduler.address, **CHAIN) as follower,
        ):
            wait_for_gate(server)
            for trainer in found:
                trainer.start()
            begin = at_version(server)
            for stop in range(1, 9):
                wait_for_primary(server, begin + stop * 4)
                threading.Event().wait(dice.uniform(0, 0.01))
                distance, ahead = divergence(server, follower, found)
                assert (ahead, distance <= ROUNDING) == (0, True)


def test_a_replica_joins_and_leaves_a_chain_while_training_goes_on():
    with Fabric() as fabric:
        server = fabric.server()
        with trainers(fabric, RULES["momentum at the server"]) as found:
            for trainer in found:
                trainer.start()
            for name in ("first", "second"):
                with replica(fabric.scheduler.address, name=name, **CHAIN) as follower:
                    wait_for_gate(server)
                    wait_for_replica(follower, version_of(follower) + 10)
                wait_until(lambda: not is_gated(server), "the primary is told that there is none")
            wait_for_primary(server, at_version(server) + 5)


def test_an_update_that_has_come_outlives_its_worker():
    with Fabric() as fabric:
        server = fabric.server()
        with (
            trainers(fabric, RULES["plain"]) as found,
            replica(fabric.scheduler.address, **CHAIN) as follower,
        ):
            wait_for_gate(server)
            for trainer in found:
                trainer.step()
            found[0].worker.leave()
            for _ in range(10):
                found[1].step()
            wait_for_replica(follower, at_version(server))
            assert replication(fabric).terms_begun_by_hole == 0


def test_the_scheduler_may_restart_within_a_chain():
    with Fabric() as fabric:
        server = fabric.server()
        with trainers(fabric, RULES["plain"]) as found, replica(fabric.scheduler.address, **CHAIN) as follower:
            wait_for_gate(server)
            for trainer in found:
                trainer.start()
            fabric.restart_scheduler()
            wait_for_replica(follower, version_of(follower) + 20)


@pytest.mark.parametrize("bound", [{"div_max": 1.0}, {"div_max_updates": 3}])
def test_a_chain_takes_no_bound(bound: dict[str, Any]):
    with pytest.raises(mlfabric.UsageError, match="a chain allows no lead"):
        mlfabric.ReplicaOptions(scheduler="here:1", replica_of="s", **bound, **CHAIN)
