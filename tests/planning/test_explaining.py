"""What is said and drawn of a plan."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pictures.lanes import groups_of, lanes_of
from benchmarks.pictures.picture import draw
from mlfabric.errors import UsageError
from mlfabric.planning.explanation import explain
from mlfabric.planning.plan import Kind, Toward
from mlfabric.planning.words import Names, joined, size_text, span_text
from mlfabric.protocol import UpdateId
from tests.planning.handmade import SIZE, Bench, a_full_plan, a_star, plan_of, uid

MS = 10**6

EXPLAINED = """\
5 of 7 updates (1 MB) committed within 48.2 ms, 35.4 ms on average; 2 of 3 gets answered within 24.2 ms; 1 dropped; \
2 deferred.
- Committed: w1 at 8.1 ms; w2 at 32.2 ms; w3 at 40.2 ms; w4 and w5 at 48.2 ms.
- w1 goes first: shortest transfer first.
- w2 and w3 are added up at a, which has them all at 16.1 ms: 2 updates reach s as one of 2 MB at 32.2 ms.
- w4 and w5 are added up along a chain of 2 hosts that ends at w5, each passing on what it has while more arrives: \
2 updates reach s as one of 2 MB at 48.2 ms.
- Sent one by one, the last would arrive at 40.1 ms instead of 48.2 ms: sums make it 8.1 ms later, the average 8.7 ms \
later.
- w3 (8.0 ms) waits for the replica: committed at once, the primary would be further ahead of it than the bound allows.
- Dropped: w6: its deadline passed before it could be planned (its delay would be 10, the bound is 6).
- Not committed yet: w7: its clock is ahead.
- Gets deferred: w3: a link on its path has no capacity.
- The replica (r) can recover old at 16.1 ms and w1 and w2 at 40.2 ms.
- Sent to the replica later: w3, w4 and w5: it would arrive after the last commit.
- Models: w1 at 8.1 ms and w2 from d at 24.2 ms."""


def test_a_plan_is_told_in_sentences_with_names_and_milliseconds() -> None:
    plan, network = a_full_plan()
    assert plan.explain(network) == EXPLAINED


def test_without_a_network_nothing_is_compared() -> None:
    plan, _ = a_full_plan()
    told = explain(plan)
    assert told == "\n".join(line for line in EXPLAINED.splitlines() if "one by one" not in line)


def test_what_goes_first_for_its_deadline_is_told() -> None:
    plan, _ = a_full_plan()
    commits = [
        replace(c, reason="deadline: position 2 of at most 7, 24.0 ms") if c.position == 2 else c for c in plan.commits
    ]
    told = explain(replace(plan, commits=commits))
    assert "- Sent ahead of shorter ones for their deadlines: w2 (2 of at most 7)." in told.splitlines()


def test_an_empty_plan_is_told() -> None:
    plan, network = a_full_plan()
    nothing = plan_of(state=plan.state)
    assert nothing.explain(network) == "Nothing to plan."


def test_many_reasons_are_not_all_told() -> None:
    plan, _ = a_full_plan()
    (drop,) = plan.drops
    many = replace(plan, drops=[replace(drop, update=uid(f"x{n}"), reason=f"late by {n}") for n in range(30)])
    lines = [line for line in explain(many).splitlines() if "Dropped" in line]
    assert len(lines) == 5
    assert lines[-1] == "- Dropped for reasons like these: x4, x5, x6, x7, x8 and 21 more."


def test_a_worker_with_several_updates_is_told_with_their_numbers() -> None:
    plan, _ = a_full_plan()
    again = replace(plan.batch.updates[0], update=UpdateId("w1", 0, 1))
    names = Names(replace(plan, batch=replace(plan.batch, updates=(*plan.batch.updates, again))))
    assert [names.of(u) for u in (uid("w1"), again.update, uid("w2"))] == ["w1#0", "w1#1", "w2"]


@pytest.mark.parametrize(
    ("span_ns", "text"), [(0, "0 ms"), (7, "7.0 ns"), (1500, "1.5 us"), (2 * MS, "2.0 ms"), (1234 * MS, "1.2 s")]
)
def test_a_span_of_time_has_a_unit_that_fits(span_ns: int, text: str) -> None:
    assert span_text(span_ns) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (64_000, "64 kB"), (2_500_000, "2.5 MB"), (10**12, "1 TB")])
def test_a_size_has_a_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text


def test_names_are_joined_like_words() -> None:
    assert joined([]) == ""
    assert joined(["a"]) == "a"
    assert joined(["a", "b", "c"]) == "a, b and c"
    assert joined(list("abcd"), 3) == "a, b, c and d"
    assert joined(list("abcdef"), 3) == "a, b, c and 3 more"


# Lanes and bars.


def test_lanes_stand_by_purpose_then_group_by_group_each_from_its_end_back() -> None:
    plan, _ = a_full_plan()
    primary = [str(lane.link) for lane in lanes_of(plan) if lane.toward is Toward.PRIMARY]
    assert primary == ["s down", "w1 up", "a up", "a down", "w2 up", "w3 up", "w5 up", "w5 down", "w4 up"]
    sections = [lane.toward for lane in lanes_of(plan)]
    assert sections == sorted(sections, key=[Toward.PRIMARY, Toward.WORKERS, Toward.REPLICA].index)
    models = [str(lane.link) for lane in lanes_of(plan) if lane.toward is Toward.WORKERS]
    assert models == ["s up", "w1 down", "d down", "d up", "w2 down"]


def test_a_transfer_belongs_to_the_group_whose_sum_it_ends_in() -> None:
    plan, _ = a_full_plan()
    groups = groups_of(plan)
    assert [groups.get(i) for i in range(len(plan.transfers))] == [0, 1, 1, 1, 2, 2, 3, 4, 4, 4, None, None, None]


def test_bars_are_as_high_as_their_share_and_stacked_where_they_meet() -> None:
    """Two updates share a server's link: one comes over a slow link and takes a quarter."""
    network = a_star("slow", "fast", "s")
    network.set_rate(network.path("slow", "s")[0], 250_000_000)
    bench = Bench(network)
    bench.send(Kind.UPDATE, "slow", "s", "w1")
    bench.send(Kind.UPDATE, "fast", "s", "w2")
    lanes = lanes_of(plan_of(state=a_full_plan()[0].state, transfers=bench.transfers), network)
    assert {str(lane.link): [(bar.bottom, bar.height) for bar in lane.bars] for lane in lanes} == {
        "s down": [(0.0, 0.25), (0.25, 0.75)],
        "slow up": [(0.0, 1.0)],
        "fast up": [(0.0, 0.75)],
    }


