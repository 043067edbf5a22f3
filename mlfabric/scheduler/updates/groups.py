"""What a plan's group asks of whom: which aggregator adds up which updates and which earlier sums. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlfabric.network import Path, Profile
from mlfabric.planning import Group, Plan, Transfer
from mlfabric.protocol import UpdateId

__all__ = ["Gathering", "Leg", "gather", "hops"]


@dataclass(frozen=True, slots=True)
class Leg:
    """How one update comes to the host that adds it up."""

    update: UpdateId
    path: Path
    profile: Profile


@dataclass(frozen=True, slots=True)
class Gathering:
    """What one host adds up, and the transfer by which it goes on.

    Args:
        legs: the updates that come from their workers.
        children: the places, in the list of all gatherings of the group, of those that go into this one.
    """

    transfer: Transfer
    legs: tuple[Leg, ...]
    children: tuple[int, ...]


def gather(found: Plan, group: Group) -> list[Gathering]:
    """Return what the hosts on a group's way add up, receivers before senders.

    An update without a transfer of its own leaves the very host that adds it up.

    Args:
        group: of the plan; not DIRECT.
    """
    (root,) = group.last
    indices, gatherings = [root], list[Gathering]()
    for index in indices:  # grows while it is walked
        transfer, legs, children = found.transfers[index], list[Leg](), list[int]()
        carried: set[UpdateId] = set()
        for i in transfer.inputs:
            given = found.transfers[i]
            carried.update(given.members)
            if given.inputs or len(given.members) > 1:
                children.append(len(indices))
                indices.append(i)
            else:
                legs.append(Leg(given.members[0], given.path, given.profile))
        here = Profile(transfer.ready_ns, transfer.ready_ns, ())
        legs += [Leg(member, (), here) for member in transfer.members if member not in carried]
        gatherings.append(Gathering(transfer, tuple(legs), tuple(children)))
    return gatherings


def hops(gatherings: Sequence[Gathering]) -> int:
    """Return how many transfers follow one another on the longest way through a group, receivers before senders."""
    longest = [0] * len(gatherings)
    for place in reversed(range(len(gatherings))):
        longest[place] = 1 + max((longest[child] for child in gatherings[place].children), default=0)
    return longest[0] + 1
