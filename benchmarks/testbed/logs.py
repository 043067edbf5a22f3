"""What the logs of one run say together: how fast it was, what the model took and when, what was turned away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.testbed.runs import NS_PER_S, BackupCost, Consistency, ServerLog, Snapshot, WorkerLog
from benchmarks.testbed.spec import CellSpec, Commits
from mlfabric.errors import UnavailableError

__all__ = ["RunLogs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunLogs:
    """All logs of one run.

    Args:
        workers: in the order of their ranks.
        servers: in any order.
    """

    workers: Sequence[WorkerLog]
    servers: Sequence[ServerLog]

    @classmethod
    def of(cls, found: Mapping[str, object]) -> RunLogs:
        """Sort what the processes of a run returned, by host."""
        workers = [log for log in found.values() if isinstance(log, WorkerLog)]
        servers = [log for log in found.values() if isinstance(log, ServerLog)]
        return cls(workers=sorted(workers, key=lambda log: log.rank), servers=servers)

    @property
    def _all(self) -> list[WorkerLog | ServerLog]:
        return [*self.workers, *self.servers]

    @property
    def began_ns(self) -> int:
        """When every process was ready."""
        return max(log.began_ns for log in self._all)

    @property
    def ended_ns(self) -> int:
        """When the model had taken the last gradient.

        Raises:
            UnavailableError: it took none.
        """
        applied_ns, _, _ = self._applied()
        if not applied_ns.size:
            raise UnavailableError("no gradient was applied in the whole run; give it a longer --duration")
        return int(applied_ns.max())

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """The model over time, from whoever kept it: each of its steps once, when the first worker had it.

        Raises:
            UnavailableError: nobody did.
        """
        kept = [log.snapshots for log in self._all if log.snapshots]
        if not kept:
            raise UnavailableError("no process of the run kept a snapshot of the model")
        newest, found = -1, []
        for snapshot in sorted((s for row in kept for s in row), key=lambda s: (s.time_ns, s.updates)):
            if snapshot.updates > newest:
                newest = snapshot.updates
                found.append(snapshot)
        return found

    def commits(self) -> Commits:
        """Return what the model took, in order."""
        applied_ns, workers, delays = self._applied()
        rounds = np.concatenate([log.rounds for log in self.workers])
        order = np.argsort(applied_ns, kind="stable")
        return Commits(
            workers=tuple(int(w) for w in workers[order]),
            delays=tuple(int(d) for d in delays[order]),
            rounds=tuple(int(n) for n in rounds[order]) if rounds.size else (),
        )

    def gradients_after(self, spec: CellSpec) -> Callable[[int], int]:
        """Return what tells how many gradients are in the model after so many of its steps."""
        match spec.entry.consistency:
            case Consistency.SYNCHRONOUS:
                return lambda updates: updates * spec.workers
            case Consistency.ASYNCHRONOUS:
                return lambda updates: updates
            case Consistency.ROUNDS:
                numbers = np.sort(np.concatenate([log.rounds for log in self.workers]))
                return lambda updates: int(np.searchsorted(numbers, updates, side="right"))

    def compute_s(self, spec: CellSpec) -> float:
        """Return the undilated time per iteration that goes into computation: see ``CellResult``."""
        spans = [(log.computed_ns - log.started_ns) / NS_PER_S / spec.dilation for log in self.workers]
        if spec.entry.consistency is not Consistency.SYNCHRONOUS:
            return float(np.concatenate(spans).mean())
        steps = min(len(span) for span in spans)
        return float(np.max([span[:steps] for span in spans], axis=0).mean())

    def backup(self) -> BackupCost | None:
        """Return what the model's backup took; None if no server had one."""
        return next((log.backup for log in self.servers if log.backup is not None), None)

    def overrun_share(self) -> float:
        """Return the share of all steps whose computation took longer than it was to."""
        return sum(log.overruns for log in self.workers) / max(1, sum(len(log.ended_ns) for log in self.workers))

    def _applied(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return when the model took each gradient (ns), whose it was, and its delay; not in order."""
        if self.servers and any(log.applied_ns.size for log in self.servers):
            logs = self.servers
            return (
                np.concatenate([log.applied_ns for log in logs]),
                np.concatenate([log.workers for log in logs]),
                np.concatenate([log.delays for log in logs]),
            )
        told = any(log.applied_ns.size for log in self.workers)
        times = [log.applied_ns if told else log.ended_ns for log in self.workers]
        delays = [log.delays if told else np.zeros(len(log.ended_ns), np.int32) for log in self.workers]
        ranks = [np.full(len(row), log.rank) for row, log in zip(times, self.workers, strict=True)]
        return np.concatenate(times), np.concatenate(ranks), np.concatenate(delays)
