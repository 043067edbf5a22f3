"""Algorithm 3 as it is written, mended: every n is tried, each from the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mlfabric.network import Path, Profile
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.problem import Aggregator, Objective
from tests.scheduler.planning.twin.network import TwinNetwork


class Item(NamedTuple):
    """What one worker sends: its updates, and its profile to the destination if that is settled.

    ``reserved``: it is on its way, so that the network knows of it. ``tensors``: how many it travels as.
    """

    members: tuple[UpdateId, ...]
    source: str
    size_bytes: int
    ready_ns: int
    direct: Profile | None = None
    reserved: bool = False
    tensors: int = 1


class Sent(NamedTuple):
    """One transfer."""

    source: str
    destination: str
    size_bytes: int
    profile: Profile
    arrive_ns: int
    members: tuple[UpdateId, ...]


@dataclass
class TwinForwarding:
    """One case: groups of places, when each arrives, all transfers, and what they leave free."""

    network: TwinNetwork
    dry_ns: int
    groups: list[list[int]] = field(default_factory=list)
    arrive_ns: list[int] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def cost(self, objective: Objective, now_ns: int) -> int:
        """Return the sum of all commit times, or the last."""
        commits, reached_ns = [], now_ns
        for group, arrive_ns in zip(self.groups, self.arrive_ns, strict=True):
            reached_ns = max(reached_ns, arrive_ns)
            commits += [reached_ns - now_ns] * len(group)
        return sum(commits) if objective is Objective.MEAN_COMMIT else max(commits, default=0)


class ImpossibleError(Exception):
    """Something cannot be sent before the horizon."""


@dataclass
class Stored:
    """A lot, and how it may travel; ``carried`` is how many tensors a sum of several takes."""

    lot: Sequence[Item]
    network: TwinNetwork
    destination: str
    aggregators: Sequence[Aggregator]
    now_ns: int
    carried: int

    def best(self, objective: Objective, fixed: int) -> TwinForwarding:
        """Return the case of least cost, of equal ones the one with most updates sent directly.

        Without aggregators all go directly. If no case is possible, that of the longest part of the lot, from its
        beginning, that can be sent.
        """
        for length in range(len(self.lot), 0, -1):
            found = []
            for n in range(min(fixed, length) if self.aggregators else length, length + 1):
                try:
                    case = self.case(n, length)
                except ImpossibleError:
                    continue
                found.append((case.cost(objective, self.now_ns), -n, case))
            if found:
                return min(found, key=lambda f: f[:2])[2]
        return self.case(0, 0)

    def case(self, n: int, length: int) -> TwinForwarding:
        """Send the first n directly and the others, up to a place, through aggregators, one after another."""
        case = TwinForwarding(self.network.copy(), self.now_ns)
        for i in range(n):
            self.send_directly(case, i)
        open_groups: list[list[int]] = [[] for _ in self.aggregators]
        members: list[list[Sent]] = [[] for _ in self.aggregators]
        j = 0
        for i in range(n, length):
            while j < len(self.aggregators):
                sent = self.accepted(case, i, j, len(open_groups[j]))
                if sent is not None:
                    case.network.reserve(self.path(sent), sent.profile)
                    case.sent.append(sent)
                    open_groups[j].append(i)
                    members[j].append(sent)
                    break
                self.close(case, open_groups[j], members[j], self.aggregators[j].host)
                j += 1
            else:
                self.deliver(case, [i], self.lot[i])
        if j < len(self.aggregators):
            self.close(case, open_groups[j], members[j], self.aggregators[j].host)
        return case

    def path(self, sent: Sent) -> Path:
        return self.network.path(sent.source, sent.destination)

    def plan(self, case: TwinForwarding, item: Item, destination: str) -> Sent | None:
        path = self.network.path(item.source, destination)
        profile = case.network.transfer(path, item.size_bytes, item.ready_ns)
        if profile is None:
            return None
        arrive_ns = profile.end_ns + self.network.latency_ns(path)
        return Sent(item.source, destination, item.size_bytes, profile, arrive_ns, item.members)

    def send_directly(self, case: TwinForwarding, i: int) -> None:
        item = self.lot[i]
        if item.direct is None:
            self.deliver(case, [i], item)
            return
        path = self.network.path(item.source, self.destination)
        if not item.reserved:
            case.network.reserve(path, item.direct)
        arrive_ns = item.direct.end_ns + self.network.latency_ns(path)
        sent = Sent(item.source, self.destination, item.size_bytes, item.direct, arrive_ns, item.members)
        self.arrived(case, [i], sent)

    def deliver(self, case: TwinForwarding, group: list[int], item: Item) -> None:
        sent = self.plan(case, item, self.destination)
        if sent is None:
            raise ImpossibleError
        case.network.reserve(self.path(sent), sent.profile)
        self.arrived(case, group, sent)

    def arrived(self, case: TwinForwarding, group: list[int], sent: Sent) -> None:
        case.sent.append(sent)
        case.groups.append(group)
        case.arrive_ns.append(sent.arrive_ns)
        case.dry_ns = max(case.dry_ns, sent.profile.end_ns)

    def accepted(self, case: TwinForwarding, i: int, j: int, has: int) -> Sent | None:
        """Plan an update to aggregator j, if that takes it."""
        aggregator = self.aggregators[j]
        if aggregator.most_updates and has >= aggregator.most_updates:
            return None
        sent = self.plan(case, self.lot[i], aggregator.host)
        last = j == len(self.aggregators) - 1
        if sent is None or not (last or sent.profile.end_ns <= case.dry_ns):
            return None
        return sent

    def close(self, case: TwinForwarding, group: list[int], members: list[Sent], host: str) -> None:
        """Send a sum once its last member is there."""
        if not group:
            return
        size_bytes = self.lot[group[0]].size_bytes
        if len(group) > 1:
            size_bytes = self.carried * max(self.lot[i].size_bytes // self.lot[i].tensors for i in group)
        ready_ns = max(sent.arrive_ns for sent in members)
        ids = tuple(update for sent in members for update in sent.members)
        self.deliver(case, group, Item(ids, host, size_bytes, ready_ns))
