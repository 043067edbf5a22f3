"""The workers that make steps together: how one of them joins a step that it has cut short, and how they agree.

A worker of the fabric says how much its gradient weighs, and the scheduler chooses the threshold. Workers under
PyTorch's ``DistributedDataParallel`` need no fabric: what is collective among them is done here, after the same step at
all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mlfabric import clock
from mlfabric.errors import UsageError
from mlfabric.methods.drop_compute import UNLIMITED, Threshold, Timings, best_threshold
from mlfabric.protocol import SetThreshold
from mlfabric.worker_daemon.local_steps import LocalOptimizer
from mlfabric.worker_daemon.round_optimizer import RoundOptimizer

__all__ = ["Decision", "Joins", "StepTeam", "now_ns", "team_of"]


class Decision(NamedTuple):
    """What holds from now on: a threshold; or none, as steps are to be timed."""

    threshold: Threshold
    measures: bool


class Joins(Protocol):
    """How a worker makes a step's gradient."""

    def accumulating(self) -> AbstractContextManager[Any]:
        """Let gradients accumulate here while the context lasts."""

    def join(self, done: int, weight: int) -> None:
        """Make a step's gradient ready.

        Args:
            done: of how many micro-batches it is the sum, >= 1.
            weight: the mean over all workers divides by the sum of these.
        """


class Agrees(Protocol):
    """How workers come to have the same threshold."""

    def tell(self, micro_batches: int, computed_ns: Sequence[int], rest_ns: Sequence[int], most: int) -> None:
        """Say what steps have taken without a threshold; see ``mlfabric.protocol.StepsTimed``.

        Args:
            most: so many steps were made; fewer were timed if some had fewer micro-batches.
        """

    def tell_change(self, micro_batches: int, *, has_changed: bool) -> None:
        """Say whether steps still take what they took when the threshold was chosen."""

    def decided(self) -> Decision | None:
        """Return what was decided since the last call, if anything."""


class StepTeam(NamedTuple):
    """The workers that make steps together, as one of them sees them; ``device`` is where it computes."""

    joins: Joins
    agrees: Agrees
    device: torch.device


def team_of(worker: Any) -> StepTeam:
    """Return the team of a worker, which is not kept alive by it.

    Raises:
        UsageError: it is none that can cut steps short.
    """
    match worker:
        case RoundOptimizer() if worker.overlaps:
            raise UsageError("drop_compute with overlap; allowed: without, as a gradient leaves when its loop is over")
        case RoundOptimizer():
            return StepTeam(_Rounds(weakref.proxy(worker)), _Scheduler(weakref.proxy(worker)), _device_of(worker))
        case LocalOptimizer():
            rounds = worker.rounds
            return StepTeam(_InnerSteps(weakref.proxy(worker)), _Scheduler(rounds), _device_of(worker))
        case DistributedDataParallel():
            parameters = [parameter for parameter in worker.parameters() if parameter.requires_grad]
            device = parameters[0].device
            agrees = _Collective(worker.process_group, device)
            joins = _AllReduced(worker, parameters)
            return StepTeam(joins, agrees, device)
    allowed = "what mlfabric.wrap returns of a method without a server, or a DistributedDataParallel"
    raise UsageError(f"worker={type(worker).__name__}; allowed: {allowed}")


