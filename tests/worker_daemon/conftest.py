"""A worker over a daemon that does what the test says."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
import torch

from mlfabric.model.images import DTYPES
from mlfabric.model.samples import Samples
from mlfabric.protocol import ModelVersion, Outcome, SamplesGranted, SamplesWanted, Welcome
from mlfabric.worker_daemon.contributions import Contribution
from mlfabric.worker_daemon.data_attempts import Parcel
from mlfabric.worker_daemon.tensors import ModelTensors
from mlfabric.worker_daemon.thread import ThreadDaemon
from mlfabric.worker_daemon.worker import Worker

SIZE = 4


class ScriptedDaemon(ThreadDaemon):
    """Takes calls; the test resolves them. A model of version n holds n everywhere."""

    def __init__(self, size_bytes: int) -> None:
        self.pushes: list[tuple[Parcel, float, ModelVersion, Future[Outcome]]] = []
        self.gets: list[tuple[ModelVersion, Future[ModelVersion]]] = []
        self.left: list[tuple[str, float]] = []
        self.samples: list[Samples] = []
        self.dropped_samples: list[Samples] = []
        self.draws: list[tuple[SamplesWanted, Future[SamplesGranted]]] = []
        self._weights = np.zeros(size_bytes // 4, dtype=np.float32)

    def buffer(self) -> memoryview:
        return self._weights.data.cast("B")

    def join(self) -> Welcome:
        return Welcome(
            to="w",
            incarnation=1,
            term=1,
            tau_max=7,
            server="s",
            initialise=False,
            monitor_address="",
            reason="",
        )

    def push(
        self,
        parcel: Parcel,
        norm: float,
        computed_from: ModelVersion,
        samples: Samples = (),
    ) -> tuple[Future[Outcome], Future[ModelVersion]]:
        outcome: Future[Outcome] = Future()
        self.samples.append(samples)
        self.pushes.append((parcel, norm, computed_from, outcome))
        return outcome, self.get(ModelVersion(0, 0))

    def drop_samples(self, samples: Samples) -> None:
        self.dropped_samples.append(samples)

    def draw(self, wanted: SamplesWanted) -> Future[SamplesGranted]:
        self.draws.append((wanted, Future()))
        return self.draws[-1][1]

    def get(self, min_version: ModelVersion) -> Future[ModelVersion]:
        got: Future[ModelVersion] = Future()
        self.gets.append((min_version, got))
        return got

    def reduce(self, contribution: Contribution) -> Future[int]:
        buffers = contribution.buffers
        assert buffers.given is not None, "it contributes"
        buffers.result[: len(buffers.given)] = buffers.given
        reduced: Future[int] = Future()
        reduced.set_result(contribution.together)
        return reduced

    def leave(self, detail: str, drain_s: float) -> None:
        self.left.append((detail, drain_s))

    def bring(self, number: int) -> None:
        """Let the oldest get that is open have this version."""
        self._weights[:] = number
        next(got for _, got in self.gets if not got.done()).set_result(ModelVersion(1, number))


@pytest.fixture
def model() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(SIZE, requires_grad=True)}


@pytest.fixture
def daemon(model: dict[str, torch.Tensor]) -> ScriptedDaemon:
    return ScriptedDaemon(ModelTensors(model).layout.size_bytes)


def got(worker: Worker, daemon: ScriptedDaemon, number: int) -> ModelVersion:
    """Get while the daemon brings a version."""
    if not [g for _, g in daemon.gets if not g.done()]:
        worker._coming = daemon.get(ModelVersion(0, 0))
    daemon.bring(number)
    return worker.get()


def three_vectors() -> torch.nn.ParameterDict:
    """A module with the parameters a, b and c, in float64; always the same."""
    draw = torch.Generator().manual_seed(0)
    return torch.nn.ParameterDict({name: torch.randn(3, generator=draw, dtype=torch.float64) for name in "abc"})


def pushed(tensors: ModelTensors) -> tuple[dict[str, torch.Tensor], float]:
    """Take an update; return what travels of each tensor, and the norm that is announced."""
    parcel, norm = tensors.take_update()
    image, layout = bytearray(b"".join(parcel.pieces)), tensors.layout
    found = {
        t.name: torch.frombuffer(image, dtype=DTYPES[t.dtype], count=t.numel, offset=at).view(t.shape)
        for t, at in zip(layout.tensors, layout.offsets, strict=True)
    }
    return found, norm
