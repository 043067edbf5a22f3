"""Links are judged rightly from what their transfers took."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import ConfigError
from mlfabric.monitor.estimate import Estimate, EstimatorOptions, Link, LinkEstimator, Source, Transfer
from tests.monitor.fluid import Job, run

GBPS = 1e9
MB = 1_000_000
SERVER = Link("server", False)
WORKERS = ["w0", "w1", "w2", "w3"]
REPORT_S = 0.2


def star(slow: dict[str, float] | None = None, server_bps: float = GBPS) -> dict[Link, float]:
    """Return the true rates: a server and four workers at 1 Gbit/s each, but for the slow."""
    rates = {"server": server_bps} | dict.fromkeys(WORKERS, GBPS) | (slow or {})
    return {Link(host, up): bps for host, bps in rates.items() for up in (True, False)}


def informed(**options: float) -> LinkEstimator:
    """Return an estimator that knows all nominal rates: 1 Gbit/s."""
    estimator = LinkEstimator(EstimatorOptions(**options))
    for host in ("server", *WORKERS):
        estimator.set_nominal(host, int(GBPS), int(GBPS))
    return estimator


def watch(estimator: LinkEstimator, transfers: list[Transfer]) -> float:
    """Hand transfers over as reports do, every 0.2 s, and return the instant when all is judged."""
    for tick, batch in groupby(sorted(transfers, key=lambda t: t.ended_s), lambda t: int(t.ended_s / REPORT_S)):
        estimator.observe(list(batch), (tick + 1) * REPORT_S)
    last_s = max(t.ended_s for t in transfers)
    return last_s + 1.0


def known(estimator: LinkEstimator, link: Link, now_s: float) -> Estimate:
    found = estimator.estimate(link, now_s)
    assert found is not None
    return found


def bps(estimator: LinkEstimator, host: str, now_s: float, *, up: bool = True) -> float:
    return known(estimator, Link(host, up), now_s).bps


def learnt(estimator: LinkEstimator, host: str, now_s: float, *, up: bool = True) -> float:
    """Return a link's estimate as it was when it was learnt, before it aged."""
    return bps(estimator, host, now_s - known(estimator, Link(host, up), now_s).age_s, up=up)


def in_turn(order: list[str], capacity: dict[Link, float], size: int = 10 * MB, start_s: float = 0.0) -> list[Transfer]:
    """Return pushes to the server one after the other."""
    done: list[Transfer] = []
    for worker in order:
        begin = done[-1].ended_s if done else start_s
        done += run([Job(start_s=begin, from_host=worker, to_host="server", bytes=size)], capacity)
    return done


@pytest.mark.parametrize("slow_one", WORKERS)
@pytest.mark.parametrize("nominal_known", [True, False])
def test_one_slow_host_among_four_is_found_and_the_server_is_not_dragged_down(
    slow_one: str, nominal_known: bool
) -> None:
    truth = star({slow_one: GBPS / 10})
    estimator = informed() if nominal_known else LinkEstimator()
    now_s = watch(estimator, in_turn(WORKERS * 2, truth))
    assert learnt(estimator, slow_one, now_s) == pytest.approx(GBPS / 10, rel=0.1)
    assert learnt(estimator, "server", now_s, up=False) == pytest.approx(GBPS, rel=0.05)
    for other in set(WORKERS) - {slow_one}:
        found = estimator.estimate(Link(other, True), now_s)
        assert found is None or found.bps == pytest.approx(GBPS, rel=0.05)


@given(
    slow_one=st.sampled_from(WORKERS),
    factor=st.floats(0.03, 0.1),
    rounds=st.lists(st.permutations(WORKERS), min_size=3, max_size=5),
    gap_s=st.sampled_from([0.0, 0.01, 0.05, 0.3]),
)
def test_the_slow_host_is_found_however_transfers_overlap(
    slow_one: str, factor: float, rounds: list[list[str]], gap_s: float
) -> None:
    truth = star({slow_one: GBPS * factor})
    order = [worker for turn in rounds for worker in turn]
    busy_until = dict.fromkeys(WORKERS, 0.0)
    done: list[Transfer] = []
    jobs = []
    for i, worker in enumerate(order):
        begin = max(i * gap_s, busy_until[worker])
        busy_until[worker] = begin + 8 * 10 * MB / (GBPS * (factor if worker == slow_one else 0.25))
        jobs.append(Job(start_s=begin, from_host=worker, to_host="server", bytes=10 * MB))
    done = run(jobs, truth)
    estimator = informed()
    now_s = watch(estimator, done)
    others = [learnt(estimator, w, now_s) for w in WORKERS if w != slow_one]
    assert learnt(estimator, "server", now_s, up=False) >= 0.75 * GBPS
    assert learnt(estimator, slow_one, now_s) < min(others)


