"""Local SGD and DiLoCo: workers step by themselves, and make rounds of how far each has come.

Beside its own model each worker has the *outer* one, which has the same bits at all of them. After some steps of its
own optimizer, the *inner* steps, a worker offers its movement, the outer model less its own, for a round. A settled
round steps the outer model with the mean movement, as if that were a gradient, and each member goes on from there. With
local SGD (Stich, 2019) the outer model becomes the mean of the members'; with DiLoCo (Douillard et al., 2023, arXiv
2311.08105) the outer step is one of SGD with Nesterov momentum.

A worker may go on while its round is made, as in Streaming DiLoCo (Douillard et al., 2025, arXiv 2501.18512). Then its
movement is how far it has come since its last offer, and the outer model that comes of a round takes the place of what
the worker went on with when it had offered: ``outer + (own - begun)``, after the first step for which it is here. What
the outer step takes from earlier rounds, its momentum, is known before the round is made. So the worker adds that to
what it goes on with: its gradients are then those of about the model that comes. The model may be cut into fragments,
of which each round has one, in turn.

With SMA workers are drawn to the shared model instead (``central_model.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any, Protocol

import torch

from mlfabric.arguments import instance_of, integer_of
from mlfabric.errors import UsageError
from mlfabric.model.specs import Method
from mlfabric.worker_daemon.argument_types import MOST_COUNTED
from mlfabric.worker_daemon.central_model import CENTRAL_LR, CENTRAL_MOMENTUM, CentralModel
from mlfabric.worker_daemon.round_optimizer import Parts, RoundOptimizer
from mlfabric.worker_daemon.step_roles import RoundOutcome, RoundTally
from mlfabric.worker_daemon.taken_over import TakenOver
from mlfabric.worker_daemon.two_models import TwoModels, is_offered

__all__ = [
    "DILOCO_LR",
    "DILOCO_MOMENTUM",
    "INNER_STEPS",
    "LocalOptimizer",
    "OuterStep",
    "shared_model",
    "steps_between",
]

INNER_STEPS: Mapping[Method, int] = {Method.LOCAL_SGD: 32, Method.DILOCO: 32, Method.SMA: 1}
"""How many a worker makes for each round, unless given."""
DILOCO_LR, DILOCO_MOMENTUM = 0.7, 0.9
"""The outer step of DiLoCo, as in the paper's section 3."""
OVERLAPPED_MOMENTUM = 0.8
"""Where workers go on while rounds are made, unless given: what a round brings acts one round late, and with 0.9 the
outer model swings."""

OuterStep = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
"""Makes the optimizer of the outer model's parameters."""


class Shared(Protocol):
    """The model that all workers share, and how a worker's own one goes on from it.

    Attributes:
        model: the shared one.
        optimizer: steps it.
        parts: its parameters in each part; each round has one of them, in turn.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    parts: Parts

    def start(self) -> None:
        """Let the worker's model begin as the shared one."""

    def go_on(self, rounds: RoundOptimizer) -> None:
        """Take in the round of a ``meet`` that was interrupted, if it was, before the next step."""

    def meet(self, rounds: RoundOptimizer, weight: int) -> None:
        """Offer what the worker's steps have brought, which weighs so much, and take in what is settled."""

    def catch_up(self, rounds: RoundOptimizer) -> None:
        """Take in what is settled, between two offers of a worker that goes on while rounds are made."""

    def finish(self, rounds: RoundOptimizer) -> None:
        """Apply settled rounds, and let the worker's model go on from the shared one."""


