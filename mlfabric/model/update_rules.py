"""How an update becomes a step: what the members of a job agree on. Plain frozen values; pure.

An update is a gradient. The server makes the step, with the learning rate of the version that it steps from::

    SGD         h <- momentum * h - lr * (g + weight_decay * w);  w <- w + h
    ADADELAY    as SGD without momentum, lr = 1 / (smoothness + delay_scale * sqrt(version + delay))
    ADAM        as torch.optim.Adam: bias-corrected averages of g and g * g; weight decay is added to the gradient, or
                decoupled, as in torch.optim.AdamW: w <- w - lr * weight_decay * w before the step

With the momentum of SGD at the workers, each worker pushes ``v <- momentum * v + g + weight_decay * w`` in place of g
and the step is ``w <- w - lr * v``; a worker that is alone then makes the very steps that the server would.

AdaDelay is that of the paper (sections 2 and 10): delayed gradients step less far, by their true delays. It goes back
to Sra et al., *AdaDelay: delay adaptive distributed stochastic optimization*, 2016.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum

from mlfabric.arguments import enum_of, flag_of, integer_of, number_of, shown
from mlfabric.errors import ConfigError, UsageError

__all__ = ["MomentumAt", "RuleKind", "RuleSpec", "Schedule"]


class RuleKind(Enum):
    """Which formula makes the step."""

    SGD = "sgd"
    ADAM = "adam"
    ADADELAY = "adadelay"


class MomentumAt(Enum):
    """Who keeps the momentum of SGD.

    At the SERVER all updates share one history, and a sum of several updates travels as two tensors. At the WORKERS
    each has a velocity of its own, and sums are plain.
    """

    SERVER = "server"
    WORKERS = "workers"


class Schedule(Enum):
    """How the learning rate moves with the model's version."""

    CONSTANT = "constant"
    STEP = "step"
    COSINE = "cosine"


