from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mlfabric.security import Identity
from mlfabric.security.authority import certify
from tests.processes import Start

pytestmark = pytest.mark.processes

TRAIN = """
import torch, mlfabric
weights = {"w": torch.zeros(20_000, requires_grad=True)}
with mlfabric.register_as_worker(weights, rule=mlfabric.RuleSpec(lr=1.0), model_name="sevens") as worker:
    for step in range(7):
        worker.get()
        weights["w"].grad = torch.full((20_000,), -1.0)
        outcome = worker.push().result(60)
    worker.get(min_version=outcome.version.number)
    found = weights["w"].detach()
    print("has", float(found.min()), float(found.max()), flush=True)
"""


def test_a_fabric_of_processes_trains_under_tls_and_lets_in_nobody_else(
    start: Start, certificates: Path, tmp_path: Path, free_port: int
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    own = certify(certificates, Identity(role="worker", job="sevens"), days=1)
    other = certify(certificates, Identity(role="worker", job="eights"), days=1)
    here = ("--scheduler", f"127.0.0.1:{free_port}")
    fabric = start("up", "--port", str(free_port), "--tls", str(certificates), "--aggregators", "1")
    assert f"--tls {certificates} train.py" in fabric.read_until("train with")

    code, output = start("run", "-n", "1", *here, "--no-up", "--tls", str(own), "train.py").finish()
    assert (code, output.splitlines()[1:]) == (0, ["[0] has 7.0 7.0"])
    assert "status page: https://127.0.0.1:" in output

    code, output = start("run", "-n", "1", *here, "--no-up", "--tls", str(other), "train.py").finish()
    assert code == 1
    assert "the certificate is that of a worker of job 'eights'; it does not allow model 'sevens'" in output

    code, output = start("server", *here, "--name", "server-9").finish()
    assert code == 1
    assert output.splitlines()[-1].endswith("it takes TLS only; give --tls DIR (MLFABRIC_TLS)")

    code, output = start("status", *here).finish()
    assert (code, output.count("it takes TLS only; give --tls DIR")) == (1, 1)
    code, output = start("status", *here, "--tls", str(certificates), "--json").finish()
    assert code == 0
    assert '"committed": 7' in output
    assert "server-9" not in output

    fabric.signal(signal.SIGTERM)
    assert fabric.finish()[0] == 0
