"""``mlfabric fuzz``: what it says, its exit codes, and that a failing seed can be played again."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from mlfabric.lab.collective import Witness as CollectiveWitness
from mlfabric.simulator.witness import Witness

COMMAND = [sys.executable, "-c", "from mlfabric.cli import main; main()", "fuzz"]


@pytest.fixture(autouse=True)
def frozen():
    """Keep the garbage collector off what is loaded, as it was: storms that are played in here end that."""
    yield
    gc.freeze()


def fuzz(*arguments):
    return CliRunner().invoke(app, ["fuzz", "--jobs", "1", *arguments])


@pytest.fixture
def bug(monkeypatch):
    """A check that fails in many runs, and always at the same event of each."""
    heard = Witness.heard

    def strict(self, state, event, instructions):
        heard(self, state, event, instructions)
        if state.context.config.term.number >= 3:
            raise AssertionError("there have been too many epochs")

    monkeypatch.setattr(Witness, "heard", strict)


def test_seeds_that_hold_are_counted_and_the_exit_code_is_0():
    result = fuzz("--seeds", "3", "--first", "7", "--events", "200")
    assert re.search(r"3 seeds, [\d,]+ events, [\d,]+ faults: none failed", result.output)
    assert result.exit_code == 0


def test_a_seed_that_fails_tells_its_story_and_fails_again_in_the_same_way_when_it_is_played_again(bug):
    result = fuzz("--seeds", "12", "--events", "1500", "--story", "5")
    assert result.exit_code == 1
    first = re.search(r"seed (\d+) failed: (.*)\nplay it again: mlfabric fuzz (.*)\n", result.output)
    assert first, result.output
    assert "too many epochs" in first[2]
    story = result.output[: first.start()]
    assert story.startswith(f"SimulationConfig(seed={first[1]},")
    assert len(re.findall(r"^ *\d+\.\d{3} ms  ", story, re.MULTILINE)) == 5

    again = fuzz(*first[3].split())
    assert again.exit_code == 1
    assert again.output.startswith(story)
    assert "1 seeds, 0 events, 0 faults: 1 failed" in again.output


def test_jobs_without_a_server_are_played_and_one_that_fails_is_told_and_can_be_played_again(monkeypatch):
    result = fuzz("--collective", "--seeds", "2", "--events", "1000")
    assert re.search(r"2 seeds, [\d,]+ events, [\d,]+ faults: none failed", result.output), result.output

    def strict(self, life, call, *_):
        raise AssertionError(f"life {life} has a result")

    monkeypatch.setattr(CollectiveWitness, "got", strict)
    result = fuzz("--collective", "--seeds", "1", "--first", "3", "--story", "5")
    assert result.exit_code == 1
    first = re.search(r"seed 3 failed: (.*)\nplay it again: mlfabric fuzz (.*)\n", result.output)
    assert first, result.output
    story = result.output[: first.start()]
    assert story.startswith("Run(seed=3,")
    assert len(re.findall(r"^ *\d+\.\d{3} ms  ", story, re.MULTILINE)) == 5
    assert fuzz(*first[2].split()).output.startswith(story)


@pytest.mark.parametrize("kind", [[], ["--collective"]])
def test_what_is_played_does_not_depend_on_processes_or_on_the_hashes_of_strings(kind):
    said = set()
    for jobs, hashes in (("1", "1"), ("2", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        command = [*COMMAND, *kind, "--seeds", "4", "--events", "1000", "--jobs", jobs]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
        said.add(done.stdout)
    assert len(said) == 1


@pytest.mark.parametrize("arguments", [("--seeds", "0"), ("--first", "-1"), ("--events", "many"), ("--events", "-1")])
def test_what_cannot_be_played_is_refused(arguments):
    assert fuzz(*arguments).exit_code == 2