@given(sizes=st.lists(st.integers(1, 3 * SIZE), min_size=1, max_size=6), slow=st.integers(1, 10**9))
def test_bars_never_overlap_and_cover_every_transfer(sizes: list[int], slow: int) -> None:
    network = a_star("a", "b", "c", "s")
    network.set_rate(network.path("a", "s")[0], 10**8 + slow)
    bench = Bench(network)
    for n, size in enumerate(sizes):
        bench.send(Kind.UPDATE, "abc"[n % 3], "s", f"w{n}", size=size)
    plan = plan_of(state=a_full_plan()[0].state, transfers=bench.transfers)
    (lane,) = [lane for lane in lanes_of(plan, network) if str(lane.link) == "s down"]
    for one in lane.bars:
        assert 0 <= one.bottom <= one.bottom + one.height <= 1 + 1e-9
        for two in lane.bars:
            apart = one.end_ns <= two.start_ns or two.end_ns <= one.start_ns
            above = one.bottom + one.height <= two.bottom + 1e-9 or two.bottom + two.height <= one.bottom + 1e-9
            assert one is two or apart or above
    for i, transfer in enumerate(bench.transfers):
        area = sum((b.end_ns - b.start_ns) * b.height for b in lane.bars if b.transfer == i) * 10**9
        assert area == pytest.approx(sum((e - s) * bps for s, e, bps in transfer.profile.pieces))


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_written(tmp_path: Path, suffix: str) -> None:
    plan, network = a_full_plan()
    file = tmp_path / f"plan.{suffix}"
    draw(plan, file, network)
    assert file.stat().st_size > 10_000


def test_the_same_picture_has_the_bars_names_and_drops_in_it(tmp_path: Path) -> None:
    plan, network = a_full_plan()
    file = tmp_path / "plan.svg"
    draw(plan, file, network)
    text = file.read_text()
    for words in ("w2 + w3", "s down", "commits", "to the replica", "dropped: w6", "milliseconds"):
        assert f"<!-- {words}" in text, words


def test_an_empty_plan_is_drawn(tmp_path: Path) -> None:
    plan, _ = a_full_plan()
    empty = replace(plan, transfers=(), groups=(), commits=(), replica_steps=(), gets=())
    draw(empty, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 1_000


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    plan, _ = a_full_plan()
    for name in ("nowhere/plan.png", "plan.tune"):
        with pytest.raises(UsageError, match="give a file that can be written"):
            draw(plan, tmp_path / name)


def test_without_matplotlib_an_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = a_full_plan()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install 'mlfabric\[demo\]'"):
        draw(plan, tmp_path / "plan.png")
