"""Checkpoints: one file per model and version, atomic, readable by plain PyTorch.

``torch.load(path, weights_only=True)`` gives a dict of plain values and tensors::

    format          1
    model           {name: tensor}, all tensors of the layout but for rates, which are none of the model's
    history         {name: tensor}, of the PARAMETER tensors: momentum, or ADAM's average of gradients; {} if neither
    squares         {name: tensor}, of the PARAMETER tensors: ADAM's average of squared gradients; else {}
    steps           integer, how many steps ADAM made; else 0
    version, server_epoch, log_position    integers
    applied         what the server needs to tell applied updates; plain lists, dicts, numbers and strings
    epochs          [[server epoch, version at which it began], ...]
    samples         what was trained on, and what not: lists of ranges, see ``mlfabric.model.samples.SampleCounts``
    layout          [[name, [dimension, ...], dtype, kind, parameter group], ...]
    rule            {field: value} of the rule it was trained with
    spec            {name, method, tau_max, slack, server, frozen_digest, shards, shard} of the model

Atomic: written aside in the same directory, fsynced, renamed, the directory fsynced. So the name holds an old or a
new checkpoint, whole, whenever and however the writer ends. Loading checks the container's checksums, which
torch.load does not, and never runs code from the file.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import zipfile
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from mlfabric.errors import ConfigError, FabricError, LayoutError, UsageError
from mlfabric.model.specs import (
    Layout,
    Method,
    ModelSpec,
    MomentumAt,
    RuleKind,
    RuleSpec,
    Schedule,
    TensorKind,
    TensorSpec,
)
from mlfabric.server.store import ModelStore, Snapshot
from mlfabric.shell.synced_files import replace_synced, sync_directory

__all__ = ["CheckpointDir", "CheckpointExtra", "Loaded", "Plain", "load"]

Plain = int | float | str | bool | None | list["Plain"] | dict[str, "Plain"]

_FORMAT = 1
_FIELDS: dict[str, type] = {
    "format": int,
    "model": dict,
    "history": dict,
    "squares": dict,
    "steps": int,
    "version": int,
    "server_epoch": int,
    "log_position": int,
    "applied": object,
    "epochs": object,
    "samples": dict,
    "layout": list,
    "rule": dict,
    "spec": dict,
}
# Not in checkpoints of earlier releases.
_LATER_FIELDS: dict[str, object] = {"squares": {}, "steps": 0, "epochs": [], "samples": {}}
_RULE_ENUMS: dict[str, type[Enum]] = {"kind": RuleKind, "momentum_at": MomentumAt, "schedule": Schedule}
_LONGEST_STEM = 80
_NAME = re.compile(r"(.+)-e(\d+)-v(\d+)\.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointExtra:
    """What goes into a checkpoint besides weights and history.

    All of it must belong to the store's version: take it while no step runs.

    Args:
        server_epoch: of the server that writes it.
        log_position: of the commit log: everything up to it is in the checkpoint.
        applied: which updates are in it; opaque here.
        epochs: at which versions server epochs began; opaque here.
        samples: which samples are in it; opaque here.
    """

    server_epoch: int
    log_position: int
    applied: Plain
    epochs: Plain = field(default_factory=list)
    samples: dict[str, Plain] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checkpoint that was read: a store at its version, and the rest."""

    store: ModelStore
    extra: CheckpointExtra


def _names_of(kind: type[Any]) -> list[str]:
    return [one.name for one in fields(kind)]


_EXTRA = _names_of(CheckpointExtra)
_SPEC = [name for name in _names_of(ModelSpec) if name not in ("layout", "rule", "workers", "rounds")]


def load(path: Path) -> Loaded:
    """Read a checkpoint into a new store.

    Raises:
        UsageError: no such file, or not a checkpoint of this format.
        LayoutError: NaN or Inf inside, or tensors that are not those of its layout.
        FabricError: unreadable, truncated or damaged.
    """
    content = _read(path)
    store = ModelStore(_spec_of(path, content))
    try:
        store.restore(**{name: content[name] for name in ("version", "model", "history", "squares", "steps")})
    except LayoutError as error:
        raise LayoutError(f"checkpoint {path}: {error}") from error
    return Loaded(store=store, extra=CheckpointExtra(**{name: content[name] for name in _EXTRA}))


