"""Updates in parts: reserved together, ordered like whole ones; a dumb second implementation plans the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings

from mlfabric.errors import UsageError
from mlfabric.network import Draft, Network, Profile, down_link, up_link
from mlfabric.protocol import DropReason, UpdateId
from mlfabric.scheduler.planning import Candidate, DropRule
from mlfabric.scheduler.planning.shards import PartsOrdering, order_parts
from mlfabric.scheduler.planning.values import Pick
from tests.scheduler.planning.wild import SIZES, TIMES, random_network, seeds

MS = 10**6
HOSTS = ("h0", "h1", "h2", "s0", "s1", "s2")


@dataclass
class Case:
    """A network and a batch of updates in parts."""

    network: Network
    servers: tuple[str, ...]
    candidates: list[Candidate] = field(default_factory=list)
    v_init: int = 0
    tau_max: int | None = None
    now_ns: int = 0

    def plan(self, rule: DropRule = DropRule.FEASIBLE) -> PartsOrdering:
        return order_parts(
            self.candidates,
            self.network,
            self.servers,
            v_init=self.v_init,
            tau_max=self.tau_max,
            now_ns=self.now_ns,
            rule=rule,
        )

    def add(self, source: str, *parts: int, computed_from: int = 0, ready_ns: int = 0) -> UpdateId:
        update = UpdateId(source, 0, len(self.candidates))
        self.candidates.append(
            Candidate(
                update=update,
                source=source,
                size_bytes=sum(parts),
                ready_ns=ready_ns,
                computed_from=computed_from,
                part_bytes=parts,
            )
        )
        return update


@dataclass
class Dumb:
    """The rules as they are written: everything is planned again whenever it is asked for."""

    case: Case
    left: dict[UpdateId, DropReason] = field(default_factory=dict)
    profiles: dict[UpdateId, tuple[Profile, ...]] = field(default_factory=dict)

    def due(self, c: Candidate) -> int:
        case = self.case
        return 10**9 if case.tau_max is None else c.computed_from + case.tau_max - case.v_init + 1

    def rank(self, c: Candidate) -> tuple[int, UpdateId]:
        return self.due(c), c.update

    def parts(self, c: Candidate, draft: Draft) -> tuple[Profile, ...] | None:
        """Reserve all parts, or give None."""
        if c.in_flight is not None:
            return c.in_flight_parts
        found: dict[int, Profile] = {}
        paths = [self.case.network.path(c.source, server) for server in self.case.servers]
        while len(found) < len(paths):
            planned = []
            for i in set(range(len(paths))) - set(found):
                profile = draft.transfer(paths[i], c.part_bytes[i], max(c.ready_ns, self.case.now_ns))
                if profile is not None:
                    planned.append((profile.end_ns, i, profile))
            if not planned:
                return None
            _, i, profile = min(planned)
            draft.reserve(paths[i], profile)
            found[i] = profile
        return tuple(found[i] for i in range(len(paths)))

    def first(self, pool: Sequence[Candidate], draft: Draft) -> Candidate | None:
        """Who would be through first."""
        found = [(end(p), self.rank(c), c) for c in pool if (p := self.parts(c, draft.fork())) is not None]
        return min(found, key=lambda f: f[:2])[2] if found else None

    def take(self, c: Candidate, draft: Draft) -> None:
        profiles = self.parts(c, draft)
        assert profiles is not None
        self.profiles[c.update] = profiles

    def start(self) -> list[Candidate]:
        kept = []
        for c in self.case.candidates:
            if self.due(c) < 1:
                self.left[c.update] = DropReason.DEADLINE_PAST
            elif self.parts(c, self.case.network.draft()) is None:
                self.left[c.update] = DropReason.NO_CAPACITY
            else:
                kept.append(c)
        return kept

    def feasible(self) -> list[UpdateId]:
        kept = self.start()
        solo = {c.update: end(self.parts(c, self.case.network.draft()) or ()) for c in kept}
        while bad := [q for q in range(1, len(kept) + 1) if sum(self.due(c) <= q for c in kept) > q]:
            due = [c for c in kept if self.due(c) <= bad[0]]
            worst = max(due, key=lambda c: (c.in_flight is None, solo[c.update], c.update))
            kept.remove(worst)
            self.left[worst.update] = DropReason.DEADLINE_CONFLICT
        draft, waiting, count = self.case.network.draft(), list(kept), len(kept)
        for c in [c for c in waiting if c.in_flight is not None]:
            self.take(c, draft)
            waiting.remove(c)
        while waiting:
            binding = [self.due(c) for c in waiting if self.due(c) <= count]
            pool = [c for c in waiting if self.due(c) == min(binding)] if binding else waiting
            chosen = self.first(pool, draft)
            if chosen is not None:
                self.take(chosen, draft)
            for c in [chosen] if chosen is not None else list(pool):
                waiting.remove(c)
        for c in [c for c in kept if c.update not in self.profiles]:
            self.left[c.update] = DropReason.NO_CAPACITY
            kept.remove(c)
        order = []
        for p in range(1, len(kept) + 1):
            tight = [q for q in range(p, p + len(kept)) if sum(self.due(c) <= q for c in kept) == q - p + 1]
            pool = [c for c in kept if not tight or self.due(c) <= tight[0]]
            c = min(pool, key=lambda c: (end(self.profiles[c.update]), self.rank(c)))
            order.append(c.update)
            kept.remove(c)
        return order

    def pick(self, i: int, waiting: Sequence[Candidate], draft: Draft) -> Candidate | None:
        return self.first([c for c in waiting if self.due(c) == i], draft) or self.first(waiting, draft)

    def paper(self) -> list[UpdateId]:
        waiting, order, draft = self.start(), list[UpdateId](), self.case.network.draft()
        for i in range(1, len(waiting) + 1):
            for c in [c for c in waiting if self.due(c) <= len(order)]:
                self.left[c.update] = DropReason.DEADLINE_CONFLICT
                waiting.remove(c)
            chosen = self.pick(i, waiting, draft)
            if chosen is None:
                break
            c = chosen
            waiting.remove(c)
            after = draft.fork()
            self.take(c, after)
            if c.in_flight is None and self.due(c) == i:
                following = self.pick(i + 1, waiting, after)
                if following is not None:
                    ends = end(self.parts(following, after.fork()) or ())
                    if end(self.profiles[c.update]) > ends:
                        self.left[c.update] = DropReason.NEXT_IS_FASTER
                        continue
            draft = after
            order.append(c.update)
        self.left.update({c.update: DropReason.NO_CAPACITY for c in waiting})
        return order


def end(profiles: Sequence[Profile]) -> int:
    return max(profile.end_ns for profile in profiles)


def random_case(seed: int) -> Case:
    rng = Random(seed)
    network = random_network(rng, HOSTS, tame=rng.random() < 0.5)
    servers = tuple(rng.choice(HOSTS[2:]) for _ in range(rng.randint(1, 3)))
    tau_max = rng.choice([None, *range(7)])
    case = Case(network, servers, v_init=5, tau_max=tau_max, now_ns=rng.choice(TIMES))
    for _ in range(rng.randint(0, 6)):
        parts = [rng.choice(SIZES) for _ in servers]
        ready_ns, computed_from = rng.choice(TIMES), rng.randint(0, 5)
        case.add(rng.choice(HOSTS), *parts, computed_from=computed_from, ready_ns=ready_ns)
    if case.candidates and rng.random() < 0.3:
        fly(case)
    return case


def fly(case: Case) -> None:
    """Let the first update be on its way already."""
    c = case.candidates[0]
    profiles = Dumb(case).parts(c, case.network.draft())
    if profiles is None:
        return
    for shard, profile in enumerate(profiles):
        case.network.reserve((c.update, shard), case.network.path(c.source, case.servers[shard]), profile)
    case.candidates[0] = Candidate(
        update=c.update,
        source=c.source,
        size_bytes=c.size_bytes,
        ready_ns=c.ready_ns,
        computed_from=c.computed_from,
        part_bytes=c.part_bytes,
        in_flight=Profile(min(p.start_ns for p in profiles), end(profiles), ()),
        in_flight_parts=profiles,
    )


@pytest.mark.parametrize("rule", DropRule)
@settings(max_examples=500, deadline=None)
@given(seed=seeds)
def test_a_dumb_second_implementation_plans_the_same(seed: int, rule: DropRule) -> None:
    case = random_case(seed)
    found, dumb = case.plan(rule), Dumb(case)
    order: Callable[[], list[UpdateId]] = dumb.paper if rule is DropRule.PAPER else dumb.feasible
    assert [slot.update for slot in found.ordering.slots] == order()
    assert {left.update: left.cause for left in found.ordering.left} == dumb.left
    profiles = [t.profile for t in found.transfers]
    assert profiles == [p for slot in found.ordering.slots for p in dumb.profiles[slot.update]]
    assert [slot.profile.end_ns for slot in found.ordering.slots] == [
        end(dumb.profiles[slot.update]) for slot in found.ordering.slots
    ]


@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_all_parts_fit_into_the_network_beside_each_other(seed: int) -> None:
    case = random_case(seed)
    found = case.plan()
    for number, transfer in enumerate(found.transfers):
        if transfer.planned:
            case.network.reserve(number, transfer.path, transfer.profile)
    case.network.validate()
    count = len(case.servers)
    for position, slot in enumerate(found.ordering.slots):
        parts = found.transfers[position * count : (position + 1) * count]
        assert [(t.members, t.shard, t.destination) for t in parts] == [
            ((slot.update,), shard, server) for shard, server in enumerate(case.servers)
        ]
        assert found.arrive_ns[position] == max(t.arrive_ns for t in parts)


def two_servers(*workers: str) -> Case:
    network = Network.star(10**9, MS)
    for host in (*workers, "s0", "s1"):
        network.add_host(host)
    return Case(network, ("s0", "s1"))


def test_parts_of_one_update_are_reserved_together_however_short_another_updates_part_is() -> None:
    case = two_servers("a", "b")
    first = case.add("a", 10**6, 10**6)
    second = case.add("b", 2 * 10**6, 10**5)
    found = case.plan()
    assert [slot.update for slot in found.ordering.slots] == [first, second]
    ends = [(t.members[0], t.shard, t.profile.end_ns / MS) for t in found.transfers]
    # b's short part goes while a's first part holds the other server, its long one as soon as server 0 is free.
    assert ends == [(first, 0, 8.0), (first, 1, 16.0), (second, 0, 24.0), (second, 1, 0.8)]
    assert [a / MS for a in found.arrive_ns] == [17.0, 25.0]


def test_an_update_whose_parts_change_places_may_get_earlier_as_others_reserve() -> None:
    case = two_servers("a", "b", "c")
    network = case.network
    network.set_rate(up_link("a"), 4 * 10**8)
    network.set_rate(up_link("c"), 6 * 10**8)
    network.set_rate(down_link("s1"), 9 * 10**8)
    network.plan_rate_change(down_link("s1"), 9 * MS, 0)
    network.plan_rate_change(down_link("s1"), 100 * MS, 10**9)
    slow = case.add("a", 2 * 10**6, 0)
    first = case.add("c", 10**6, 0)
    # While server 0 is free, b's part for it goes first, and server 1 closes before the other part has passed. Once c
    # has its share of server 0, b's other part goes first.
    turned = case.add("b", 10**6, 10**6)
    ends = {slot.update: slot.profile.end_ns for slot in case.plan().ordering.slots}
    assert list(ends) == [first, turned, slow]
    assert [end_ns // 1000 for end_ns in ends.values()] == [13_333, 18_666, 52_000]


def test_an_update_without_a_way_to_one_server_is_left_and_takes_no_capacity_of_the_others() -> None:
    case = two_servers("a", "b")
    case.network.set_rate(up_link("b"), 0)
    case.add("a", 10**6, 10**6)
    cut_off = case.add("b", 10**6, 0)
    found = case.plan()
    assert [(left.update, left.cause) for left in found.ordering.left] == [(cut_off, DropReason.NO_CAPACITY)]
    assert found.ordering.left[0].reason == "nothing passes from b to one of the servers"
    assert [t.members[0].worker for t in found.transfers] == ["a", "a"]


def test_an_empty_batch_has_an_empty_order() -> None:
    found = two_servers("a").plan()
    assert (len(found.ordering.slots), list(found.transfers), list(found.arrive_ns)) == (0, [], [])


def test_what_is_in_flight_keeps_the_profiles_of_its_parts() -> None:
    case = two_servers("a", "b")
    case.add("a", 10**6, 10**6)
    case.add("b", 10**6, 10**6)
    fly(case)
    flying = case.candidates[0].in_flight_parts
    found = case.plan()
    assert tuple(t.profile for t in found.transfers if not t.planned) == flying
    assert [slot.pick for slot in found.ordering.slots] == [Pick.IN_FLIGHT, Pick.SHORTEST]


@pytest.mark.parametrize(
    ("parts", "story"),
    [((1,), "1 parts of a#0; allowed: one for each of the 2 servers"), ((-1, 1), "size_bytes=-1; allowed: 0 to 2")],
)
def test_parts_that_do_not_match_are_refused(parts: tuple[int, ...], story: str) -> None:
    case = two_servers("a")
    case.add("a", *parts)
    with pytest.raises(UsageError, match=story):
        case.plan()


def test_in_flight_without_the_profiles_of_its_parts_is_refused() -> None:
    case = two_servers("a")
    case.add("a", 1, 1)
    fly(case)
    c = case.candidates[0]
    case.candidates = [
        Candidate(
            update=c.update,
            source="a",
            size_bytes=2,
            ready_ns=0,
            computed_from=0,
            part_bytes=(1, 1),
            in_flight=c.in_flight,
        )
    ]
    with pytest.raises(UsageError, match="a#0 is in flight; give the profile of each of its 2 parts"):
        case.plan()
