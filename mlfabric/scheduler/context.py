"""What all of the scheduler's state shares: its configuration, the network, tickets, who is here. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from itertools import count

from mlfabric.model.specs import Member, Role, Term
from mlfabric.network import Network, Path, down_link, up_link
from mlfabric.planning import Aggregator
from mlfabric.protocol import GetId, SumId
from mlfabric.protocol.lineage import name_of_epoch
from mlfabric.scheduler.limits import Limits
from mlfabric.scheduler.members.compute_times import StepTimes
from mlfabric.scheduler.records import MemberRecord, MemberState, PlanCount

__all__ = ["SEQ_BITS", "Context", "NumberMaker", "SchedulerConfig", "TicketMaker"]

SEQ_BITS = 22
MOST_OTHER_AGGREGATORS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Settings of the scheduler's state machine.

    Args:
        term: this scheduler's; greater than that of any before it.
        ticket_secret: random bytes from which tickets are made; at least 16.
        batch_window_ns: the longest that an update waits for others while the ingress is busy, where nobody sums.
        silence_ns: a member whose stream broke may come back within this time before it counts as left.
        round_patience_ns: so long a round of AllReduce waits for a worker whose stream broke, before the others do it
            without.
        default_bps: rate of a link that nobody stated and nobody measured.
        limits: see there.
    """

    term: Term
    ticket_secret: bytes
    batch_window_ns: int = 100_000_000
    silence_ns: int = 10_000_000_000
    round_patience_ns: int = 1_000_000_000
    default_bps: int = 10_000_000_000
    limits: Limits = field(default_factory=Limits)


class TicketMaker:
    """One-time ids of transfers: unguessable without the secret, and the same again for the same secret."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) >= 16, "a ticket secret needs 16 bytes or more"
        self._keyed = hashlib.blake2b(key=secret, digest_size=16)
        self._numbers = count(1)

    def next(self) -> bytes:
        """Return 16 bytes that were never returned before."""
        made = self._keyed.copy()
        made.update(next(self._numbers).to_bytes(8, "big"))
        return made.digest()


class NumberMaker:
    """Ids of what the scheduler itself brings about; a scheduler of another term gives others.

    ``last_server_epoch`` is the server epoch that was named last: none was named yet that is above it. ``rounds`` is
    how many attempts at rounds were begun, of all models: those of a model that ended and began anew go on from there.
    """

    def __init__(self, term: int) -> None:
        self._term = term
        self._sums, self._gets = count(), count()
        self.rounds = 0
        self.last_server_epoch = name_of_epoch(term, 0)

    def next_server_epoch(self) -> int:
        """Name a server epoch: it is above all that were named before, also by other schedulers."""
        self.last_server_epoch += 1
        return self.last_server_epoch

    def next_sum(self) -> SumId:
        """Return the id of a new sum."""
        return SumId(self._term, next(self._sums))

    def next_get(self, aggregator: Member) -> GetId:
        """Return the id of a new get of an aggregator's own."""
        return GetId(aggregator.name, aggregator.incarnation, (self._term << SEQ_BITS) + next(self._gets))


@dataclass(slots=True)
class Context:
    """Shared by the scheduler's parts; each changes only what it is named for."""

    config: SchedulerConfig
    network: Network
    tickets: TicketMaker
    numbers: NumberMaker
    members: dict[str, MemberRecord] = field(default_factory=dict)
    count: PlanCount = field(default_factory=PlanCount)
    steps: StepTimes = field(default_factory=StepTimes)
    _of_role: dict[Role, dict[str, MemberRecord]] = field(init=False, default_factory=lambda: {r: {} for r in Role})

    def admit(self, record: MemberRecord) -> None:
        """Take in a member that joined, in the place of whoever had its name."""
        name = record.member.name
        for named in self._of_role.values():
            named.pop(name, None)
        self.members[name] = self._of_role[record.member.role][name] = record

    def forget(self, name: str) -> None:
        """Remember nothing of a member that has left."""
        record = self.members.pop(name)
        self._of_role[record.member.role].pop(name, None)
        self.steps.forget(name)

    def is_here(self, name: str) -> bool:
        """Tell whether a member of this name can be talked to."""
        record = self.members.get(name)
        return record is not None and record.state is MemberState.HERE

    def is_live(self, name: str, incarnation: int) -> bool:
        """Tell whether this very incarnation of a member can be talked to."""
        return self.is_here(name) and self.members[name].member.incarnation == incarnation

    def here(self, role: Role) -> list[MemberRecord]:
        """Return the members of this role that can be talked to, by name."""
        named = self._of_role[role]
        if not named:
            return []
        found = [m for m in named.values() if m.state is MemberState.HERE]
        return sorted(found, key=lambda m: m.member.name) if len(found) > 1 else found

    def host(self, name: str) -> str:
        """Return the host of a member that joined at least once."""
        return self.members[name].member.host

    def address(self, name: str) -> str:
        """Return where a member that joined at least once accepts data connections."""
        return self.members[name].member.address

    def aggregators(self, busy: Mapping[str, int], near: Set[str]) -> dict[str, tuple[Member, Aggregator]]:
        """Return by host an aggregator there and what the planner is told of it, the least busy first.

        Planning takes longer the more there are: those on hosts of the batch are always among them, of others a few.

        Args:
            busy: how much each aggregator is doing, by name; 0 if it is not in it.
            near: the hosts of the batch.
        """
        records = sorted(self.here(Role.AGGREGATOR), key=lambda m: busy.get(m.member.name, 0))
        found: dict[str, tuple[Member, Aggregator]] = {}
        others = 0
        for record in records:
            host = record.member.host
            if host in found or (host not in near and others == MOST_OTHER_AGGREGATORS):
                continue
            others += host not in near
            found[host] = record.member, Aggregator(host=host, most_updates=record.most_updates)
        return found

    @property
    def has_aggregators(self) -> bool:
        """Whether any aggregator is here."""
        return bool(self.here(Role.AGGREGATOR))

    def ingress_bps(self, member: str, now_ns: int) -> int:
        """Return what the link of a member's host carries towards it."""
        return self.network.rate_bps(down_link(self.members[member].member.host), now_ns)

    def egress_bps(self, member: str, now_ns: int) -> int:
        """Return what the link of a member's host carries away from it."""
        return self.network.rate_bps(up_link(self.members[member].member.host), now_ns)

    def path(self, source: str, destination: str) -> Path:
        """Return the links between the hosts of two members."""
        members = self.members
        return self.network.path(members[source].member.host, members[destination].member.host)
