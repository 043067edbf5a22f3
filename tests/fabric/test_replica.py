"""A replica follows its primary over real sockets: equal at each version, never further behind than its bound."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric.channels import TcpOptions
from mlfabric.rules import MomentumAt, RuleKind, RuleSpec, Schedule
from tests.fabric.harness import Fabric, wait_until
from tests.fabric.replicas import apart, held_by, replica, standing, version_of

ROUNDING = 1e-12
RULES = {
    "plain": RuleSpec(lr=0.05, weight_decay=0.01),
    "momentum at the server": RuleSpec(
        lr=0.05,
        momentum=0.9,
        momentum_at=MomentumAt.SERVER,
        weight_decay=0.01,
        schedule=Schedule.STEP,
        milestones=(10, 25),
        factor=0.5,
    ),
    "momentum at the workers": RuleSpec(lr=0.05, momentum=0.9, momentum_at=MomentumAt.WORKERS),
    "adadelay": RuleSpec(kind=RuleKind.ADADELAY, smoothness=10.0, delay_scale=0.5),
    "adam": RuleSpec(kind=RuleKind.ADAM, lr=0.01),
}


class Trainer(threading.Thread):
    """Pushes gradients of its own until it is told to stop."""

    def __init__(self, fabric: Fabric, rule: RuleSpec, rank: int, elements: int = 64) -> None:
        super().__init__(daemon=True)
        self.weights = torch.zeros(elements, dtype=torch.float64, requires_grad=True)
        self.worker = fabric.worker({"weights": self.weights}, f"w{rank}", rule=rule)
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self._generator = torch.Generator().manual_seed(rank)

    def step(self) -> Any:
        """Push one update and get the model that follows; return the update's outcome."""
        noise = torch.randn(self.weights.numel(), dtype=torch.float64, generator=self._generator)
        self.weights.grad = 0.1 * (self.weights.detach() - 1) + 0.1 * noise
        outcome = self.worker.push().result(15)
        self.worker.get()
        return outcome

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
        except Exception as error:  # handed to whoever joins
            self.error = error

    def end(self) -> None:
        self.stopping.set()
        self.join(15)
        if self.error is not None:
            raise self.error

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let nothing happen in this worker's daemon."""
        begun, go_on = threading.Event(), threading.Event()

        def block() -> None:
            begun.set()
            go_on.wait()

        self.worker._daemon._loop.call_soon_threadsafe(block)
        begun.wait()
        try:
            yield
        finally:
            go_on.set()


@contextmanager
def trainers(fabric: Fabric, rule: RuleSpec, count: int = 2, **options: Any) -> Iterator[list[Trainer]]:
    found = [Trainer(fabric, rule, rank, **options) for rank in range(count)]
    for trainer in found:
        trainer.worker.get()
    yield found
    for trainer in found:
        if trainer.is_alive():
            trainer.end()


def remember(server: Any) -> dict[int, dict[str, torch.Tensor]]:
    """Keep the primary's weights and state of every version from now on."""
    versions: dict[int, dict[str, torch.Tensor]] = {}

    def note(model: str, commit: Any) -> None:
        versions[commit.version.number] = held_by(server._service._stores.store(model))

    server.register_update_callback(note)
    return versions


def replication(fabric: Fabric) -> Any:
    return fabric.scheduler.state.models["model"].replication


def is_gated(server: Any) -> bool:
    return bool(server._service._state.models["model"].lead.is_followed)


def at_version(server: Any) -> int:
    return int(server._service._stores.store("model").version)


def wait_for_gate(server: Any) -> None:
    wait_until(lambda: is_gated(server), "the primary keeps to its bound")


def wait_for_primary(server: Any, version: int) -> None:
    wait_until(lambda: at_version(server) >= version, "training goes on")


def wait_for_replica(follower: Any, version: int) -> None:
    wait_until(lambda: version_of(follower) >= version, f"the replica is at version {version}")


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
            store = follower._service.store("model")
            assert last >= 30
            assert store is not None
            assert apart(versions[store.version], held_by(store)) < 1e-10


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