_SCHEDULED = frozenset({"lr", "schedule", "warmup_versions", "milestones", "factor", "total_versions"})
_MEANT = {
    RuleKind.SGD: _SCHEDULED | {"momentum", "momentum_at"},
    RuleKind.ADAM: _SCHEDULED | {"beta1", "beta2", "epsilon", "decoupled"},
    RuleKind.ADADELAY: frozenset({"smoothness", "delay_scale"}),
}
_ALWAYS_MEANT = frozenset({"kind", "weight_decay", "clip_norm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSpec:
    """An update rule (design, section 5). What has no part in its kind must stay at its default.

    An enum's value stands for its member, as in ``kind="adam"``.

    Args:
        lr: learning rate at factor 1; > 0. Not of ADADELAY. Updates that bring rates (``wrap``) bring multiples of it.
        momentum: in [0, 1). SGD only.
        weight_decay: >= 0; 0 means none. A multiple of the weights that is added to the gradient. Where updates bring
            rates, these have it, and here is what no decoupled one is above.
        schedule: which curve the factor on ``lr`` follows, in versions (applied updates), not in epochs.
        warmup_versions: the factor rises linearly over this many versions; 0 means no warm-up.
        milestones: STEP only: versions at which the factor is multiplied by ``factor``; ascending.
        factor: STEP only: in (0, 1].
        total_versions: COSINE only: the factor reaches 0 here; > 0.
        kind: the formula.
        momentum_at: who keeps the momentum. None lets ``register_as_worker`` choose (the workers in asynchronous
            training, else the server); where nobody chooses, it is the server. SGD only.
        beta1, beta2: ADAM only: weights of the past in the averages of g and g * g; in [0, 1).
        epsilon: ADAM only: added to the root of the second; > 0.
        decoupled: ADAM only: weight decay shrinks the weights, and is not added to the gradient (AdamW).
        smoothness: ADADELAY only: L of the paper; > 0.
        delay_scale: ADADELAY only: c of the paper; > 0.
        clip_norm: a worker scales its gradient down to this l2 norm before anything else is made of it; 0 means never.

    Raises:
        ConfigError: a value is out of range, or has no part in this kind.
        UsageError: a value is of another type.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_versions: int = 0
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    total_versions: int = 0
    kind: RuleKind = RuleKind.SGD
    momentum_at: MomentumAt | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decoupled: bool = False
    smoothness: float = 0.0
    delay_scale: float = 0.0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _typed(field.name, field.default, getattr(self, field.name)))
        meant = _MEANT[self.kind] | _ALWAYS_MEANT
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in meant and value != field.default:
                raise ConfigError(
                    f"update rule {self.kind.value}: {field.name}={value!r} has no part in it; "
                    f"allowed: {', '.join(f.name for f in fields(self) if f.name in meant)}"
                )
        for name, good, allowed in self._checks():
            if not good:
                raise ConfigError(f"update rule {self.kind.value}: {name}={getattr(self, name)!r}; allowed: {allowed}")

    def _checks(self) -> Iterator[tuple[str, bool, str]]:
        """Give a field's name, whether its value is in range, and the range."""
        yield "lr", math.isfinite(self.lr) and self.lr > 0, "> 0 and finite"
        yield "momentum", 0 <= self.momentum < 1, "in [0, 1)"
        for name in ("weight_decay", "clip_norm"):
            yield name, math.isfinite(getattr(self, name)) and getattr(self, name) >= 0, ">= 0 and finite; 0 for none"
        yield "warmup_versions", self.warmup_versions >= 0, ">= 0"
        yield "milestones", tuple(sorted(self.milestones)) == self.milestones, "ascending"
        yield "factor", 0 < self.factor <= 1, "in (0, 1]"
        cosine = self.schedule is Schedule.COSINE
        yield "total_versions", not cosine or self.total_versions > 0, "> 0 for the cosine schedule"
        for name in ("beta1", "beta2"):
            yield name, 0 <= getattr(self, name) < 1, "in [0, 1)"
        yield "epsilon", math.isfinite(self.epsilon) and self.epsilon > 0, "> 0 and finite"
        if self.kind is RuleKind.ADADELAY:
            for name in ("smoothness", "delay_scale"):
                yield name, math.isfinite(getattr(self, name)) and getattr(self, name) > 0, "> 0 and finite"

    def lr_at(self, version: int, tau: int = 0) -> float:
        """Return the learning rate of the step that leads from ``version`` to ``version + 1``.

        Args:
            version: before the step, >= 0.
            tau: the update's delay, >= 0; ADADELAY alone asks for it.
        """
        if self.kind is RuleKind.ADADELAY:
            return 1 / (self.smoothness + self.delay_scale * math.sqrt(version + tau))
        scale = 1.0
        if self.schedule is Schedule.STEP:
            scale = self.factor ** sum(1 for m in self.milestones if version >= m)
        elif self.schedule is Schedule.COSINE:
            scale = 0.5 * (1 + math.cos(math.pi * min(1.0, version / self.total_versions)))
        if version < self.warmup_versions:
            scale *= (version + 1) / (self.warmup_versions + 1)
        return self.lr * scale

    @property
    def worker_momentum(self) -> float:
        """The momentum that each worker keeps for itself; 0 for none."""
        return self.momentum if self.momentum_at is MomentumAt.WORKERS else 0.0

    @property
    def server_momentum(self) -> float:
        """The momentum that the server keeps; 0 for none. Above 0 a sum of updates travels as two tensors."""
        return 0.0 if self.momentum_at is MomentumAt.WORKERS else self.momentum

    @property
    def worker_weight_decay(self) -> float:
        """The weight decay that a worker puts into what it pushes: where the momentum is, there is the decay."""
        return self.weight_decay if self.worker_momentum > 0 else 0.0

    @property
    def server_weight_decay(self) -> float:
        """The weight decay of the server's step."""
        return 0.0 if self.worker_momentum > 0 else self.weight_decay

    @property
    def state_images(self) -> int:
        """How many images of optimizer state the server keeps beside the weights."""
        return 2 if self.kind is RuleKind.ADAM else 1 if self.server_momentum > 0 else 0

    @property
    def sum_images(self) -> int:
        """How many images a sum of several updates travels as."""
        return 2 if self.server_momentum > 0 else 1


def _typed(name: str, default: object, given: object) -> object:
    """Return a field's value in the type of its default.

    Raises:
        UsageError: it is of another type.
    """
    match default:
        case None:
            return None if given is None else enum_of(MomentumAt, name, given)
        case Enum():
            return enum_of(type(default), name, given)
        case bool():
            return flag_of(name, given)
        case int():
            return integer_of(name, given)
        case float():
            return number_of(name, given)
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UsageError(f"{shown(name, given)}; allowed: versions, as in {name}=(1000, 2000)")
    return tuple(integer_of(name, each, least=0) for each in given)
