"""A model as users have them: convolutions, BatchNorm, a schedule of the learning rate, a DataLoader with processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.long]

RESNET = str(Path(__file__).parents[2] / "examples" / "resnet_digits.py")
WITHIN_S = 600


def accuracies(*command: str) -> list[float]:
    """Run the example; return what each of its processes says at its end."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if "accuracy" in line]


def test_four_workers_come_to_the_accuracy_of_one_process(free_port):
    """All are trained on as many samples; 360 images are tested, of which a point is 3.6."""
    (alone,) = accuracies(sys.executable, RESNET, "--alone")
    where = ("--scheduler", f"127.0.0.1:{free_port}")
    together = accuracies(sys.executable, "-m", "mlfabric", "run", "-n", "4", *where, RESNET)
    assert alone > 0.95
    assert len(together) == 4
    assert all(abs(found - alone) <= 0.01 for found in together), (alone, together)
