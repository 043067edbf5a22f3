"""What `mlfabric top` shows."""

from __future__ import annotations

import json
import re
from typing import Any

from rich.console import Console

from mlfabric.cli.top_command import fitting, top_view
from mlfabric.v1 import fabric_pb2
from tests.processes import Start

NOW = 1_000_000.0
Entry = dict[str, Any]


def _status(*open_: Entry) -> fabric_pb2.GetStatusResponse:
    return fabric_pb2.GetStatusResponse(
        members=[fabric_pb2.MemberStatus(name=one, role="worker", state="here", activity="computes") for one in "ab"],
        workers=[fabric_pb2.WorkerStatus(name=one, committed=5, dropped=1, dropped_share=0.17) for one in "ab"],
        models=[fabric_pb2.ModelStatus(name="net", method="elastic")],
        open=map(json.dumps, open_),
        now_ms=NOW,
    )


def _round(began: float, ended: float, outcome: str = "settled", cause: str = "", members: str = "ab") -> Entry:
    return {
        "kind": "round",
        "id": "round 3",
        "model": "net",
        "version": 3,
        "began": began,
        "planned": [began, began + 500],
        "ended": ended,
        "outcome": outcome,
        "cause": cause,
        "members": list(members),
        "receivers": [],
        "arrived": {},
        "delays": {},
        "reason": "2 of 2 workers",
    }


def _shown(status: fabric_pb2.GetStatusResponse, *entries: Entry) -> list[str]:
    screen = Console(width=116, force_terminal=False)
    with screen.capture() as captured:
        screen.print(top_view(status, entries, 10.0, 116))
    return captured.get().splitlines()


def test_the_timeline_has_a_bar_where_a_worker_was_in_a_round() -> None:
    lines = _shown(_status(), _round(NOW - 5000, NOW - 4000, members="a"))
    row_a, row_b = (next(line for line in lines if line.startswith(name)) for name in "ab")
    assert (row_a.index("█"), row_a.count("█")) in [(65, 10), (65, 11), (65, 9)]
    assert "█" not in row_b


def test_what_is_under_way_goes_on_until_now() -> None:
    lines = _shown(_status(_round(NOW - 1000, 0, outcome="")))
    row = next(line for line in lines if line.startswith("a"))
    assert row.rstrip().endswith("░" * 9)


def test_rounds_and_decisions_say_why() -> None:
    note = {"kind": "note", "at": NOW, "about": "b", "text": "is silent", "warning": True}
    dropped = {"kind": "update", "id": "a#7", "worker": "a", "planned": None, "ended": NOW}
    dropped |= {"outcome": "dropped", "cause": "late", "reason": "late by 2 versions"}
    void = _round(NOW - 3000, NOW - 2000, outcome="void", cause="b: its connection broke")
    text = "\n".join(_shown(_status(), _round(NOW - 5000, NOW - 4250), void, dropped, note))
    wanted = ("0.75 s", "0.50 s", "2 of 2 workers", "void: b: its connection broke", "b is silent")
    for words in (*wanted, "a: a#7 is dropped: late by 2 versions"):
        assert words in text
    assert re.search(r"here +5 +1 \(17%\) +computes", text)


def test_who_only_gets_the_result_of_a_round_looks_otherwise_and_who_has_left_has_no_row() -> None:
    status = _status()
    status.members[1].state = "left"
    round_ = _round(NOW - 5000, NOW - 4000, members="a")
    assert "b" not in _rows(status, round_)
    assert _rows(_status(), round_)["b"] == ""
    assert "▒" in _rows(_status(), {**round_, "receivers": ["b"]})["b"]


def _rows(status: fabric_pb2.GetStatusResponse, *entries: Entry) -> dict[str, str]:
    """Return the timeline's bars by worker."""
    lines = _shown(status, *entries)
    until = next(at for at, line in enumerate(lines) if line.endswith("now"))
    return {name: bars.strip() for name, _, bars in (line.partition(" ") for line in lines[1:until])}


def test_a_low_terminal_shows_what_fits_and_says_how_much_does_not() -> None:
    screen = Console(width=80, height=10, force_terminal=False)
    view = top_view(_status(), [_round(NOW - 5000, NOW - 4000)], 10.0, 80)
    with screen.capture() as captured:
        screen.print(fitting(screen, view))
    lines = captured.get().splitlines()
    assert len(lines) == 10
    assert re.fullmatch(r"\d+ more lines: a higher window shows them", lines[-1].strip())
    screen.height = 100
    assert fitting(screen, view) is view


def test_what_is_of_a_former_model_of_the_same_name_is_left_out() -> None:
    begins = {"kind": "note", "at": NOW - 3500, "about": "net", "text": "begins anew", "begins": ["net"]}
    former, present = _round(NOW - 5000, NOW - 4000), _round(NOW - 3000, NOW - 2750)
    lines = _shown(_status(), {**former, "delays": {"a": 7}}, begins, {**present, "delays": {"a": 1}})
    assert any("0.25 s" in line for line in lines)
    assert not any("1.00 s" in line for line in lines)
    model = next(line.split() for line in lines if line.startswith("net") and "settled" not in line)
    assert "7" not in model


def test_it_is_shown_once_where_the_output_is_no_terminal(start: Start, fabric: str) -> None:
    code, output = start("top", "--scheduler", fabric).finish()
    assert code == 0
    assert "members: 2 here" in output
    assert "monitor-0 joined as monitor" in output


def test_models_show_delays_and_divergence_with_their_bounds() -> None:
    status = _status()
    status.models[0].tau_max = 4
    status.models[0].replica_lead, status.models[0].replica_lead_max = 3, 40
    status.models[0].divergence = 0.25
    late = [{**_round(NOW - 5000, NOW - 4250), "delays": {"a": 0, "b": delay}} for delay in (0, 0, 2)]
    update = {"kind": "update", "id": "a#7", "worker": "a", "model": "net", "planned": None, "ended": NOW}
    lines = _shown(status, *late, {**update, "outcome": "committed", "delay": 1})
    row = next(line for line in lines if line.startswith("net "))
    assert re.fullmatch(r"net +0 +0 +2 +4 +█▂▂ +3 updates of 40, l2 0.25 *", row)


def test_the_slowest_links_come_first_and_those_that_are_slow_are_marked() -> None:
    status = _status()
    rates = {"a": 800_000_000, "b": 100_000_000, "c": 800_000_000, "d": 700_000_000}
    for host, bps in rates.items():
        status.links.append(fabric_pb2.LinkStatus(host=host, up=True, estimate_bps=bps, age_s=1.0))
    lines = _shown(status)
    at = next(n for n, line in enumerate(lines) if line.startswith("Slowest of 4 links"))
    assert [line.split() for line in lines[at + 2 : at + 4]] == [
        ["b", "up", "100", "Mbit/s", "slow"],
        ["d", "up", "700", "Mbit/s"],
    ]
