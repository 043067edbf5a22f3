from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.testbed.results import Results
from benchmarks.testbed.runs import BackupCost
from benchmarks.testbed.spec import FORMAT, ForwardedByRate
from mlfabric.errors import UsageError
from tests.testbed.made_up import SPEC, result_for


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"dilation": 3.0},
        {"duration_s": 61.0},
        {"learning_rate": 0.1},
        {"momentum": 0.9},
        {"network": "N2"},
        {"system": "tree"},
        {"delay_bound": 30},
        {"workers": 29},
        {"server_weather": True},
        {"report_every_s": 2.0},
        {"backup": "replica"},
        {"backup": "replica", "lead_updates": 30},
        {"model": "lda-12"},
    ],
)
def test_a_run_that_was_asked_for_anything_else_is_another_run(tmp_path: Path, changed):
    kept = Results(tmp_path)
    kept.keep(result_for(SPEC))

    assert kept.find(replace(SPEC, **changed)) is None


def test_a_kept_run_comes_back_as_it_was(tmp_path: Path):
    result = replace(
        result_for(SPEC),
        forwarded=ForwardedByRate(link_shares=(0.25, 1.0), n_bytes=(100, 300), messages=(1, 3)),
        backup=BackupCost(n_bytes=500, times=2, disk_s=0.3),
    )
    for name, run in (("plain", result_for(SPEC)), ("whole", result)):
        kept = Results(tmp_path / name)
        kept.keep(run)
        assert kept.find(SPEC) == run


def test_a_run_of_another_format_is_made_again(tmp_path: Path):
    kept = Results(tmp_path)
    kept.keep(result_for(SPEC))
    file = tmp_path / SPEC.file_name
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 0}))

    assert kept.find(SPEC) is None


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"format": FORMAT})])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, text):
    (tmp_path / SPEC.file_name).write_text(text)

    with pytest.raises(UsageError, match=SPEC.file_name):
        Results(tmp_path).find(SPEC)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="give a folder that can be written"):
        Results(tmp_path / "file" / "folder")
