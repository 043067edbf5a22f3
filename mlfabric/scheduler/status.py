"""What the scheduler tells people: members, models, each worker's share, links, the planner. Shell-level."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlfabric import clock
from mlfabric.model.specs import Role
from mlfabric.network import down_link, up_link
from mlfabric.protocol import ModelVersion
from mlfabric.scheduler.followers.replication_state import Phase
from mlfabric.scheduler.journal import Journal
from mlfabric.scheduler.known_models import AnyRounds
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.model_state import ModelState
from mlfabric.scheduler.records import MemberRecord, MemberState
from mlfabric.scheduler.rounds.step_rounds import StepRounds
from mlfabric.scheduler.samples.sample_status import describe_samples
from mlfabric.scheduler.shards.parts import name_of_whole, part_of
from mlfabric.scheduler.shards.sharded import ShardedModel
from mlfabric.scheduler.state import SchedulerState
from mlfabric.scheduler.waits import count_waits
from mlfabric.telemetry.history import Entry
from mlfabric.v1 import fabric_pb2
from mlfabric.wire import to_version

__all__ = ["SHUT_OUT_IN_A_ROW", "add_history", "describe"]

SHUT_OUT_IN_A_ROW = 10
MOST_ENTRIES = 2000


def describe(
    state: SchedulerState, meter: Meter, now_ns: int, *, all_samples: bool = False
) -> fabric_pb2.GetStatusResponse:
    """Return the status of everything that the scheduler knows; of samples all ranges only if that is asked for."""
    load = _Load.of(state)
    members = sorted(state.context.members.values(), key=lambda m: (m.member.role.value, m.member.name))
    workers = [m for m in members if m.member.role is Role.WORKER]
    waits = {name: {w.value: n for w, n in found.items() if n} for name, found in count_waits(state).items()}
    return fabric_pb2.GetStatusResponse(
        term=state.context.config.term.number,
        members=[_member(state, m, load) for m in members],
        models=[_model(state, name, model, waits[name], all_samples) for name, model in sorted(state.models.items())]
        + [_reduced(state, name, rounds, waits[name], meter) for name, rounds in sorted(state.reductions.items())],
        workers=[_worker(state, m, load) for m in workers],
        links=_links(state, now_ns),
        planner=fabric_pb2.PlannerStatus(
            plans=state.count.plans,
            mean_plan_ms=meter.mean_plan_ms(state.count.plans),
            mean_batch=state.count.updates / max(1, state.count.plans),
        ),
        software_version=meter.software_version,
        page=meter.page,
    )


def add_history(status: fabric_pb2.GetStatusResponse, journal: Journal, number: int) -> None:
    """Add what happened from an entry on, of the last ones, and what is not over."""
    now_ns = clock.monotonic_ns()
    status.next_entry, entries = journal.history.since(number)
    status.entries.extend(map(_as_json, entries[-MOST_ENTRIES:]))
    status.open.extend(map(_as_json, journal.open(now_ns)))
    status.now_ms = journal.ms(now_ns)


def _as_json(entry: Entry) -> str:
    return json.dumps(entry, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class _Load:
    """How much each worker has open, by model and worker: counted once, for a thousand workers ask for it."""

    sending: dict[str, Counter[str]]
    waiting: dict[str, Counter[str]]
    getting: dict[str, Counter[str]]

    @classmethod
    def of(cls, state: SchedulerState) -> _Load:
        """Count."""
        models = state.models.items()
        return cls(
            {name: Counter(u.worker for u in model.pushes.planned) for name, model in models},
            {name: Counter(u.worker for u in model.pushes.waiting) for name, model in models},
            {name: Counter(g.worker for g in (*model.gets.planned, *model.gets.waiting)) for name, model in models},
        )


def _member(state: SchedulerState, record: MemberRecord, load: _Load) -> fabric_pb2.MemberStatus:
    return fabric_pb2.MemberStatus(
        name=record.member.name,
        role=record.member.role.value,
        host=record.member.host,
        address=record.member.address,
        state=record.state.value,
        activity=_activity(state, record, load),
        memory_bytes=record.memory_bytes,
    )


def _activity(state: SchedulerState, record: MemberRecord, load: _Load) -> str:
    """Say in words what a member is doing."""
    name = record.member.name
    if record.state is MemberState.LEFT and not record.has_resigned:
        return record.lost or "it did not come back"
    if record.state is not MemberState.HERE:
        return record.lost
    match record.member.role:
        case Role.SERVER:
            held = [
                f"{n} at version {m.pushes.version.number}" for n, m in state.models.items() if m.pushes.server == name
            ]
            return "; ".join(("holds " + ", ".join(held), *_in_the_way(state, name))) if held else "holds no model yet"
        case Role.WORKER:
            model = state.models.get(record.model)
            if record.model in state.reductions:
                return _reducing(state.reductions[record.model], name)
            if record.model in state.wholes:
                return _of_parts(state.wholes[record.model], name)
            if model is None:
                return ""
            sending, waiting, getting = (
                counted[record.model][name] for counted in (load.sending, load.waiting, load.getting)
            )
            held_back = model.gets.held_back(name) if getting else []
            getting_words = "getting the model" + "".join(f": held back, {why}" for why in held_back)
            missing, together = model.pushes.missing, model.pushes.spec.workers
            waiting_words = (
                f"waiting for {missing} of {together} workers" if missing else model.pushes.policy.waiting_words
            )
            parts = [(sending, "sending"), (waiting, waiting_words), (getting, getting_words)]
            return ", ".join(text for count, text in parts if count) or "computing"
        case Role.MONITOR:
            return "measures links"
        case Role.REPLICA:
            return ", ".join(_following(state, name)) or "waits for models"
        case Role.AGGREGATOR:
            return ", ".join(_helping(state, name)) or "waits for updates to sum"


def _in_the_way(state: SchedulerState, server: str) -> Iterator[str]:
    """Say what the parts of models that a server holds wait for, or how they are torn."""
    for _, whole in sorted(state.wholes.items()):
        if whole.waits_for and any(part.pushes.server == server for part in whole.parts.values()):
            yield whole.waits_for


def _of_parts(whole: ShardedModel, worker: str) -> str:
    """Say what a worker of a model that is cut is doing."""
    pushes, gets = whole.held_by(worker)
    waiting = whole.tables[0].policy.waiting_words
    sending = [p for p in pushes if any(part_of(p, i, whole.count) in t.planned for i, t in enumerate(whole.tables))]
    getting = "getting the model" + "".join(f": held back, {why}" for why in whole.held_back(worker))
    parts = [(len(sending), "sending"), (len(pushes) - len(sending), waiting), (gets, getting)]
    return ", ".join(text for count, text in parts if count) or "computing"


def _following(state: SchedulerState, replica: str) -> Iterator[str]:
    """Say of each model how far its replica is."""
    for name, model in sorted(state.models.items()):
        replication = model.replication
        if replication.name != replica:
            continue
        if replication.phase is Phase.FOLLOWING:
            yield f"follows {name} at version {replication.version.number}, {replication.lead} updates behind"
        else:
            yield f"{name}: {replication.phase.value}"


def _reducing(rounds: AnyRounds, worker: str) -> str:
    """Say what a worker of an AllReduce job is doing."""
    if rounds.is_reducing(worker):
        return f"reduces with {rounds.running - 1} others: {rounds.how}"
    if rounds.is_waiting(worker):
        return f"waits for {rounds.waits_for}" if rounds.waits_for else "waits for its next round"
    return "computing"


def _reduced(
    state: SchedulerState, name: str, rounds: AnyRounds, waits: dict[str, int], meter: Meter
) -> fabric_pb2.ModelStatus:
    """Describe an AllReduce job; its versions are the rounds that are done."""
    return fabric_pb2.ModelStatus(
        name=name,
        version=to_version(ModelVersion(1, rounds.version)),
        initialised=True,
        waiting=rounds.waiting,
        in_flight=rounds.running,
        committed=rounds.done,
        dropped=rounds.dropped,
        waits_for=f"{name} waits for {rounds.waits_for}" if rounds.waits_for else "",
        method=rounds.spec.method.value,
        waits_by_cause=waits,
        size_bytes=meter.reduced_bytes.get(name, 0),
        probes=fabric_pb2.ProbesStatus(**rounds.probes._asdict()),
        whole=name,
        **state.endings.stay_of(name)._asdict(),
        **(_of_steps(rounds) if isinstance(rounds, StepRounds) else {}),
    )


def _of_steps(rounds: StepRounds) -> dict[str, Any]:
    """Return what is known of rounds whose results workers apply by themselves."""
    return {
        "threshold": rounds.thresholds.words,
        "tau_max": rounds.delay_bound or 0,
        "delay_max": max(rounds.delays, default=0),
        "delay_p50": _median(rounds.delays),
    }


def _helping(state: SchedulerState, aggregator: str) -> Iterator[str]:
    """Say of each model what an aggregator sums or hands on."""
    for name, model in sorted(state.models.items()):
        if summed := model.pushes.sums.load()[aggregator]:
            yield f"sums {summed} updates of {name}"
        if handed := sum(len(h.targets) for h in model.gets.hand_ons.at(aggregator)):
            yield f"hands {name} on to {handed}"


def _model(
    state: SchedulerState, name: str, model: ModelState, waits: dict[str, int], all_samples: bool
) -> fabric_pb2.ModelStatus:
    pushes = model.pushes
    whole = name_of_whole(pushes.spec)
    waits_for = "" if pushes.spec.shard is None else state.wholes[whole].waits_for
    return fabric_pb2.ModelStatus(
        name=name,
        server=pushes.server,
        version=to_version(pushes.version),
        initialised=pushes.initialised,
        tau_max=pushes.tau_max,
        waiting=len(pushes.waiting),
        in_flight=len(pushes.planned),
        delay_max=max(model.delays, default=0),
        delay_p50=_median(model.delays),
        committed=model.delays.total(),
        dropped=sum(model.dropped.values()),
        lost=pushes.lost,
        waits_by_cause=waits,
        method=pushes.spec.method.value,
        waits_for=waits_for,
        size_bytes=pushes.spec.layout.size_bytes,
        samples=describe_samples(model, all_ranges=all_samples),
        whole=whole,
        **state.endings.stay_of(whole)._asdict(),
        **({} if (behind := model.replication.behind) is None else behind._asdict()),
    )


def _median(delays: Counter[int]) -> float:
    """Return the (lower) median of counted values; 0 of none."""
    half, seen = (delays.total() + 1) // 2, 0
    for tau in sorted(delays):
        seen += delays[tau]
        if seen >= half:
            return tau
    return 0


def _worker(state: SchedulerState, record: MemberRecord, load: _Load) -> fabric_pb2.WorkerStatus:
    tally, name = record.tally, record.member.name
    steps = state.context.steps.of(name)
    whole = state.wholes.get(record.model)
    model = state.models.get(record.model) if whole is None else whole.parts[min(whole.parts)]
    return fabric_pb2.WorkerStatus(
        name=name,
        model=record.model,
        committed=tally.committed,
        dropped=tally.dropped_total,
        in_flight=load.sending.get(model.pushes.spec.name, Counter())[name] if model else 0,  # a part may be gone
        dropped_share=tally.dropped_share,
        warning=_warning(record, model),
        dropped_by_cause=dict(sorted(tally.dropped.items())),
        steps=steps.count,
        compute_s=steps.last_s,
    )


def _warning(record: MemberRecord, model: ModelState | None) -> str:
    if model is None or record.tally.dropped_in_a_row < SHUT_OUT_IN_A_ROW:
        return ""
    return (
        f"shut out: its last {record.tally.dropped_in_a_row} updates were dropped; raise tau_max "
        f"(now {model.pushes.tau_max}), or give it a faster link or smaller batches"
    )


def _links(state: SchedulerState, now_ns: int) -> list[fabric_pb2.LinkStatus]:
    network, out = state.context.network, []
    hosts = {m.member.host: m.member for m in state.context.members.values()}
    for host, member in sorted(hosts.items()):
        for up, link, nominal in ((True, up_link(host), member.up_bps), (False, down_link(host), member.down_bps)):
            if not network.has_link(link):
                continue
            status = fabric_pb2.LinkStatus(
                host=host, up=up, nominal_bps=nominal, estimate_bps=network.rate_bps(link, now_ns)
            )
            if (seen_ns := network.seen_ns(link)) is not None:
                status.age_s = (now_ns - seen_ns) / 1e9
            out.append(status)
    return out
