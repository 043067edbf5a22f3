"""How gets are answered, as it is written: directly, or by distributors that store the model (paper, section 10.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mlfabric.network import Profile
from mlfabric.protocol import GetId
from mlfabric.scheduler.planning.problem import Aggregator, Objective
from mlfabric.scheduler.planning.values import GetCandidate
from tests.scheduler.planning.twin.aggregation import ImpossibleError, Sent
from tests.scheduler.planning.twin.network import TwinNetwork

MOST_DISTRIBUTORS = 64
SOME = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
MOST_STEPS = 32


@dataclass
class TwinDistribution:
    """When each get is answered, in the order of reservation; what is sent, and what that leaves free."""

    network: TwinNetwork
    answers: dict[GetId, int] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    deferred: set[GetId] = field(default_factory=set)

    def cost(self, objective: Objective) -> int:
        """Return the last answer, or the sum of all."""
        times = self.answers.values()
        return max(times, default=0) if objective is Objective.LAST_COMMIT else sum(times)


@dataclass
class Distributing:
    """Gets of one version from one server, and who may help."""

    network: TwinNetwork
    server: str
    distributors: Sequence[Aggregator]
    now_ns: int
    objective: Objective

    def best(self, gets: Sequence[GetCandidate]) -> TwinDistribution:
        """Answer directly, or through distributors if that is better."""
        directly = TwinDistribution(self.network.copy())
        self.shortest_first(directly, gets)
        gets = [get for get in gets if get.get in directly.answers]
        if len(gets) < 2:
            return directly
        ready_ns = min(self.ready_ns(get) for get in gets)
        early = [get for get in gets if self.ready_ns(get) == ready_ns]
        way = self.handed_on(early, ready_ns)
        if way is None:
            return directly
        self.shortest_first(way, [get for get in gets if get not in early])
        if way.deferred or way.cost(self.objective) >= directly.cost(self.objective):
            return directly
        return TwinDistribution(way.network, way.answers, way.sent, directly.deferred)

    def ready_ns(self, get: GetCandidate) -> int:
        return max(get.ready_ns, self.now_ns)

    def shortest_first(self, found: TwinDistribution, gets: Sequence[GetCandidate]) -> None:
        """Let the server answer gets, the shortest first; defer what it cannot."""
        waiting = list(gets)
        while waiting:
            planned = [(self.planned(found, self.server, get, self.ready_ns(get)), get) for get in waiting]
            possible = [(sent.profile.end_ns, get.get, get, sent) for sent, get in planned if sent is not None]
            if not possible:
                found.deferred |= {get.get for get in waiting}
                return
            _, _, get, sent = min(possible, key=lambda p: p[:2])
            self.answer(found, get, sent)
            waiting.remove(get)

    def planned(self, found: TwinDistribution, source: str, get: GetCandidate, ready_ns: int) -> Sent | None:
        return self.sent(found, source, get.destination, get.size_bytes, ready_ns)

    def sent(
        self, found: TwinDistribution, source: str, destination: str, size_bytes: int, ready_ns: int
    ) -> Sent | None:
        path = found.network.path(source, destination)
        profile = found.network.transfer(path, size_bytes, ready_ns)
        if profile is None:
            return None
        return Sent(source, destination, size_bytes, profile, profile.end_ns + found.network.latency_ns(path), ())

    def answer(self, found: TwinDistribution, get: GetCandidate, sent: Sent) -> None:
        self.reserve(found, sent)
        found.answers[get.get] = sent.arrive_ns

    def reserve(self, found: TwinDistribution, sent: Sent) -> None:
        found.network.reserve(found.network.path(sent.source, sent.destination), sent.profile)
        found.sent.append(sent)

    def handed_on(self, early: Sequence[GetCandidate], ready_ns: int) -> TwinDistribution | None:
        """Try every case; None if none is better for these gets than direct."""
        alone = TwinDistribution(self.network.copy())
        self.shortest_first(alone, early)
        by_get = {get.get: get for get in early}
        listed = [by_get[get] for get in alone.answers]
        size_bytes = max(get.size_bytes for get in early)
        helpers = self.nearest(size_bytes, ready_ns)
        if len(early) < 2 or not helpers:
            return None
        cases = []
        for m in sorted({m for m in SOME if m < len(helpers)} | {len(helpers)}):
            hosts = {helper.host for helper in helpers[:m]}
            others = sum(get.destination not in hosts for get in listed)
            step = -(-len(listed) // MOST_STEPS)
            for n in {*range(0, others, step), others}:
                try:
                    case = self.case(listed, helpers[:m], n, size_bytes, ready_ns)
                except ImpossibleError:
                    continue
                cases.append((case.cost(self.objective), -n, m, case))
        best = min(cases, key=lambda c: c[:3], default=None)
        return best[3] if best is not None and best[0] < alone.cost(self.objective) else None

    def nearest(self, size_bytes: int, ready_ns: int) -> list[Aggregator]:
        """List the distributors that the server could reach, those first to whom it alone would be first."""
        found = []
        for place, helper in enumerate(self.distributors):
            sent = self.sent(TwinDistribution(self.network), self.server, helper.host, size_bytes, ready_ns)
            if sent is not None and helper.host != self.server:
                found.append((sent.profile.end_ns, place, helper))
        return [helper for _, _, helper in sorted(found, key=lambda f: f[:2])[:MOST_DISTRIBUTORS]]

    def case(
        self, gets: Sequence[GetCandidate], helpers: Sequence[Aggregator], n: int, size_bytes: int, ready_ns: int
    ) -> TwinDistribution:
        """Use these distributors, and let the server answer the first n gets that are not on their hosts."""
        found, dry_ns, has_ns = TwinDistribution(self.network.copy()), ready_ns, []
        for helper in helpers:
            model = possible(self.sent(found, self.server, helper.host, size_bytes, ready_ns))
            self.reserve(found, model)
            dry_ns = max(dry_ns, model.profile.end_ns)
            has_ns.append(model.arrive_ns)
        hosts, others, busy = [helper.host for helper in helpers], [], set()
        for get in gets:
            if get.destination in hosts:
                j = hosts.index(get.destination)
                there = Profile(has_ns[j], has_ns[j], ())
                self.answer(found, get, Sent(get.destination, get.destination, get.size_bytes, there, has_ns[j], ()))
                busy.add(j)
            else:
                others.append(get)
        for get in others[:n]:
            sent = possible(self.planned(found, self.server, get, ready_ns))
            self.answer(found, get, sent)
            dry_ns = max(dry_ns, sent.profile.end_ns)
        j, count = 0, 0
        for get in others[n:]:
            while j < len(helpers):
                onward = self.planned(found, hosts[j], get, has_ns[j])
                room = helpers[j].most_updates == 0 or count < helpers[j].most_updates
                in_time = onward is not None and (j == len(helpers) - 1 or onward.profile.end_ns <= dry_ns)
                if room and onward is not None and in_time:
                    self.answer(found, get, onward)
                    busy.add(j)
                    count += 1
                    break
                j, count = j + 1, 0
            else:
                self.answer(found, get, possible(self.planned(found, self.server, get, ready_ns)))
        if len(busy) < len(helpers):
            raise ImpossibleError
        return found


def possible(sent: Sent | None) -> Sent:
    """Return what can be sent."""
    if sent is None:
        raise ImpossibleError
    return sent