@dataclass(frozen=True, slots=True)
class CheckpointDir:
    """The checkpoints of one server: a directory, and how many of each model to keep.

    File names are ``<model>-e<server epoch>-v<version>.pt``. Newest is the highest (epoch, version): after a
    promotion versions go on from the replica's, which may be lower than the last checkpointed one.

    Args:
        directory: made when first needed; one writing server per directory.
        keep: checkpoints kept of each model, >= 1.
    """

    directory: Path
    keep: int = 3

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ConfigError(f"checkpoints to keep: {self.keep}; allowed: 1 or more")

    def save(self, store: ModelStore, extra: CheckpointExtra) -> Path:
        """Write a checkpoint, then remove those that are too old and what a crash left behind.

        Raises:
            FabricError: it could not be written, or old ones not removed; the earlier checkpoints are as they were.
            UsageError: the store has no weights.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FabricError(f"checkpoint directory {self.directory} could not be made: {error}") from error
        stem = _stem(store.spec.name)
        with store.standing() as snapshot:
            path = self.directory / f"{stem}-e{extra.server_epoch:06d}-v{snapshot.version:012d}.pt"
            _write(path, _content(store.spec, snapshot, extra))
        self._prune(stem)
        return path

    def set_aside(self, model: str) -> None:
        """Move a model's checkpoints to the folder ``removed``: nobody goes on from what is there.

        Raises:
            FabricError: they could not be moved.
        """
        try:
            for path in self._newest_first().get(_stem(model), ()):
                (self.directory / "removed").mkdir(exist_ok=True)
                path.replace(self.directory / "removed" / path.name)
        except OSError as error:
            raise FabricError(f"checkpoints of {model} in {self.directory} could not be moved: {error}") from error

    def epoch_path(self, model: str) -> Path:
        """Return where the last server epoch of a model is kept, see ``epochs.py``."""
        return self.directory / f"{_stem(model)}.epoch"

    def latest(self, model: str) -> Path | None:
        """Return the newest checkpoint of a model, or None if there is none."""
        return next(iter(self._newest_first().get(_stem(model), ())), None)

    def load_newest(self) -> list[Loaded]:
        """Read the newest checkpoint of every model, each with the spec that it was written with.

        Raises:
            FabricError: as :func:`load` does; says which file and why.
        """
        return [load(paths[0]) for _, paths in sorted(self._newest_first().items())]

    def _newest_first(self) -> dict[str, list[Path]]:
        """Return the paths of all checkpoints by the stem of their model."""
        found = [(_NAME.fullmatch(path.name), path) for path in self.directory.glob("*.pt")]
        ranked = [(match[1], int(match[2]), int(match[3]), path) for match, path in found if match]
        out: dict[str, list[Path]] = {}
        for stem, _, _, path in sorted(ranked, reverse=True):
            out.setdefault(stem, []).append(path)
        return out

    def _prune(self, stem: str) -> None:
        left_over = re.compile(rf"\.{re.escape(stem)}-e\d+-v\d+\.pt(\.[0-9a-f]+)?\.tmp")
        aside = [path for path in self.directory.glob(".*.tmp") if left_over.fullmatch(path.name)]
        try:
            for path in (*aside, *self._newest_first()[stem][self.keep :]):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise FabricError(f"old checkpoints in {self.directory} could not be removed: {error}") from error


def _stem(model: str) -> str:
    """Return a file name for a model; names that had to be changed get a hash so that none coincide."""
    clean = re.sub(r"[^A-Za-z0-9_.-]|^\.", "_", model)[:_LONGEST_STEM]
    return clean if clean == model else f"{clean}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def _content(spec: ModelSpec, snapshot: Snapshot, extra: CheckpointExtra) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "version": snapshot.version,
        "steps": snapshot.steps,
        **{name: getattr(extra, name) for name in _EXTRA},
        "layout": [[t.name, list(t.shape), t.dtype, t.kind.value, t.group] for t in spec.layout.tensors],
        "rule": {name: _plain(getattr(spec.rule, name)) for name in _names_of(RuleSpec)},
        "spec": {name: _plain(getattr(spec, name)) for name in _SPEC},
        "model": snapshot.model,
        "history": snapshot.history,
        "squares": snapshot.squares,
    }


def _plain(value: Any) -> Plain:
    """Return a field of a spec as what can be read again without running code from the file."""
    plain: Plain = value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value
    return plain


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        replace_synced(path, lambda file: torch.save(content, file))
    except (OSError, RuntimeError) as error:  # torch's zip writer reports a failed write as RuntimeError
        raise FabricError(
            f"checkpoint {path} could not be written: {error}; what was there before is unchanged; "
            "check free space, limits and rights of its directory"
        ) from error
    try:
        sync_directory(path.parent)
    except OSError as error:
        raise FabricError(f"checkpoint {path} was written but may not outlive a crash of the host: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    """Read the file's dict and check that it has all fields."""
    try:
        with zipfile.ZipFile(path) as container:
            damaged = container.testzip()
        content: object = None if damaged else torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError as error:
        raise UsageError(f"no checkpoint at {path}; give the path of an existing one") from error
    except (OSError, RuntimeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise FabricError(
            f"checkpoint {path} cannot be read, truncated or damaged: {error}; use another one"
        ) from error
    if damaged:
        raise FabricError(f"checkpoint {path} is damaged: wrong checksum of {damaged}; use another one")
    if not isinstance(content, dict):
        raise UsageError(f"{path} is no checkpoint of mlfabric: it holds a {type(content).__name__}")
    content = {**_LATER_FIELDS, **content}
    wrong = [name for name, kind in _FIELDS.items() if name not in content or not isinstance(content[name], kind)]
    if wrong:
        raise UsageError(f"{path} is no checkpoint of mlfabric: {', '.join(wrong)} missing or of a wrong type")
    if content["format"] != _FORMAT:
        raise UsageError(f"checkpoint {path} has format {content['format']}; this release reads {_FORMAT}")
    return content


def _spec_of(path: Path, content: dict[str, Any]) -> ModelSpec:
    """Put together the spec that the checkpoint was written with."""
    spec, rule = content["spec"], content["rule"]
    try:
        enums = {n: kind(rule[n]) for n, kind in _RULE_ENUMS.items() if rule.get(n) is not None}
        layout = Layout(tuple(_tensor_spec(*row) for row in content["layout"]))
        rule = RuleSpec(**{**rule, **enums, "milestones": tuple(rule["milestones"])})
        return ModelSpec(**{**spec, "layout": layout, "rule": rule, "method": Method(spec["method"])})
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"checkpoint {path} describes its model in a way that cannot be read: {error!r}") from error


def _tensor_spec(name: str, shape: list[int], dtype: str, kind: str, group: int = 0) -> TensorSpec:
    """Make a row's tensor; those of earlier releases have no groups."""
    return TensorSpec(name=name, shape=tuple(shape), dtype=dtype, kind=TensorKind(kind), group=group)
