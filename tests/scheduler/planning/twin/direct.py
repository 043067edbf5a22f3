"""What goes by itself, as it is written: updates in their order, gets the shortest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mlfabric.network import Profile
from mlfabric.protocol import GetId, UpdateId
from mlfabric.scheduler.planning.values import GetCandidate
from tests.scheduler.planning.twin.network import TwinNetwork


class Item(NamedTuple):
    """What one worker sends: its updates, and its profile to the destination if that is settled.

    ``reserved``: it is on its way, so that the network knows of it.
    """

    members: tuple[UpdateId, ...]
    source: str
    size_bytes: int
    ready_ns: int
    direct: Profile | None = None
    reserved: bool = False


class Sent(NamedTuple):
    """One transfer."""

    source: str
    destination: str
    size_bytes: int
    profile: Profile
    arrive_ns: int
    members: tuple[UpdateId, ...]


def sent_over(network: TwinNetwork, item: Item, destination: str) -> Sent | None:
    """Plan one transfer, and reserve it; None if it does not end before the horizon."""
    path = network.path(item.source, destination)
    profile = item.direct or network.transfer(path, item.size_bytes, item.ready_ns)
    if profile is None:
        return None
    if not item.reserved:
        network.reserve(path, profile)
    arrive_ns = profile.end_ns + network.latency_ns(path)
    return Sent(item.source, destination, item.size_bytes, profile, arrive_ns, item.members)


def send_all(lot: Sequence[Item], network: TwinNetwork, destination: str) -> list[Sent]:
    """Send a lot in turn up to the first item that cannot be sent; the network loses what that takes."""
    found: list[Sent] = []
    for item in lot:
        sent = sent_over(network, item, destination)
        if sent is None:
            break
        found.append(sent)
    return found


@dataclass
class TwinAnswers:
    """When each get is answered, and what is sent."""

    answers: dict[GetId, int] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    deferred: set[GetId] = field(default_factory=set)


def answer_all(gets: Sequence[GetCandidate], network: TwinNetwork, server: str, now_ns: int) -> TwinAnswers:
    """Let the server answer gets, the shortest first; defer what it cannot."""
    found, waiting = TwinAnswers(), list(gets)
    while waiting:
        planned = []
        for get in waiting:
            path = network.path(server, get.destination)
            profile = network.transfer(path, get.size_bytes, max(get.ready_ns, now_ns))
            if profile is not None:
                planned.append((profile.end_ns, get.get, get, profile))
        if not planned:
            found.deferred |= {get.get for get in waiting}
            break
        _, _, get, profile = min(planned, key=lambda p: p[:2])
        item = Item((), server, get.size_bytes, max(get.ready_ns, now_ns), direct=profile)
        sent = sent_over(network, item, get.destination)
        assert sent is not None, "a profile was found"
        found.sent.append(sent)
        found.answers[get.get] = sent.arrive_ns
        waiting.remove(get)
    return found
