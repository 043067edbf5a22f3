"""What members agree on when they join: a model's layout, its update rule, its mode, and who they are.

Plain frozen values, pure, no torch. A :class:`Layout` fixes the byte image of a model: its tensors packed in
order, each aligned to :data:`ALIGNMENT_BYTES`. Updates and models travel as exactly that image, so the
receiver can preallocate, and the layout's digest stands for names, shapes and dtypes on every wire.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from mlfabric.errors import ConfigError, LayoutError

__all__ = [
    "ALIGNMENT_BYTES",
    "DTYPE_BYTES",
    "PROTOCOL_VERSION",
    "Layout",
    "Member",
    "Mode",
    "ModelSpec",
    "Role",
    "RuleSpec",
    "Schedule",
    "TensorKind",
    "TensorSpec",
]

PROTOCOL_VERSION = 1
ALIGNMENT_BYTES = 16
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class Role(Enum):
    """What a member does in the fabric."""

    WORKER = "worker"
    SERVER = "server"
    MONITOR = "monitor"


class Mode(Enum):
    """How far workers may run apart (design, section 5)."""

    ASYNCHRONOUS = "asynchronous"


class TensorKind(Enum):
    """How the update rule treats a tensor.

    A ``PARAMETER`` gets gradients, learning rate, momentum and weight decay. A ``BUFFER`` (batch-norm
    statistics) gets the *change* that each worker's batches made to it, added as it is.
    """

    PARAMETER = "parameter"
    BUFFER = "buffer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One named tensor of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind = TensorKind.PARAMETER

    def __post_init__(self) -> None:
        if not self.name:
            raise LayoutError("a tensor needs a name; got ''")
        if self.dtype not in DTYPE_BYTES:
            raise LayoutError(f"{self.name}: dtype {self.dtype!r} cannot travel; allowed: {', '.join(DTYPE_BYTES)}")
        if any(n < 0 for n in self.shape):
            raise LayoutError(f"{self.name}: shape {self.shape} has a negative dimension")

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size of the elements, without alignment."""
        return self.numel * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Layout:
    """The tensors of a model in their fixed order, and where each lies in the model's byte image."""

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        if not self.tensors:
            raise LayoutError("a layout needs at least one tensor; got none")
        names = [t.name for t in self.tensors]
        twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise LayoutError(f"tensor names must be unique; given twice: {', '.join(twice)}")

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each tensor in the image, a multiple of ``ALIGNMENT_BYTES``."""
        out, at = [], 0
        for tensor in self.tensors:
            out.append(at)
            at += -(-tensor.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return tuple(out)

    @cached_property
    def size_bytes(self) -> int:
        """Size of the whole image in bytes, padding included."""
        last = self.tensors[-1]
        return self.offsets[-1] + -(-last.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @cached_property
    def digest(self) -> int:
        """64-bit digest of names, shapes, dtypes and kinds, carried by every transfer."""
        text = "\n".join(f"{t.name} {t.shape} {t.dtype} {t.kind.value}" for t in self.tensors)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def difference(self, other: Layout) -> str:
        """Describe the first difference to ``other`` in one line; empty if the layouts are equal."""
        mine = {t.name: t for t in self.tensors}
        theirs = {t.name: t for t in other.tensors}
        for name in sorted(mine.keys() | theirs.keys()):
            a, b = mine.get(name), theirs.get(name)
            if a != b:
                return f"{name}: {_describe(a)} against {_describe(b)}"
        return "" if self.tensors == other.tensors else "the same tensors in another order"


def _describe(tensor: TensorSpec | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)} ({tensor.kind.value})"


class Schedule(Enum):
    """How the learning rate moves with the model's version."""

    CONSTANT = "constant"
    STEP = "step"
    COSINE = "cosine"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSpec:
    """SGD with momentum: ``h <- momentum*h - lr*(g + weight_decay*w); w <- w + h`` (design, section 5).

    Args:
        lr: learning rate at factor 1; > 0.
        momentum: in [0, 1).
        weight_decay: >= 0; 0 means none.
        schedule: which curve the factor on ``lr`` follows, in versions (applied updates), not in epochs.
        warmup_versions: the factor rises linearly over this many versions; 0 means no warm-up.
        milestones: STEP only: versions at which the factor is multiplied by ``factor``; ascending.
        factor: STEP only: in (0, 1].
        total_versions: COSINE only: the factor reaches 0 here; > 0.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_versions: int = 0
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    total_versions: int = 0

    def __post_init__(self) -> None:
        checks = [
            ("lr", self.lr, math.isfinite(self.lr) and self.lr > 0, "> 0 and finite"),
            ("momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)"),
            ("weight_decay", self.weight_decay, math.isfinite(self.weight_decay) and self.weight_decay >= 0, ">= 0"),
            ("warmup_versions", self.warmup_versions, self.warmup_versions >= 0, ">= 0"),
            ("milestones", self.milestones, tuple(sorted(self.milestones)) == self.milestones, "ascending"),
            ("factor", self.factor, 0 < self.factor <= 1, "in (0, 1]"),
            (
                "total_versions",
                self.total_versions,
                self.schedule is not Schedule.COSINE or self.total_versions > 0,
                "> 0 for the cosine schedule",
            ),
        ]
        for name, value, good, allowed in checks:
            if not good:
                raise ConfigError(f"update rule: {name}={value!r}; allowed: {allowed}")

    def lr_at(self, version: int) -> float:
        """Return the learning rate of the step that leads from ``version`` to ``version + 1``."""
        scale = 1.0
        if self.schedule is Schedule.STEP:
            scale = self.factor ** sum(1 for m in self.milestones if version >= m)
        elif self.schedule is Schedule.COSINE:
            scale = 0.5 * (1 + math.cos(math.pi * min(1.0, version / self.total_versions)))
        if version < self.warmup_versions:
            scale *= (version + 1) / (self.warmup_versions + 1)
        return self.lr * scale


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One model of a job: what it looks like and by which rules it is trained.

    Args:
        name: unique within the fabric.
        layout: its tensors.
        rule: how an update becomes a step.
        mode: consistency mode; a job has one.
        tau_max: delay bound, >= 0; None means twice the number of workers (the most that were ever joined
            at the same time, so that the bound only grows).
        server: the server that holds it; "" lets the scheduler choose.
        frozen_digest: digest of the values of frozen parameters, which do not travel; "" if there are none. Workers
            whose digests differ would train different models, so the scheduler refuses them.
    """

    name: str
    layout: Layout
    rule: RuleSpec = field(default_factory=RuleSpec)
    mode: Mode = Mode.ASYNCHRONOUS
    tau_max: int | None = None
    server: str = ""
    frozen_digest: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a model needs a name; got ''")
        if self.tau_max is not None and self.tau_max < 0:
            raise ConfigError(f"tau_max={self.tau_max}; allowed: 0 or more, or None for twice the workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Who joins: its name, role, and where its data connections are accepted.

    Args:
        name: unique within the fabric.
        role: what it does.
        incarnation: grows with each process that takes this name; tells a restart from a reconnect.
        host: machine it runs on; members of one host share its links and reach each other without them.
        address: ``host:port`` of its data channel, or of its gRPC service (monitor); "" if it accepts nothing.
        up_bps, down_bps: nominal rate of its host's link in bit/s; 0 means unknown.
    """

    name: str
    role: Role
    incarnation: int
    host: str
    address: str = ""
    up_bps: int = 0
    down_bps: int = 0
    protocol_version: int = PROTOCOL_VERSION
