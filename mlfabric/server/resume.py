"""What a server knows of its models, into checkpoints and out of them again: going on from where one was written.

The scheduler names the server epoch under which a resumed server goes on (design, section 6); versions go on from the
checkpoint's. Updates computed on versions after that were lost with them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, cast

from mlfabric.errors import FabricError
from mlfabric.model.samples import NO_SAMPLES, SampleAccount, SampleCounts
from mlfabric.protocol import AppliedIds, ModelVersion, ServerHolds
from mlfabric.server.checkpoint import CheckpointDir, CheckpointExtra, Plain
from mlfabric.server.commit_log import lost_after
from mlfabric.server.store import ModelStore

__all__ = ["extra_of", "resume"]

log = logging.getLogger("mlfabric.server")


def extra_of(
    version: ModelVersion,
    applied: Iterable[AppliedIds],
    began: Iterable[ModelVersion],
    samples: SampleCounts = NO_SAMPLES,
) -> CheckpointExtra:
    """Return what a checkpoint of this version says besides its tensors: everything up to it is in it.

    Args:
        version: of the checkpoint.
        applied: which updates are in it.
        began: the path to the present epoch, see ``protocol/lineage.py``.
        samples: what was trained on, and what not.
    """
    return CheckpointExtra(
        server_epoch=version.epoch,
        log_position=version.number,
        applied=_plain(applied),
        epochs=_listed(tuple(began)),
        samples={name: _listed(value) for name, value in asdict(samples).items()},
    )


def _listed(value: Any) -> Plain:
    """Return a value with lists in place of tuples."""
    plain: Plain = [_listed(one) for one in value] if isinstance(value, tuple) else value
    return plain


def _counts(plain: dict[str, Plain]) -> SampleCounts:
    """Return the account that a checkpoint holds; that of an earlier release holds none."""
    try:
        rows = cast(dict[str, list[list[int]]], plain)
        account = SampleAccount(
            SampleCounts(
                runs=tuple((start, stop, times) for start, stop, times in rows.get("runs", ())),
                dropped=tuple((start, stop) for start, stop in rows.get("dropped", ())),
                lost=tuple((start, stop) for start, stop in rows.get("lost", ())),
                rollbacks=tuple((epoch, kept, last) for epoch, kept, last in rows.get("rollbacks", ())),
                unplaced=cast(int, plain.get("unplaced", 0)),
            )
        )
        account.validate()
    except (AssertionError, TypeError, ValueError) as error:
        raise FabricError(f"the checkpoint's account of samples is damaged: {error}") from error
    return account.counts()


def _plain(applied: Iterable[AppliedIds]) -> Plain:
    return [
        [i.worker, i.incarnation, i.low, [[counter, *version, tau] for counter, version, tau in i.recent]]
        for i in applied
    ]


def _ids(plain: Plain) -> tuple[AppliedIds, ...]:
    try:
        rows = cast(list[list[object]], plain)
        return tuple(_row(*row) for row in rows)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise FabricError(f"the checkpoint's list of applied updates is damaged: {error}") from error


def _began(plain: Plain, epoch: int) -> tuple[ModelVersion, ...]:
    """Return the path to the epoch of a checkpoint.

    Those of releases in which servers named epochs may lack the epoch itself, and hold negative numbers: of epochs that
    kept nothing, or for which nothing counted that was computed before.
    """
    try:
        path = [ModelVersion(*row) for row in cast(list[list[int]], plain)]
    except TypeError as error:
        raise FabricError(f"the checkpoint's list of server epochs is damaged: {error}") from error
    first = max([place for place, began in enumerate(path) if began.number < 0], default=0)
    path = [ModelVersion(began.epoch, max(0, began.number)) for began in path[first:]]
    return (*path, ModelVersion(epoch, 0)) if all(began.epoch != epoch for began in path) else tuple(path)


def _row(worker: str, incarnation: int, low: int, recent: list[tuple[int, int, int, int]]) -> AppliedIds:
    kept = tuple((counter, ModelVersion(epoch, number), tau) for counter, epoch, number, tau in recent)
    return AppliedIds(worker=worker, incarnation=incarnation, low=low, recent=kept)


def resume(checkpoints: CheckpointDir, server: str) -> list[tuple[ServerHolds, ModelStore]]:
    """Read the newest checkpoint of every model in the directory.

    Returns:
        What the server holds of each model, under the server epoch of its checkpoint, and its store.

    Raises:
        FabricError: a checkpoint cannot be read; says which and why.
    """
    out = []
    for loaded in checkpoints.load_newest():
        name = loaded.store.spec.name
        kept = ModelVersion(loaded.extra.server_epoch, loaded.store.version)
        account = SampleAccount(_counts(loaded.extra.samples))
        lost, last = lost_after(checkpoints.directory, name, kept)
        if last > kept.number:
            account.lose(lost, kept.epoch, kept.number, last)
            span = f"{kept.number + 1} to {last}"
            log.warning("model %s: versions %s came after its last checkpoint and are lost", name, span)
        *earlier, present = _began(loaded.extra.epochs, kept.epoch)
        holds = ServerHolds(
            server=server,
            spec=loaded.store.spec,
            version=kept,
            initialised=True,
            applied=_ids(loaded.extra.applied),
            epoch_base=present.number,
            earlier=tuple(earlier),
            samples=account.counts(),
        )
        out.append((holds, loaded.store))
    return out
