"""Runs that never were: what workers, log and weights say of them when all goes well, to be spoilt by tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from benchmarks.faults.judging import Evidence, Writing
from benchmarks.faults.ledger import Contents, Ledger
from benchmarks.faults.logs import Entry, Got, Joined, Line, Pushed, Told, What
from mlfabric.protocol import ModelVersion

__all__ = ["History"]

TAU_MAX = 4


@dataclass
class History:
    """A run of workers a, b and c, who are writers 0, 1 and 2."""

    ledger: Ledger = field(default_factory=lambda: Ledger(writers=3, slots=2, ballast=4))
    version: ModelVersion = field(default_factory=lambda: ModelVersion(1, 0))
    lines: dict[str, list[Line]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    must_commit: set[str] = field(default_factory=set)
    now_ns: int = 0

    def __post_init__(self) -> None:
        self.model = self.ledger.model()
        self.lines = {name: [Joined(tau_max=TAU_MAX, at_ns=0)] for name in "abc"}
        self._kept: dict[int, dict[str, torch.Tensor]] = {}
        self.checkpoint()

    def get(self, worker: str) -> None:
        """Let a worker get the model."""
        flaw = self.ledger.flaw(self.model["ballast"].detach().numpy(), self.version.number)
        self._write(worker, Got(version=self.version, flaw=flaw, at_ns=self._tick()))

    def push(self, worker: str) -> int:
        """Let a worker push its next update; return the update's number."""
        base = next(line.version for line in reversed(self.lines[worker]) if isinstance(line, Got))
        update = sum(isinstance(line, Pushed) for line in self.lines[worker])
        self._write(worker, Pushed(update=update, computed_from=base, at_ns=self._tick()))
        return update

    def apply(self, *updates: tuple[str, int], logged: bool = True) -> None:
        """Apply updates together, by worker and number."""
        for worker, update in updates:
            self.ledger.give_gradients(self.model, "abc".index(worker), update)
            for tensor in self.model.values():
                assert tensor.grad is not None
                tensor.data -= tensor.grad / (len(updates) if self.ledger.is_mean else 1)
        made = 1 if self.ledger.is_mean else len(updates)
        self.version = ModelVersion(self.version.epoch, self.version.number + made)
        if logged:
            ids = tuple((worker, 7, update) for worker, update in updates)
            entry = Entry(version=self.version, updates=ids, is_one_version=self.ledger.is_mean)
            self.entries.append(entry)

    def tell(self, worker: str, update: int, what: What = What.COMMITTED) -> None:
        """Tell a worker that its update made the present version, or that it did not."""
        pushed = next(line for line in self.lines[worker] if isinstance(line, Pushed) and line.update == update)
        told = Told(
            update=update,
            what=what,
            version=self.version,
            tau=max(0, self.version.number - 1 - pushed.computed_from.number),
            detail="",
            at_ns=self._tick(),
        )
        self._write(worker, told)

    def step(self, worker: str) -> None:
        """Let a worker do a whole step."""
        self.get(worker)
        update = self.push(worker)
        self.apply((worker, update))
        self.tell(worker, update)

    def checkpoint(self) -> None:
        """Keep the model as it is."""
        self._kept[self.version.number] = {name: tensor.detach().clone() for name, tensor in self.model.items()}

    def resume(self) -> None:
        """Go on from the newest checkpoint in a new epoch."""
        number = max(self._kept)
        self.version = ModelVersion(self.version.epoch + 1, number)
        for name, tensor in self.model.items():
            tensor.data = self._kept[number][name].clone()

    def evidence(self) -> Evidence:
        """Return what is left of it."""
        marks, ballast = (self.model[name].detach().numpy() for name in ("marks", "ballast"))
        writings = [
            Writing(name=name, writer=i, lines=self.lines[name], must_commit=name in self.must_commit)
            for i, name in enumerate("abc")
        ]
        final = Contents(self.version, marks, ballast)
        return Evidence(ledger=self.ledger, writings=writings, entries=self.entries, final=final)

    def _write(self, worker: str, line: Line) -> None:
        self.lines[worker].append(line)

    def _tick(self) -> int:
        self.now_ns += 1
        return self.now_ns
