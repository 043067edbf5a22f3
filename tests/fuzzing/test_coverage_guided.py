"""Three seconds of coverage-guided fuzzing of each part that reads bytes of peers; ``make fuzz`` takes longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 3
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("target", ["frames", "events", "instructions", "calls", "meta"])
def test_nothing_is_found(target: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="has no wheel for this machine", exc_type=ModuleNotFoundError)
    command = [sys.executable, "-m", "tests.fuzzing.coverage_guided", target]
    limits = ["--seconds", str(SECONDS), "--corpus", str(tmp_path / "corpus")]
    done = subprocess.run([*command, *limits], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DONE" in done.stderr