def now_ns(device: torch.device) -> int:
    """Return the time, once a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock.monotonic_ns()


def _device_of(optimizer: torch.optim.Optimizer) -> torch.device:
    device: torch.device = optimizer.param_groups[0]["params"][0].device
    return device


# Workers of the fabric


class _Rounds:
    """A step offers its gradient for a round."""

    def __init__(self, worker: RoundOptimizer) -> None:
        self._worker = worker

    def accumulating(self) -> AbstractContextManager[Any]:
        """Nothing leaves before the step."""
        return nullcontext()

    def join(self, done: int, weight: int) -> None:
        """Say what it weighs."""
        self._worker.weigh(weight)


class _InnerSteps:
    """Each micro-batch is an inner step."""

    def __init__(self, worker: LocalOptimizer) -> None:
        self._worker = worker

    def accumulating(self) -> AbstractContextManager[Any]:
        """Nothing leaves before the last one: a round would count as the computing of a micro-batch."""
        return self._worker.holding_rounds()

    def join(self, done: int, weight: int) -> None:
        """Offer the movement."""
        self._worker.meet()


class _Scheduler:
    """The scheduler chooses."""

    def __init__(self, rounds: RoundOptimizer) -> None:
        self._rounds = rounds
        self._heard: SetThreshold | None = None

    def tell(self, micro_batches: int, computed_ns: Sequence[int], rest_ns: Sequence[int], most: int) -> None:
        """Tell the scheduler; what is lost on the way comes again."""
        if rest_ns:
            self._rounds.steps_timed(micro_batches, computed_ns, rest_ns)

    def tell_change(self, micro_batches: int, *, has_changed: bool) -> None:
        """Tell the scheduler."""
        if has_changed:
            self._rounds.steps_timed(micro_batches, (), ())

    def decided(self) -> Decision | None:
        """Look at what the scheduler has said last."""
        told = self._rounds.threshold
        if told is None or told is self._heard:
            return None
        self._heard = told
        tau_s, none = told.tau_ns / 1e9, not told.tau_ns
        threshold = UNLIMITED if none else Threshold(tau_s=tau_s, speedup=told.speedup, dropped=told.dropped)
        return Decision(threshold, told.measures)


# Workers under DistributedDataParallel


class _AllReduced:
    """Gradients are averaged when all micro-batches are done: DDP would do it in a backward that must be the last."""

    def __init__(self, model: DistributedDataParallel, parameters: list[torch.nn.Parameter]) -> None:
        self._model, self._group = weakref.ref(model), model.process_group
        self._parameters = parameters

    def accumulating(self) -> AbstractContextManager[Any]:
        """Keep DDP from averaging."""
        model = self._model()
        assert model is not None, "a step of it is made"
        context: AbstractContextManager[Any] = model.no_sync()
        return context

    @torch.no_grad()
    def join(self, done: int, weight: int) -> None:
        """Make every gradient the mean over all micro-batches of all workers; one that nobody has stays away."""
        device = self._parameters[0].device
        had = [float(parameter.grad is not None) for parameter in self._parameters]
        counts = torch.tensor([float(weight), *had], dtype=torch.float32, device=device)
        dist.all_reduce(counts, group=self._group)
        total, *have = counts.tolist()
        kept = [parameter for parameter, some in zip(self._parameters, have, strict=True) if some]
        for dtype in sorted({parameter.dtype for parameter in kept}, key=str):
            alike = [parameter for parameter in kept if parameter.dtype is dtype]
            flat = torch.cat([_gradient_of(parameter).reshape(-1) for parameter in alike])
            dist.all_reduce(flat, group=self._group)
            for parameter, mean in zip(alike, torch.split(flat.div_(total), [p.numel() for p in alike]), strict=True):
                parameter.grad = mean.view_as(parameter)


def _gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


class _Collective:
    """All workers have what each has said, and come to the same by themselves (algorithm 2)."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self._decision: Decision | None = None

    def tell(self, micro_batches: int, computed_ns: Sequence[int], rest_ns: Sequence[int], most: int) -> None:
        """Gather what all have said, and choose; steps are timed on if a worker has timed none."""
        steps, size = len(rest_ns), most * (1 + micro_batches)
        own = torch.zeros(1 + size, dtype=torch.int64, device=self._device)
        own[: 1 + len(computed_ns) + steps] = torch.tensor([steps, *computed_ns, *rest_ns])
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(gathered, own, group=self._group)
        said = [_said(one.tolist(), micro_batches) for one in gathered]
        if all(rest for _, rest in said):
            self._decision = Decision(best_threshold(Timings.beside(said, micro_batches)), measures=False)

    def tell_change(self, micro_batches: int, *, has_changed: bool) -> None:
        """Time steps anew if any worker says so."""
        changed = torch.tensor([int(has_changed)], device=self._device)
        dist.all_reduce(changed, op=dist.ReduceOp.MAX, group=self._group)
        if changed.item():
            self._decision = Decision(UNLIMITED, measures=True)

    def decided(self) -> Decision | None:
        """Return what was decided since the last call."""
        decision, self._decision = self._decision, None
        return decision


def _said(values: list[int], micro_batches: int) -> tuple[list[int], list[int]]:
    """Return what a worker's micro-batches took, and what its steps took besides."""
    steps, end = values[0], 1 + values[0] * micro_batches
    return values[1:end], values[end : end + steps]
