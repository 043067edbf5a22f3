"""Commits wait for the replica exactly as long as the rule says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.divergence import Lead, Limit, units_above
from mlfabric.network import Network
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.forwarding import Forwarding
from mlfabric.scheduler.planning.gating import Gated, Steps, gate
from mlfabric.scheduler.planning.problem import Shape


@dataclass
class Case:
    """Whole norms, so that sums are exact."""

    norms: list[int]
    behind: int
    ends: list[int]
    step_arrive_ns: list[int]
    arrive_ns: list[int]
    most: int
    most_commits: int | None

    def gate(self) -> Gated:
        there_ns = [max(self.step_arrive_ns[: s + 1]) for s in range(len(self.ends))]
        steps = Steps(self.ends, self.step_arrive_ns, there_ns, self.ends)
        limit = Limit.of(self.most, self.most_commits)
        return gate(Lead(map(units_above, map(float, self.norms))), limit, steps, self.arrive_ns, self.behind)

    def fits(self, held: int, committed: int) -> bool:
        lead = self.norms[held:committed]
        short = self.most_commits is None or len(lead) <= self.most_commits
        return short and sum(lead) <= self.most and (self.most > 0 or not lead)

    def there_ns(self, count: int) -> int:
        """When the first so many steps are there."""
        return max(self.step_arrive_ns[:count], default=0)

    def by_the_rule(self) -> tuple[list[int], int]:
        """Commit times and how many steps are kept, every time from the start."""
        last_ns = self.arrive_ns[-1] if self.arrive_ns else -1
        kept = sum(self.there_ns(s) <= last_ns for s in range(1, len(self.ends) + 1))
        times: list[int] = []
        while len(times) < len(self.arrive_ns):
            now_ns = max([*times, self.arrive_ns[len(times)]])
            committed = self.behind + len(times) + 1
            options = []
            for count in range(len(self.ends) + 1):
                held = self.ends[count - 1] if count else 0
                if held <= committed and self.fits(held, committed):
                    options.append((max(now_ns, self.there_ns(count)), count, committed))
                elif held > committed:
                    whole_ns = self.arrive_ns[held - self.behind - 1]
                    options.append((max(now_ns, self.there_ns(count), whole_ns), count, held))
                    break
            if not options:
                break
            at_ns, count, committed = options[0]
            kept = max(kept, count)
            times += [at_ns] * (committed - self.behind - len(times))
        return times, kept


@st.composite
def cases(draw: st.DrawFn) -> Case:
    behind, commits = draw(st.integers(0, 3)), draw(st.integers(0, 7))
    count = behind + commits
    cuts = draw(st.sets(st.integers(max(1, behind), max(1, count)), max_size=5))
    ends = sorted(cut for cut in cuts if cut <= count)
    times = st.integers(0, 12)
    return Case(
        norms=draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)),
        behind=behind,
        ends=ends,
        step_arrive_ns=draw(st.lists(times, min_size=len(ends), max_size=len(ends))),
        arrive_ns=sorted(draw(st.lists(times, min_size=commits, max_size=commits))),
        most=draw(st.integers(0, 6)),
        most_commits=draw(st.sampled_from([None, None, 0, 1, 2, 4])),
    )


@given(cases())
def test_it_gates_as_the_rule_says(case):
    found = case.gate()
    assert (found.commit_ns, found.kept) == case.by_the_rule()


@given(cases())
def test_a_limit_allows_what_it_says_is_the_most_and_no_more(case):
    lead, limit = Lead(map(units_above, map(float, case.norms))), Limit.of(case.most, case.most_commits)
    for held in range(len(case.norms) + 1):
        fitting = [n for n in range(held, len(case.norms) + 1) if case.fits(held, n)]
        assert limit.most(lead, held) == max(fitting)
        assert [n for n in range(held, len(case.norms) + 1) if limit.allows(lead, held, n)] == fitting


@given(cases())
def test_at_every_instant_the_lead_is_within_its_limit(case):
    found = case.gate()
    for at_ns in set(found.commit_ns):
        committed = case.behind + sum(t <= at_ns for t in found.commit_ns)
        whole = [
            end for s, end in enumerate(case.ends[: found.kept], 1) if case.there_ns(s) <= at_ns and end <= committed
        ]
        assert case.fits(max(whole, default=0), committed)


@given(cases())
def test_a_wait_is_named_if_and_only_if_a_commit_is_later_than_it_could_be(case):
    found = case.gate()
    for n, (at_ns, step) in enumerate(zip(found.commit_ns, found.waits_for, strict=True)):
        earlier = [t for t in found.commit_ns[:n] if t < at_ns]
        could_ns = max([*earlier, case.arrive_ns[n]])
        assert (step >= 0) == (at_ns > could_ns) or at_ns in found.commit_ns[:n]
        assert step < found.kept


def test_a_step_that_overtakes_another_counts_only_with_it():
    case = Case([1, 1, 1], 0, [1, 2, 3], [30, 5, 6], [10, 20, 25], most=2, most_commits=None)
    assert case.gate() == Gated([10, 20, 30], [-1, -1, 0], 1)


def test_groups_become_steps_and_all_with_pending_updates_one():
    network = Network.star(10**9)
    forwarding = Forwarding(
        shape=Shape.TREE,
        arrive_ns=np.array([9, 5, 5, 7], np.int64),
        groups=[(0, 1), (1, 3), (3, 4)],
        last=[0, 3, 4],
        transfers=(),
        lines=World(network, [], []).lines,
    )
    # Two folds of five pending updates; the second is in one group with the batch's first.
    assert Steps.of(forwarding, folded=2, behind=5) == Steps([6, 7], [9, 7], [9, 9], [4, 5])
    assert Steps.of(forwarding, folded=0, behind=0) == Steps([1, 3, 4], [9, 5, 7], [9, 9, 9], [1, 4, 5])
    assert Steps.of(forwarding, folded=5, behind=9) == Steps((), (), (), ())
