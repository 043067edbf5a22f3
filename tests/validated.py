"""Every plan of a scheduler under test is made to check itself; and the compiled planner, once for all tests."""

from __future__ import annotations

import pytest

from mlfabric.network import Network
from mlfabric.planning import Batch, FabricState, Plan, PlannerConfig, plan, warm_up
from mlfabric.scheduler.gets import get_requests
from mlfabric.scheduler.updates import pushes

__all__ = ["compiled_planner", "every_plan_is_validated"]


@pytest.fixture(autouse=True)
def every_plan_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validate what the scheduler's state machine plans, at once."""

    def validated(batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> Plan:
        found = plan(batch, network, state, config)
        found.validate(network)
        return found

    for user in (pushes, get_requests):
        monkeypatch.setattr(user, "plan", validated)


@pytest.fixture(scope="session")
def compiled_planner() -> None:
    """Load the planner's kernels; the first test that asks for it compiles them where no machine code is kept yet."""
    warm_up(print)
