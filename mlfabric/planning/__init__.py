"""Plans: who sends when, to whom and whether at all; pure (design, section 5).

problem, plan      what a plan is made for, and what it is
planner            the one way from the first to the second; pushing and distribution are its halves
ordering           who goes when; placing, positions, leaving; lists is its variant
paper, paper_plan  the paper's own algorithms, and a plan made by them: the baseline
direct, trees      what goes by itself, and how groups are summed on their way; all_reduce where there is no server
replication        what the replica gets, and which commits wait for it
fluid/             the network as arrays, and all that is compiled
checking/          whether a plan keeps its promises; explaining tells people what it does
conflicts          how the scheduler holds a plan without clocks
"""

from mlfabric.planning.conflicts import Timetable, paced_rate
from mlfabric.planning.kernel_choice import is_planner_compiled, is_planner_loaded, warm_up
from mlfabric.planning.plan import Commit, Deferred, Group, Plan, Transfer
from mlfabric.planning.plan_values import Candidate, GetCandidate, Left
from mlfabric.planning.planner import plan
from mlfabric.planning.problem import (
    Aggregator,
    Batch,
    Consistency,
    DivergenceBound,
    FabricState,
    Objective,
    Pending,
    PlannerConfig,
    Replica,
    Shape,
)

__all__ = [
    "Aggregator",
    "Batch",
    "Candidate",
    "Commit",
    "Consistency",
    "Deferred",
    "DivergenceBound",
    "FabricState",
    "GetCandidate",
    "Group",
    "Left",
    "Objective",
    "Pending",
    "Plan",
    "PlannerConfig",
    "Replica",
    "Shape",
    "Timetable",
    "Transfer",
    "is_planner_compiled",
    "is_planner_loaded",
    "paced_rate",
    "plan",
    "warm_up",
]
