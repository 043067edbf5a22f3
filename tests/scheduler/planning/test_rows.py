"""Long lists are searched from where the last transfer began, unless that place is gone or too late."""

from __future__ import annotations

import numpy as np
import pytest

from mlfabric.scheduler.planning.fluid import rows
from mlfabric.scheduler.planning.fluid.lines import HORIZON_NS, Lines, Routes

ONE_LINK = Routes(*(np.array(column, np.int64) for column in ([[0]], [1], [0], [0])))


def ten_then_five() -> tuple[Lines, Lines]:
    """One link with 10 Gbit/s free until 4 ns, 5 Gbit/s from then on; ``near`` begins as the lines do."""
    columns = np.zeros((3, 20), np.int64)
    columns[:, :3] = [[HORIZON_NS, 0, 4], [0, 10**10, 5 * 10**9], [0, 2, 0]]
    used, head = np.array([3], np.int64), np.array([1], np.int64)
    at_ns, bps, following = columns
    return Lines(at_ns, bps, following, used, head), Lines(at_ns, bps, following, used, head.copy())


def end_from(near: Lines, ready_ns: int, bits: int) -> int:
    end_ns, _ = rows.flow(near, ONE_LINK, 0, bits, ready_ns, np.zeros((4, 3), np.int64), 0)
    return int(end_ns)


def test_the_search_begins_where_the_last_transfer_began() -> None:
    lines, near = ten_then_five()
    rows.approach(lines, near, ONE_LINK, 0, 6)
    assert near.head[0] == 2
    assert end_from(near, 6, 50) == 16


def test_a_place_that_is_too_late_is_not_used() -> None:
    lines, near = ten_then_five()
    rows.approach(lines, near, ONE_LINK, 0, 6)
    rows.approach(lines, near, ONE_LINK, 0, 1)
    assert near.head[0] == 1
    assert end_from(near, 1, 30) == 4


def test_a_place_that_was_merged_with_its_neighbour_is_not_used() -> None:
    lines, near = ten_then_five()
    rows.approach(lines, near, ONE_LINK, 0, 6)
    rows.reserve(lines, ONE_LINK, 0, np.array([[0, 4, 5 * 10**9]]), 0, 1)
    rows.approach(lines, near, ONE_LINK, 0, 6)
    assert near.head[0] == 1
    assert end_from(near, 6, 50) == 16


def test_heads_move_on_past_what_is_used_up() -> None:
    lines, near = ten_then_five()
    rows.reserve(near, ONE_LINK, 0, np.array([[0, 4, 10**10]]), 0, 1)
    rows.drop_heads(lines, ONE_LINK, 0)
    rows.approach(lines, near, ONE_LINK, 0, 0)
    assert lines.at_ns[lines.head[0]] == 4
    assert end_from(near, 0, 50) == 14


@pytest.mark.parametrize(("count", "fits"), [(8, True), (9, False)])
def test_a_piece_may_need_two_nodes_on_each_link(count: int, fits: bool) -> None:
    assert rows.has_room(ten_then_five()[0], ONE_LINK, 0, count) == fits
