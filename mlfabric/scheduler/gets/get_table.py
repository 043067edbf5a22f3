"""What is known of every get of one model, who is told what of it, how it ends. Pure.

A get is *waiting* or *planned*; the server serves it, or an aggregator hands on what it has fetched for several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mlfabric.model.specs import Member
from mlfabric.network import Path, Profile
from mlfabric.planning import (
    Plan,
    Transfer,
    paced_rate,
)
from mlfabric.protocol import (
    CancelServe,
    Fetch,
    GetId,
    GetRequested,
    HandOnTo,
    Instruction,
    ModelVersion,
    Serve,
    TransferEnd,
    TransferEnded,
    UpdateId,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.gets.handed_models import HandOns, PlannedHandOn
from mlfabric.scheduler.records import PlannedGet, WaitingGet
from mlfabric.scheduler.reservations import Reservations
from mlfabric.scheduler.updates.ingress_queue import Coming, Succession
from mlfabric.scheduler.updates.pushes import Pushes

__all__ = ["GetTable"]


class GetTable:
    """Every get of one model that is not served yet, and how plans of them are carried out.

    ``apart`` are those that no aggregator answers any more.
    """

    def __init__(self, context: Context, pushes: Pushes) -> None:
        self.waiting: dict[GetId, WaitingGet] = {}
        self.planned: dict[GetId, PlannedGet] = {}
        self.apart: set[GetId] = set()
        self._links = Reservations[GetId](context.network, pushes.spec.name, "get")
        self.hand_ons = HandOns(context, pushes.spec.name, self._links.free)
        self._context = context
        self._pushes = pushes
        self._model = pushes.spec.name
        self._succession = Succession()

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        hand_ons = self.hand_ons.planned
        by = {get: planned.by for get, planned in self.planned.items() if planned.by is not None}
        if by or hand_ons:
            by |= {get: planned.above for get, planned in hand_ons.items() if planned.above is not None}
            awaited = {target: name for name, planned in hand_ons.items() for target in planned.targets}
            assert by == awaited, f"{self._model}: gets are answered by {by}, hand-ons wait for {awaited}"
            assert all(h.targets for h in hand_ons.values()), f"{self._model}: a hand-on without targets: {hand_ons}"
        assert self.waiting.keys().isdisjoint(self.planned), (
            f"{self._model}: gets that wait and are planned: {self.waiting.keys() & self.planned.keys()}"
        )

    # RoundCarrier plans out

    def _carry_out(self, found: Plan, helpers: Mapping[str, Member]) -> Iterator[Instruction]:
        """Reserve what a plan needs and instruct whoever is concerned: sources before those who come to them."""
        owners = self._own_gets(found, helpers)
        starts: list[Instruction] = []
        for answer in found.gets:
            transfer = found.transfers[answer.transfer]
            by = owners[transfer.inputs[0]] if transfer.inputs else None
            after = self._reserve(answer.get, transfer.path, transfer.profile)
            if (known := self.planned.get(answer.get)) is not None:
                known.profile = transfer.profile
                starts.append(self._serve(known, after, answer.reason))
                continue
            planned = self._take(answer.get, transfer, by)
            if by is None:
                starts += self._instruct(planned, after, answer.reason)
            else:
                rate_bps = paced_rate(transfer.profile, transfer.path, self._context.network)
                by.targets[answer.get] = HandOnTo(answer.get, planned.ticket, rate_bps)
                starts.append(self._fetch(planned, answer.reason))
        yield from self._start_hand_ons(owners.values())
        yield from starts

    def _take(self, get: GetId, transfer: Transfer, by: PlannedHandOn | None) -> PlannedGet:
        planned = self.planned[get] = PlannedGet(
            request=self.waiting.pop(get).request,
            source=by.aggregator.name if by else self._pushes.server,
            ticket=self._context.tickets.next(),
            profile=transfer.profile,
            by=by.get if by else None,
        )
        return planned

    def _own_gets(self, found: Plan, helpers: Mapping[str, Member]) -> dict[int, PlannedHandOn]:
        """Make the hand-ons of a plan, by the number of the transfer that brings the model; sources come first."""
        owners: dict[int, PlannedHandOn] = {}
        for index, transfer in enumerate(found.transfers):
            if transfer.get is not None:
                continue
            aggregator = helpers[transfer.destination]
            above = owners[transfer.inputs[0]] if transfer.inputs else None
            planned = owners[index] = PlannedHandOn(
                get=self._context.numbers.next_get(aggregator),
                aggregator=aggregator,
                source=above.aggregator.name if above else self._pushes.server,
                above=above.get if above else None,
                ticket=self._context.tickets.next(),
                path=transfer.path,
                profile=transfer.profile,
            )
            planned.after = self._reserve(planned.get, transfer.path, transfer.profile)
            self.hand_ons.planned[planned.get] = planned
            if above is not None:
                rate_bps = paced_rate(transfer.profile, transfer.path, self._context.network)
                above.targets[planned.get] = HandOnTo(planned.get, planned.ticket, rate_bps)
        return owners

    def _start_hand_ons(self, hand_ons: Iterable[PlannedHandOn]) -> Iterator[Instruction]:
        for planned in hand_ons:
            requests = self._answered_by(planned)
            workers = f"for {len(requests)} workers"
            if planned.above is None:
                yield Serve(
                    to=planned.source,
                    get=planned.get,
                    model=self._model,
                    ticket=planned.ticket,
                    min_version=max(r.min_version for r in requests),
                    after_updates=tuple(r.after_update for r in requests if r.after_update is not None),
                    after=planned.after,
                    rate_bps=paced_rate(planned.profile, planned.path, self._context.network),
                    reason=f"{workers}, handed on by {planned.aggregator.name}",
                    span_ns=planned.profile.end_ns - planned.profile.start_ns,
                )
            yield self.hand_ons.instruct(planned, workers)

    def _answered_by(self, planned: PlannedHandOn) -> list[GetRequested]:
        """Return the requests of workers that a hand-on answers, over other aggregators too."""
        found: list[GetRequested] = []
        for target in planned.targets:
            if (below := self.hand_ons.planned.get(target)) is not None:
                found += self._answered_by(below)
            else:
                found.append(self.planned[target].request)
        return found

    def _instruct(self, planned: PlannedGet, after: tuple[GetId, ...], reason: str) -> Iterator[Instruction]:
        """Tell the server and the worker of a get that nobody stands between."""
        yield self._serve(planned, after, reason)
        yield self._fetch(planned, reason)

    def _serve(self, planned: PlannedGet, after: tuple[GetId, ...], reason: str) -> Serve:
        request = planned.request
        path = self._context.path(planned.source, request.get.worker)
        return Serve(
            to=planned.source,
            get=request.get,
            model=self._model,
            ticket=planned.ticket,
            min_version=request.min_version,
            after_updates=() if request.after_update is None or planned.version else (request.after_update,),
            after=after,
            rate_bps=paced_rate(planned.profile, path, self._context.network),
            reason=reason,
            version=planned.version,
            span_ns=planned.profile.end_ns - planned.profile.start_ns,
        )

    def _fetch(self, planned: PlannedGet, reason: str) -> Fetch:
        return Fetch(
            to=planned.request.get.worker,
            get=planned.request.get,
            source=planned.source,
            address=self._context.address(planned.source),
            ticket=planned.ticket,
            reason=reason,
        )

    # A part of a model

    def serve_exactly(self, request: GetRequested, version: ModelVersion, now_ns: int) -> Iterator[Instruction]:
        """Have a part served at the version at which it is and all other parts are served, too."""
        path = self._context.path(self._pushes.server, request.get.worker)
        size_bytes = self._pushes.spec.layout.size_bytes
        profile = self._context.network.transfer(path, size_bytes, now_ns) or Profile(now_ns, now_ns, ())
        planned = self.planned[request.get] = PlannedGet(
            request=request,
            source=self._pushes.server,
            ticket=self._context.tickets.next(),
            profile=profile,
            version=version,
        )
        after = self._reserve(request.get, path, profile)
        yield from self._instruct(planned, after, f"all parts are at version {version.number}")

    def cancel(self, get: GetId, reason: str) -> Iterator[Instruction]:
        """Have a get served no longer; nothing happens if it is not planned."""
        planned = self.planned.get(get)
        if planned is not None:
            self._remove(get)
            yield CancelServe(to=planned.source, model=self._model, get=get, reason=reason)

    # What is to come

    def _booked_ns(self, get: GetId, expected: Mapping[UpdateId, int], now_ns: int) -> int:
        """Return until when the server sends what was planned before, given when updates are to be committed."""
        path = self._context.path(self._pushes.server, get.worker)
        booked_ns = self._context.network.busy_until(path[0], now_ns) if path else now_ns
        starts = {planned.get: planned.profile.start_ns for planned in self._unsent_hand_ons()}
        starts |= {own: planned.profile.start_ns for own, planned in self.planned.items() if planned.by is None}
        if not starts:
            return booked_ns
        least_ns = self._least_ns(now_ns)
        coming = [self._coming(own, expected, least_ns) for own in sorted(starts, key=starts.__getitem__)]
        return max(booked_ns, self._succession.dry_ns(coming, now_ns))

    def _unsent_hand_ons(self) -> Iterator[PlannedHandOn]:
        """Return the hand-ons that the server has still to send, or to go on sending."""
        return (planned for planned in self.hand_ons.planned.values() if planned.above is None and not planned.fetched)

    def _coming(self, get: GetId, expected: Mapping[UpdateId, int], least_ns: int) -> Coming:
        """Return what the server's link has to do for a get: it begins when the updates are committed."""
        own = self.hand_ons.planned.get(get)
        if own is None:
            profile, after = self.planned[get].profile, self.planned[get].request.after_update
            there_ns = 0 if after is None else expected.get(after, 0)
        else:
            profile, followed = own.profile, [request.after_update for request in self._answered_by(own)]
            there_ns = max([expected.get(after, 0) for after in followed if after is not None], default=0)
        span_ns = profile.end_ns - profile.start_ns
        return Coming(max(profile.end_ns, there_ns + least_ns), least_ns, shares=span_ns > 2 * least_ns)

    def _least_ns(self, now_ns: int) -> int:
        """Return how long the server takes to send the model if its link has nothing else to do."""
        rate_bps = self._context.egress_bps(self._pushes.server, now_ns)
        return self._pushes.spec.layout.size_bytes * 8 * 10**9 // max(1, rate_bps)

    # Ends

    def ended(self, event: TransferEnded, get: GetId, now_ns: int) -> Iterator[Instruction]:
        """Note that a get was served, or broke; a worker that still wants it asks again."""
        own, planned, served = self.hand_ons.planned.get(get), self.planned.get(get), event.end is TransferEnd.SERVED
        if served and event.member == self._pushes.server and (own is not None or planned is not None):
            self._succession.over(self._coming(get, {}, self._least_ns(now_ns)), now_ns)
        if own is not None and served:
            own.fetched = True
            self._links.free(get)
        elif own is not None:
            yield from self._drop(own, f"{event.member} reports that {get} broke: {event.detail}")
        elif planned is not None and event.member == planned.source:
            if planned.by is not None and not served:
                yield from self._take_back(get, f"{get} broke: {event.detail}")
                return
            self._remove(get)
            if planned.by is not None:
                yield from self.hand_ons.take_target(planned.by, get, True, "all are served")

    def worker_gone(self, worker: str, reason: str) -> Iterator[Instruction]:
        """Let go of a worker's gets."""
        is_gone = bool(self._context.members[worker].lost)
        for get in [g for g in self.waiting if g.worker == worker]:
            del self.waiting[get]
        for get in [g for g in self.planned if g.worker == worker]:
            planned = self.planned[get]
            if planned.by is not None:
                yield from self._take_back(get, reason)
            else:
                self._remove(get)
                yield CancelServe(to=planned.source, model=self._model, get=get, reason=reason, gone=is_gone)
        self.apart = {g for g in self.apart if g.worker != worker}

    def aggregator_gone(self, aggregator: str, reason: str) -> Iterator[Instruction]:
        """Give up what an aggregator hands on."""
        for planned in self.hand_ons.at(aggregator):
            if planned.get in self.hand_ons.planned:
                yield from self._drop(planned, reason)

    def repeat(self) -> Iterator[Instruction]:
        """Repeat every instruction, for a server that came back; what is handed on is given up."""
        for own in list(self.hand_ons.planned.values()):
            if own.above is None:
                yield from self._drop(own, "the server came back")
        for planned in self.planned.values():
            planned.source = self._pushes.server
            yield from self._instruct(planned, (), "the server came back")

    def begin_anew(self, reason: str) -> Iterator[Instruction]:
        """Forget every plan: who holds the model now has heard of none; workers that are here ask again."""
        for own in list(self.hand_ons.planned.values()):
            if own.above is None:
                yield from self._drop(own, reason)
        for get in list(self.planned):
            self._remove(get)

    def _take_back(self, get: GetId, reason: str) -> Iterator[Instruction]:
        """Take a get off its hand-on; its worker asks again."""
        by = self.planned[get].by
        self._remove(get)
        self.apart.add(get)
        if by is not None:
            yield from self.hand_ons.take_target(by, get, False, reason)

    def _drop(self, own: PlannedHandOn, reason: str) -> Iterator[Instruction]:
        """Give a hand-on up with all that comes out of it; the workers ask again."""
        for request in self._answered_by(own):
            self._remove(request.get)
            self.apart.add(request.get)
        yield from self.hand_ons.drop(own, reason)

    def _remove(self, get: GetId) -> None:
        self.planned.pop(get, None)
        self.apart.discard(get)
        self._links.free(get)

    def _reserve(self, get: GetId, path: Path, profile: Profile) -> tuple[GetId, ...]:
        return self._links.enter(get, path, profile, self._filled(path, profile))

    def _filled(self, path: Path, profile: Profile) -> Path:
        """Return the links that a transfer takes half of or more; on others nobody waits for it, however late it is."""
        network = self._context.network
        planned_bits = sum(bps * (end_ns - start_ns) for start_ns, end_ns, bps in profile.pieces)
        span_ns = profile.end_ns - profile.start_ns
        return tuple(link for link in path if 2 * planned_bits >= network.rate_bps(link, profile.start_ns) * span_ns)
