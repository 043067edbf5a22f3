"""The network's state: hosts, rates, reservations, the past."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from mlfabric.errors import UsageError
from mlfabric.network import CORE, HORIZON_NS, LinkId, Network, Piece, Profile, down_link, up_link
from mlfabric.protocol import GetId, UpdateId

MS = 10**6
GBPS = 10**9
MB = 10**6


@pytest.fixture
def star() -> Network:
    network = Network.star(GBPS)
    for host in "abs":
        network.add_host(host)
    return network


def test_a_star_joins_hosts_through_their_up_and_down_links(star: Network) -> None:
    assert star.path("a", "s") == (LinkId("a", CORE), LinkId(CORE, "s")) == (up_link("a"), down_link("s"))
    assert star.path("a", "a") == ()
    assert [str(link) for link in star.path("a", "s")] == ["a up", "s down"]


def test_unknown_hosts_and_links_are_refused(star: Network) -> None:
    with pytest.raises(UsageError, match="unknown host 'z'; 3 are known"):
        star.path("a", "z")
    with pytest.raises(UsageError, match="unknown link z up"):
        star.set_rate(up_link("z"), 1)
    with pytest.raises(UsageError, match="unknown link z up"):
        star.transfer((up_link("z"),), 1, 0)
    assert star.unknown_host(["a", "z", "y", "b"]) == "z"
    assert star.unknown_host(["a", "b"]) is None


@pytest.mark.parametrize("name", ["", CORE])
def test_names_that_mean_something_else_are_no_hosts(star: Network, name: str) -> None:
    with pytest.raises(UsageError, match="host name"):
        star.add_host(name)


@pytest.mark.parametrize("bps", [-1, 2**43 + 1])
def test_rates_out_of_range_are_refused_and_change_nothing(star: Network, bps: int) -> None:
    with pytest.raises(UsageError, match="allowed: 0 to"):
        star.set_rate(up_link("a"), bps)
    with pytest.raises(UsageError, match="allowed: 0 to"):
        star.add_host("new", bps)
    with pytest.raises(UsageError, match="default_bps"):
        Network.star(0)
    assert star.rate_bps(up_link("a"), 0) == GBPS
    assert "new" not in star.hosts
    star.validate()


def test_adding_a_host_again_keeps_what_was_measured_until_its_nominal_rate_changes(star: Network) -> None:
    star.add_host("c", up_bps=5, down_bps=0)
    assert (star.rate_bps(up_link("c"), 0), star.rate_bps(down_link("c"), 0)) == (5, GBPS)
    star.set_rate(up_link("c"), 3)
    star.add_host("c", up_bps=5)
    assert star.rate_bps(up_link("c"), 0) == 3
    star.add_host("c", up_bps=7)
    assert star.rate_bps(up_link("c"), 0) == 7


def test_what_was_seen_earlier_changes_nothing_nor_what_was_before_another_rate_was_declared(star: Network) -> None:
    link = up_link("a")
    assert not star.is_known(link)
    star.set_rate(link, 5, seen_ns=-20)
    star.set_rate(link, 6, seen_ns=-21)  # the same evidence, aged, in a report that was quicker
    assert (star.rate_bps(link, 0), star.seen_ns(link)) == (6, -21)
    star.seen([link], 30)
    star.set_rate(link, 7, seen_ns=25)
    assert (star.rate_bps(link, 0), star.seen_ns(link), star.is_known(link)) == (6, 30, True)
    star.add_host("a", 3, 0, now_ns=50)
    assert (star.rate_bps(link, 0), star.seen_ns(link), star.is_known(link)) == (3, None, True)
    star.set_rate(link, 5, seen_ns=40)
    assert star.rate_bps(link, 0) == 3
    star.set_rate(link, 2, seen_ns=60)
    assert (star.rate_bps(link, 0), star.copy().seen_ns(link)) == (2, 60)
    star.set_rate(link, 4)
    assert (star.rate_bps(link, 0), star.seen_ns(link)) == (4, None)


def test_a_transfer_uses_the_least_rate_of_its_path_and_waits_through_a_maintenance_window(star: Network) -> None:
    star.set_rate(up_link("a"), 2 * GBPS)
    for at_ns, bps in ((2 * MS, 0), (10 * MS, GBPS // 2)):
        star.plan_rate_change(down_link("s"), at_ns, bps)
    profile = star.transfer(star.path("a", "s"), MB, MS)
    assert profile == Profile(MS, 24 * MS, (Piece(MS, 2 * MS, GBPS), Piece(10 * MS, 24 * MS, GBPS // 2)))
    assert star.transfer((), 2**50, 7) == Profile(7, 7, ())
    star.set_rate(up_link("a"), 0)
    assert star.transfer(star.path("a", "s"), 1, 0) is None


def test_a_reservation_that_does_not_fit_is_refused_and_changes_nothing(star: Network) -> None:
    path = star.path("a", "s")
    star.set_rate(down_link("s"), 5)
    with pytest.raises(UsageError, match="do not fit on link s down"):
        star.reserve("one", path, Profile(0, 9, (Piece(0, 9, 6),)))
    assert star.reservation("one") is None
    assert star.free_line(up_link("a")).at(0) == GBPS
    star.validate()


def test_what_is_wrong_with_a_link_that_was_touched_is_found(star: Network) -> None:
    star.validate_touched()
    profile = star.transfer(star.path("a", "s"), MB, 0)
    assert profile is not None
    star.reserve("one", star.path("a", "s"), profile)
    star.free_line(down_link("s")).add(0, MS, 1)
    with pytest.raises(AssertionError, match="s down at 0: free 1, should be 0"):
        star.validate_touched()


def test_one_key_holds_one_reservation_and_its_type_is_part_of_it(star: Network) -> None:
    path, profile = star.path("a", "s"), Profile(0, 9, (Piece(0, 9, 6),))
    star.reserve(UpdateId("a", 0, 0), path, profile)
    star.reserve(GetId("a", 0, 0), path, profile)
    with pytest.raises(UsageError, match="release it first"):
        star.reserve(UpdateId("a", 0, 0), path, profile)
    assert star.reservation(GetId("a", 0, 0)) == (path, profile)
    star.validate()


def test_a_rate_measured_below_what_is_reserved_leaves_nothing_free_until_that_is_over(star: Network) -> None:
    path, link = star.path("a", "s"), down_link("s")
    profile = star.transfer(path, MB, 0)
    assert profile is not None
    star.reserve("one", path, profile)
    star.release("one")
    star.reserve("one", path, profile)
    star.set_rate(link, 10**8)
    star.validate()
    assert (max(0, star.free_line(link).at(0)), star.free_line(link).at(8 * MS)) == (0, 10**8)
    star.release("one")
    assert star.free_line(link).at(0) == 10**8
    star.validate()


def test_a_measured_rate_holds_until_the_next_planned_change(star: Network) -> None:
    link = up_link("a")
    star.plan_rate_change(link, 10, GBPS)
    star.plan_rate_change(link, 5, 0)
    star.set_rate(link, 7)
    assert [star.rate_bps(link, at_ns) for at_ns in (0, 4, 5, 9, 10)] == [7, 7, 0, 0, GBPS]
    star.prune(6)
    star.set_rate(link, 8)
    assert [star.rate_bps(link, at_ns) for at_ns in (6, 9, 10)] == [8, 8, GBPS]
    with pytest.raises(UsageError, match="pruned until there"):
        star.plan_rate_change(link, 5, 1)


def test_pruning_forgets_the_past_but_not_what_is_still_reserved(star: Network) -> None:
    path = star.path("a", "s")
    for n in range(100):
        profile = star.transfer(path, MB + n, 0)
        assert profile is not None
        star.reserve(n, path, profile)
    star.prune(420 * MS)
    assert star.reservation(0) is None
    assert star.reservation(99) is not None
    star.validate()
    for n in range(100):
        star.release(n)
    star.validate()
    assert all(len(star.free_line(link).values) == 1 for link in path)
    assert star.transfer(path, MB, 0) == Profile(420 * MS, 428 * MS, (Piece(420 * MS, 428 * MS, GBPS),))


def test_a_link_is_busy_until_the_share_asked_for_is_free(star: Network) -> None:
    link, path = down_link("s"), star.path("a", "s")
    star.reserve("all", path, Profile(0, 10, (Piece(0, 10, GBPS),)))
    star.reserve("some", path, Profile(10, 20, (Piece(10, 20, 6 * 10**8),)))
    assert [star.busy_until(link, at_ns) for at_ns in (0, 15, 25)] == [20, 20, 25]
    assert star.busy_until(link, 0, free_share=0.4) == 10
    for start_ns, end_ns in ((30, 40), (45, 50)):
        star.reserve(start_ns, path, Profile(start_ns, end_ns, (Piece(start_ns, end_ns, GBPS),)))
    assert [star.busy_until(link, at_ns) for at_ns in (0, 25, 51)] == [50, 50, 51]
    assert [star.busy_until(link, 0, needs_ns=needs_ns) for needs_ns in (0, 5, 10, 11)] == [0, 20, 20, 50]
    star.set_rate(link, 0)
    assert star.busy_until(link, 3) == 3


def test_a_copy_and_a_draft_leave_the_network_as_it_was(star: Network) -> None:
    path = star.path("a", "s")
    profile = star.transfer(path, MB, 0)
    assert profile is not None
    draft, twin = star.draft(), star.copy()
    draft.reserve(path, profile)
    fork = draft.fork()
    fork.reserve(path, Profile(8 * MS, 16 * MS, (Piece(8 * MS, 16 * MS, GBPS),)))
    twin.reserve("one", path, profile)
    twin.add_host("new")
    ends = [net.transfer(path, MB, 0) for net in (star, draft, twin, fork)]
    assert [p and p.end_ns for p in ends] == [8 * MS, 16 * MS, 16 * MS, 24 * MS]
    assert "new" not in star.hosts
    star.validate()
    twin.validate()


def test_a_graph_joins_hosts_by_fewest_hops_then_latency_then_names() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph()
    for tail, head, latency_ns in [
        ("a", "x", 5),
        ("x", "b", 5),
        ("a", "y", 1),
        ("y", "b", 1),
        ("a", "w", 1),
        ("w", "b", 1),
    ]:
        for edge in [(tail, head), (head, tail)]:
            graph.add_edge(*edge, capacity_bps=GBPS, latency_ns=latency_ns)
    nx.set_node_attributes(graph, {"a": True, "b": True}, "host")
    network = Network.from_graph(graph)
    assert network.hosts == {"a", "b"}
    assert network.path("a", "b") == (LinkId("a", "w"), LinkId("w", "b"))
    assert str(network.path("a", "b")[0]) == "a->w"
    network.add_host("a", up_bps=1)
    assert network.rate_bps(LinkId("a", "w"), 0) == GBPS
    with pytest.raises(UsageError, match="unknown host 'x'"):
        network.add_host("x")


def test_a_graph_without_capacities_or_paths_is_refused() -> None:
    graph = nx.DiGraph([("a", "b")])
    with pytest.raises(UsageError, match="some cannot reach each other"):
        Network.from_graph(graph)
    graph.add_edge("b", "a")
    with pytest.raises(UsageError, match="has no capacity_bps"):
        Network.from_graph(graph)


class NetworkMachine(RuleBasedStateMachine):
    """Anything in any order keeps the books right."""

    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.network = Network.star(10)
        for host in "abs":
            self.network.add_host(host)
        self.count = 0
        self.seen: dict[LinkId, tuple[int, ...]] = {}

    @rule(target=keys, source=st.sampled_from("ab"), size_bytes=st.integers(0, 50), ready_ns=st.integers(0, 10**11))
    def reserve(self, source: str, size_bytes: int, ready_ns: int) -> int:
        self.count += 1
        path = self.network.path(source, "s")
        profile = self.network.transfer(path, size_bytes, ready_ns)
        if profile is not None:
            self.network.reserve(self.count, path, profile)
        return self.count

    @rule(key=keys)
    def release(self, key: int) -> None:
        self.network.release(key)
        assert self.network.reservation(key) is None

    @rule(host=st.sampled_from("abs"), bps=st.integers(0, 12))
    def measure(self, host: str, bps: int) -> None:
        for link in (up_link(host), down_link(host)):
            self.network.set_rate(link, bps)

    @rule(host=st.sampled_from("as"), later_ns=st.integers(0, 10**11), bps=st.integers(0, 12))
    def plan(self, host: str, later_ns: int, bps: int) -> None:
        self.network.plan_rate_change(down_link(host), self.network.floor_ns + later_ns, bps)

    @rule(later_ns=st.integers(0, 10**10))
    def prune(self, later_ns: int) -> None:
        self.network.prune(self.network.floor_ns + later_ns)

    @precondition(lambda self: self.count)
    @rule()
    def go_on_with_a_copy(self) -> None:
        self.network = self.network.copy()

    @invariant()
    def books_are_right(self) -> None:
        self.network.validate()

    @invariant()
    def whatever_was_changed_is_looked_at(self) -> None:
        network = self.network
        lines = {link: (network.free_line(link), network.capacity_line(link)) for link in network.links}
        now = {link: (*free.times, *free.values, *cap.times, *cap.values) for link, (free, cap) in lines.items()}
        assert {link for link in now if now[link] != self.seen.get(link)} <= network._touched
        network.validate_touched()
        self.seen = now


TestAnythingInAnyOrder = NetworkMachine.TestCase


@given(
    size_bytes=st.one_of(st.integers(1, 100), st.integers(1, 2**50)),
    ready_ns=st.integers(0, 10**18),
    rates=st.lists(st.tuples(st.integers(1, 10**18), st.integers(0, 2**43)), max_size=6),
    first_bps=st.integers(0, 2**43),
)
def test_a_profile_passes_all_bytes_and_one_nanosecond_less_does_not(
    size_bytes: int, ready_ns: int, rates: list[tuple[int, int]], first_bps: int
) -> None:
    network = Network.star(2**43)
    network.add_host("a")
    network.add_host("s")
    network.set_rate(up_link("a"), first_bps)
    for at_ns, bps in rates:
        network.plan_rate_change(up_link("a"), at_ns, bps)
    profile = network.transfer(network.path("a", "s"), size_bytes, ready_ns)
    if profile is None:
        last_bps = dict(rates)[max(rates)[0]] if rates else first_bps  # of two at one instant the later one counts
        assert last_bps * (HORIZON_NS - max([ready_ns, *(at for at, _ in rates)])) <= 8 * 10**9 * size_bytes
        return
    passed = sum((end_ns - start_ns) * bps for start_ns, end_ns, bps in profile.pieces)
    needed = 8 * 10**9 * size_bytes
    assert passed >= needed > passed - profile.pieces[-1].bps
    assert ready_ns <= profile.start_ns == profile.pieces[0].start_ns
    assert profile.end_ns == profile.pieces[-1].end_ns


@pytest.mark.parametrize("size_bytes", [-1, 2**50 + 1])
def test_sizes_out_of_range_are_refused(star: Network, size_bytes: int) -> None:
    with pytest.raises(UsageError, match="allowed: 0 to 2"):
        star.transfer(star.path("a", "s"), size_bytes, 0)


def test_a_host_that_is_gone_is_forgotten_with_its_links_but_not_while_they_are_reserved() -> None:
    network = Network.star(GBPS)
    network.add_host("a")
    network.add_host("b")
    profile = network.transfer(network.path("a", "b"), 1000, 0)
    assert profile is not None
    network.reserve("r", network.path("a", "b"), profile)
    network.forget_host("a")
    assert network.has_host("a"), "something is reserved there"
    network.release("r")
    network.forget_host("a")
    assert network.hosts == {"b"}
    assert network.links == (up_link("b"), down_link("b"))
    with pytest.raises(UsageError, match="unknown host 'a'"):
        network.path("a", "b")
    network.add_host("a", up_bps=5)
    assert network.rate_bps(up_link("a"), 0) == 5
    network.validate()


def test_paths_are_the_same_after_more_were_asked_for_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfabric.network.network.MOST_PATHS", 2)
    network = Network.star(GBPS)
    for name in "abcd":
        network.add_host(name)
    pairs = [(source, destination) for source in "abcd" for destination in "abcd"]
    for _ in range(2):
        assert [network.path(*pair) for pair in pairs] == [
            () if source == destination else (up_link(source), down_link(destination)) for source, destination in pairs
        ]
    assert len(network._paths) <= 2
