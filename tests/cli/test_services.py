from __future__ import annotations

import signal
import socket

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from mlfabric.cli.scheduler_command import limits_of
from mlfabric.errors import ConfigError, UsageError
from mlfabric.scheduler.limits import Limits
from tests.processes import Start


@pytest.mark.processes
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_scheduler_ends_in_an_orderly_way_when_told(start: Start, number, code):
    command = start("scheduler", "--port", "0")
    command.read_until("running; Ctrl-C")

    command.signal(number)

    assert command.finish()[0] == code


@pytest.mark.processes
@pytest.mark.parametrize(
    ("service", "number", "code"),
    [
        ("server", signal.SIGTERM, 0),
        ("aggregator", signal.SIGINT, 130),
        ("monitor", signal.SIGTERM, 0),
        ("monitor", signal.SIGINT, 130),
    ],
)
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
def test_a_member_whose_name_is_taken_is_refused_with_code_1(start: Start, fabric: str):
    code, output = start("server", "--scheduler", fabric, "--name", "server-0").finish()

    assert code == 1
    assert output.splitlines()[-1].startswith("error: ")
    assert "'server-0' is taken by a live server on host" in output.splitlines()[-1]
    assert "Traceback" not in output


@pytest.mark.processes
@pytest.mark.parametrize(
    ("service", "option"),
    [
        (("server",), "--data-ports"),
        (("server",), "--metrics-port"),
        (("aggregator",), "--metrics-port"),
        (("server", "--replica-of", "server-0", "--div-max-updates", "8"), "--metrics-port"),
    ],
)
def test_a_member_whose_port_is_in_use_says_so_in_one_line(start: Start, service: tuple[str, ...], option: str):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, output = start(*service, "--log-level", "error", option, port).finish()

    assert code == 2
    assert output.startswith("error: ")
    assert port in output
    assert "port 0 for any" in output or "0 for any" in output
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("server", "--up", "quick"), "rate 'quick'; allowed: a number with k, M, G or T"),
        (("server", "--receive-budget", "much"), "size 'much'; allowed: a number with k, M, G, T or Ki"),
        (("server", "--data-ports", "a-b"), "ports 'a-b'; allowed: one port or a range"),
        (("aggregator", "--memory-budget", "much"), "size 'much'; allowed: a number with k, M, G, T or Ki"),
        (("aggregator", "--data-ports", "99999"), "ports=(99999, 99999); allowed: 1 to 65535, lo <= hi"),
        (("server", "--replica-of", "server-0"), "neither div_max nor div_max_updates is given"),
        (("server", "--replica-of", "server-0", "--div-max", "nan"), "div_max=nan; allowed: >= 0"),
        (("server", "--replica-of", "server-0", "--div-max=-1"), "div_max=-1.0; allowed: >= 0"),
        (("server", "--replica-of", "s", "--resume"), "a replica is seeded by its primary"),
        (("server", "--div-max", "3"), "are a replica's; give --replica-of"),
        (("up", "--replica-div-max=-1"), "--replica-div-max -1; allowed: a number, 0 or more"),
        (("run", "--replica-div-max-updates", "1.5", "x.py"), "1.5; allowed: a whole number, 0 or more"),
        (("server", "--scheduler", "nowhere"), "scheduler 'nowhere'; allowed: HOST:PORT"),
        (("aggregator", "--scheduler", "head:99999"), "scheduler 'head:99999'; allowed: HOST:PORT"),
        (("monitor", "--scheduler", ":1"), "scheduler ':1'; allowed: HOST:PORT"),
        (("server", "--resume"), "resume needs checkpoint_dir"),
        (("server", "--bind", "0.0.0.0"), "give advertised_host"),
        (("monitor", "--report-every", "0"), "allowed: > 0"),
        (
            ("scheduler", "--limits", "members"),
            "limits: 'members'; allowed: NAME=NUMBER with one of members, departed,",
        ),
        (("scheduler", "--limits", "cats=9"), "limits: 'cats=9'; allowed: NAME=NUMBER with one of members, departed,"),
        (("scheduler", "--limits", "members=many"), "limits: 'members=many': size 'many'; allowed: a number with"),
        (("scheduler", "--limits", "members=0"), "limits: members=0; allowed: > 0"),
        (("scheduler", "--batch-window", "-1"), "batch_window_s=-1.0; allowed: 0 to 60"),
    ],
)
def test_settings_that_cannot_be_used_are_named_with_what_is_allowed(arguments, message):
    error = CliRunner().invoke(app, arguments).exception

    assert isinstance(error, (ConfigError, UsageError))
    assert message in str(error)


def test_limits_are_the_defaults_but_for_those_that_are_given():
    assert limits_of("") == Limits()
    assert limits_of("members=500, model_bytes=20Gi") == Limits(members=500, model_bytes=20 << 30)
