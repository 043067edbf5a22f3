"""A fabric with a replica, for tests: who trains, what replica and primary hold, how far they are apart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

import mlfabric
from mlfabric.model.specs import Method
from mlfabric.model.update_rules import MomentumAt, RuleKind, RuleSpec, Schedule
from tests.fabric.harness import Fabric, wait_until

__all__ = [
    "RULES",
    "Trainer",
    "apart",
    "apart_from",
    "at_version",
    "divergence",
    "held_by",
    "is_gated",
    "remember",
    "replica",
    "replication",
    "standing",
    "trainers",
    "version_of",
    "wait_for_gate",
    "wait_for_primary",
    "wait_for_replica",
]

PATIENCE_S = 30.0
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


@contextmanager
def replica(scheduler: str, **options: Any) -> Iterator[mlfabric.ReplicaServer]:
    """Run a replica of the server ``server-0``; its state machine is validated at the end."""
    settings = {"replica_of": "server-0", **options}
    with mlfabric.register_as_replica(mlfabric.ReplicaOptions(scheduler=scheduler, **settings)) as running:
        yield running
    running._service._state.validate()


def version_of(running: mlfabric.ReplicaServer, model: str = "model") -> int:
    """Return the version that a replica has applied; -1 before the seed."""
    store = running._service._stores._stores.get(model)
    return -1 if store is None else store.version


def held_by(store: Any) -> dict[str, torch.Tensor]:
    """Copy a store's weights and state, as tensors by name."""
    return _copied(store)[1]


def _copied(store: Any) -> tuple[int, dict[str, torch.Tensor]]:
    with store.standing() as snapshot:
        history = {f"history {n}": t for n, t in snapshot.history.items()}
        squares = {f"squares {n}": t for n, t in snapshot.squares.items()}
        return snapshot.version, {n: t.clone() for n, t in {**snapshot.model, **history, **squares}.items()}


def apart_from(versions: dict[int, dict[str, torch.Tensor]], running: mlfabric.ReplicaServer) -> float:
    """Return the greatest relative difference of a replica, which may go on, from its primary at the same version."""
    version, held = _copied(running._service._stores.store("model"))
    return apart(versions[version], held)


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the greatest relative difference of two models, tensor by tensor."""
    assert one.keys() == other.keys()
    return max(float((one[n] - other[n]).norm() / (1e-300 + one[n].norm())) for n in one)


@contextmanager
def standing(server: mlfabric.Server, model: str = "model") -> Iterator[Any]:
    """Let no step of a model be made at the primary; gives its store."""
    turn = server._service._stores.turn(model)

    async def take() -> None:
        await turn.acquire()

    async def give() -> None:
        turn.release()

    asyncio.run_coroutine_threadsafe(take(), server._loop).result(PATIENCE_S)
    try:
        yield server._service._stores.store(model)
    finally:
        asyncio.run_coroutine_threadsafe(give(), server._loop).result(PATIENCE_S)


class Trainer(threading.Thread):
    """Pushes gradients of its own until it is told to stop."""

    def __init__(
        self, fabric: Fabric, rule: RuleSpec, rank: int, elements: int = 64, method: Method = Method.ASYNCHRONOUS
    ) -> None:
        super().__init__(daemon=True)
        self.weights = torch.zeros(elements, dtype=torch.float64, requires_grad=True)
        self.worker = fabric.worker({"weights": self.weights}, f"w{rank}", rule=rule, method=method)
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self._has_barrier = method is Method.SYNCHRONOUS
        self._generator = torch.Generator().manual_seed(rank)

    def push(self) -> mlfabric.PushHandle:
        """Push one update."""
        noise = torch.randn(self.weights.numel(), dtype=torch.float64, generator=self._generator)
        self.weights.grad = 0.1 * (self.weights.detach() - 1) + 0.1 * noise
        handle: mlfabric.PushHandle = self.worker.push()
        return handle

    def step(self) -> Any:
        """Push one update and get the model that follows; return the update's outcome."""
        outcome = self.push().result(15)
        self.worker.get()
        return outcome

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
            if self._has_barrier:
                self.worker.leave()  # the others would wait for it
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

    def note(model: str, commit: Any, _view: Any) -> None:
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
        ours, theirs = held_by(primary), held_by(follower._service._stores.store("model"))
        return float((ours["weights"] - theirs["weights"]).norm()), primary.version - version_of(follower)
