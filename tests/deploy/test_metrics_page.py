"""docs/metrics.md says what services show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_its_script_makes() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = subprocess.run(
        [sys.executable, "scripts/metrics_page"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert (ROOT / "docs/metrics.md").read_text() == made.stdout
