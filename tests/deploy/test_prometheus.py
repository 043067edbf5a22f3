"""The files for Prometheus, checked by its own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "deploy/prometheus"


def _promtool(*arguments: str, fails: str = "") -> str:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is missing; on Debian it is in the package prometheus")
    done = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 or (fails and fails in done.stdout + done.stderr), done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_configuration_and_the_rules_are_good() -> None:
    assert "SUCCESS" in _promtool("check", "config", "prometheus.yml")


def test_the_configuration_for_kubernetes_is_good(tmp_path) -> None:
    """Debian's build knows no Kubernetes: there the rest is checked."""
    text = (FOLDER / "prometheus-kubernetes.yml").read_text()
    found = _promtool("check", "config", "prometheus-kubernetes.yml", fails="field kubernetes_sd_configs not found")
    if "SUCCESS" not in found:
        discovery = re.compile(r"    kubernetes_sd_configs:\n(?:      .*\n)+")
        assert len(discovery.findall(text)) == 2
        (tmp_path / "rules.yml").write_text((FOLDER / "rules.yml").read_text())
        (tmp_path / "rest.yml").write_text(discovery.sub("", text))
        assert "SUCCESS" in _promtool("check", "config", str(tmp_path / "rest.yml"))


def test_each_alert_fires_where_it_is_to_and_not_elsewhere() -> None:
    _promtool("test", "rules", "rules_test.yml")
    alerts = set(re.findall(r"alert: (\w+)", (FOLDER / "rules.yml").read_text()))
    tried = set(re.findall(r"alertname: (\w+)", (FOLDER / "rules_test.yml").read_text()))
    assert alerts == tried
