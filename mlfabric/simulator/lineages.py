"""To which model each version belongs, where versions of a model that all have forgotten are given once more. Pure.

A model whose server and scheduler have forgotten it begins anew, as another *lineage*. Its versions must have names of
their own for whoever was told of the former ones; if nobody is left who was, they may be called alike.
"""

from __future__ import annotations

from collections import Counter

from mlfabric.protocol import ModelVersion

__all__ = ["Lineages"]

Process = tuple[str, int]


class Lineages:
    """The lineages of all models, and who has seen which version of them."""

    def __init__(self) -> None:
        self._present = Counter[str]()
        self._of: dict[tuple[str, ModelVersion, int], int] = {}
        self._seen: dict[tuple[Process, str, ModelVersion], int] = {}

    def begins(self, model: str) -> None:
        """Note that a model begins, for the first time or anew."""
        self._present[model] += 1

    def made(self, model: str, version: ModelVersion, weights: int) -> None:
        """Note a version of the present lineage."""
        self._of[model, version, weights] = self._present[model]

    def knows(self, model: str, version: ModelVersion, weights: int) -> bool:
        """Tell whether a version with these weights was made in any lineage."""
        return (model, version, weights) in self._of

    def sees(self, process: Process, model: str, version: ModelVersion, weights: int) -> None:
        """Check that a process never sees two models that are called alike."""
        lineage = self._of.get((model, version, weights))
        if lineage is not None:
            before = self._seen.setdefault((process, model, version), lineage)
            assert before == lineage, f"{process} has seen two models that are called {version} of {model}"

    def mistakes(self, process: Process, model: str, newest: ModelVersion) -> None:
        """Note that what a process has seen of an epoch up to a version counts as of the present lineage."""
        for key in [key for key in self._seen if key[:2] == (process, model)]:
            version = key[2]
            if version.epoch == newest.epoch and version <= newest:
                del self._seen[key]

    def is_of_another(self, process: Process, model: str, version: ModelVersion) -> bool:
        """Tell whether what a process has seen as this version is of another lineage than the present one."""
        return self._seen.get((process, model, version), self._present[model]) != self._present[model]
