"""A plan in a few sentences: what goes first, what is summed, what that saves, what waits or is left out, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

from mlfabric.network import Network
from mlfabric.planning.plan import Group, Kind, Plan
from mlfabric.planning.problem import Consistency, Shape
from mlfabric.planning.words import Names, joined, size_text, span_text
from mlfabric.protocol import GetId, UpdateId

__all__ = ["explain"]

_MOST_GROUPS = 6
_MOST_REASONS = 4


def explain(plan: Plan, network: Network | None = None) -> str:
    """Say in a few sentences what a plan does and why; the first line is a summary.

    Args:
        network: as it was when the plan was made; with it, sums are compared with sending everything directly.
    """
    teller = _Teller(plan)
    parts = [teller.order(), teller.sums(), teller.saving(network), teller.waits(), teller.left_out()]
    parts += [teller.replica(), teller.gets()]
    return "\n".join([teller.summary(), *(f"- {sentence}" for part in parts for sentence in part)])


class _Teller:
    """Tells of one plan; times are counted from the instant at which it was made."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.names = Names(plan)
        self.reduces = plan.config.consistency is Consistency.ALL_REDUCE

    def when(self, at_ns: int) -> str:
        return span_text(at_ns - self.plan.state.now_ns)

    def summary(self) -> str:
        plan = self.plan
        parts = []
        if plan.batch.updates:
            parts.append(self._commits())
        if plan.batch.gets:
            answered = max((g.arrive_ns for g in plan.gets), default=plan.state.now_ns)
            within = f" within {self.when(answered)}" if plan.gets else ""
            parts.append(f"{len(plan.gets)} of {_count(plan.batch.gets, 'get')} answered{within}")
        deferred = len(plan.deferred)
        parts += [f"{len(plan.drops)} dropped"] * bool(plan.drops) + [f"{deferred} deferred"] * bool(deferred)
        return ("; ".join(parts) or "Nothing to plan") + "."

    def _commits(self) -> str:
        plan = self.plan
        sizes = sorted({c.size_bytes for c in plan.batch.updates})
        size = size_text(sizes[0]) if len(sizes) == 1 else f"{size_text(sizes[0])} to {size_text(sizes[-1])}"
        what = "summed for all workers" if self.reduces else "committed"
        head = f"{len(plan.commits)} of {_count(plan.batch.updates, 'update')} ({size}) {what}"
        if not plan.commits:
            return head
        ends = [c.commit_ns - plan.state.now_ns for c in plan.commits]
        mean = f", {span_text(sum(ends) // len(ends))} on average" if len(ends) > 1 else ""
        return f"{head} within {span_text(max(ends))}{mean}"

    def order(self) -> Iterator[str]:
        """What is committed when, and why it goes first."""
        plan = self.plan
        if not plan.commits or self.reduces:
            return
        rows = [
            f"{self.names.all([c.update for c in together])} at {self.when(at_ns)}"
            for at_ns, together in groupby(plan.commits, key=lambda c: c.commit_ns)
        ]
        more = [f"... until {self.when(plan.commits[-1].commit_ns)}"] if len(rows) > _MOST_GROUPS else []
        yield f"Committed: {'; '.join(rows[:_MOST_GROUPS] + more)}."
        first = plan.commits[0]
        yield f"{self.names.of(first.update)} goes first: {first.reason}."
        due = [c for c in plan.commits[1:] if c.reason.startswith("deadline")]
        if due:
            places = [f"{self.names.of(c.update)} ({c.position} of at most {c.deadline})" for c in due]
            yield f"Sent ahead of shorter ones for their deadlines: {joined(places)}."

    def sums(self) -> Iterator[str]:
        """Which updates are sent together, and how."""
        if self.reduces:
            yield from self._reduction()
            return
        together = [group for group in self.plan.groups if len(group.members) > 1]
        yield from map(self._sum, together[:_MOST_GROUPS])
        if len(together) > _MOST_GROUPS:
            yield f"{_count(together[_MOST_GROUPS:], 'more sum')} of the same kind."

    def _sum(self, group: Group) -> str:
        plan, last = self.plan, self.plan.transfers[group.last[0]]
        members = self.names.all(group.members)
        end = f"{_count(last.members, 'update')} reach {last.destination} as one of {size_text(last.size_bytes)}"
        at = f"at {self.when(last.arrive_ns)}"
        if group.shape is Shape.TREE:
            depth, hosts = _depth(plan, group.last[0]), len(_sources(plan, group.last[0]))
            shape = "a chain" if depth == hosts else "a tree"
            return (
                f"{members} are added up along {shape} of {hosts} hosts that ends at {last.source}, "
                f"each passing on what it has while more arrives: {end} {at}."
            )
        since = self.when(max((plan.transfers[k].arrive_ns for k in last.inputs), default=last.ready_ns))
        return f"{members} are added up at {last.source}, which has them all at {since}: {end} {at}."

    def _reduction(self) -> Iterator[str]:
        plan = self.plan
        kinds = {t.kind for t in plan.transfers}
        if Kind.RING in kinds:
            ring = [t for t in plan.transfers if t.kind is Kind.RING]
            yield f"The sum goes in equal parts around a ring: {joined([t.source for t in ring], 8)}, {ring[0].source}."
        elif plan.transfers:
            results = [t for t in plan.transfers if t.kind is Kind.MODEL]
            roots = {(t.source, t.stripe) for t in results} - {(t.destination, t.stripe) for t in results}
            into = [t for t in plan.transfers if t.kind is not Kind.MODEL and (t.destination, t.stripe) in roots]
            complete = self.when(max((t.arrive_ns for t in into), default=plan.state.now_ns))
            early = min((t.profile.start_ns for t in results), default=0)
            count = len(plan.stripe_bytes)
            how = f"in {count} stripes along trees" if count > 1 else "along a tree"
            yield (
                f"The sum is made {how} into {joined(sorted(host for host, _ in roots))}, complete at {complete}, "
                f"and goes out from there from {self.when(early)} on."
            )

    def saving(self, network: Network | None) -> Iterator[str]:
        """What the sums save."""
        plan = self.plan
        if (
            network is None
            or self.reduces
            or not plan.commits
            or all(group.shape is Shape.DIRECT for group in plan.groups)
        ):
            return
        direct = _directly(plan, network)
        if direct is None:
            yield "Sent one by one, some of them could not be sent at all."
            return
        found = _reached(plan.state.now_ns, [c.arrive_ns for c in plan.commits])
        last, mean = direct[-1] - found[-1], (sum(direct) - sum(found)) // len(found)
        yield (
            f"Sent one by one, the last would arrive at {self.when(direct[-1])} instead of {self.when(found[-1])}: "
            f"sums make it {_change(last)}, the average {_change(mean)}."
        )

    def waits(self) -> Iterator[str]:
        """Which commits wait for the replica."""
        reached, waiting = self.plan.state.now_ns, []
        for commit in self.plan.commits:
            reached = max(reached, commit.arrive_ns)
            if commit.commit_ns > reached and not self.reduces:
                waiting.append(f"{self.names.of(commit.update)} ({span_text(commit.commit_ns - reached)})")
        if waiting:
            one = len(waiting) == 1
            yield (
                f"{joined(waiting)} {'waits' if one else 'wait'} for the replica: "
                "committed at once, the primary would be further ahead of it than the bound allows."
            )

    def left_out(self) -> Iterator[str]:
        """What is dropped or deferred, and why."""
        deferred = self.plan.deferred
        drops = [(left.update, f"{left.cause.value} ({left.reason})") for left in self.plan.drops]
        yield from self._by_reason("Dropped", drops)
        updates = [(d.what, d.reason) for d in deferred if isinstance(d.what, UpdateId)]
        yield from self._by_reason("Not committed yet", updates)
        gets = [(d.what, d.reason) for d in deferred if isinstance(d.what, GetId)]
        yield from self._by_reason("Gets deferred", gets)

    def _by_reason(self, head: str, rows: Iterable[tuple[UpdateId | GetId, str]]) -> Iterator[str]:
        by_reason: dict[str, list[UpdateId | GetId]] = {}
        for what, reason in rows:
            by_reason.setdefault(reason, []).append(what)
        for reason, those in islice(by_reason.items(), _MOST_REASONS):
            yield f"{head}: {self.names.all(those)}: {reason}."
        rest = [what for those in islice(by_reason.values(), _MOST_REASONS, None) for what in those]
        if rest:
            yield f"{head} for reasons like these: {self.names.all(rest)}."

    def replica(self) -> Iterator[str]:
        """What the replica gets in time and what it gets later."""
        plan = self.plan
        if plan.state.replica is None:
            return
        steps = [f"{self.names.all(step.members)} at {self.when(step.arrive_ns)}" for step in plan.replica_steps]
        if steps:
            yield f"The replica ({plan.state.replica.host}) can recover {joined(steps, _MOST_GROUPS)}."
        yield from self._by_reason("Sent to the replica later", [(p.update, p.reason) for p in plan.punts])

    def gets(self) -> Iterator[str]:
        """Which worker gets a model, from which host and when."""
        plan = self.plan
        rows = []
        for answer in sorted(plan.gets, key=lambda g: g.arrive_ns):
            answered = plan.transfers[answer.transfer]
            relayed = bool(answered.inputs) and answered.source != answered.destination
            through = f" from {answered.source}" if relayed else ""
            rows.append(f"{self.names.of(answer.get)}{through} at {self.when(answer.arrive_ns)}")
        if rows:
            yield f"Models: {joined(rows, _MOST_GROUPS)}."