def pushes(at_s: float, *sizes_mb: int) -> list[Job]:
    """Return pushes of all workers at once."""
    return [
        Job(start_s=at_s, from_host=worker, to_host="server", bytes=size * MB)
        for worker, size in zip(WORKERS, sizes_mb, strict=True)
    ]


MODELS = [
    Job(start_s=float(i), from_host="server", to_host=worker, bytes=10 * MB) for i, worker in enumerate(WORKERS * 2)
]


@pytest.mark.parametrize(
    ("jobs", "slow", "least"),
    [
        ([job for turn in range(3) for job in pushes(2.0 * turn, 25, 25, 25, 10)], {Link("w3", True): 0.1}, 0.9),
        ([job for turn in range(3) for job in pushes(2.0 * turn, 10, 11, 12, 13)], {}, 0.95),
        (MODELS, {Link("w1", False): 0.2}, 0.95),
    ],
    ids=["a slow host that only ever sends beside others", "the server's link is shared", "a slow receiver of models"],
)
def test_slow_links_are_found_and_no_other_is_taken_for_slow(
    jobs: list[Job], slow: dict[Link, float], least: float
) -> None:
    estimator = informed()
    now_s = watch(estimator, run(jobs, star({link.host: share * GBPS for link, share in slow.items()})))
    for link, share in slow.items():
        assert learnt(estimator, link.host, now_s, up=link.up) == pytest.approx(share * GBPS, rel=0.1)
    others = {SERVER, *(Link(worker, True) for worker in WORKERS)} if jobs is not MODELS else {Link("server", True)}
    assert min(learnt(estimator, link.host, now_s, up=link.up) for link in others - set(slow)) > least * GBPS


@pytest.mark.parametrize(("rounds", "pause_s"), [(2, 18.0), (3, 0.0)], ids=["after a while", "at once"])
def test_a_server_that_becomes_slow_is_found_and_its_workers_are_forgiven(rounds: int, pause_s: float) -> None:
    estimator = informed()
    before = in_turn(WORKERS, star())
    after = in_turn(WORKERS * rounds, star(server_bps=0.3 * GBPS), start_s=before[-1].ended_s + pause_s)
    now_s = watch(estimator, before + after)
    assert learnt(estimator, "server", now_s, up=False) == pytest.approx(0.3 * GBPS, rel=0.1)
    assert min(learnt(estimator, worker, now_s) for worker in WORKERS) > 0.9 * GBPS


def test_a_link_that_becomes_fast_again_is_believed_at_once() -> None:
    estimator = informed()
    watch(estimator, in_turn(WORKERS * 2, star({"w3": GBPS / 10})))
    again = in_turn(["w3"], star(), start_s=10.0)
    estimator.observe(again, again[-1].ended_s)
    assert bps(estimator, "w3", again[-1].ended_s) == pytest.approx(GBPS, rel=0.01)


def test_an_estimate_ages_half_the_way_to_nominal_in_one_half_life() -> None:
    estimator = informed(half_life_s=0.5)
    watch(estimator, in_turn([*WORKERS, "w3"], star({"w3": GBPS / 10})))
    learnt_s = 5.0 - known(estimator, Link("w3", True), 5.0).age_s
    for half_lives, wanted in ((0, 0.1), (1, 0.55), (2, 0.775), (20, 1.0)):
        assert bps(estimator, "w3", learnt_s + 0.5 * half_lives) == pytest.approx(wanted * GBPS, rel=0.001)
    assert known(estimator, Link("w3", True), learnt_s + 8.0).age_s == pytest.approx(8.0)


