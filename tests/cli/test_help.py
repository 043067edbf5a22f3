from __future__ import annotations

import pytest
from typer.testing import CliRunner

from mlfabric import __version__
from mlfabric.cli.app import app

ASKING = ("status", "models", "doctor", "plan", "simulate", "advise", "record", "fuzz", "version")
COMMANDS = (
    "scheduler",
    "server",
    "aggregator",
    "monitor",
    "up",
    "run",
    "bench",
    "demo",
    "soak",
    "testbed",
    *ASKING,
)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example_of_it(command):
    result = CliRunner().invoke(app, [command, "--help"])

    assert result.exit_code == 0
    examples = result.output.split("Examples:")[1]
    assert f"\n    mlfabric {command}" in examples


def test_all_commands_are_listed():
    output = CliRunner().invoke(app, ["--help"]).output

    assert all(f"\n  {command} " in output for command in COMMANDS)
    assert "..." not in output.split("Commands:")[1], "a summary is too long for its line"


def test_an_unknown_option_is_an_error_that_names_it():
    result = CliRunner().invoke(app, ["scheduler", "--colour", "blue"])

    assert result.exit_code == 2
    assert "--colour" in result.output


def test_the_version_is_printed():
    assert CliRunner().invoke(app, ["version"]).output.startswith(f"mlfabric {__version__} (Python 3.")
