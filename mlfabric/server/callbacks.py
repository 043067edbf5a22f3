"""The callbacks of a program that runs a server or a replica, and what they may read of a model. In the event loop.

A callback is in force when the call that registered it has returned, also for models that are there already: it is told
of whatever happens from then on, and of nothing that happened before. It runs between two steps of the model, in the
service's thread, and holds up all of it; so it should be brief. One that raises ends the service with its error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import torch

from mlfabric.errors import UsageError
from mlfabric.fail_stop import FailStop
from mlfabric.protocol import Commit, GetId, ModelVersion
from mlfabric.server.store import Held, ModelStore

__all__ = ["Callbacks", "ModelView", "ReplicaCallback", "RequestCallback", "UpdateCallback"]


class ModelView:
    """One version of a model, as it lies in the server's memory; pinned and bit for bit the same during the callback.

    Args:
        version: which.
    """

    def __init__(self, version: ModelVersion, store: ModelStore, held: Held) -> None:
        self.version = version
        self._store = store
        self._held: Held | None = held

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by name, on the CPU: shared memory, not to be written. Clone what is to outlive the callback.

        A part of a model that is cut over several servers has pieces of tensors, as in ``fc.weight[0:4096]``.

        Raises:
            UsageError: the callback is over.
        """
        if self._held is None:
            raise UsageError(f"version {self.version} is read after its callback; clone its tensors in the callback")
        return self._store.tensors(self._held)

    def close(self) -> None:
        """Give no tensors any more."""
        self._held = None


UpdateCallback = Callable[[str, Commit, ModelView], None]
RequestCallback = Callable[[str, GetId, ModelView], None]
ReplicaCallback = Callable[[str, ModelView], None]


class Callbacks:
    """All callbacks of one service.

    Args:
        failure: where it is told if one raises.
    """

    def __init__(self, failure: FailStop) -> None:
        self._failure = failure
        self.of_updates: list[UpdateCallback] = []
        self.of_requests: list[RequestCallback] = []
        self.of_versions: list[ReplicaCallback] = []
        self._told: dict[str, ModelVersion] = {}

    def committed(self, model: str, store: ModelStore, commits: Sequence[Commit]) -> None:
        """Tell of updates that were committed together; the model is at the version after the last of them."""
        if self.of_updates:
            with _current(store, commits[-1].version) as view:
                for commit in commits:
                    for callback in self.of_updates:
                        with self._failure.guard("the update callback"):
                            callback(model, commit, view)

    def requested(self, model: str, store: ModelStore, get: GetId, version: ModelVersion, held: Held) -> None:
        """Tell of a get that is being served what is held."""
        if self.of_requests:
            with closing(ModelView(version, store, held)) as view:
                for callback in self.of_requests:
                    with self._failure.guard("the request callback"):
                        callback(model, get, view)

    def reached(self, model: str, store: ModelStore, version: ModelVersion) -> None:
        """Tell of the version that a followed model has come to, once."""
        if self.of_versions:
            with _current(store, version) as view, self._failure.guard("the update callback"):
                self.came_to(model, view)

    def came_to(self, model: str, view: ModelView) -> None:
        """As :meth:`reached`, with what may be read of it."""
        if view.version > self._told.get(model, ModelVersion(0, 0)):
            self._told[model] = view.version
            for callback in self.of_versions:
                callback(model, view)


@contextmanager
def _current(store: ModelStore, version: ModelVersion) -> Iterator[ModelView]:
    """Pin the current version of a store in which no step is being taken."""
    held = store.acquire()
    assert held is not None, f"{store.spec.name}: a callback of version {version} while a step is taken"
    assert held.version == version.number, f"{store.spec.name}: version {held.version} is here; told was {version}"
    try:
        with closing(ModelView(version, store, held)) as view:
            yield view
    finally:
        store.release(held)
