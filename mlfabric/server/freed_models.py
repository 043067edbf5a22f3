"""Models that a server or a replica is freeing, and those of their names that it is to hold next. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mlfabric.protocol import FreeModel, HostModel, ModelFreed

__all__ = ["Freeing"]


@dataclass(slots=True)
class _Ending:
    """A model whose store is in use yet.

    Args:
        epoch: the last one of the model, as it was told.
        next: the model of this name that begins after it.
    """

    epoch: int
    next: HostModel | None = None


class Freeing:
    """What is being freed.

    Args:
        member: the name of the server or replica.
    """

    def __init__(self, member: str) -> None:
        self._member = member
        self._of: dict[str, _Ending] = {}

    def __contains__(self, model: str) -> bool:
        return model in self._of

    def begin(self, order: FreeModel) -> None:
        """Note that a model has ended; its store is freed from now on."""
        self._of[order.model] = _Ending(order.epoch)

    def told_again(self, order: FreeModel) -> bool:
        """Note an order to free a model that there is not; tell whether it is being freed, and answered then."""
        ending = self._of.get(order.model)
        if ending is None:
            return False
        ending.epoch = max(ending.epoch, order.epoch)
        if ending.next is not None and ending.next.epoch <= order.epoch:
            ending.next = None
        return True

    def delays(self, order: HostModel) -> bool:
        """Note an order to hold a model; tell whether it has to wait until one of its name is freed."""
        ending = self._of.get(order.spec.name)
        if ending is not None:
            ending.next = order
        return ending is not None

    def end(self, model: str) -> tuple[ModelFreed, HostModel | None]:
        """Note that a store is freed; return what is said of it, and the model that begins now."""
        ending = self._of.pop(model)
        return self.freed(model, ending.epoch), ending.next

    def freed(self, model: str, epoch: int) -> ModelFreed:
        """Return what is said of a model of which nothing is held."""
        return ModelFreed(member=self._member, model=model, epoch=epoch)
