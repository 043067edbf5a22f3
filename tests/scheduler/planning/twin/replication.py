"""Replication (paper, section 5.3, mended) as it is written; every sum is made anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.problem import DivergenceBound, PlannerConfig, Replica
from tests.scheduler.planning.twin.direct import Item, Sent, send_all
from tests.scheduler.planning.twin.network import TwinNetwork


@dataclass
class TwinReplication:
    """When each is committed (fewer than were given: the rest is deferred), the steps kept, their transfers."""

    commit_ns: list[int] = field(default_factory=list)
    steps: list[tuple[tuple[UpdateId, ...], int]] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    punted: list[UpdateId] = field(default_factory=list)


@dataclass
class Lead:
    """Everything that bounds of leads are made of: pending, then what the plan commits."""

    replica: Replica
    norms: Sequence[float]
    gamma: float

    @property
    def pending(self) -> int:
        return len(self.replica.pending)

    def history(self, count: int) -> float:
        """Bound the norm of the history after so many planned commits."""
        weighed = [self.gamma ** (count - i) * norm for i, norm in enumerate(self.norms[:count], start=1)]
        return math.fsum([self.gamma**count * self.replica.history_norm, *weighed])

    def divergence(self, held: int, commits: int) -> float:
        """Bound the divergence after so many planned commits if the first ``held`` of all are with the replica."""
        steps = [p.step_norm for p in self.replica.pending[held:]]
        first = max(0, held - self.pending)
        norms = self.norms[first:commits]
        n, gamma = len(norms), self.gamma
        if n == 0:
            return math.fsum(steps)
        of_history = math.fsum(gamma**i for i in range(1, n + 1)) * self.history(first)
        of_updates = [(1 - gamma ** (n - j + 1)) / (1 - gamma) * norm for j, norm in enumerate(norms, start=1)]
        return math.fsum([*steps, of_history, *of_updates])

    def length(self, held: int, commits: int) -> int:
        return max(0, self.pending + commits - held)

    def keeps(self, bound: DivergenceBound, held: int, commits: int) -> bool:
        fits = bound.updates is None or self.length(held, commits) <= bound.updates
        return fits and self.divergence(held, commits) <= bound.norm


def replicate(
    updates: Sequence[Item],
    norms: Sequence[float],
    arrive_ns: Sequence[int],
    network: TwinNetwork,
    replica: Replica | None,
    config: PlannerConfig,
    now_ns: int,
) -> TwinReplication:
    """Plan what the replica gets of updates in the order of their commits, and when those are made.

    Args:
        arrive_ns: of each update, when its group is with the server.
        network: what the transfers to the primary leave free.
    """
    found = TwinReplication()
    commit_ns = now_ns
    for arrived_ns in arrive_ns:
        commit_ns = max(commit_ns, arrived_ns)
        found.commit_ns.append(commit_ns)
    if replica is None:
        return found
    everything = [p.update for p in replica.pending] + [item.members[0] for item in updates]
    bound = strict(config.div_max)
    lead = Lead(replica, norms, config.gamma)
    if bound is None or all(lead.keeps(share(bound, config.replicate_from), 0, c) for c in commits_of(updates)):
        found.punted = everything
        return found
    steps = tentative(updates, everything, network, replica, config, now_ns)
    gate(found, steps, lead, bound, arrive_ns, now_ns)
    held = {update for members, _ in found.steps for update in members}
    found.punted = [update for update in everything if update not in held]
    return found


def strict(bound: DivergenceBound | None) -> DivergenceBound | None:
    """Let a norm of 0 mean no lead at all, not even of updates that are 0."""
    return DivergenceBound(norm=0, updates=0) if bound is not None and bound.norm == 0 else bound


def commits_of(updates: Sequence[Item]) -> range:
    return range(1, len(updates) + 1)


def share(bound: DivergenceBound, part: float) -> DivergenceBound:
    """Return the part of a bound that the lead may reach before anything is sent."""
    updates = None if bound.updates is None else math.floor(part * bound.updates)
    return DivergenceBound(norm=bound.norm if math.isinf(bound.norm) else part * bound.norm, updates=updates)


@dataclass
class Step:
    """What the replica recovers at once, and how many of all updates it then holds."""

    members: tuple[UpdateId, ...]
    arrive_ns: int
    sent: list[Sent]


def tentative(
    updates: Sequence[Item],
    everything: Sequence[UpdateId],
    network: TwinNetwork,
    replica: Replica,
    config: PlannerConfig,
    now_ns: int,
) -> list[Step]:
    """Send everything to the replica in turn, what is pending as one item of each worker."""
    carried = 2 if config.gamma > 0 else 1
    folded: dict[str, list[int]] = {}
    for i, p in enumerate(replica.pending):
        folded.setdefault(p.update.worker, []).append(i)
    lot = []
    for places in folded.values():
        of_worker = [replica.pending[i] for i in places]
        tensors = carried if len(of_worker) > 1 else 1
        size_bytes = tensors * max(p.size_bytes for p in of_worker)
        members = tuple(p.update for p in of_worker)
        lot.append(Item(members, of_worker[-1].source, size_bytes, now_ns))
    lot += [item._replace(direct=None, reserved=False) for item in updates]
    sent = send_all(lot, network.copy(), replica.host)
    return steps_of(sent, everything, len(folded), len(replica.pending))


def steps_of(sent: Sequence[Sent], everything: Sequence[UpdateId], folded: int, pending: int) -> list[Step]:
    """Make each transfer a step; those of pending updates are one, or none if not all of these can be sent."""
    if len(sent) < folded:
        return []
    steps = [
        Step((everything[place],), transfer.arrive_ns, [transfer])
        for place, transfer in enumerate(sent[folded:], start=pending)
    ]
    if folded:
        arrive_ns = max(transfer.arrive_ns for transfer in sent[:folded])
        steps.insert(0, Step(tuple(everything[:pending]), arrive_ns, list(sent[:folded])))
    return steps


def gate(
    found: TwinReplication,
    steps: Sequence[Step],
    lead: Lead,
    bound: DivergenceBound,
    arrive_ns: Sequence[int],
    now_ns: int,
) -> None:
    """Keep the steps that come by the last commit, and more where a commit has to wait for them.

    A step counts once its last member is committed; what waits for a step that it is in is committed with all of it.
    """
    there_ns = [max(step.arrive_ns for step in steps[: s + 1]) for s in range(len(steps))]
    holds = [sum(len(step.members) for step in steps[: s + 1]) for s in range(len(steps))]
    kept = sum(at_ns <= max(found.commit_ns, default=now_ns) for at_ns in there_ns)
    times: list[int] = []
    while len(times) < len(arrive_ns):
        c = len(times) + 1
        at_ns = max([now_ns, *times, arrive_ns[c - 1]])
        held = [holds[s] for s in range(kept) if there_ns[s] <= at_ns and holds[s] <= lead.pending + c]
        if lead.keeps(bound, max(held, default=0), c):
            times.append(at_ns)
            continue
        for s in range(len(held), len(steps)):
            last = max(c, holds[s] - lead.pending)
            if lead.keeps(bound, holds[s], last):
                times += [max([at_ns, there_ns[s], *arrive_ns[:last]])] * (last - c + 1)
                kept = max(kept, s + 1)
                break
        else:
            break
    found.commit_ns = times
    found.steps = [(step.members, step.arrive_ns) for step in steps[:kept]]
    found.sent = [sent for step in steps[:kept] for sent in step.sent]