def left_after(pushes: int, after_s: float) -> float:
    """Return what a slow worker is taken for so long after so many pushes of its, each of which took 0.8 s."""
    estimator = informed()
    watch(estimator, in_turn(["w0", *["w3"] * pushes], star({"w3": GBPS / 10})))
    return bps(estimator, "w3", 1000.0 - known(estimator, Link("w3", True), 1000.0).age_s + after_s)


def test_what_one_transfer_has_shown_is_forgotten_as_fast_as_it_was_learnt() -> None:
    assert left_after(1, after_s=0.8) == pytest.approx(0.55 * GBPS, rel=0.01)


def test_a_link_that_stays_slow_is_taken_for_slow_for_longer() -> None:
    assert left_after(20, after_s=3.0) < left_after(5, after_s=3.0) < left_after(1, after_s=3.0)
    assert left_after(20, after_s=3.0) < 0.5 * GBPS


def test_paced_transfers_never_lower_an_estimate_and_can_raise_it() -> None:
    estimator = informed()
    paced = Job(start_s=0.0, from_host="w0", to_host="server", bytes=10 * MB, rate_bps=GBPS / 20)
    now_s = watch(estimator, run([paced], star()))
    assert bps(estimator, "w0", now_s) == GBPS
    assert bps(estimator, "server", now_s, up=False) == GBPS
    estimator.set_nominal("w0", int(GBPS / 100), 0)
    more = run([Job(start_s=3.0, from_host="w0", to_host="server", bytes=10 * MB, rate_bps=GBPS / 20)], star())
    estimator.observe(more, more[-1].ended_s)
    assert bps(estimator, "w0", more[-1].ended_s) == pytest.approx(GBPS / 20, rel=0.01)


def test_a_link_split_by_pacing_is_known_to_carry_the_sum() -> None:
    estimator = LinkEstimator()
    estimator.set_nominal("server", 0, int(GBPS / 10))
    jobs = [Job(start_s=0.0, from_host=w, to_host="server", bytes=10 * MB, rate_bps=GBPS / 4) for w in WORKERS]
    now_s = watch(estimator, run(jobs, star()))
    assert bps(estimator, "server", now_s - 1.0, up=False) == pytest.approx(GBPS, rel=0.01)


def test_without_nominal_rates_no_worker_is_held_below_the_server_it_shares() -> None:
    estimator = LinkEstimator()
    assert estimator.estimate(SERVER, 0.0) is None
    jobs = [Job(start_s=0.0, from_host=w, to_host="server", bytes=10 * MB) for w in WORKERS]
    now_s = watch(estimator, run(jobs, star()))
    assert learnt(estimator, "server", now_s, up=False) == pytest.approx(GBPS, rel=0.01)
    found = [estimator.estimate(Link(worker, True), now_s) for worker in WORKERS]
    assert all(each is None or each.bps == pytest.approx(GBPS, rel=0.01) for each in found)


def test_a_nominal_rate_stands_until_something_is_learnt() -> None:
    found = informed().estimate(SERVER, 100.0)
    assert found == (int(GBPS), 0.0, Source.NOMINAL)


def test_transfers_within_a_host_and_small_ones_say_nothing() -> None:
    estimator = informed()
    inside = Transfer(from_host="w0", to_host="w0", bytes=10 * MB, started_s=0.0, ended_s=10.0)
    small = Transfer(from_host="w0", to_host="server", bytes=1000, started_s=0.0, ended_s=1.0)
    instant = Transfer(from_host="w0", to_host="server", bytes=10 * MB, started_s=1.0, ended_s=1.0)
    now_s = watch(estimator, [inside, small, instant])
    assert bps(estimator, "w0", now_s) == GBPS
    assert estimator.estimate(SERVER, now_s) == (int(GBPS), 0.0, Source.NOMINAL)


def relayed(at_sender: bool) -> Transfer:
    """Return one end's record of what w0 passed on to w1: 10 MB of it while the links held it up."""
    whole = Transfer(from_host="w0", to_host="w1", bytes=12 * MB, started_s=0.0, ended_s=1.0, paced=True)
    return replace(whole, busy_bytes=10 * MB, busy_s=0.8) if at_sender else whole


def proven(order: tuple[bool, ...]) -> float:
    """Return what an up-link that was thought to be very slow is known to have carried at least."""
    estimator = LinkEstimator()
    estimator.set_nominal("w0", int(GBPS / 1000), 0)
    for at_sender in order:
        estimator.observe([relayed(at_sender)], 1.1)
    return learnt(estimator, "w0", 1.1)