def _count(things: Iterable[object], word: str) -> str:
    number = len(list(things))
    return f"{number} {word}" + "s" * (number != 1)


def _change(saved_ns: int) -> str:
    if saved_ns == 0:
        return "neither earlier nor later"
    return f"{span_text(abs(saved_ns))} {'earlier' if saved_ns > 0 else 'later'}"


def _sources(plan: Plan, last: int) -> set[str]:
    """The hosts that a sum is made of."""
    hosts, waiting = set(), [last]
    while waiting:
        transfer = plan.transfers[waiting.pop()]
        hosts.add(transfer.source)
        waiting += transfer.inputs
    return hosts


def _depth(plan: Plan, last: int) -> int:
    """How many transfers one after the other a sum takes at most."""
    depths: dict[int, int] = {}
    for i in range(last + 1):
        depths[i] = 1 + max((depths[k] for k in plan.transfers[i].inputs), default=0)
    return depths[last]


def _directly(plan: Plan, network: Network) -> list[int] | None:
    """When each commit would have arrived had each update been sent by itself, in the same order; None for never."""
    candidates = {c.update: c for c in plan.batch.updates}
    draft = network.draft()
    arrivals = []
    for commit in plan.commits:
        candidate = candidates[commit.update]
        path = network.path(candidate.source, plan.state.server)
        profile = candidate.in_flight
        if profile is None:
            profile = draft.transfer(path, candidate.size_bytes, max(candidate.ready_ns, plan.state.now_ns))
            if profile is None:
                return None
            draft.reserve(path, profile)
        arrivals.append(profile.end_ns + network.latency_ns(path))
    return _reached(plan.state.now_ns, arrivals)


def _reached(now_ns: int, arrivals: Iterable[int]) -> list[int]:
    """Commit times: each waits for those before it."""
    reached, out = now_ns, []
    for arrive_ns in arrivals:
        reached = max(reached, arrive_ns)
        out.append(reached)
    return out
