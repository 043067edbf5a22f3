"""What a simulated fabric looks like, how often what goes wrong, and what came of it. Plain values."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from mlfabric.scheduler.planning import DropRule

__all__ = ["CALM", "STORMY", "FaultRates", "SimulationConfig", "Summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often what goes wrong.

    Args:
        worker_stream_hz, server_stream_hz: how often per second of virtual time a member's stream breaks.
        connection_hz: how often a data connection breaks.
        crash_hz: how often a worker's process dies; most, and the last one, come back under the same name.
        scheduler_hz: how often the scheduler is started anew with nothing in its memory.
        link_hz: how often a link's rate changes; the scheduler hears of it later.
        repeated: share of control messages that arrive twice.
        late: share of messages that take up to a hundred times the usual latency.
        outcome_lost: share of answers to an update whose connection breaks just before they arrive.
        odd: share of updates that ought to be refused: NaN, wrong size or layout, a version of the future, changed.
    """

    worker_stream_hz: float = 0.0
    server_stream_hz: float = 0.0
    connection_hz: float = 0.0
    crash_hz: float = 0.0
    scheduler_hz: float = 0.0
    link_hz: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    outcome_lost: float = 0.0
    odd: float = 0.0


CALM = FaultRates()
STORMY = FaultRates(
    worker_stream_hz=3.0,
    server_stream_hz=1.5,
    connection_hz=8.0,
    crash_hz=2.0,
    scheduler_hz=1.0,
    link_hz=4.0,
    repeated=0.05,
    late=0.05,
    outcome_lost=0.05,
    odd=0.08,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """A simulated fabric.

    Args:
        seed: everything random follows from it.
        workers: at the beginning; each on a host of its own.
        servers: each with a model of its own; workers are dealt out to them in turn.
        in_flight: updates that each worker has under way at most, >= 1.
        tau_max: of each model; None as in ``ModelSpec``.
        momentum: of each model; with it a server may hold three copies of the weights.
        model_bytes: size of a model and of each update.
        link_bps: of each host's links, at the beginning.
        compute_ns: mean time that a gradient takes to compute.
        latency_ns: mean time that a message takes.
        notice_ns: mean time until an end notices that a line broke.
        receive_updates: how many updates fit into a server's budget.
        silence_ns, batch_window_ns, drop_rule: see ``SchedulerConfig``.
        faults: how often what goes wrong.
    """

    seed: int
    workers: int = 3
    servers: int = 1
    in_flight: int = 2
    tau_max: int | None = None
    momentum: float = 0.0
    model_bytes: int = 1_000_000
    link_bps: int = 1_000_000_000
    compute_ns: int = 20_000_000
    latency_ns: int = 300_000
    notice_ns: int = 20_000_000
    receive_updates: int = 4
    silence_ns: int = 400_000_000
    batch_window_ns: int = 100_000_000
    drop_rule: DropRule = DropRule.FEASIBLE
    faults: FaultRates = CALM

    @classmethod
    def drawn(cls, seed: int, faults: FaultRates = STORMY) -> SimulationConfig:
        """Draw a fabric for a seed: its size, bounds, rates and memory, and which faults it knows."""
        rng = random.Random(seed)
        config = cls(
            seed=seed,
            workers=rng.choice((1, 2, 3, 4, 6)),
            servers=rng.choice((1, 1, 2)),
            in_flight=rng.choice((1, 2, 3)),
            tau_max=rng.choice((None, None, 0, 1, 3, 8)),
            momentum=rng.choice((0.0, 0.9)),
            model_bytes=rng.choice((100_000, 1_000_000)),
            latency_ns=rng.choice((100_000, 1_000_000, 10_000_000)),
            notice_ns=rng.choice((1_000_000, 20_000_000, 150_000_000)),
            compute_ns=rng.choice((2_000_000, 20_000_000, 60_000_000)),
            receive_updates=rng.choice((1, 2, 4)),
            silence_ns=rng.choice((150_000_000, 2_000_000_000)),
            drop_rule=rng.choice((DropRule.FEASIBLE, DropRule.FEASIBLE, DropRule.PAPER)),
        )
        kept = {name: getattr(faults, name) * rng.choice((0, 1, 1, 3)) for name in FaultRates.__slots__}
        return replace(config, faults=FaultRates(**kept))


@dataclass(slots=True)
class Summary:
    """What happened in one simulation; ``digest`` is equal for equal runs, ``unheard`` are updates of dead workers."""

    seed: int
    events: int = 0
    virtual_s: float = 0.0
    committed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    unheard: int = 0
    gets: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    digest: int = 0
