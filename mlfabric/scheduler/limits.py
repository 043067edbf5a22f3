"""How much a scheduler takes in: what is beyond it is refused, so nothing that members do makes it grow. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mlfabric.errors import ConfigError
from mlfabric.network.profile import MAX_SIZE_BYTES

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most of everything; each > 0.

    Args:
        members: that are here or silent. Hosts are twice as many at most.
        departed: that have left and are remembered; the longest gone are forgotten, with their hosts.
        models: with a server or without; a part of a model that is cut counts as one.
        model_bytes: of one model, or of one tensor that is reduced; at most 2**50.
        updates: without an outcome, of all workers together. Beyond it, whoever has more of them than its even share is
            refused more.
        updates_per_worker: without an outcome, of one worker; of a model that is cut each part of an update counts.
        outcomes_per_worker: that one worker has not said it knows.
        gets_per_worker, reduces_per_worker: that are not answered yet, of one worker.
        outbox: instructions for one member that it has not taken yet; one that reads slower than that loses its
            session, and may come back.
    """

    members: int = 4096
    departed: int = 1000
    models: int = 1024
    model_bytes: int = 1 << 42
    updates: int = 100_000
    updates_per_worker: int = 1024
    outcomes_per_worker: int = 16_384
    gets_per_worker: int = 256
    reduces_per_worker: int = 4096
    outbox: int = 16_384

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ConfigError(f"limits: {field.name}={getattr(self, field.name)}; allowed: > 0")
        if self.model_bytes > MAX_SIZE_BYTES:
            raise ConfigError(f"limits: model_bytes={self.model_bytes}; allowed: up to {MAX_SIZE_BYTES}")
