"""``mlfabric mixing``: the table, the figures, the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app


def run(*arguments: object):
    return CliRunner().invoke(app, ["mixing", *map(str, arguments)])


def test_each_rule_has_a_row() -> None:
    shown = run("--n", 16)

    assert shown.exit_code == 0, shown.output
    assert all(rule in shown.stdout for rule in ("ring", "random-ring", "exponential", "full", "pairs"))


def test_json_on_stdout_has_all_figures_and_nothing_else() -> None:
    found = json.loads(run("--n", 64, "--json", "-").stdout)

    ring, drawn = found["rules"]["ring"], found["rules"]["random-ring"]
    assert ring["contraction"] == pytest.approx(ring["second_eigenvalue"] ** 2)
    assert drawn["contraction"] == pytest.approx((1 - 2 / 63) / 3)
    assert len(drawn["distances"]) == 21
    assert ring["distances"][-1] > 100 * drawn["distances"][-1]


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run("--n", 8, "--picture", tmp_path / "mixing.png").exit_code == 0
    assert (tmp_path / "mixing.png").read_bytes().startswith(b"\x89PNG")
