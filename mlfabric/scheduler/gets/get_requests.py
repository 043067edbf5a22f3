"""The gets of one model: asked for, planned, served. Pure.

Push and get are one round trip: a get that follows an update of its worker's is ready when that is predicted to be
committed, and is planned little before. Gets gather until the server's egress is about to run dry; so a lone get never
waits, and when many wait they are answered out of one hand-on, by one version. The server begins when all their updates
are settled, whatever was predicted. A get whose hand-on failed is served by the server itself when its worker asks
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from mlfabric.model.specs import Member
from mlfabric.planning import Aggregator, Batch, FabricState, GetCandidate, is_planner_loaded, plan
from mlfabric.protocol import GetId, GetRequested, Instruction, UpdateId
from mlfabric.scheduler.gets.get_table import GetTable
from mlfabric.scheduler.records import PlannedGet, WaitingGet
from mlfabric.scheduler.updates.ingress_queue import look_again_ns
from mlfabric.scheduler.updates.patience import keep_open_until_ns

__all__ = ["Gets"]

BLOCKED_NS = 100_000_000
EGRESS_LEAD_NS = 2_000_000
GATHER_SHARE = 0.125
"""How long an answer may wait for updates of other gets to be committed, of the time that the model takes to send."""


class Gets(GetTable):
    """The requests for one model, and their plans."""

    def request(self, event: GetRequested, now_ns: int) -> Iterator[Instruction]:
        """Take a request, or repeat the instructions of one that is planned; a hand-on that failed it is left."""
        planned = self.planned.get(event.get)
        if planned is not None and planned.by is None:
            yield from self._instruct(planned, (), "asked for again")
            return
        if planned is not None:
            yield from self._take_back(event.get, f"{event.get} was not answered")
        if (waiting := self.waiting.get(event.get)) is not None:
            waiting.request = event
        else:
            self.waiting[event.get] = WaitingGet(event, now_ns)

    def due_ns(self, now_ns: int) -> int | None:
        """Return when waiting gets are to be planned (again), None if none can be."""
        pushes = self._pushes
        if not self.waiting and self._links.due_ns is None:
            return None
        if pushes.whole is not None:
            return None  # parts are served together, see scheduler/shards/shard_gets.py
        ready = pushes.initialised and not pushes.awaited and self._context.is_here(pushes.server)
        if not ready:
            return None
        due_ns, drift_ns = self._batch_due_ns(now_ns), self._links.due_ns
        if drift_ns is None or not any(self._ahead(now_ns)):
            return due_ns
        return drift_ns if due_ns is None else min(drift_ns, due_ns)

    def _batch_due_ns(self, now_ns: int) -> int | None:
        """Return when what is ready is to be planned: little before the server can send it; at once if let down."""
        if not self.waiting:
            return None
        expected = self._pushes.expected_ns(now_ns)
        there = self._there(expected)
        ready = self._ready(there, now_ns)
        if not ready:
            return None
        dry_ns = self._booked_ns(ready[0].request.get, expected, now_ns)
        due_ns = min(max(self._closes_ns(w, dry_ns, there), w.blocked_until_ns) for w in ready)
        if due_ns <= now_ns and not any(w.request.get in self.apart for w in ready):
            due_ns = self._keep_open_until_ns([there[w.request.get] for w in ready], now_ns) or due_ns
        return look_again_ns(due_ns, now_ns)

    def _keep_open_until_ns(self, there: Sequence[int], now_ns: int) -> int | None:
        """Return until when answers wait for updates of others that are committed soon; None if that does not pay."""
        coming = [there_ns - EGRESS_LEAD_NS - self._succession.lead_ns for there_ns in there]
        count = sum(ns <= now_ns for ns in coming)
        return keep_open_until_ns(coming, count, self._least_ns(now_ns), now_ns)

    def _closes_ns(self, waiting: WaitingGet, dry_ns: int, there: Mapping[GetId, int]) -> int:
        if waiting.request.get in self.apart:
            return waiting.since_ns
        return max(dry_ns, there[waiting.request.get]) - EGRESS_LEAD_NS - self._succession.lead_ns

    def _there(self, expected: Mapping[UpdateId, int]) -> dict[GetId, int]:
        """Return by get that waits when the update that it follows is to be committed; 0 if that is over."""
        found, planned = dict.fromkeys(self.waiting, 0), self._pushes.planned
        followed = {
            get: update
            for get, waiting in self.waiting.items()
            if (update := waiting.request.after_update) is not None and update in planned
        }
        if followed:
            follower = self._pushes.follower
            for get, update in followed.items():
                found[get] = max(expected.get(update, 0), follower.there_ns(update) if follower else 0)
        return found

    def links_changed(self, now_ns: int) -> None:
        """Compare the links' rates with those that plans were made with."""
        self._links.look(now_ns)

    def _ahead(self, now_ns: int) -> Iterator[PlannedGet]:
        """Return what the server is planned to start later."""
        return (p for p in self.planned.values() if p.by is None and p.profile.start_ns > now_ns)

    def _take_back_ahead(self, now_ns: int) -> list[GetRequested]:
        """Free the links of what is planned to start later, if links have changed; return these gets."""
        if not self._links.is_due(now_ns):
            return []
        self._links.start_anew(now_ns)
        ahead = [planned.request for planned in self._ahead(now_ns)]
        for request in ahead:
            self._links.free(request.get)
        return ahead

    def held_back(self, worker: str) -> list[str]:
        """Say why the method holds gets of a worker back."""
        standing = self._pushes.standing()
        own = [waiting.request for get, waiting in self.waiting.items() if get.worker == worker]
        return [why for request in own if (why := self._pushes.policy.holds_back(request, standing))]

    def plan(self, now_ns: int) -> Iterator[Instruction]:
        """Plan every get whose update (if any) is planned or settled; what has not started, too, if links changed."""
        expected = self._pushes.expected_ns(now_ns)
        there = self._there(expected)
        ready, again = self._batch(there, expected, now_ns), self._take_back_ahead(now_ns)
        helpers = {} if again else self._helpers(ready)
        state = FabricState(
            now_ns=now_ns,
            server=self._context.host(self._pushes.server),
            slowest_clock=self._pushes.clocks.slowest,
            distributors=tuple(distributor for _, distributor in helpers.values()),
        )
        there_ns = max(now_ns, max((there[request.get] for request in ready), default=0))
        candidates = (
            *(self._candidate(request, there_ns) for request in ready),
            *(self._candidate(request, now_ns) for request in again),
        )
        found = plan(Batch(gets=candidates), self._context.network, state, self._pushes.planner_config())
        for deferred in found.deferred:
            if isinstance(deferred.what, GetId) and (waiting := self.waiting.get(deferred.what)) is not None:
                waiting.blocked_until_ns = now_ns + BLOCKED_NS
        yield from self._carry_out(found, {host: member for host, (member, _) in helpers.items()})

    def _batch(self, there: Mapping[GetId, int], expected: Mapping[UpdateId, int], now_ns: int) -> list[GetRequested]:
        """Return what is answered together: what is ready when the server can send again, or little later."""
        ready = [w.request for w in self._ready(there, now_ns) if w.blocked_until_ns <= now_ns]
        apart = [request for request in ready if request.get in self.apart]
        if apart or not ready:
            return apart
        dry_ns = self._booked_ns(ready[0].get, expected, now_ns)
        start_ns = max(now_ns, dry_ns, min(there[request.get] for request in ready))
        latest_ns = start_ns + self._gather_ns(now_ns)
        return [request for request in ready if there[request.get] <= latest_ns]

    def _gather_ns(self, now_ns: int) -> int:
        """Return how long an answer may wait for the updates of others."""
        return int(GATHER_SHARE * self._least_ns(now_ns))

    def _helpers(self, ready: Sequence[GetRequested]) -> dict[str, tuple[Member, Aggregator]]:
        """Return by host who may hand the model on; nobody while one is in the batch that was let down."""
        if not is_planner_loaded() or len(ready) < 2 or any(w.get in self.apart for w in ready):
            return {}
        hosts = {self._context.host(request.get.worker) for request in ready}
        return self._context.aggregators(Counter(h.aggregator.name for h in self.hand_ons.planned.values()), hosts)

    def _ready(self, there: Mapping[GetId, int], now_ns: int) -> list[WaitingGet]:
        """Return what can be planned: not what follows an update that is late, for nobody is to wait for that."""
        pushes = self._pushes
        late_ns = now_ns - self._gather_ns(now_ns) if any(there.values()) else 0
        ready = [
            waiting
            for waiting in self.waiting.values()
            if (waiting.request.after_update is None or waiting.request.after_update not in pushes.waiting)
            and not 0 < there[waiting.request.get] < late_ns
        ]
        if not ready or not pushes.policy.waits_for_others:
            return ready
        standing = pushes.standing()
        return [waiting for waiting in ready if not pushes.policy.holds_back(waiting.request, standing)]

    def _candidate(self, request: GetRequested, ready_ns: int) -> GetCandidate:
        return GetCandidate(
            get=request.get,
            destination=self._context.host(request.get.worker),
            size_bytes=self._pushes.spec.layout.size_bytes,
            ready_ns=ready_ns,
            clock=self._pushes.clocks.at(request),
        )
