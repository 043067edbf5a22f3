"""The planner once more, deliberately dumb: the rules as they are written, nothing kept, nothing fast.

It shares nothing with the planner but its plain values. What is searched for by heuristics (cut-through trees, rings,
the local search) has no twin: laws hold those.
"""

from tests.scheduler.planning.twin.network import TwinNetwork, twin_network
from tests.scheduler.planning.twin.ordering import TwinPlanner
from tests.scheduler.planning.twin.planner import TwinPlan, twin_plan

__all__ = ["TwinNetwork", "TwinPlan", "TwinPlanner", "twin_network", "twin_plan"]