@pytest.mark.parametrize("order", [(True,), (True, False), (False, True)], ids=["sender", "sender first", "last"])
def test_a_stream_counts_once_and_as_fast_as_it_was_while_the_links_held_it_up(order: tuple[bool, ...]) -> None:
    estimator = informed()
    for at_sender in order:
        estimator.observe([relayed(at_sender)], 1.1)
    estimator.observe([], 3.0)
    assert learnt(estimator, "w0", 3.0) == pytest.approx(GBPS / 10, rel=0.01)
    assert proven(order) == pytest.approx(GBPS / 10, rel=0.01)


def test_two_streams_of_a_pair_are_told_apart() -> None:
    assert proven((False, False, True, True)) == pytest.approx(2 * GBPS / 10, rel=0.01)


def test_a_stream_that_the_links_never_held_up_lowers_nothing() -> None:
    estimator = informed()
    hardly = replace(relayed(at_sender=True), busy_bytes=1000, busy_s=0.1)
    now_s = watch(estimator, [relayed(at_sender=False), hardly])
    assert bps(estimator, "w0", now_s) == GBPS
    assert bps(estimator, "w1", now_s, up=False) == GBPS


@given(busy=st.integers(MB, 12 * MB), busy_s=st.floats(0.01, 1.0))
def test_no_part_of_a_stream_is_faster_than_it_was_while_the_links_held_it_up(busy: int, busy_s: float) -> None:
    whole = replace(relayed(at_sender=True), busy_bytes=busy, busy_s=busy_s)
    parts = whole.parts()
    assert (parts[-1].bytes, parts[-1].paced) == (busy, False)
    assert sum(part.bytes for part in parts) <= whole.bytes
    fastest_bps = 8 * busy / busy_s
    for part in parts:
        assert 8 * part.bytes / (part.ended_s - part.started_s) <= fastest_bps * 1.000001


@pytest.mark.parametrize(("nic", "server", "worker"), [(0.97, 0.2, 1.0), (0.2, 1.0, 0.2)], ids=["full", "with room"])
def test_a_nic_tells_who_is_to_blame(nic: float, server: float, worker: float) -> None:
    estimator = informed()
    push = Transfer(from_host="w0", to_host="server", bytes=10 * MB, started_s=0.0, ended_s=0.4)
    estimator.observe_nic(SERVER, nic * GBPS, GBPS, 0.0, 0.5)
    now_s = watch(estimator, [push])
    assert (known(estimator, SERVER, now_s).source is Source.NIC) == (server < 1)
    assert learnt(estimator, "server", now_s, up=False) == pytest.approx(server * GBPS, rel=0.01)
    assert learnt(estimator, "w0", now_s) == pytest.approx(worker * GBPS, rel=0.01)


def test_a_nic_of_unknown_speed_says_nothing() -> None:
    estimator = informed()
    estimator.observe_nic(SERVER, 0.2 * GBPS, 0, 0.0, 0.5)
    assert estimator.estimate(SERVER, 1.0) == (int(GBPS), 0.0, Source.NOMINAL)


@given(st.lists(st.tuples(st.sampled_from(WORKERS), st.integers(1, 30), st.floats(0, 3)), min_size=1, max_size=12))
def test_no_estimate_is_above_a_nominal_rate_that_is_the_truth(pushes: list[tuple[str, int, float]]) -> None:
    truth = star({"w0": 0.3 * GBPS}, server_bps=0.8 * GBPS)
    jobs = [Job(start_s=at, from_host=worker, to_host="server", bytes=size * MB) for worker, size, at in pushes]
    estimator = LinkEstimator()
    for host in ("server", *WORKERS):
        estimator.set_nominal(host, int(truth[Link(host, True)]), int(truth[Link(host, False)]))
    now_s = watch(estimator, run(jobs, truth))
    for link in estimator.links:
        assert 0 < known(estimator, link, now_s).bps <= truth[link] * 1.0001


@pytest.mark.parametrize("options", [{"half_life_s": 0.0}, {"half_life_s": float("nan")}, {"max_grace_s": -1.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))}=.*allowed"):
        EstimatorOptions(**options)
