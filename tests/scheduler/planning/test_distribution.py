"""Distribution: algorithm 3 mirrored against a dumb second implementation; laws for trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings

from mlfabric.network import Network, Profile, down_link, up_link
from mlfabric.protocol import GetId
from mlfabric.scheduler.planning import GetCandidate
from mlfabric.scheduler.planning.distribution import Distribution, distribute
from mlfabric.scheduler.planning.gets import order_gets
from mlfabric.scheduler.planning.plan import Kind, Toward, Transfer
from mlfabric.scheduler.planning.problem import Aggregator, Objective, Shape
from tests.scheduler.planning.wild import SIZES, TIMES, random_network, seeds

MS = 10**6
SERVER = "s"
HOSTS = (SERVER, "h0", "h1", "h2", "h3", "h4", "h5")
CHUNK_BYTES = 64_000


@dataclass
class Case:
    """A network, gets and distributors."""

    network: Network
    gets: list[GetCandidate]
    distributors: list[Aggregator]
    now_ns: int = 0
    objective: Objective = Objective.MEAN_COMMIT

    def plan(self, *shapes: Shape) -> Distribution:
        return distribute(
            self.gets,
            self.network,
            SERVER,
            self.distributors,
            now_ns=self.now_ns,
            objective=self.objective,
            chunk_bytes=CHUNK_BYTES,
            shapes=shapes,
        )

    def ready_ns(self, get: GetCandidate) -> int:
        return max(get.ready_ns, self.now_ns)


def random_case(seed: int) -> Case:
    """Make a case; in most of them all gets are early and of one size, so that handing on pays."""
    rng = Random(seed)
    tame = rng.random() < 0.75
    network, now_ns = random_network(rng, HOSTS, tame=tame), rng.choice(TIMES)
    sizes = [rng.choice([10**6, 12_345_677])] if tame else SIZES
    ready = rng.choice([[0], [0, 0, 0, 8 * MS, 10**9 + 1]])
    gets = [
        GetCandidate(
            get=GetId(rng.choice("abc"), 0, n),
            destination=rng.choice(HOSTS),
            size_bytes=rng.choice(sizes),
            ready_ns=rng.choice(ready),
        )
        for n in range(rng.randint(0, 9))
    ]
    hosts = rng.sample(HOSTS, rng.randint(1, 4))
    helpers = [Aggregator(host=host, most_updates=rng.choice([0, 0, 0, 1, 2])) for host in hosts]
    return Case(network, gets, helpers, now_ns, rng.choice(list(Objective)))


def cost_ns(found: Distribution, objective: Objective) -> int:
    """The instant of the last answer, or the sum of all; what is deferred does not count."""
    arrive_ns = [answer.arrive_ns for answer in found.answers]
    return sum(arrive_ns) if objective is Objective.MEAN_COMMIT else max(arrive_ns, default=0)


@settings(max_examples=400, deadline=None)
@given(seed=seeds)
def test_a_tree_keeps_the_laws_and_is_never_later_than_direct(seed: int) -> None:
    case = random_case(seed)
    found, direct = case.plan(Shape.TREE), case.plan()
    check(case, found)
    assert cost_ns(found, case.objective) <= cost_ns(direct, case.objective)
    assert {d.what for d in found.deferred} == {d.what for d in direct.deferred}
    assert found.shape in (Shape.DIRECT, Shape.TREE)


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_without_distributors_the_slots_are_those_of_order_gets(seed: int) -> None:
    case = random_case(seed)
    case.distributors = []
    found = case.plan(*Shape)
    slots = order_gets(case.gets, case.network, SERVER, now_ns=case.now_ns)
    assert [(a.get, found.transfers[a.transfer].profile, a.reason) for a in found.answers] == [
        (s.get, s.profile, s.reason) for s in slots if s.profile is not None
    ]
    assert [(d.what, d.reason) for d in found.deferred] == [(s.get, s.reason) for s in slots if s.profile is None]


def check(case: Case, found: Distribution) -> None:
    """Capacity, causality, and one answer for each get."""
    for number, transfer in enumerate(found.transfers):
        assert (transfer.kind, transfer.toward) == (Kind.MODEL, Toward.WORKERS)
        case.network.reserve(number, transfer.path, transfer.profile)
        assert transfer.path == case.network.path(transfer.source, transfer.destination)
        assert transfer.arrive_ns == transfer.profile.end_ns + case.network.latency_ns(transfer.path)
        assert transfer.profile.start_ns >= transfer.ready_ns >= case.now_ns
        bits = 8 * transfer.size_bytes
        late_by = sent_by(transfer.profile, transfer.profile.end_ns) - bits * 10**9
        assert not transfer.path or 0 <= late_by < max((p.bps for p in transfer.profile.pieces), default=1)
        assert [found.transfers[i].destination for i in transfer.inputs] == [transfer.source] * len(transfer.inputs)
        assert len(transfer.inputs) == (transfer.source != SERVER or (transfer.get is None and bool(transfer.inputs)))
        for i in transfer.inputs:
            assert i < number
            if transfer.cut_through:
                check_stream(case, found.transfers[i], transfer)
            else:
                assert transfer.profile.start_ns >= found.transfers[i].arrive_ns
    case.network.validate()
    for n in range(len(found.transfers)):
        case.network.release(n)
    gets = {get.get: get for get in case.gets}
    assert sorted([a.get for a in found.answers] + [d.what for d in found.deferred]) == sorted(gets)
    for answer in found.answers:
        transfer = found.transfers[answer.transfer]
        assert (transfer.get, transfer.destination) == (answer.get, gets[answer.get].destination)
        assert transfer.arrive_ns == answer.arrive_ns
        assert transfer.size_bytes == gets[answer.get].size_bytes
        assert transfer.profile.start_ns >= gets[answer.get].ready_ns
        assert answer.reason
    handed_on = {i for t in found.transfers for i in t.inputs}
    assert all(t.get or number in handed_on for number, t in enumerate(found.transfers)), "a model for nobody"
    check_room(case, found)


def check_stream(case: Case, source: Transfer, stream: Transfer) -> None:
    """What is sent by any instant has arrived by then, but for the chunk that is kept back until all has."""
    latency_ns = case.network.latency_ns(source.path)
    for at_ns in set(instants(stream.profile, 0)) | set(instants(source.profile, latency_ns)):
        if at_ns < source.arrive_ns:
            came = min(sent_by(source.profile, at_ns - latency_ns), 8 * source.size_bytes * 10**9)
            assert sent_by(stream.profile, at_ns) <= max(0, came - 8 * CHUNK_BYTES * 10**9)


def check_room(case: Case, found: Distribution) -> None:
    for helper in case.distributors:
        onward = [t for t in found.transfers if t.source == helper.host and t.inputs and t.path]
        assert helper.most_updates == 0 or len(onward) <= helper.most_updates


def instants(profile: Profile, later_ns: int) -> Iterator[int]:
    for piece in profile.pieces:
        yield piece.start_ns + later_ns
        yield piece.end_ns + later_ns


def sent_by(profile: Profile, at_ns: int) -> int:
    """Return the bits sent by an instant, times 10**9."""
    return sum((min(p.end_ns, at_ns) - p.start_ns) * p.bps for p in profile.pieces if p.start_ns < at_ns)


def equal_star(workers: int, helpers: int) -> Case:
    """The issue's fabric: 200 Mbit/s, 1 ms, and a model of 2 MB, whose wire time is 80 ms."""
    network = Network.star(200 * 10**6, MS)
    hosts = [f"w{n:02}" for n in range(workers)]
    for host in (SERVER, *hosts):
        network.add_host(host)
    gets = [GetCandidate(get=GetId(h, 0, 0), destination=h, size_bytes=2 * 10**6, ready_ns=0) for h in hosts]
    return Case(network, gets, [Aggregator(host=host) for host in hosts[:helpers]])


