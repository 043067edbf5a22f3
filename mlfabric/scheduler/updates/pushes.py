"""The updates of one model: asked for, planned, settled. Pure.

A batch closes when the server's ingress is about to run dry; where nobody sums, after the batch window at the latest;
where somebody does, it is kept open while that pays (``patience.py``). So a lone worker never waits. Who of those on
their way may be overtaken is in ``sequencing.py``. A transfer that stays out much longer than planned is taken to need
its time once more, so that others can go before it. When links turn out faster or slower than planned with, what has
not started is planned once more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from mlfabric.methods import Standing
from mlfabric.methods.policy import WaitingUpdate
from mlfabric.model.chunking import chunk_bytes
from mlfabric.model.divergence import RuleState, as_norm, step_bound
from mlfabric.model.specs import Member, Method, Role, TensorKind
from mlfabric.model.update_rules import RuleKind
from mlfabric.network import Profile
from mlfabric.planning import Aggregator, Batch, Candidate, FabricState, PlannerConfig, is_planner_loaded, plan
from mlfabric.protocol import (
    Dropped,
    DropReason,
    Instruction,
    ModelVersion,
    Outcome,
    PushRequested,
    Resolve,
    UpdateId,
    UpdateKind,
)
from mlfabric.scheduler.records import LONGEST_STEP, PlannedUpdate, TornBy
from mlfabric.scheduler.updates.commit_order import Sequencing
from mlfabric.scheduler.updates.dispatch import BLOCKED_NS
from mlfabric.scheduler.updates.ingress_queue import look_again_ns
from mlfabric.scheduler.updates.patience import INGRESS_LEAD_NS, group_cost_ns, keep_open_until_ns
from mlfabric.scheduler.updates.sum_table import PlannedSum

__all__ = ["Pushes"]


class Pushes(Sequencing):
    """The requests for updates of one model, and their plans."""

    _planned_with: tuple[int, PlannerConfig] | None = None

    @cached_property
    def _elements(self) -> int:
        tensors = self.spec.layout.tensors
        return sum(tensor.numel for tensor in tensors if tensor.kind is TensorKind.PARAMETER)

    # Requests

    def request(self, event: PushRequested, now_ns: int) -> Iterator[Instruction]:
        """Take a request, or answer one that was answered before."""
        update = event.update
        self.settled.forget_below(update, event.resolved_below)
        if self.iteration is not None and any(map(self.settled.is_over, self.iteration.owed)):
            yield from self._recount_parts(f"{update.worker} knows what became of a part")
        planned = self.planned.get(update)
        if self.settled.is_over(update):
            return  # its worker knows the outcome
        is_wanted = event.kind is UpdateKind.INITIAL and not (self.initialised or self.awaited)
        if is_wanted and not _is_unfit(self.settled.get(update)):
            self.settled.forget(update)  # what it brought, or another one, was lost with the server
        if (outcome := self.settled.get(update)) is not None:
            yield Resolve(to=update.worker, update=update, outcome=outcome, reason="it was settled before")
            return
        if self.whole is not None and self.whole.lost(update) is not None:
            return  # the whole answers it
        if event.kind is UpdateKind.GRADIENT:
            self.clocks.ask(update)
        if planned is not None and not planned.voided:
            if self._malformed(event) is not None:  # it is planned as it was first asked for
                return
            planned.request, planned.asked = event, True
            if planned.sum is None and not (planned.adopted and self.policy.has_barrier):
                yield from self._instruct(planned, (), "asked for again")
            else:
                self.waiting[update] = WaitingUpdate(event, now_ns)
        elif planned is None and (refusal := self._refusal(event)) is not None:
            yield from self._end(update, refusal)
        elif update in self.waiting:
            self.waiting[update].request = event
        else:
            self.waiting[update] = WaitingUpdate(event, now_ns)

    def _malformed(self, event: PushRequested) -> Dropped | None:
        size_bytes = self.spec.layout.size_bytes
        if event.size_bytes != size_bytes:
            detail = f"{event.size_bytes} bytes given; {self.spec.name} has {size_bytes}"
            return Dropped(cause=DropReason.WRONG_LAYOUT, detail=detail)
        if not math.isfinite(event.norm) or event.norm < 0:
            return Dropped(cause=DropReason.NOT_FINITE, detail=f"norm {event.norm} given; it must be finite and >= 0")
        return None

    def _refusal(self, event: PushRequested) -> Dropped | None:
        if (malformed := self._malformed(event)) is not None:
            return malformed
        newest = ModelVersion(self.version.epoch, self.version.number + len(self.planned))
        if self.awaited or not self._is_settled:
            return None
        is_later = event.computed_from > newest and (
            self.whole is not None or event.computed_from.epoch == newest.epoch
        )
        if event.kind is UpdateKind.GRADIENT and is_later:
            detail = f"computed from {tuple(event.computed_from)}; the newest possible version is {tuple(newest)}"
            return Dropped(cause=DropReason.FUTURE_VERSION, detail=detail)
        return self._outdated_by(event) if event.kind is UpdateKind.GRADIENT else self._superfluous()

    def _superfluous(self) -> Dropped | None:
        """Say why initial weights are not taken; None if they are."""
        return Dropped(cause=DropReason.DUPLICATE, detail="the model has weights already") if self.initialised else None

    def _outdated_by(self, event: PushRequested) -> Dropped | None:
        """Say why a gradient comes too late: the version is lost that it was computed from, or is past; None if not."""
        if self.whole is not None and self.whole.is_fixed(event.update):
            return None
        if self.whole is None and self.is_lost(event.computed_from):
            return Dropped(cause=DropReason.ROLLED_BACK, detail=f"version {event.computed_from.number} was lost")
        return self.policy.outdated(event, self.version)

    # Plans

    @property
    def _is_settled(self) -> bool:
        """Whether all parts of the model that this is a part of stand alike."""
        return self.whole is None or self.whole.is_settled

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the next plan is to be made, None if nothing calls for one."""
        if not self.waiting and not self.planned:
            return None
        if self.awaited or not self._context.is_here(self.server) or not self._is_settled:
            return None
        if self.policy.has_barrier and next(self._outdated(), None) is not None:
            return now_ns
        times = (self._batch_due_ns(now_ns), self._overdue_ns(), self._drift_due_ns(now_ns))
        return min([t for t in times if t is not None], default=None)

    def planner_config(self) -> PlannerConfig:
        """Return how updates and gets are to be planned."""
        if self._planned_with is None or self._planned_with[0] != self.most_workers:
            config = self.policy.planner_config(self.most_workers)
            gamma = 0.0 if self._steps_once else self.spec.rule.server_momentum
            config = replace(config, chunk_bytes=chunk_bytes(self.spec.layout.size_bytes), gamma=gamma)
            self._planned_with = self.most_workers, config
        return self._planned_with[1]

    def standing(self) -> Standing:
        """Return what the method decides by."""
        gradient = UpdateKind.GRADIENT
        return Standing(
            version=self.version,
            clocks=self.clocks,
            under_way=self.planned,
            is_under_way=self.iteration is not None or any(p.request.kind is gradient for p in self.planned.values()),
            missing=self.missing,
            owed=() if self.iteration is None else self.iteration.owed,
        )

    def _batch_due_ns(self, now_ns: int) -> int | None:
        if not self.waiting:
            return None
        ready = [(max(w.since_ns, w.blocked_until_ns), w.request.update) for w in self.ready()]
        if not ready:
            return None
        since_ns, first = min(ready)
        if self.policy.has_barrier:
            return since_ns
        path = self._context.path(first.worker, self.server)
        dry_ns = self._dry_ns(now_ns)
        if path:
            needs_ns = self._room_ns(now_ns, len(ready))
            dry_ns = max(dry_ns, self._context.network.busy_until(path[-1], now_ns, needs_ns=needs_ns))
        if first in self.apart:
            due_ns = since_ns
        elif self._can_sum:
            lead_ns = INGRESS_LEAD_NS + self._lead_ns(len(ready), now_ns)
            due_ns = self._closes_ns(max(since_ns, dry_ns - lead_ns), len(ready), now_ns)
        else:
            due_ns = min(dry_ns - INGRESS_LEAD_NS, since_ns + self._context.config.batch_window_ns)
        return look_again_ns(max(due_ns, self.waiting[first].blocked_until_ns), now_ns)

    def _lead_ns(self, count: int, now_ns: int) -> int:
        """Return how long it takes a sum of so many updates, each at a host of its own, to begin to come in."""
        size_bytes = self.spec.layout.size_bytes
        return self._succession.lead_ns + count * self.least_ns(now_ns) * chunk_bytes(size_bytes) // size_bytes

    def _closes_ns(self, due_ns: int, count: int, now_ns: int) -> int:
        """Return when to close a batch that may be summed and has ``count`` updates."""
        if due_ns > now_ns:
            return due_ns
        return keep_open_until_ns(self._expected_ns(), count, self.least_ns(now_ns), now_ns) or due_ns

    def _expected_ns(self) -> Iterator[int]:
        """Give when each worker that computes will push, if its step takes as long as usual."""
        busy = {update.worker for update in (*self.waiting, *self.planned)}
        for record in self._context.here(Role.WORKER):
            if record.model != self.spec.name or record.member.name in busy:
                continue
            if (expected_ns := self._context.steps.of(record.member.name).expected_ns) is not None:
                yield expected_ns

    def ready(self) -> list[WaitingUpdate]:
        """Return what can be planned now: gradients only once there are weights that they can be applied to."""
        if self.whole is not None:
            return [
                w for u, w in self.waiting.items() if u not in self.planned and self.whole.may_plan(u, w.request.kind)
            ]
        found = [
            w
            for u, w in self.waiting.items()
            if u not in self.planned and (self.initialised or w.request.kind is UpdateKind.INITIAL)
        ]
        batch = self.policy.batch(found, self.standing()) if found and self.policy.waits_for_others else found
        apart = [w for w in batch if w.request.update in self.apart]
        return apart if apart and not self.policy.has_barrier else batch

    def _outdated(self) -> Iterator[tuple[UpdateId, Dropped]]:
        """Give the updates that wait and cannot take part any more, and why."""
        for update, waiting in self.waiting.items() if self.policy.has_barrier else ():
            if update not in self.planned and waiting.request.kind is UpdateKind.GRADIENT:
                refusal = self._refusal(waiting.request)  # also of what came while nothing was known of the server
                if refusal is not None:
                    yield update, refusal

    def _overdue_ns(self) -> int | None:
        """Return when the first that is out becomes overdue, if others wait behind it or in it."""
        if not self.planned:
            return None
        if self.policy.has_barrier:
            return min([found.overdue_ns for found in self._sums_out()], default=None)
        sequence = self._sequence()
        for place, first in enumerate(sequence):
            if not first.received:
                if first.sum is not None:
                    return self.sums.whole(first.sum).overdue_ns
                return None if place + 1 == len(sequence) else first.overdue_ns()
        return None

    def _sums_out(self) -> list[PlannedSum]:
        """Return the sums that are out and have nothing before them that is: only these can be overdue."""
        if self.policy.has_barrier:
            return [found for found in self.sums if found.is_out]
        first = next((planned for planned in self._sequence() if not planned.received), None)
        return [] if first is None or first.sum is None else [self.sums.whole(first.sum)]

    def plan(self, now_ns: int) -> Iterator[Instruction]:
        """Order everything that is not committed and instruct whoever is concerned."""
        yield from self._tear_overdue(now_ns)
        for update, refusal in list(self._outdated()):
            yield from self._end(update, refusal)
        batch = self.ready()
        for waiting in [w for w in batch if self._goes_at_once(w)]:
            batch.remove(waiting)
            if waiting.request.kind is UpdateKind.INITIAL and (superfluous := self._superfluous()) is not None:
                yield from self._end(waiting.request.update, superfluous)
            else:
                yield from self._plan_at_once(waiting, now_ns)
        self._pace.look(self.version.number, now_ns)
        for waiting, hopeless in [(w, why) for w in batch if (why := self._hopeless(w.request, now_ns)) is not None]:
            batch.remove(waiting)
            yield from self._end(waiting.request.update, hopeless)
        is_drift = self._links.is_due(now_ns)
        if is_drift:
            yield from self._tear_ahead(now_ns)
        frozen, movable, behind, too_late = self._split(now_ns, len(batch))
        for transfer in too_late:
            yield from self._void(transfer[0], "everything new would have to wait for it", TornBy.HELD_UP)
        ahead = self._take_back_ahead(movable, now_ns) if is_drift else set()
        if ahead:
            batch = []  # these were told to go by themselves; what is new may be summed, so it is planned after them
        updates = [
            self._candidate(p.request, now_ns) if p.request.update in ahead else self._in_flight(p, now_ns)
            for p in movable
        ]
        updates += [self._candidate(w.request, now_ns) for w in batch]
        if not updates:
            return
        helpers = self._helpers(batch)
        follower = self.follower if is_planner_loaded() else None
        div_max = follower.bound() if follower is not None else None
        group_ns = group_cost_ns(self.least_ns(now_ns), self.most_workers - len(batch)) if helpers else 0
        config = self.planner_config()
        found = plan(
            Batch(updates=tuple(updates)),
            self._context.network,
            FabricState(
                now_ns=now_ns,
                v_init=self.version.number + (0 if self.spec.method is Method.SYNCHRONOUS else len(frozen)),
                server=self._context.host(self.server),
                aggregators=tuple(aggregator for _, aggregator in helpers.values()),
                replica=follower.for_planner() if follower is not None else None,
            ),
            config if div_max is None and not group_ns else replace(config, div_max=div_max, group_ns=group_ns),
        )
        yield from self._leave(found)
        adders = {host: member for host, (member, _) in helpers.items()}
        there_ns = self._frozen_until_ns(frozen, now_ns)
        yield from self._arrange(found, adders, max((p.seq for p in frozen), default=-1), there_ns, now_ns)
        if self.policy.has_barrier:  # an iteration: all with the last of them
            last_ns = max(self.commit_ns.values(), default=there_ns)
            self.commit_ns = dict.fromkeys(self.commit_ns, max(last_ns, there_ns))
        for transfer in behind:
            yield from self._put_behind(transfer, now_ns)
        if follower is not None:
            yield from follower.carry_out(found, now_ns)
        for planned in movable:
            planned.note_overdue(now_ns)

    # Drift

    def links_changed(self, now_ns: int) -> None:
        """Compare the links' rates with those that plans were made with."""
        self._links.look(now_ns)

    def _drift_due_ns(self, now_ns: int) -> int | None:
        """Return when what has not started is to be planned anew, None if nothing is."""
        due_ns = self._links.due_ns
        if due_ns is None:
            return None
        lone = any(self._is_ahead(planned, now_ns) for planned in self.planned.values())
        return due_ns if lone or any(self._is_sum_ahead(found, now_ns) for found in self.sums) else None

    def _is_ahead(self, planned: PlannedUpdate, now_ns: int) -> bool:
        """Tell whether an update that goes to the server by itself is planned to start later."""
        is_over = planned.received or planned.voided or planned.request.kind is UpdateKind.INITIAL
        return not is_over and planned.sum is None and planned.profile is not None and planned.profile.start_ns > now_ns

    def _is_sum_ahead(self, found: PlannedSum, now_ns: int) -> bool:
        """Tell whether nothing of a sum is planned to have started."""
        starts = (p.profile.start_ns for m in found.open if (p := self.planned[m]).profile is not None)
        return found.is_out and all(start_ns > now_ns for start_ns in starts)

    def _tear_ahead(self, now_ns: int) -> Iterator[Instruction]:
        """Give up the sums that have not started: they are planned anew when their workers ask again."""
        for found in self.sums:
            if self._is_sum_ahead(found, now_ns):
                yield from self._tear(found, "links have changed", TornBy.DRIFT)

    def _take_back_ahead(self, movable: list[PlannedUpdate], now_ns: int) -> set[UpdateId]:
        """Free the links of what is planned to start later; return which updates that concerns."""
        self._links.start_anew(now_ns)
        ahead = {p.request.update for p in movable if self._is_ahead(p, now_ns)}
        for update in ahead:
            self._links.free(update)
        return ahead

    def _tear_overdue(self, now_ns: int) -> Iterator[Instruction]:
        for found in self._sums_out():
            if found.overdue_ns <= now_ns:
                self._lateness.note(now_ns - found.root.profile.end_ns)
                late_ms = (now_ns - found.root.profile.end_ns) / 1e6
                yield from self._tear(found, f"it is overdue: {late_ms:.1f} ms later than planned", TornBy.OVERDUE)

    def _helpers(self, batch: list[WaitingUpdate]) -> dict[str, tuple[Member, Aggregator]]:
        """Return by host who may sum; nobody while an update is in the batch whose last sum was given up."""
        if not self._can_sum or any(w.request.update in self.apart for w in batch):
            return {}
        hosts = {self._context.host(w.request.update.worker) for w in batch}
        return self._context.aggregators(self.sums.load(), hosts)

    def _candidate(self, request: PushRequested, now_ns: int, in_flight: Profile | None = None) -> Candidate:
        return Candidate(
            update=request.update,
            source=self._context.host(request.update.worker),
            size_bytes=request.size_bytes,
            ready_ns=now_ns,
            computed_from=request.computed_from.number,
            in_flight=in_flight,
            norm=self._step_norm(request.norm),
            clock=self.clocks.before(request.update),
        )

    def _step_norm(self, norm: float) -> float:
        """Return about how far an update moves the model, without what momentum and weight decay add.

        Plans need no more: the primary, which knows its state, bounds what it commits. Under ADAM the length of the
        gradient says nothing; there it is the bound that holds for all, at the update's own rates if it brings some.
        """
        rule, number = self.spec.rule, self.version.number
        if rule.kind is RuleKind.ADAM:
            state = RuleState(steps=number, elements=self._elements)
            lr = rule.lr_at(number) * (norm if self.spec.layout.rate_groups else 1.0)
            return min(as_norm(step_bound(rule, [0.0], [lr], state)[0]), LONGEST_STEP)
        return min(norm * rule.lr_at(number), LONGEST_STEP)

    def _in_flight(self, planned: PlannedUpdate, now_ns: int) -> Candidate:
        end_ns = planned.end_ns(now_ns)
        return self._candidate(planned.request, now_ns, Profile(end_ns, end_ns, ()))

    def _goes_at_once(self, waiting: WaitingUpdate) -> bool:
        """Tell whether an update is sent without a place in the order."""
        is_owed = self.whole is not None and self.whole.is_owed(waiting.request.update)
        return is_owed or waiting.request.kind is UpdateKind.INITIAL

    def _plan_at_once(self, waiting: WaitingUpdate, now_ns: int) -> Iterator[Instruction]:
        path = self._context.path(waiting.request.update.worker, self.server)
        profile = self._context.network.transfer(path, waiting.request.size_bytes, now_ns)
        if profile is not None:
            planned, _ = self._take(waiting.request, profile, self._next_seq())
            is_initial = waiting.request.kind is UpdateKind.INITIAL
            yield from self._instruct(planned, (), "initial weights" if is_initial else "other parts are committed")
        else:
            waiting.blocked_until_ns = now_ns + BLOCKED_NS


def _is_unfit(outcome: Outcome | None) -> bool:
    """Tell whether an update was dropped for something else than that another one was before it."""
    return isinstance(outcome, Dropped) and outcome.cause is not DropReason.DUPLICATE
