"""What a simulated fabric looks like, how often what goes wrong, and what came of it. Plain values."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace

from mlfabric.model.specs import Method, RuleKind, RuleSpec, Schedule

__all__ = ["CALM", "HARSH", "STORMY", "WITH_REPLICAS", "FaultRates", "SimulationConfig", "Summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often what goes wrong.

    Args:
        worker_stream_hz, server_stream_hz: how often per second of virtual time a member's stream breaks.
        connection_hz: how often a data connection breaks.
        aggregator_stream_hz: how often an aggregator's stream breaks.
        aggregator_hz: how often an aggregator's process dies; most, and the last one, come back under the same name.
        crash_hz: how often a worker's process dies; most, and the last one, come back under the same name.
        scheduler_hz: how often the scheduler is started anew with nothing in its memory.
        link_hz: how often a link's rate changes; the scheduler hears of it later.
        repeated: share of control messages that arrive twice.
        late: share of messages that take up to a hundred times the usual latency.
        outcome_lost: share of answers to an update whose connection breaks just before they arrive.
        odd: share of updates that ought to be refused: NaN, wrong size or layout, a version of the future, changed.
        replica_stream_hz: how often a replica's stream breaks.
        rollback_hz: how often all servers of a model that is cut die, and go on from checkpoints of one older version.
        replica_hz: how often a replica's process dies; most come back, with nothing, or another one takes their place.
        away: share of attempts to join again that are made only after a second or so.
        server_hz: how often a server's process dies whose models are whole: a replica takes its place, or without one
            it goes on from its newest checkpoints.
        amnesia: share of the deaths without a replica, or of all servers of a model that is cut, after which they begin
            with nothing.
        hang_hz: how often some process is stopped for a while.
        cut_hz: how often two hosts, or one and the scheduler's, cannot reach each other for a while.
        disk_hz: how often a server or the scheduler can write nothing for a while.
        monitor_hz: how often nothing is reported of links for a while.
        several_hz: how often several of these things happen at one instant.
    """

    worker_stream_hz: float = 0.0
    server_stream_hz: float = 0.0
    connection_hz: float = 0.0
    aggregator_stream_hz: float = 0.0
    aggregator_hz: float = 0.0
    crash_hz: float = 0.0
    scheduler_hz: float = 0.0
    link_hz: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    outcome_lost: float = 0.0
    odd: float = 0.0
    replica_stream_hz: float = 0.0
    replica_hz: float = 0.0
    rollback_hz: float = 0.0
    away: float = 0.0
    server_hz: float = 0.0
    hang_hz: float = 0.0
    amnesia: float = 0.0
    cut_hz: float = 0.0
    disk_hz: float = 0.0
    monitor_hz: float = 0.0
    several_hz: float = 0.0
    job_hz: float = 0.0

    @property
    def kills_servers(self) -> bool:
        """Whether servers write checkpoints to go on from, because they may die."""
        return self.server_hz + self.several_hz > 0


PLAIN = RuleSpec(lr=0.5)
MOMENTUM = RuleSpec(lr=0.5, momentum=0.5, schedule=Schedule.STEP, milestones=(10, 30), factor=0.5)
RULES = (
    PLAIN,
    MOMENTUM,
    RuleSpec(lr=0.5, momentum=0.5, weight_decay=0.5),
    RuleSpec(kind=RuleKind.ADADELAY, smoothness=2.0, delay_scale=0.5),
    RuleSpec(kind=RuleKind.ADAM, lr=0.5),
)
"""Their rates and coefficients are exact in floating point for groups of a dozen updates."""