class OuterModel:
    """The model that workers' own ones begin each round with.

    Where the worker goes on while its round is made, and where each round has one part of the model, the worker keeps
    what its movements count from: for each parameter the outer model's value when it went on from that, and what it
    went on with once it had offered that.

    Args:
        models: this worker's, and the outer one.
        optimizer: steps the outer one.
        overlaps: the worker goes on while rounds are made.

    Attributes:
        model: the outer one.
        parts: its parameters in each part.
    """

    def __init__(self, models: TwoModels, optimizer: torch.optim.Optimizer, *, overlaps: bool = False) -> None:
        self._models, self.optimizer, self._overlaps = models, optimizer, overlaps
        self.model, self.parts = models.shared, models.parts
        keeps = overlaps or len(self.parts) > 1
        self._begun = [shared.detach().clone() for shared in models.parameters] if keeps else None

    def start(self) -> None:
        """Let this worker's model begin as the outer one."""
        self._models.start()
        self._begin()

    def _begin(self) -> None:
        self._hand_over(whole=True)
        self._models.take_buffers()

    def go_on(self, rounds: RoundOptimizer) -> None:
        """Go on from the outer model that comes of a round whose wait was interrupted."""
        if rounds.is_interrupted:
            rounds.finish(waits=True)
            self._hand_over()

    def meet(self, rounds: RoundOptimizer, weight: int) -> None:
        """Offer how far this worker has come, in the part whose turn it is; go on from the outer model.

        The round of the first part has the buffers, too. Where the worker waits for that it goes on with their means;
        else with its own: what they have learnt since is to stay.
        """
        if self._begun is not None:
            rounds.finish(waits=True)
            self._hand_over()
        turn = rounds.version % len(self.parts)
        places = self._models.fragments[turn]
        with torch.no_grad():
            for own, shared, begun in map(self._all().__getitem__, places):
                shared.grad = (begun - own).mul_(weight)
        self._models.give_counts()
        rounds.weigh(weight)
        try:
            is_sound = is_offered(rounds)
        finally:
            self._offered(places)
        if not is_sound:
            self._models.forget_unsound()
            self._begin()
        elif not self._overlaps:
            self._hand_over()
            if turn == 0:
                self._models.take_buffers()

    def catch_up(self, rounds: RoundOptimizer) -> None:
        """Go on from the outer model that has come of rounds meanwhile: the earlier, the less steps are off it."""
        if self._overlaps and rounds.catch_up():
            self._hand_over()

    def finish(self, rounds: RoundOptimizer) -> None:
        """Apply settled rounds, where they overlap that of the last movement, too; go on from the outer model."""
        rounds.finish(waits=self._overlaps)
        self._begin()

    def _all(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Return of each parameter this worker's value, the outer one, and what its movement counts from."""
        begun = self._models.parameters if self._begun is None else self._begun
        return [(own, shared, since) for (own, shared), since in zip(self._models.pairs, begun, strict=True)]

    @torch.no_grad()
    def _offered(self, places: Sequence[int]) -> None:
        """Let the next movement of these parameters count from here."""
        groups = {id(one): group for group in self.optimizer.param_groups for one in group["params"]}
        for own, shared, begun in map(self._all().__getitem__, places):
            shared.grad = None
            if self._overlaps and id(shared) in groups:
                own.add_(_carried(self.optimizer, groups[id(shared)], shared))
            if self._begun is not None:
                begun.copy_(own)

    @torch.no_grad()
    def _hand_over(self, *, whole: bool = False) -> None:
        """Let this worker's model go on from the outer one; with what is not offered yet, if not ``whole``."""
        keeps = self._begun is not None
        for own, shared, begun in self._all():
            own.copy_((own - begun).add_(shared) if keeps and not whole else shared)
            if keeps:
                begun.copy_(shared)


def _carried(optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
    """Return how far an optimizer's next step moves a parameter whose gradient is zero: by its momentum.

    Args:
        group: the parameter's.
    """
    alone = copy(optimizer)  # which leaves out what torch's optimizers do not have
    vars(alone).update({n: v for n, v in vars(optimizer).items() if n not in vars(alone) and n != "step"})
    state, alone.param_groups = deepcopy((optimizer.state.get(parameter, {}), [{**group, "params": [parameter]}]))
    (moved,) = alone.param_groups[0]["params"]
    alone.state = defaultdict(dict, {moved: state})
    moved.grad = torch.zeros_like(moved)
    alone.step()
    carried: torch.Tensor = moved.detach() - parameter.detach()
    return carried


def _usual_step(method: Method, parameters: list[torch.nn.Parameter], *, overlaps: bool) -> torch.optim.Optimizer:
    if method is Method.DILOCO:
        momentum = OVERLAPPED_MOMENTUM if overlaps else DILOCO_MOMENTUM
        return torch.optim.SGD(parameters, lr=DILOCO_LR, momentum=momentum, nesterov=True)
    if method is Method.SMA:
        return torch.optim.SGD(parameters, lr=CENTRAL_LR, momentum=CENTRAL_MOMENTUM)
    return torch.optim.SGD(parameters, lr=1.0)


def shared_model(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    method: Method,
    outer: OuterStep | None,
    *,
    overlaps: bool,
    fragments: int = 1,
) -> Shared:
    """Return the model that all workers share, beside this worker's.

    Args:
        model: this worker's.
        optimizer: of its inner steps.
        method: says how the shared model is stepped, and how this worker's goes on from it.
        outer: makes the optimizer of the shared model, if it is not the method's usual one.
        overlaps: the worker goes on while rounds are made; with SMA it always does.
        fragments: into how many parts the shared model is cut.

    Raises:
        UsageError: it cannot be cut into so many, or what ``outer`` makes is no optimizer.
    """
    models = TwoModels(model, optimizer, fragments)
    made = outer(models.parameters) if outer else _usual_step(method, models.parameters, overlaps=overlaps)
    steps = instance_of(torch.optim.Optimizer, "what outer makes", made, "a torch.optim.Optimizer")
    if method is Method.SMA:
        return CentralModel(models, optimizer, steps)
    return OuterModel(models, steps, overlaps=overlaps)


def steps_between(inner_steps: int, fragments: int) -> int:
    """Return how many steps a worker makes from one round to the next, if it makes so many for one of each fragment.

    Raises:
        UsageError: they are no whole number.
    """
    if inner_steps % fragments:
        raise UsageError(f"inner_steps={inner_steps} with fragments={fragments}; allowed: a multiple of that")
    return inner_steps // fragments


class LocalOptimizer(TakenOver):
    """A worker that makes inner steps; made by ``mlfabric.wrap``.

    Args:
        optimizer: makes the inner steps; any of torch's.
        shared: the model that all workers share.
        rounds: offers its gradients, and steps it.
        inner_steps: after how many inner steps the movement is offered, >= 1.

    Attributes:
        rounds: see above.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, shared: Shared, rounds: RoundOptimizer, inner_steps: int
    ) -> None:
        super().__init__(optimizer)
        self.rounds = rounds
        self._shared, self._inner_steps = shared, inner_steps
        self._made = self._weight = 0
        """How many inner steps were made since the last round, and what they weigh."""
        self._next_weight = 1
        self._holds_rounds = False
        shared.start()

    @property
    def inner(self) -> torch.optim.Optimizer:
        """Makes the inner steps."""
        return self._taken_over

    @property
    def outer_model(self) -> torch.nn.Module:
        """The model that all workers share: the one to evaluate and to save."""
        return self._shared.model

    @property
    def version(self) -> int:
        """How many rounds the outer model has applied."""
        return self.rounds.version

    @property
    def last(self) -> RoundOutcome | None:
        """What became of the last movement that was offered; None before that."""
        return self.rounds.last

    @property
    def tally(self) -> RoundTally:
        """What became of all movements that were offered."""
        return self.rounds.tally

    @property
    def waiting(self) -> int:
        """How many movements are in no round yet, as far as this worker knows."""
        return self.rounds.waiting

    def weigh(self, weight: int) -> None:
        """Say how much the next inner step counts in the mean of a round, as by its samples or tokens; 1 unless said.

        Args:
            weight: >= 1.
        """
        self._next_weight = integer_of("weight", weight, least=1, most=MOST_COUNTED)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an inner step; after enough of them offer the movement, and go on from the outer model.

        Returns the closure's loss, if any. The step that offers returns once the round is settled that the movement is
        in, or it is known to be in none; see ``last``. With ``wait=False`` that is the movement before.

        Raises:
            FabricClosedError: the worker has left the fabric.
        """
        self._shared.go_on(self.rounds)
        loss = self._taken_over.step(closure)
        self.stepped()
        return loss

    @contextmanager
    def holding_rounds(self) -> Iterator[None]:
        """Make inner steps, and offer nothing in this context; ``meet`` after it does."""
        self._holds_rounds = True
        try:
            yield
        finally:
            self._holds_rounds = False

    def stepped(self) -> None:
        """Count an inner step that was made in another way, as by ``mlfabric.Learners``; go on as ``step`` does."""
        self._made, self._weight, self._next_weight = self._made + 1, self._weight + self._next_weight, 1
        if self._made >= self._inner_steps and not self._holds_rounds:
            self.meet()
        else:
            self._shared.catch_up(self.rounds)

    def meet(self) -> None:
        """Offer what was learnt now, if an inner step was made since the last round; go on from the shared model."""
        if self._made:
            weight, self._made, self._weight = self._weight, 0, 0
            self._shared.meet(self.rounds, weight)

    def finish(self) -> None:
        """Apply settled rounds and continue from the outer model. Own steps since the last round are given up.

        With ``wait=False``, and with SMA, it waits for the round that the last offer is in.
        """
        self._made = self._weight = 0
        self._shared.finish(self.rounds)

    def leave(self, detail: str = "done") -> None:
        """Leave the fabric; a second call does nothing. The end of the process does it, too."""
        self.rounds.leave(detail)

    @property
    def has_left(self) -> bool:
        """Whether this worker has left the fabric."""
        return self.rounds.has_left

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: what travels was settled when the model was registered.

        Raises:
            UsageError: always, once it is made.
        """
        if hasattr(self, "rounds"):
            raise UsageError("add_param_group after wrap; allowed: all groups before")
        super().add_param_group(param_group)
