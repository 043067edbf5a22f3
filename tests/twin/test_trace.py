"""Traces: what is read back, what it replays as, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import ConfigError
from mlfabric.model.specs import Method
from mlfabric.twin.cluster import Spread
from mlfabric.twin.settings import Direction
from mlfabric.twin.trace import Progress, parse_trace

HEAD: dict[str, Any] = {
    "trace": 1,
    "model": "net",
    "method": "asynchronous",
    "tau_max": 4,
    "model_bytes": 1000,
    "server": "s",
    "workers": {"a": "host-a", "b": "host-b"},
}
RATES: list[dict[str, Any]] = [
    {"at_s": 0.0, "rate": [host, way, bps]}
    for host, bps in (("host-a", 1e8), ("host-b", 5e7), ("s", 1e9))
    for way in ("up", "down")
]
REST: list[dict[str, Any]] = [
    {"at_s": 0.0, "progress": [10, 1]},
    {"at_s": 1.0, "rate": ["host-a", "up", 2e7]},
    {"at_s": 2.0, "compute": ["a", [0.1, 0.2]]},
    {"at_s": 3.0, "compute": ["a", [0.3]]},
    {"at_s": 4.0, "progress": [25, 2]},
]


def text(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


WHOLE = text(HEAD, *RATES, *REST)


def test_a_trace_says_what_was_written():
    found = parse_trace(WHOLE, "t")
    assert (found.model, found.method, found.tau_max, found.model_bytes) == ("net", Method.ASYNCHRONOUS, 4, 1000)
    assert found.compute_s == {"a": (0.1, 0.2, 0.3)}
    line = found.lines["host-a", Direction.UP]
    assert (line.times_s, line.bps) == ((0.0, 1.0), (1e8, 2e7))
    assert found.progress[-1] == Progress(at_s=4.0, committed=25, dropped=2)


def test_a_step_is_as_many_updates_as_there_are_workers():
    assert parse_trace(WHOLE, "t").iteration_s == pytest.approx(4.0 * 2 / 16)


def test_a_round_of_all_reduce_is_a_step():
    head = {**HEAD, "method": "all-reduce", "tau_max": None, "server": ""}
    assert parse_trace(text(head, *RATES, *REST), "t").iteration_s == pytest.approx(4.0 / 16)


def test_the_cluster_of_a_trace_has_the_names_of_its_workers():
    cluster = parse_trace(WHOLE, "t").cluster()
    assert [host.name for host in cluster.hosts] == ["a", "b", "s"]
    assert cluster.workers[0].up_bps == 1e8
    assert set(cluster.lines) == {(host, way) for host in ("a", "b", "s") for way in Direction}
    assert cluster.compute.spread is Spread.RECORDED
    assert (cluster.model_bytes, cluster.tau_max, cluster.method) == (1000, 4, Method.ASYNCHRONOUS)


def test_a_field_of_the_cluster_can_be_otherwise():
    assert parse_trace(WHOLE, "t").cluster(tau_max=9).tau_max == 9


def test_links_of_hosts_without_a_part_in_the_job_are_left_out():
    other = {"at_s": 0.0, "rate": ["elsewhere", "up", 1e9]}
    assert len(parse_trace(text(HEAD, *RATES, other, *REST), "t").cluster().lines) == 6


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{**HEAD, "server": "host-a"}, *RATES, *REST], "host-a"),
        ([{**HEAD, "workers": {"a": "host-a", "b": "host-a"}}, *RATES, *REST], "share hosts"),
        ([HEAD, *RATES[:3], *RATES[4:], *REST], "b's link down"),
        ([HEAD, *RATES], "record for longer"),
    ],
    ids=["a server on a worker's host", "two workers on one", "a link that was not seen", "nothing computed"],
)
def test_a_trace_of_which_no_cluster_can_be_made_says_why(rows: list[dict[str, Any]], said: str):
    with pytest.raises(ConfigError, match=said):
        parse_trace(text(*rows), "t").cluster()


@given(st.integers(1, len(WHOLE)))
def test_a_trace_cut_off_anywhere_is_good_up_to_its_last_whole_line(cut: int):
    head = len(text(HEAD))
    if cut < head - 1:
        with pytest.raises(ConfigError):
            parse_trace(WHOLE[:cut], "t")
    else:
        found = parse_trace(WHOLE[:cut], "t")
        assert len(found.progress) <= 2
        assert found.workers == HEAD["workers"]


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1000, 10**9)), min_size=1, max_size=20))
def test_rates_rise_in_time_and_each_differs_from_the_one_before(points: list[tuple[float, int]]):
    rows = [{"at_s": at_s, "rate": ["host-a", "up", bps]} for at_s, bps in points]
    line = parse_trace(text(HEAD, *rows), "t").lines["host-a", Direction.UP]
    assert all(one < two for one, two in zip(line.times_s, line.times_s[1:], strict=False))
    assert all(one != two for one, two in zip(line.bps, line.bps[1:], strict=False))
    latest = max(at_s for at_s, _ in points)
    assert line.bps[-1] == [bps for at_s, bps in points if at_s == latest][-1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("", "no trace"),
        ("{}\n", "no trace"),
        ("garbage\n", "no JSON"),
        ("[1]\n", "an object"),
        (text({**HEAD, "trace": 2}), "no trace of format 1"),
        (text({**HEAD, "method": "loose"}), "loose"),
        (text({key: HEAD[key] for key in HEAD if key != "model_bytes"}), "model_bytes"),
        (text(HEAD, {"at_s": 1.0, "weather": "fine"}), "line 2"),
        (text(HEAD, {"rate": ["host-a", "up", 1]}), "at_s"),
        (text(HEAD, {"at_s": 1.0, "rate": ["host-a", "sideways", 1]}), "sideways"),
        (text(HEAD, {"at_s": 1.0, "rate": ["host-a", "up", 1]}), "1k to"),
        (text(HEAD) + "garbage\n" + text(*REST), "line 2"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_place(wrong: str, said: str):
    with pytest.raises(ConfigError, match=said):
        parse_trace(wrong, "night.trace")


def test_a_trace_without_steps_says_to_record_for_longer():
    with pytest.raises(ConfigError, match="record for longer"):
        _ = parse_trace(text(HEAD, *RATES), "t").iteration_s