def divergence(server: Any, follower: Any, found: list[Trainer]) -> tuple[float, int]:
    """Stop the world, let the replica apply what it holds; return how far, and how many commits, it is behind."""
    with ExitStack() as stopped:
        for trainer in found:
            stopped.enter_context(trainer.suspended())
        primary = stopped.enter_context(standing(server))
        model = follower._service._state.models["model"]

        def drained() -> bool:
            logged = model.log[-1].version.number if model.log else model.version.number
            return bool(model.is_idle and logged == primary.version)

        wait_until(drained, "the replica has applied what it holds")
        ours, theirs = held_by(primary), held_by(follower._service.store("model"))
        return float((ours["weights"] - theirs["weights"]).norm()), primary.version - version_of(follower)


@pytest.mark.parametrize(("rule", "updates"), [("plain", 0), ("momentum at the server", 6), ("adam", 2)])
def test_a_replica_follows_a_primary_that_is_sent_sums(rule: str, updates: int):
    fast, slow = 200_000_000, 20_000_000
    with Fabric() as fabric:
        server = fabric.server(host="server-host", tcp=TcpOptions(up_bps=fast, down_bps=slow))
        options = mlfabric.AggregatorOptions(
            scheduler=fabric.scheduler.address, host="between", tcp=TcpOptions(up_bps=fast, down_bps=fast)
        )
        fabric.enter(mlfabric.register_as_aggregator(options))
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


def test_a_window_that_is_lost_with_its_worker_is_filled_by_the_primarys_state():
    rule = RULES["momentum at the server"]
    with Fabric() as fabric:
        server = fabric.server()
        with trainers(fabric, rule) as found, replica(fabric.scheduler.address, div_max_updates=100) as follower:
            wait_for_gate(server)
            versions = remember(server)
            for _ in range(3):
                for trainer in found:
                    trainer.step()
            seeded = version_of(follower)
            found[0].worker.leave()
            wait_for_replica(follower, seeded + 1)
            assert replication(fabric).terms_begun_by_hole == 1
            for _ in range(60):
                found[1].step()
            wait_for_replica(follower, seeded + 10)
            store = follower._service.store("model")
            assert store is not None
            assert apart(versions[store.version], held_by(store)) < 1e-10


def test_a_replica_that_dies_is_replaced_while_training_goes_on():
    with Fabric() as fabric:
        server = fabric.server()
        with trainers(fabric, RULES["momentum at the server"]) as found:
            for trainer in found:
                trainer.start()
            for name in ("first", "second"):
                with replica(fabric.scheduler.address, name=name, div_max_updates=2) as follower:
                    wait_for_gate(server)
                    seeded = version_of(follower)
                    wait_for_replica(follower, seeded + 10)
                wait_until(lambda: not is_gated(server), "the primary is told that there is none")
            wait_for_primary(server, at_version(server) + 5)


def test_a_second_replica_of_one_server_is_refused():
    with Fabric() as fabric:
        fabric.server()
        with replica(fabric.scheduler.address, div_max=1.0):
            wait_until(lambda: len(fabric.status().members) == 2, "it joined")
            other = mlfabric.ReplicaOptions(
                scheduler=fabric.scheduler.address, replica_of="server-0", name="other", div_max=1.0
            )
            with pytest.raises(mlfabric.RefusedError, match="has a replica: 'replica-0'"):
                mlfabric.register_as_replica(other).wait(15)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"replica_of": ""}, "give the name of a server"),
        ({"replica_of": "s"}, "a replica needs one of them"),
        ({"replica_of": "s", "div_max": -1.0}, "allowed: >= 0"),
        ({"replica_of": "s", "div_max_updates": -1}, "allowed: >= 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(mlfabric.UsageError, match=words):
        mlfabric.ReplicaOptions(scheduler="here:1", **options)


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
