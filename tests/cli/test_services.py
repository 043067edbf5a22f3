from __future__ import annotations

import signal
import socket

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from mlfabric.errors import ConfigError, UsageError

from .conftest import Start


@pytest.mark.processes
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_scheduler_ends_in_an_orderly_way_when_told(start: Start, number, code):
    command = start("scheduler", "--port", "0")
    command.read_until("running; Ctrl-C")

    command.signal(number)

    assert command.finish()[0] == code


@pytest.mark.processes
@pytest.mark.parametrize("service", ["server", "aggregator", "monitor"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_member_that_waits_for_the_scheduler_can_be_ended(start: Start, free_port: int, service, number, code):
    command = start(service, "--scheduler", f"127.0.0.1:{free_port}")
    command.read_until("waits for the scheduler")

    command.signal(number)
    found, output = command.finish()

    assert found == code
    assert "Traceback" not in output


@pytest.mark.processes
def test_a_scheduler_whose_port_is_in_use_says_so_in_one_line(start: Start):
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, output = start("scheduler", "--log-level", "error", "--port", str(other.getsockname()[1])).finish()

    assert code == 2
    assert output.splitlines()[-1].startswith("error: cannot listen on 127.0.0.1:")
    assert "Traceback" not in output


@pytest.mark.processes
def test_a_server_whose_name_is_taken_is_refused_with_code_1(start: Start, fabric: str):
    code, output = start("server", "--scheduler", fabric, "--name", "server-0").finish()

    assert code == 1
    assert output.splitlines()[-1].startswith("error: ")
    assert "server-0" in output.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("server", "--up", "quick"), "rate 'quick'; allowed: a number with k, M, G or T"),
        (("server", "--receive-budget", "much"), "size 'much'; allowed: a number with k, M, G, T or Ki"),
        (("server", "--data-ports", "a-b"), "ports 'a-b'; allowed: one port or a range"),
        (("aggregator", "--memory-budget", "much"), "size 'much'; allowed: a number with k, M, G, T or Ki"),
        (("server", "--resume"), "resume needs checkpoint_dir"),
        (("server", "--bind", "0.0.0.0"), "give advertised_host"),
        (("monitor", "--report-every", "0"), "allowed: > 0"),
        (("scheduler", "--batch-window", "-1"), "batch_window_s=-1.0; allowed: 0 to 60"),
    ],
)
def test_settings_that_cannot_be_used_are_named_with_what_is_allowed(arguments, message):
    error = CliRunner().invoke(app, arguments).exception

    assert isinstance(error, (ConfigError, UsageError))
    assert message in str(error)
