"""What members agree on when they join: a model's layout, its update rule, its method, and who they are.

Plain frozen values, pure, no torch. A :class:`Layout` fixes the byte image of a model: its tensors packed in
order, each aligned to :data:`ALIGNMENT_BYTES`. Updates and models travel as exactly that image, so the
receiver can preallocate, and the layout's digest stands for names, shapes and dtypes on every wire.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import field, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from mlfabric.errors import ConfigError, LayoutError
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.update_rules import MomentumAt, RuleKind, RuleSpec, Schedule
from mlfabric.values import dataclass

__all__ = [
    "ALIGNMENT_BYTES",
    "COUNTER_BYTES",
    "DTYPE_BYTES",
    "MAX_TERM",
    "NO_TERM",
    "PROTOCOL_VERSION",
    "Layout",
    "Member",
    "Method",
    "ModelSpec",
    "MomentumAt",
    "Role",
    "RoundOptions",
    "RuleKind",
    "RuleSpec",
    "Schedule",
    "TensorKind",
    "TensorSpec",
    "Term",
]

PROTOCOL_VERSION = 2
MAX_TERM = (1 << 42) - 1
"""Of a scheduler: sequence numbers of 64 bits begin with it."""
ALIGNMENT_BYTES = 16
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
COUNTER_BYTES = {"int32": 4, "int64": 8}
"""Dtypes of tensors of kind COUNTER alone, and their sizes."""


class Role(Enum):
    """What a member does in the fabric."""

    WORKER = "worker"
    SERVER = "server"
    MONITOR = "monitor"
    AGGREGATOR = "aggregator"
    REPLICA = "replica"

    __hash__ = object.__hash__  # members are looked up by it all the time; that of Enum is written in Python


class Method(Enum):
    """How the workers' gradients become a model: who waits for whom (design, section 5)."""

    ASYNCHRONOUS = "asynchronous"
    SYNCHRONOUS = "synchronous"
    STALE_SYNCHRONOUS = "stale-synchronous"
    ALL_REDUCE = "all-reduce"
    PARTIAL = "partial"
    ELASTIC = "elastic"
    LOCAL_SGD = "local-sgd"
    DILOCO = "diloco"
    SMA = "sma"
    DPSGD = "dpsgd"
    RAND = "rand"
    RAND_AWARE = "rand-aware"
    D1D = "d1d"
    ADPSGD = "adpsgd"

    @property
    def has_server(self) -> bool:
        """Whether a server holds the models of this method."""
        return self in (Method.ASYNCHRONOUS, Method.SYNCHRONOUS, Method.STALE_SYNCHRONOUS)

    @property
    def has_inner_steps(self) -> bool:
        """Whether workers make several steps by themselves for each round."""
        return self in (Method.LOCAL_SGD, Method.DILOCO, Method.SMA)

    @property
    def is_gossip(self) -> bool:
        """Whether each worker has a model of its own, and averages it with others' ones."""
        return self in (Method.DPSGD, Method.RAND, Method.RAND_AWARE, Method.D1D, Method.ADPSGD)

    @property
    def is_only_wrapped(self) -> bool:
        """Whether workers always apply the results of rounds by themselves: there are no explicit calls."""
        return not self.has_server and self is not Method.ALL_REDUCE


