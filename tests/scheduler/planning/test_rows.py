"""Room for pieces is counted before they are reserved, and what is used up is searched no more."""

from __future__ import annotations

import numpy as np
import pytest

from mlfabric.scheduler.planning.fluid import rows
from mlfabric.scheduler.planning.fluid.lines import HORIZON_NS, Lines, Routes

ONE_LINK = Routes(*(np.array(column, np.int64) for column in ([[0]], [1], [0], [0])))


def ten_then_five() -> Lines:
    """One link with 10 Gbit/s free until 4 ns, 5 Gbit/s from then on."""
    columns = np.zeros((3, 20), np.int64)
    columns[:, :3] = [[HORIZON_NS, 0, 4], [0, 10**10, 5 * 10**9], [0, 2, 0]]
    at_ns, bps, following = columns
    return Lines(at_ns, bps, following, np.array([3], np.int64), np.array([1], np.int64))


def test_heads_move_on_past_what_is_used_up() -> None:
    lines = ten_then_five()
    rows.reserve(lines, ONE_LINK, 0, np.array([[0, 4, 10**10]]), 0, 1)
    rows.drop_heads(lines, ONE_LINK, 0)
    assert lines.at_ns[lines.head[0]] == 4
    end_ns, _ = rows.flow(lines, ONE_LINK, 0, 50, 0, np.zeros((4, 3), np.int64), 0)
    assert end_ns == 14


@pytest.mark.parametrize(("count", "fits"), [(8, True), (9, False)])
def test_a_piece_may_need_two_nodes_on_each_link(count: int, fits: bool) -> None:
    assert rows.has_room(ten_then_five(), ONE_LINK, 0, count) == fits
