from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.testbed.hosts import testbed
from mlfabric.cli.app import app
from mlfabric.errors import UnavailableError, UsageError
from tests.testbed.waiting import namespaces_of, runs


@pytest.fixture
def rights():
    """Skip where no hosts can be made."""
    try:
        with testbed(["probe"], link_bps=1_000_000):
            pass
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.root
@pytest.mark.usefixtures("rights")
def test_a_command_runs_while_the_hosts_are_there_and_gives_the_exit_code(tmp_path: Path):
    script = f"ip netns exec $NAMESPACE_h1 ip -br address > {tmp_path}/out; echo $ADDRESS_h1 >> {tmp_path}/out; exit 5"
    result = CliRunner().invoke(app, ["testbed", "--hosts", "2", "--rate", "20M", "--", "sh", "-c", script])

    shown, address = (tmp_path / "out").read_text().rsplit("\n", 2)[:2]
    assert result.exit_code == 5
    assert f"{address}/24" in shown
    assert "2 hosts, links of 20 Mbit/s each way" in result.output
    assert "ip netns exec" in result.output
    assert not namespaces_of(os.getpid())


@pytest.mark.root
@pytest.mark.usefixtures("rights")
def test_links_have_the_rates_that_the_network_setting_draws(tmp_path: Path):
    script = f"for i in 0 1 2 3; do eval ns=\\$NAMESPACE_h$i; tc -n $ns qdisc show dev veth0; done > {tmp_path}/out"
    arguments = ["testbed", "--rate", "10M", "--network", "N3", "--seed", "2", "--", "sh", "-c", script]
    assert CliRunner().invoke(app, arguments).exit_code == 0

    shown = (tmp_path / "out").read_text()
    assert "rate 10Mbit" in shown
    assert "rate 1Mbit" in shown


@pytest.mark.root
@pytest.mark.processes
@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_when_told_to_end_it_removes_its_hosts_and_ends_its_command(start, kind, code):
    command = start("testbed", "--hosts", "1", "--", "sh", "-c", "echo $$ runs; exec sleep 1000")
    child = int(command.read_until("runs").split()[0])

    command.signal(kind)

    if kind is signal.SIGINT:
        os.kill(child, kind)  # a terminal sends it to both
    assert command.finish()[0] == code
    assert not runs(child)
    assert not namespaces_of(command.process.pid)


@pytest.mark.root
@pytest.mark.processes
@pytest.mark.usefixtures("rights")
def test_clean_removes_what_a_killed_one_left_behind(start):
    command = start("testbed", "--hosts", "2")
    command.read_until("Ctrl-C removes them")
    assert len(namespaces_of(command.process.pid)) == 3
    command.signal(signal.SIGKILL)
    command.finish()

    result = CliRunner().invoke(app, ["testbed", "--clean"])

    assert result.exit_code == 0
    assert "removed" in result.output
    assert not namespaces_of(command.process.pid)


@pytest.mark.root
@pytest.mark.usefixtures("rights")
def test_a_command_that_is_not_there_is_an_error_and_leaves_nothing():
    error = CliRunner().invoke(app, ["testbed", "--", "no-such-program"]).exception

    assert isinstance(error, UsageError)
    assert not namespaces_of(os.getpid())


def test_a_rate_that_is_none_is_an_error():
    error = CliRunner().invoke(app, ["testbed", "--rate", "fast"]).exception

    assert isinstance(error, UsageError)
    assert "allowed" in str(error)


def test_an_unknown_network_is_an_error_that_names_the_known_ones():
    result = CliRunner().invoke(app, ["testbed", "--network", "N9"])

    assert result.exit_code == 2
    assert "N3" in result.output


def test_outside_of_a_checkout_it_says_where_the_testbed_is(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("mlfabric.__file__", str(tmp_path / "mlfabric" / "__init__.py"))
    error = CliRunner().invoke(app, ["testbed"]).exception

    assert isinstance(error, UsageError)
    assert "checkout of the project" in str(error)
