"""A scheduler on a stage with a model that is cut into two parts, on the servers ``s0`` and ``s1``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mlfabric.model.specs import Method, ModelSpec
from mlfabric.protocol import (
    AppliedIds,
    Commit,
    CommitsReported,
    Conclude,
    DropReason,
    GetId,
    GetRequested,
    InitialReceived,
    Instruction,
    MemberEvent,
    ModelVersion,
    Prepare,
    Prepared,
    PushRequested,
    ServerHolds,
    TransferEnd,
    TransferEnded,
    UpdateId,
)
from mlfabric.scheduler.shards.sharded import ShardedModel
from tests.scheduler.stage import LAYOUT, Stage, push

Told = list[Instruction]
CUT = ModelSpec(name="net", layout=LAYOUT, tau_max=4, shards=2)
PARTS = [replace(CUT.of_shard(shard), server="") for shard in range(2)]


def spec_of(method: Method) -> ModelSpec:
    return replace(CUT, method=method, tau_max=None)


class ShardStage(Stage):
    """One scheduler, two servers, and the clock."""

    @property
    def whole(self) -> ShardedModel:
        return self.state.wholes["net"]

    def placed(self) -> ShardStage:
        """Let two servers join."""
        for server in ("s0", "s1"):
            self.server(server)
        return self

    def begin(self, *workers: str, version: int = 0, spec: ModelSpec = CUT) -> ShardStage:
        """Let two servers and workers join; the model has weights."""
        self.placed()
        for name in workers:
            self.worker(name, spec=spec)
        self.part_weights(version)
        return self

    def part_weights(self, version: int | None = None) -> None:
        """Let both servers have initial weights, at the version that each is at unless one is given."""
        for shard, pushes in enumerate(self.whole.tables):
            at = pushes.version if version is None else ModelVersion(1, version)
            self.tell(InitialReceived(server=f"s{shard}", model=f"net.shard{shard}", version=at))

    def asks(self, worker: str, number: int = 0, computed_from: int = 0, parts: tuple[int, ...] = (0, 1)) -> Told:
        """Let a worker ask to push, part by part."""
        return self._all(part_push(worker, number, shard, computed_from) for shard in parts)

    def arrives(self, worker: str, number: int = 0, parts: tuple[int, ...] = (0, 1), incarnation: int = 1) -> Told:
        """Let parts of a push be with their servers."""
        return self.ends(worker, number, TransferEnd.RECEIVED, parts=parts, incarnation=incarnation)

    def ends(
        self,
        worker: str,
        number: int,
        end: TransferEnd,
        cause: DropReason | None = None,
        parts: tuple[int, ...] = (0, 1),
        incarnation: int = 1,
    ) -> Told:
        """Let parts of a push end so at their servers."""
        return self._all(ended(shard, part(worker, number, shard, incarnation), end, cause) for shard in parts)

    def _all(self, events: Iterable[MemberEvent]) -> Told:
        return [told for event in events for told in self.ask(event)]

    def pushes_all(self, worker: str, number: int = 0, computed_from: int = 0) -> Told:
        return self.asks(worker, number, computed_from) + self.arrives(worker, number)

    def prepares(self, number: int = 1, parts: tuple[int, ...] = (0, 1), epoch: int = 1) -> Told:
        """Let servers prepare the unit of this number."""
        return self._all(prepared(shard, number, epoch) for shard in parts)

    def commits(
        self,
        *pushes: tuple[str, int],
        version: int = 1,
        parts: tuple[int, ...] = (0, 1),
        epoch: int = 1,
        tau: int = 0,
        incarnation: int = 1,
    ) -> Told:
        """Let servers report that pushes made a version."""
        at, out = ModelVersion(epoch, version), list[Instruction]()
        for shard in parts:
            names = [part(worker, number, shard, incarnation) for worker, number in pushes]
            made = tuple(Commit(update=name, version=at, tau=tau, lr=0.1, step_norm=1.0) for name in names)
            out += self.ask(CommitsReported(server=f"s{shard}", model=f"net.shard{shard}", commits=made))
        return out

    def whole_way(self, worker: str, number: int = 0, version: int = 1, unit: int = 1) -> Told:
        """Push, and commit at both parts."""
        self.pushes_all(worker, number, version - 1)
        self.prepares(unit)
        return self.commits((worker, number), version=version)

    def gets(self, worker: str, number: int = 0, parts: tuple[int, ...] = (0, 1), after: int | None = None) -> Told:
        return self._all(part_get(worker, number, shard, after) for shard in parts)


def unit(number: int = 1, epoch: int = 1) -> int:
    return (epoch << 22) + number


def part(worker: str, number: int, shard: int, incarnation: int = 1) -> UpdateId:
    return UpdateId(worker, incarnation, 2 * number + shard)


def part_push(worker: str, number: int, shard: int, computed_from: int = 0, **fields) -> PushRequested:
    plain = push(worker, 2 * number + shard, computed_from, size_bytes=PARTS[shard].layout.size_bytes, **fields)
    return replace(plain, model=f"net.shard{shard}")


def part_get(worker: str, number: int, shard: int, after: int | None = None) -> GetRequested:
    return GetRequested(
        get=GetId(worker, 1, 2 * number + shard),
        model=f"net.shard{shard}",
        min_version=ModelVersion(0, 0),
        after_update=None if after is None else part(worker, after, shard),
    )


def ended(
    shard: int, name: UpdateId | GetId, end: TransferEnd, cause: DropReason | None = None, by: str = ""
) -> TransferEnded:
    return TransferEnded(
        member=by or f"s{shard}", model=f"net.shard{shard}", transfer=name, end=end, cause=cause, detail="told so"
    )


def prepared(shard: int, number: int = 1, epoch: int = 1) -> Prepared:
    return Prepared(server=f"s{shard}", model=f"net.shard{shard}", unit=unit(number, epoch), accepted=True)


def refused(shard: int, *culprits: UpdateId, cause: DropReason | None = None, number: int = 1) -> Prepared:
    return Prepared(
        server=f"s{shard}",
        model=f"net.shard{shard}",
        unit=unit(number),
        accepted=False,
        culprits=culprits,
        cause=cause,
        detail="no",
    )


def prepare(shard: int, *pushes: tuple[str, int], version: int = 1, number: int = 1, epoch: int = 1) -> Prepare:
    return Prepare(
        to=f"s{shard}",
        model=f"net.shard{shard}",
        unit=unit(number, epoch),
        transfers=tuple(part(w, n, shard) for w, n in pushes),
        version=ModelVersion(1, version),
        reason="",
    )


def conclude(shard: int, commit: bool = True, number: int = 1, epoch: int = 1) -> Conclude:
    return Conclude(to=f"s{shard}", model=f"net.shard{shard}", unit=unit(number, epoch), commit=commit, reason="")


def part_holds(shard: int, version: int, *made: tuple[str, int, int], received: tuple[UpdateId, ...] = ()):
    """Return what a server says of its part; ``made`` are worker, push and version."""
    workers = sorted({worker for worker, _, _ in made})
    applied = tuple(
        AppliedIds(
            worker=worker,
            incarnation=1,
            low=0,
            recent=tuple((2 * n + shard, ModelVersion(1, v), 0) for w, n, v in made if w == worker),
        )
        for worker in workers
    )
    return ServerHolds(
        server=f"s{shard}",
        spec=PARTS[shard],
        version=ModelVersion(1, version),
        initialised=True,
        applied=applied,
        received=received,
    )