def last_ms(found: Distribution) -> float:
    return cost_ns(found, Objective.LAST_COMMIT) / MS


@pytest.mark.parametrize("objective", Objective)
def test_thirty_equal_workers_have_the_model_within_little_more_than_two_wire_times(objective: Objective) -> None:
    case = equal_star(30, 30)
    case.objective = objective
    found = case.plan(*Shape)
    check(case, found)
    assert found.shape is Shape.TREE
    assert last_ms(found) <= 2.2 * 80


def test_a_few_distributors_without_gets_of_their_own_save_most_of_the_time_of_many_gets() -> None:
    case = equal_star(70, 0)
    for n in range(7):
        case.network.add_host(f"d{n}")
        case.distributors.append(Aggregator(host=f"d{n}"))
    found = case.plan(Shape.TREE)
    check(case, found)
    assert found.shape is Shape.TREE
    assert last_ms(case.plan()) / last_ms(found) > 4


def test_a_slow_host_hands_nothing_on_and_does_not_hold_up_the_others() -> None:
    case = equal_star(8, 8)
    case.network.set_rate(up_link("w00"), 10**7)
    case.network.set_rate(down_link("w00"), 50 * 10**6)
    case.objective = Objective.LAST_COMMIT
    found = case.plan(*Shape)
    assert not [t for t in found.transfers if t.source == "w00" and t.path]
    slow = next(a.arrive_ns for a in found.answers if a.get.worker == "w00")
    assert slow == max(a.arrive_ns for a in found.answers) == 321 * MS  # as soon as if it were alone