class TensorKind(Enum):
    """How the update rule treats a tensor.

    A ``PARAMETER`` gets gradients, learning rate, momentum and weight decay. The others bring *values*. A ``BUFFER``
    (batch-norm statistics) becomes the mean of the values that are committed together; of one alone, that value. A
    ``COUNTER`` (batches seen; integers) becomes the greatest of these values and its own. ``RATES`` are no tensor of
    the model: learning rate and weight decay of each parameter group, a row each, which the step of ADAM takes from the
    update itself; updates that are committed together step with the means of theirs.
    """

    PARAMETER = "parameter"
    BUFFER = "buffer"
    COUNTER = "counter"
    RATES = "rates"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One named tensor of a model; ``group`` is the row of the rates that a PARAMETER steps with, if there are any."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind = TensorKind.PARAMETER
    group: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise LayoutError("a tensor needs a name; got ''")
        allowed = COUNTER_BYTES if self.kind is TensorKind.COUNTER else DTYPE_BYTES
        if self.dtype not in allowed:
            raise LayoutError(
                f"{self.name}: a {self.kind.value} of dtype {self.dtype!r} cannot travel; allowed: {', '.join(allowed)}"
            )
        if any(n < 0 for n in self.shape):
            raise LayoutError(f"{self.name}: shape {self.shape} has a negative dimension")
        if self.kind is TensorKind.RATES and (self.dtype, len(self.shape), self.shape[1:]) != ("float64", 2, (2,)):
            given = f"{self.dtype}{list(self.shape)}"
            raise LayoutError(f"{self.name}: rates of {given}; allowed: float64, two for each group")

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size of the elements, without alignment."""
        return self.numel * self.item_bytes

    @property
    def item_bytes(self) -> int:
        """Size of one element."""
        return (COUNTER_BYTES if self.kind is TensorKind.COUNTER else DTYPE_BYTES)[self.dtype]


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
        if any(t.kind is TensorKind.RATES for t in self.tensors[:-1]):
            raise LayoutError("rates before the last tensor; allowed: one tensor of rates, the last")
        groups = max(t.group for t in self.tensors) + 1
        if min(t.group for t in self.tensors) < 0 or groups > max(1, self.rate_groups):
            raise LayoutError(f"{groups} parameter groups, rates of {self.rate_groups}; allowed: a row for each group")

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
        """64-bit digest of names, shapes, dtypes, kinds and groups, carried by every transfer."""
        text = "\n".join(f"{t.name} {t.shape} {t.dtype} {t.kind.value} {t.group}" for t in self.tensors)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    @property
    def rate_groups(self) -> int:
        """For how many parameter groups updates bring rates; 0 if they bring none."""
        last = self.tensors[-1]
        return last.shape[0] if last.kind is TensorKind.RATES else 0

    @property
    def rates_start(self) -> int:
        """Where the rates begin in the image, up to its end: every part of the model has them behind its own bytes."""
        return self.offsets[-1] if self.rate_groups else self.size_bytes

    def ranges(self, parts: int) -> tuple[tuple[int, int], ...]:
        """Return where to cut the image, but for its rates, into ``parts`` contiguous pieces of nearly the same size.

        Returns:
            First byte, and the byte after the last, of each piece; multiples of ``ALIGNMENT_BYTES``.

        Raises:
            ConfigError: the image has fewer aligned units than parts.
        """
        units = self.rates_start // ALIGNMENT_BYTES
        if not 1 <= parts <= units:
            raise ConfigError(
                f"a model of {self.size_bytes} bytes cut into {parts} parts; "
                f"allowed: 1 to {units}, each of at least {ALIGNMENT_BYTES} bytes"
            )
        ends = [units * i // parts * ALIGNMENT_BYTES for i in range(parts + 1)]
        return tuple(itertools.pairwise(ends))

    def cut(self, parts: int) -> tuple[Layout, ...]:
        """Return the layout of each piece of the image; a tensor that is cut becomes flat pieces.

        A piece is named after the elements that it has, as in ``fc.weight[0:4096]``. The image of each layout is
        exactly that range of the whole image which :meth:`ranges` says, and behind it the rates if there are any.

        Raises:
            ConfigError: the image has fewer aligned units than parts.
        """
        found = self._pieces.get(parts)
        if found is None:
            rates = self.tensors[-1:] if self.rate_groups else ()
            found = tuple(Layout((*self._within(start, end), *rates)) for start, end in self.ranges(parts))
            self._pieces[parts] = found
        return found

    @cached_property
    def _pieces(self) -> dict[int, tuple[Layout, ...]]:
        """What :meth:`cut` returned, by number of parts: each part of a model is asked for by itself."""
        return {}

    def _within(self, start: int, end: int) -> Iterator[TensorSpec]:
        """Return what lies in a range of the image; a tensor without elements lies where the next one begins."""
        for tensor, at in zip(self.tensors, self.offsets, strict=True):
            if tensor.kind is TensorKind.RATES:
                return
            if at >= start and at + tensor.size_bytes <= end and (at < end or end == self.rates_start):
                yield tensor
                continue
            item_bytes = tensor.item_bytes
            first = max(0, start - at) // item_bytes
            last = min(tensor.size_bytes, end - at) // item_bytes
            if first < last:
                yield replace(tensor, name=f"{tensor.name}[{first}:{last}]", shape=(last - first,))

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
    if tensor is None:
        return "missing"
    group = f" of parameter group {tensor.group}" if tensor.group else ""
    return f"{tensor.dtype}{list(tensor.shape)} ({tensor.kind.value}{group})"


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One model of a job: what it looks like and by which rules it is trained.

    Args:
        name: unique within the fabric.
        layout: its tensors.
        rule: how an update becomes a step.
        method: how the workers' gradients become a model; a job has one.
        tau_max: delay bound, >= 0; None means twice the number of workers (the most that were ever joined
            at the same time, so that the bound only grows). Asynchronous only: others bound the delay themselves.
        slack: stale-synchronous only: how many iterations a worker may be ahead of the slowest, >= 0.
        server: the server that holds it, or those of all shards, joined by commas; "" lets the scheduler choose.
        workers: synchronous and stale-synchronous only: the first iteration waits until so many workers have joined;
            0 waits for nobody. No property of the model: it is not kept in checkpoints.
        frozen_digest: digest of the values of frozen parameters, which do not travel; "" if there are none. Workers
            whose digests differ would train different models, so the scheduler refuses them.
        shards: into how many parts the model is cut, >= 1, each on a server of its own that the scheduler chooses;
            all of them make the same steps (the paper's 10.2). Not with all-reduce, which has no server.
        shard: which of the parts this is, from 0; None for the whole model.
        rounds: how rounds are made whose results workers apply by themselves; None for methods with a server, for the
            defaults (partial, elastic), and where the script reduces tensors of its own (all-reduce).
    """

    name: str
    layout: Layout
    rule: RuleSpec = field(default_factory=RuleSpec)
    method: Method = Method.ASYNCHRONOUS
    tau_max: int | None = None
    slack: int = 0
    server: str = ""
    frozen_digest: str = ""
    workers: int = 0
    shards: int = 1
    shard: int | None = None
    rounds: RoundOptions | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a model needs a name; got ''")
        if self.tau_max is not None and self.tau_max < 0:
            raise ConfigError(f"tau_max={self.tau_max}; allowed: 0 or more, or None for twice the workers")
        if self.tau_max is not None and self.method is not Method.ASYNCHRONOUS:
            raise ConfigError(
                f"tau_max={self.tau_max} with method {self.method.value}; allowed: with asynchronous only"
            )
        if self.slack < 0 or (self.slack and self.method is not Method.STALE_SYNCHRONOUS):
            allowed = "0, or more if stale-synchronous"
            raise ConfigError(f"slack={self.slack} with method {self.method.value}; allowed: {allowed}")
        if self.workers < 0 or (self.workers and self.method not in (Method.SYNCHRONOUS, Method.STALE_SYNCHRONOUS)):
            allowed = "0, or more if synchronous or stale-synchronous"
            raise ConfigError(f"workers={self.workers} with method {self.method.value}; allowed: {allowed}")
        if self.rounds is not None and self.has_server:
            raise ConfigError(f"rounds with method {self.method.value}; allowed: with methods without a server")
        self._check_shards()
        if self.layout.rate_groups and self.rule.kind is not RuleKind.ADAM:
            raise ConfigError(f"updates with rates under {self.rule.kind.value}; allowed: under adam")
        half = [t for t in self.layout.tensors if t.kind is TensorKind.PARAMETER and DTYPE_BYTES[t.dtype] < 4]
        if half and self.rule.kind is RuleKind.ADAM:
            raise ConfigError(
                f"{half[0].name} is {half[0].dtype} under adam, whose averages move by less than that resolves; "
                "allowed: float32, float64"
            )

    def _check_shards(self) -> None:
        if self.shards < 1:
            raise ConfigError(f"shards={self.shards}; allowed: 1 or more")
        if self.shards > 1 and not self.has_server:
            raise ConfigError(f"shards={self.shards} with method {self.method.value}, which has no server; allowed: 1")
        if self.shard is not None:
            if not 0 <= self.shard < self.shards or self.shards == 1:
                raise ConfigError(f"shard={self.shard} of {self.shards}; allowed: 0 to shards - 1, or None for all")
            return
        if self.shards == 1:
            return
        if self.server and not len(set(self.servers)) == len(self.servers) == self.shards:
            allowed = f"server '' for any, or {self.shards} different names joined by commas"
            raise ConfigError(f"shards={self.shards} on server {self.server!r}; allowed: {allowed}")
        self.layout.ranges(self.shards)

    @property
    def has_server(self) -> bool:
        """Whether a server holds it."""
        return self.method.has_server

    @property
    def applies_rounds(self) -> bool:
        """Whether its workers apply the results of rounds by themselves."""
        return self.rounds is not None or self.method.is_only_wrapped

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that it must be on, that of each shard; empty if the scheduler may choose."""
        return tuple(self.server.split(",")) if self.server else ()

    @property
    def server_bytes(self) -> int:
        """The least memory that its server needs: weights twice, as steps are out of place; state; an update."""
        return (2 + self.rule.state_images + self.rule.sum_images) * self.layout.size_bytes

    def of_shard(self, shard: int) -> ModelSpec:
        """Return the spec of one part of a model that is cut: a model of its own, with everything else the same.

        Args:
            shard: which part, 0 to ``shards`` - 1.
        """
        layout = self.layout.cut(self.shards)[shard]
        server = self.servers[shard] if self.servers else ""
        return replace(self, name=f"{self.name}.shard{shard}", layout=layout, server=server, shard=shard)


class Term(NamedTuple):
    """One scheduler's time in office: the greater one is the newer, and fences off all others.

    ``instance`` is drawn at random, and tells apart two schedulers that took the same number.
    """

    number: int
    instance: int


NO_TERM = Term(0, 0)
"""What a member has seen that no scheduler has admitted."""


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
        seen: the newest scheduler that admitted it; an older one that is shown this is fenced off.
        pulse_key: what its signs of life are sealed with; b"" if it sends none.
    """

    name: str
    role: Role
    incarnation: int
    host: str
    address: str = ""
    up_bps: int = 0
    down_bps: int = 0
    protocol_version: int = PROTOCOL_VERSION
    seen: Term = NO_TERM
    pulse_key: bytes = field(default=b"", repr=False)
