"""What the scheduler shows to Prometheus: updates by their fate, plans, sums, members, rates."""

from __future__ import annotations

from collections.abc import Container, Mapping

from prometheus_client import Counter, Gauge

from mlfabric.model.specs import Role
from mlfabric.protocol import Committed, ModelVersion, Outcome
from mlfabric.telemetry.observed import BATCH_UPDATES, Registry, direction, settled_as
from mlfabric.telemetry.owned import Owned

DELAY_VERSIONS = (0, 1, 2, 4, 8, 16, 32, 64)
BRIEF_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 1.0)

ROUND_S = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1.0, 2.0, 5.0, 10.0)


class SchedulerMetrics:
    """What the scheduler decided and what it decides on."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self._delay = registry.histograms(
            "mlfabric_update_delay_versions",
            "Delay of committed updates: versions that others made since theirs was read.",
            "model",
            buckets=DELAY_VERSIONS,
        )
        self._updates = Owned(
            Counter(
                "mlfabric_updates_total",
                "Updates, and gradients offered for rounds, by what became of them; cause says why one was dropped.",
                ["model", "worker", "outcome", "cause"],
                registry=registry,
            )
        )
        self._plan = registry.histogram("mlfabric_plan_seconds", "Time to plan one batch.", buckets=BRIEF_S)
        self._batch = registry.histogram("mlfabric_batch_updates", "Updates planned together.", buckets=BATCH_UPDATES)
        self._group = registry.histograms(
            "mlfabric_group_updates",
            "Updates in each planned group, by the shape of its way to the server.",
            "shape",
            buckets=BATCH_UPDATES,
        )
        self._torn = registry.counters("mlfabric_sums_torn_total", "Planned sums given up, by reason.", "cause")
        self._queue = registry.gauges("mlfabric_queue_updates", "Updates that wait for a plan.", "model")
        self._waiting = registry.gauges(
            "mlfabric_waiting_requests",
            "Updates, gets and reductions that no plan holds yet; cause says what they wait for.",
            "model",
            "cause",
        )
        self._version = registry.gauges("mlfabric_model_version", "Newest version of the model.", "model")
        self._bound = registry.gauges(
            "mlfabric_delay_bound_versions", "Delay that no update may exceed; absent where there is no bound.", "model"
        )
        self._lead, self._most_lead, self._divergence, self._most_divergence = (
            registry.gauges(f"mlfabric_replica_{name}", words, "model")
            for name, words in (
                ("lead_updates", "Updates that a model's replica has not applied."),
                ("lead_bound_updates", "How many updates that may be; absent where there is no bound."),
                ("divergence", "Bound of the l2 distance of a model's replica from it."),
                ("divergence_bound", "How far that may be; absent where there is no bound."),
            )
        )
        self._rate = Owned(
            Gauge(
                "mlfabric_link_rate_bytes_per_second",
                "Rate that plans are made with, of one direction of a host's link.",
                ["host", "direction"],
                registry=registry,
            )
        )
        self._members = registry.gauges("mlfabric_members", "Members that joined, by role and state.", "role", "state")
        self._lost = registry.counters(
            "mlfabric_members_lost_total",
            "Members found not to answer any more: stopped, ended, silent with their host.",
            "cause",
        )
        self._round_s = registry.histograms(
            "mlfabric_round_seconds",
            "Time of a round of AllReduce, from its plan until every worker had the result.",
            "model",
            buckets=ROUND_S,
        )
        self._round_bytes = registry.counters(
            "mlfabric_round_bytes", "Bytes of the tensors that were reduced, of one worker each.", "model"
        )
        self._rounds_voided = registry.counters(
            "mlfabric_rounds_voided_total",
            "Rounds of AllReduce that were begun and given up, to be done again or not.",
            "model",
        )
        self._probes, self._probes_answered, self._links_changed = (
            registry.counters(f"mlfabric_{name}_total", words, "model")
            for name, words in (
                ("probes", "Probes of links that workers of an AllReduce job were asked for."),
                ("probes_answered", "Probes whose rate was reported before the next round was planned."),
                ("probed_links_changed", "How often probes showed that a link's rate had changed."),
            )
        )
        self._counted: set[tuple[str, str]] = set()
        self._decision = registry.histogram(
            "mlfabric_decision_seconds", "Time to handle one event in the state machine.", buckets=BRIEF_S
        )

    def settled(self, model: str, worker: str, outcome: Outcome) -> None:
        """Count an update whose outcome is known, and the delay of a committed one."""
        self._updates.of(worker, model, worker, *settled_as(outcome)).inc()
        if isinstance(outcome, Committed):
            self._delay(model).observe(outcome.tau)

    def delays(self, model: str, counts: Mapping[int, int]) -> None:
        """Observe by how many rounds gradients were late, and how many of them."""
        for delay, number in counts.items():
            for _ in range(number):
                self._delay(model).observe(delay)

    def delay_bound(self, model: str, versions: int | None) -> None:
        """Set the bound of delays; None for none."""
        if versions is not None:
            self._bound(model).set(versions)

    def replica(
        self, model: str, lead: int, most_lead: int | None, divergence: float, most_divergence: float | None
    ) -> None:
        """Set how far a model's replica is behind, and how far it may be; None for no such bound."""
        self._lead(model).set(lead)
        self._divergence(model).set(divergence)
        if most_lead is not None:
            self._most_lead(model).set(most_lead)
        if most_divergence is not None:
            self._most_divergence(model).set(most_divergence)

    def in_rounds(self, model: str, worker: str, committed: int, dropped: int) -> None:
        """Count gradients that were in rounds, and those that no further round could take."""
        self._updates.of(worker, model, worker, "committed", "").inc(committed)
        self._updates.of(worker, model, worker, "dropped", "too_late").inc(dropped)

    def keep(self, workers: Container[str], hosts: Container[str]) -> None:
        """Show no more figures of workers and hosts but of those that are known."""
        self._updates.keep(workers)
        self._rate.keep(hosts)

    def plan(self, seconds: float, updates: int) -> None:
        """Observe one plan: how long it took to make, over how many updates."""
        self._plan.observe(seconds)
        self._batch.observe(updates)

    def groups(self, shape: str, updates: int, number: int) -> None:
        """Observe that ``number`` groups of so many updates were planned in one shape."""
        for _ in range(number):
            self._group(shape).observe(updates)

    def torn(self, cause: str, number: int) -> None:
        """Count planned sums that were given up."""
        self._torn(cause).inc(number)

    def round(self, model: str, seconds: float, n_bytes: int) -> None:
        """Observe a round that every worker has the result of."""
        self._round_s(model).observe(seconds)
        self._round_bytes(model).inc(n_bytes)

    def round_voided(self, model: str, rounds: int = 1) -> None:
        """Count a round that was given up; 0 of them show that there was none so far."""
        self._rounds_voided(model).inc(rounds)

    def probes(self, model: str, asked: int, answered: int, changed: int) -> None:
        """Count probes that were asked for, those that were answered in time, and links that were found changed."""
        self._probes(model).inc(asked)
        self._probes_answered(model).inc(answered)
        self._links_changed(model).inc(changed)

    def decision(self, seconds: float) -> None:
        """Observe how long the state machine took over one event."""
        self._decision.observe(seconds)

    def queue(self, model: str, updates: int) -> None:
        """Set how many updates wait for a plan."""
        self._queue(model).set(updates)

    def waiting(self, model: str, cause: str, requests: int) -> None:
        """Set how many requests wait for something."""
        self._waiting(model, cause).set(requests)

    def version(self, model: str, version: ModelVersion) -> None:
        """Set the newest version of a model."""
        self._version(model).set(version.number)

    def link_rate(self, host: str, up: bool, bps: float) -> None:
        """Set the rate in bit/s that plans are made with."""
        self._rate.of(host, host, direction(up)).set(bps / 8)

    def lost(self, cause: str, members: int = 1) -> None:
        """Count a member that does not answer any more; 0 of them show that there was none so far."""
        self._lost(cause).inc(members)

    def members(self, counts: Mapping[tuple[Role, str], int]) -> None:
        """Set how many members of each role are in each state; what is not named is 0."""
        named = {(role.value, state): n for (role, state), n in counts.items()}
        self._counted |= named.keys()
        for labels in self._counted:
            self._members(*labels).set(named.get(labels, 0))