@pytest.mark.parametrize("slow", [("w00",), ("w00", "w03"), ("w01", "w02", "w07")])
def test_who_would_hand_it_on_slowly_gets_it_from_others_and_not_before_them(slow: tuple[str, ...]) -> None:
    case = equal_star(8, 8)
    for host in slow:
        case.network.set_rate(up_link(host), 50 * 10**6)
    found = case.plan(*Shape)
    check(case, found)
    assert not [t for t in found.transfers if t.source in slow and t.path]
    late = [a for a in found.answers if a.arrive_ns > 1.35 * 80 * MS]
    assert len(late) == len(slow) - 1, "the server and each fast host hand it on once in that time"


def test_late_gets_are_answered_by_the_server_and_wait_for_nobody() -> None:
    case = equal_star(6, 6)
    late = GetCandidate(get=GetId("w05", 0, 1), destination="w05", size_bytes=2 * 10**6, ready_ns=300 * MS)
    case.gets.append(late)
    found = case.plan(*Shape)
    check(case, found)
    transfer = next(t for t in found.transfers if t.get == late.get)
    assert (found.shape, transfer.source, transfer.profile.start_ns) == (Shape.TREE, SERVER, 300 * MS)


def test_a_host_that_nothing_reaches_is_deferred_and_the_others_are_served() -> None:
    case = equal_star(4, 4)
    case.network.set_rate(down_link("w01"), 0)
    found = case.plan(*Shape)
    check(case, found)
    assert [(str(d.what), d.reason) for d in found.deferred] == [("w01?0", "a link on its path has no capacity")]
    assert len(found.answers) == 3


def test_numbers_of_transfers_begin_where_the_plan_is() -> None:
    case = equal_star(4, 4)
    found = distribute(case.gets, case.network, SERVER, case.distributors, now_ns=0, index=100)
    assert {i for t in found.transfers for i in t.inputs} <= set(range(100, 100 + len(found.transfers)))
    assert sorted(a.transfer for a in found.answers)[0] >= 100
    assert found.transfers[found.answers[0].transfer - 100].get == found.answers[0].get


def test_no_gets_make_no_transfers() -> None:
    found = equal_star(1, 1).plan(*Shape)
    assert (found.shape, len(found.transfers)) == (Shape.DIRECT, 1)
    case = equal_star(1, 1)
    case.gets = []
    assert case.plan(*Shape) == Distribution(shape=Shape.DIRECT, transfers=[], answers=[], deferred=[])
