"""Updates in parts while they are being ordered, and what both rules for drops share.

Candidates are sorted by (deadline, worker, id): an index into them is their rank at equal ``t_en``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mlfabric.network import Network, Profile
from mlfabric.protocol import DropReason
from mlfabric.scheduler.planning import leaving
from mlfabric.scheduler.planning.fluid.lines import Lines
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.parts import PartsReserver, Thing, whole
from mlfabric.scheduler.planning.plan import Kind, Toward, Transfer
from mlfabric.scheduler.planning.values import Candidate, Left, Ordering, Pick, Slot

__all__ = ["PartsContest"]


class PartsContest:
    """Candidates, their deadlines, the profiles found so far by rank, and who was left.

    Without a delay bound every deadline is None; ``due`` then says that none of them binds.
    """

    def __init__(
        self, candidates: Iterable[Candidate], servers: Sequence[str], *, v_init: int, tau_max: int | None, now_ns: int
    ) -> None:
        self.servers, self.now_ns, self.tau_max = servers, now_ns, tau_max
        self.left: list[Left] = []
        shift = None if tau_max is None else tau_max - v_init + 1
        self.candidates = sorted(self._within_bound(candidates, v_init, shift), key=_rank(shift is not None))
        self.deadlines = [None if shift is None else c.computed_from + shift for c in self.candidates]
        self.due = [len(self.candidates) + 1 if d is None else d for d in self.deadlines]
        self.profiles = {i: c.in_flight_parts for i, c in enumerate(self.candidates) if c.in_flight is not None}
        self.flying = frozenset(self.profiles)
        self.binding = 0

    def _within_bound(self, candidates: Iterable[Candidate], v_init: int, shift: int | None) -> Iterator[Candidate]:
        """Leave who is too late for any position."""
        for candidate in candidates:
            if shift is None or candidate.computed_from + shift >= 1:
                yield candidate
            else:
                self.left.append(leaving.too_late(candidate, v_init, self.tau_max))

    def ready_ns(self, i: int) -> int:
        """Return when a candidate can start; what is in flight has done so."""
        ready_ns = self.candidates[i].ready_ns
        return ready_ns if i in self.flying else max(ready_ns, self.now_ns)

    def reserver(self, world: World) -> PartsReserver:
        """Return the reserver of all candidates, by rank; it would send again what is in flight."""
        pairs = [[(c.source, server) for server in self.servers] for c in self.candidates]
        things = [Thing(pairs[i], c.part_bytes, self.ready_ns(i)) for i, c in enumerate(self.candidates)]
        return PartsReserver.of(world, things)

    def solo_ends(self, reserver: PartsReserver, lines: Lines) -> list[int]:
        """Return when each would have arrived if it were alone."""
        ends = reserver.solo_ends(lines)
        for i in self.flying:
            ends[i] = self.end_ns(i)
        return ends

    def end_ns(self, i: int) -> int:
        """Return when the last part has been sent; its profiles are known."""
        return whole(self.profiles[i]).end_ns

    def leave(self, i: int, left: Left) -> None:
        """Leave a candidate out of the batch."""
        self.profiles.pop(i, None)
        self.left.append(left)

    def leave_unreachable(self, i: int) -> None:
        """Leave a candidate that cannot be sent before the horizon."""
        candidate = self.candidates[i]
        reason = f"nothing passes from {candidate.source} to one of the servers"
        self.leave(i, Left(update=candidate.update, cause=DropReason.NO_CAPACITY, reason=reason))

    def keep(self, found: Mapping[int, tuple[Profile, ...]]) -> None:
        """Take profiles that were found and reserved."""
        self.profiles.update(found)

    def ordering(self, by_position: Sequence[int]) -> Ordering:
        """Make slots of these candidates, whose profiles are known."""
        slots, commit_ns = [], self.now_ns
        for position, i in enumerate(by_position, start=1):
            profile = whole(self.profiles[i])
            commit_ns = max(commit_ns, profile.end_ns)
            slot = Slot(
                update=self.candidates[i].update,
                position=position,
                profile=profile,
                commit_ns=commit_ns,
                pick=self._pick(i),
                deadline=self.deadlines[i],
                planned_ns=self.now_ns,
            )
            slots.append(slot)
        return Ordering(slots=tuple(slots), left=tuple(self.left))

    def _pick(self, i: int) -> Pick:
        if i in self.flying:
            return Pick.IN_FLIGHT
        return Pick.DEADLINE if self.due[i] <= self.binding else Pick.SHORTEST

    def transfers(self, i: int, network: Network) -> Iterator[Transfer]:
        """Make the transfers of one update, by server."""
        candidate = self.candidates[i]
        for shard, (server, profile) in enumerate(zip(self.servers, self.profiles[i], strict=True)):
            path = network.path(candidate.source, server)
            yield Transfer(
                kind=Kind.UPDATE,
                toward=Toward.PRIMARY,
                source=candidate.source,
                destination=server,
                path=path,
                size_bytes=candidate.part_bytes[shard],
                ready_ns=self.ready_ns(i),
                profile=profile,
                arrive_ns=profile.end_ns + network.latency_ns(path),
                members=(candidate.update,),
                shard=shard,
                planned=i not in self.flying,
            )


def _rank(is_bound: bool) -> Callable[[Candidate], tuple[int, tuple[str, int, int]]]:
    """At equal ``t_en`` the earlier deadline goes first, then (worker, id)."""
    return lambda candidate: (candidate.computed_from if is_bound else 0, candidate.update)
