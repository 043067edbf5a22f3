"""Workers, scheduler and server are killed while data is shared: the account is exactly what the commit log says."""

from __future__ import annotations

import json
import subprocess
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest

from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc
from tests.fabric.harness import wait_until
from tests.fabric.test_processes import Services

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SAMPLES = 2_400
TRAIN = f"""
    import torch
    import mlfabric

    weights = {{"w": torch.zeros(5_000, requires_grad=True)}}
    with mlfabric.register_as_worker(weights, rule=mlfabric.RuleSpec(lr=0.1)) as worker:
        sampler = mlfabric.FabricSampler(worker, {SAMPLES}, batch_size=4)
        worker.get()
        for step, _ in enumerate(sampler.over(sampler)):
            weights["w"].grad = torch.full((5_000,), float("nan") if step % 50 == 49 else 1.0)
            worker.exchange()
    print("through", flush=True)
"""


class Job(Services):
    """Services, and workers that share data."""

    def begin(self, name: str) -> subprocess.Popen[bytes]:
        script = self.folder / "share.py"
        script.write_text(textwrap.dedent(TRAIN))
        environment = {"MLFABRIC_SCHEDULER": self.address, "MLFABRIC_NAME": name}
        return self._popen(name, str(script), environment=environment)

    def samples(self) -> fabric_pb2.SampleStatus:
        """Return the account with all its ranges; an empty one while nobody answers."""
        with grpc.insecure_channel(self.address) as channel:
            try:
                request = fabric_pb2.GetStatusRequest(all_samples=True)
                models = fabric_pb2_grpc.FabricServiceStub(channel).GetStatus(request, timeout=5).models
            except grpc.RpcError:
                return fabric_pb2.SampleStatus()
        return models[0].samples if models else fabric_pb2.SampleStatus()

    def comes_to(self, trained: int) -> None:
        """Wait until so many samples are trained on; workers that begin at the same time take long to."""
        until_s = time.monotonic() + 100
        while self.samples().trained < trained:
            assert time.monotonic() < until_s, f"{trained} samples are not trained on: {self.samples()}"
            threading.Event().wait(0.1)

    def kill(self, service: str) -> None:
        self.running[service].kill()
        self.running[service].wait()


def by_the_log(checkpoints: Path, rollbacks: list[tuple[int, int, int]]) -> Counter[int]:
    """Return how often each sample was trained on in the model that is left, from nothing but the commit log."""
    out = Counter[int]()
    for line in (checkpoints / "model.commits.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if not any(entry["epoch"] == epoch and entry["version"] > kept for epoch, kept, _ in rollbacks):
            out.update(i for samples in entry["samples"] for start, stop in samples for i in range(start, stop))
    return out


def test_every_sample_is_accounted_for_whoever_is_killed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    try:
        job.start_scheduler()
        job.start_server()
        workers = {name: job.begin(name) for name in ("first", "second")}
        job.comes_to(SAMPLES // 8)
        workers["first"].kill()
        workers["late"] = job.begin("late")
        job.comes_to(SAMPLES // 4)
        job.kill("scheduler")
        job.start_scheduler()
        job.comes_to(SAMPLES // 3)
        job.kill("server")
        job.start_server("--resume")
        job.comes_to(SAMPLES // 2)
        job.kill("server")
        job.kill("scheduler")
        job.start_scheduler()
        job.start_server("--resume")
        for name in ("second", "late"):
            assert workers[name].wait(100) == 0, job.log(name)
        found = wait_until(lambda: s if (s := job.samples()).trained == SAMPLES and not s.in_flight else None, "all")
        assert (found.dropped, found.lost, found.missing, found.unplaced) == (0, 0, 0, 0), found
        rollbacks = [(r.epoch, r.kept, r.last) for r in found.rollbacks]
        logged = by_the_log(tmp_path / "checkpoints", rollbacks)
        assert sorted(logged) == list(range(SAMPLES))
        twice = {i for i, times in logged.items() if times > 1}
        assert {i for r in found.repeated_ranges for i in range(r.start, r.stop)} == twice
        assert found.repeated == len(twice)
    finally:
        job.close()