CALM = FaultRates()
STORMY = FaultRates(
    worker_stream_hz=3.0,
    server_stream_hz=1.5,
    connection_hz=8.0,
    aggregator_stream_hz=2.0,
    aggregator_hz=1.5,
    crash_hz=2.0,
    scheduler_hz=1.0,
    link_hz=4.0,
    repeated=0.05,
    late=0.05,
    outcome_lost=0.05,
    odd=0.08,
)
WITH_REPLICAS = replace(STORMY, replica_stream_hz=2.0, replica_hz=1.0, away=0.1)
HARSH = replace(
    WITH_REPLICAS,
    server_hz=1.0,
    hang_hz=3.0,
    cut_hz=3.0,
    disk_hz=0.5,
    monitor_hz=0.5,
    several_hz=0.5,
    rollback_hz=4.0,
)
WITH_JOBS = replace(HARSH, job_hz=0.3)
JOBS_END = 0.3
"""In so many fabrics a job ends now and then, and another one begins."""
METHODS = (Method.ASYNCHRONOUS, Method.SYNCHRONOUS, Method.STALE_SYNCHRONOUS)
MOST_SKEW_NS = 10_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """A simulated fabric.

    Args:
        seed: everything random follows from it.
        workers: at the beginning; each on a host of its own.
        servers: each with a model of its own; workers are dealt out to them in turn.
        shards: 1, or into how many parts the one model is cut that all workers train; there are that many servers.
        aggregators: at the beginning, each on a host of its own unless they are beside workers.
        beside_workers: aggregators share the hosts of workers.
        most_updates: that an aggregator takes into one sum; 0 for any number.
        sum_updates: how many updates fit into an aggregator's budget.
        replicas: how many of the servers have one at the beginning.
        div_max, div_max_updates: how far a primary may be ahead of its replica, see ``Following``.
        calm_updates: how many more updates each worker pushes once the storm is over.
        method, slack, rule: of each model.
        forms: the first iteration waits until all workers have joined: for one model of a method that has iterations.
        in_flight: updates that each worker has under way at most, >= 1.
        tau_max: of each model, if it is asynchronous; None as in ``ModelSpec``.
        model_bytes: size of a model and of each update.
        link_bps: of each host's links, at the beginning.
        server_share: what a server's links carry of that; the less, the more sums pay.
        compute_ns: mean time that a gradient takes to compute.
        latency_ns: mean time that a message takes.
        notice_ns: mean time until an end notices that a line broke.
        receive_updates: how many updates fit into a server's budget.
        weight_copies: see ``ServerConfig``.
        silence_ns, batch_window_ns: see ``SchedulerConfig``.
        answer_ns: how long a process may answer no ping before it counts as silent.
        skew_ns: how far the clocks of processes differ at most.
        faults: how often what goes wrong.
    """

    seed: int
    workers: int = 3
    servers: int = 1
    shards: int = 1
    aggregators: int = 0
    beside_workers: bool = False
    most_updates: int = 0
    sum_updates: int = 4
    replicas: int = 0
    div_max: float = math.inf
    div_max_updates: int | None = None
    calm_updates: int = 0
    method: Method = Method.ASYNCHRONOUS
    slack: int = 0
    rule: RuleSpec = PLAIN
    forms: bool = False
    in_flight: int = 2
    tau_max: int | None = None
    model_bytes: int = 1_000_000
    link_bps: int = 1_000_000_000
    server_share: float = 1.0
    compute_ns: int = 20_000_000
    latency_ns: int = 300_000
    notice_ns: int = 20_000_000
    receive_updates: int = 4
    weight_copies: int = 0
    silence_ns: int = 400_000_000
    batch_window_ns: int = 100_000_000
    answer_ns: int = 500_000_000
    skew_ns: int = 0
    faults: FaultRates = CALM

    @property
    def server_bps(self) -> int:
        """What a server's links carry at the beginning."""
        return round(self.link_bps * self.server_share)

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
            rule=rng.choice((PLAIN, MOMENTUM)),
            model_bytes=rng.choice((100_000, 1_000_000)),
            latency_ns=rng.choice((100_000, 1_000_000, 10_000_000)),
            notice_ns=rng.choice((1_000_000, 20_000_000, 150_000_000)),
            compute_ns=rng.choice((2_000_000, 20_000_000, 60_000_000)),
            receive_updates=rng.choice((1, 2, 4)),
            silence_ns=rng.choice((150_000_000, 2_000_000_000)),
        )
        kept = {name: getattr(faults, name) * rng.choice((0, 1, 1, 3)) for name in FaultRates.__slots__}
        return replace(config, faults=FaultRates(**kept))

    @classmethod
    def drawn_of_any_kind(cls, seed: int, faults: FaultRates = WITH_JOBS) -> SimulationConfig:
        """Draw a fabric of any kind and method, with every fault that there is, on hosts whose clocks differ."""
        rng = random.Random(f"kinds {seed}")
        kind, method = rng.choice(("plain", "plain", "sums", "replicas", "shards")), rng.choice(METHODS)
        match kind:
            case "plain":
                config = cls.drawn(seed, _milder(faults, rng.choice((0.1, 0.3, 1.0))))
            case "sums":
                config = cls.drawn_with_sums(seed, faults, method)
            case "replicas":
                config = cls.drawn_with_replicas(seed, faults, method)
            case _:
                config = cls.drawn_with_shards(seed, faults, method)
        job_hz = faults.job_hz * rng.choice((1, 3)) if rng.random() < JOBS_END else 0.0
        config = replace(config, faults=replace(config.faults, job_hz=job_hz))
        return replace(
            config,
            skew_ns=rng.choice((0, MOST_SKEW_NS)),
            answer_ns=rng.choice((100_000_000, 500_000_000, 2_000_000_000)),
            faults=replace(config.faults, amnesia=rng.choice((0.0, 0.0, 0.5))),
        )

    @classmethod
    def drawn_with_shards(
        cls, seed: int, faults: FaultRates = STORMY, method: Method = Method.ASYNCHRONOUS
    ) -> SimulationConfig:
        """Draw a fabric whose one model is cut into parts, sometimes with aggregators."""
        config, rng = cls.drawn_with_sums(seed, faults, method), random.Random(f"shards {seed}")
        share, shards = rng.choice((0.1, 0.3, 1.0)), rng.choice((2, 3))
        return replace(
            config,
            faults=_milder(config.faults, share),
            workers=rng.choice((1, 2, 4)),
            servers=shards,
            shards=shards,
            aggregators=rng.choice((0, 2)),
        )

    @classmethod
    def drawn_with_sums(
        cls, seed: int, faults: FaultRates = STORMY, method: Method = Method.ASYNCHRONOUS
    ) -> SimulationConfig:
        """Draw a fabric with aggregators, in which sums pay: many workers, transfers that take longer than messages."""
        config, rng = cls.drawn(seed, faults), random.Random(f"sums {seed}")
        share = rng.choice((0.1, 0.3, 1.0))
        return replace(
            config,
            faults=_milder(config.faults, share),
            workers=rng.choice((4, 6, 8)),
            servers=1,
            aggregators=rng.choice((1, 2, 3, 4)),
            beside_workers=rng.random() < 0.3,
            most_updates=rng.choice((0, 0, 2, 3)),
            sum_updates=rng.choice((1, 2, 4)),
            method=method,
            slack=rng.choice((0, 1, 3)) if method is Method.STALE_SYNCHRONOUS else 0,
            rule=rng.choice(RULES),
            tau_max=rng.choice((None, 3, 8, 20)) if method is Method.ASYNCHRONOUS else None,
            model_bytes=rng.choice((12_000, 300_000, 1_000_000)),
            link_bps=rng.choice((100_000_000, 1_000_000_000)),
            server_share=rng.choice((0.2, 0.5, 1.0)),
            latency_ns=rng.choice((100_000, 1_000_000, 5_000_000)),
            in_flight=rng.choice((1, 2)),
        )

    @classmethod
    def drawn_with_replicas(
        cls, seed: int, faults: FaultRates = WITH_REPLICAS, method: Method = Method.ASYNCHRONOUS
    ) -> SimulationConfig:
        """Draw a fabric whose servers have replicas, within one bound or two; some of them have aggregators, too."""
        rng = random.Random(f"replicas {seed}")
        base = cls.drawn_with_sums(seed, faults, method)
        updates = rng.choice((None, 0, 1, 3, 8, 20))
        return replace(
            base,
            workers=rng.choice((1, 2, 3, 4, 6)),
            aggregators=rng.choice((0, 0, base.aggregators)),
            replicas=1,
            div_max=rng.choice((0.0, 0.5, 2.0, 10.0) if updates is None else (math.inf, math.inf, 2.0)),
            div_max_updates=updates,
            calm_updates=6,
        )


def _milder(faults: FaultRates, share: float) -> FaultRates:
    return FaultRates(**{name: share * getattr(faults, name) for name in FaultRates.__slots__})


@dataclass(slots=True)
class Summary:
    """What happened in one simulation; ``digest`` is equal for equal runs, ``unheard`` are updates of dead workers.

    Args:
        sums: how many were committed, by how many updates they had.
        handed_on: gets that an aggregator answered.
        promises: how often a primary came to be within the bound of a replica that follows.
        promotions: how often a replica took its primary's place.
        lost: updates that were committed, and not by then at the replica that took the place of who committed them.
        terms_by_hole: how many of the last scheduler's terms were begun because something was missing.
    """

    seed: int
    events: int = 0
    virtual_s: float = 0.0
    committed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    unheard: int = 0
    gets: int = 0
    sums: Counter[int] = field(default_factory=Counter)
    handed_on: int = 0
    promises: int = 0
    promotions: int = 0
    lost: int = 0
    terms_by_hole: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    digest: int = 0
