"""An aggregator that cannot do what was decided ends with the reason, and says so to the scheduler."""

from __future__ import annotations

import pytest

from tests.aggregator.by_hand import Stand, order, takes
from tests.aggregator.stage import update
from tests.fabric.harness import PATIENCE_S


def test_an_aggregator_without_memory_for_a_sum_ends_and_the_scheduler_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room(*_: object) -> None:
        raise MemoryError("no room for a sum")

    with Stand() as stand:
        failing = stand.aggregator()
        monkeypatch.setattr(failing, "stop", failing._end)  # which raises nothing
        monkeypatch.setattr(failing._service._buffers, "reserve_sum", no_room)
        stand.scheduler.tell(order(stand, 1, takes(update("wa")), takes(update("wb"))))
        stand.offer(update("wa"))
        with pytest.raises(MemoryError, match="no room for a sum"):
            failing.wait(PATIENCE_S)
        while not (event := stand.scheduler.events.get(timeout=PATIENCE_S)).HasField("member_left"):
            pass
        assert event.member_left.failed
        assert event.member_left.detail == "MemoryError: no room for a sum, while it carried out ReserveSum"
