from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import mlfabric
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.errors import UsageError
from mlfabric.launch.fabric_services import FabricOptions, services
from mlfabric.launch.ports import check_free
from mlfabric.launch.scheduler_status import HERE, StatusReader
from mlfabric.launch.supervisor import backoff_s
from mlfabric.protocol import Committed
from mlfabric.v1 import fabric_pb2
from tests.processes import Command, Start, wait_until

pytestmark = pytest.mark.processes


def words_of(pid: int) -> str:
    """Return a process' command line, "" if it has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""


def pid_of(command: Command, words: str) -> int:
    """Return the id of the one process of ``command`` with these words in its command line.

    A child of it that was forked and does not run its own program yet has the same one.
    """
    found = [pid for pid in command.pids() if words in words_of(pid)]
    (pid,) = [pid for pid in found if psutil.Process(pid).ppid() not in found]
    return pid


def member(scheduler: str, name: str) -> fabric_pb2.MemberStatus:
    """Return what the scheduler says of a member, something empty if that is not here."""

    async def read() -> fabric_pb2.GetStatusResponse:
        async with StatusReader(scheduler) as reader:
            return await reader.read()

    found = [m for m in asyncio.run(read()).members if m.name == name and m.state == HERE]
    return found[0] if found else fabric_pb2.MemberStatus()


def is_followed(scheduler: str, version: int) -> bool:
    return member(scheduler, "replica-0").activity == f"follows net at version {version}, 0 updates behind"


def ports_of(pid: int) -> set[int]:
    """Return where a process listens, nothing if it has ended."""
    try:
        connections = psutil.Process(pid).net_connections()
    except psutil.NoSuchProcess:
        return set()
    return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}


def pid_at(command: Command, address: str) -> int:
    """Return the id of the process of ``command`` that listens at an address."""
    port = int(address.rpartition(":")[2])
    (found,) = (pid for pid in command.pids() if port in ports_of(pid))
    return found


def test_a_fabric_comes_up_says_where_and_ctrl_c_leaves_nothing(start: Start, free_port: int):
    command = start("up", "--port", str(free_port))
    command.read_until("mlfabric is up")
    assert f"scheduler   127.0.0.1:{free_port}" in command.read_until("scheduler")
    assert "train with: mlfabric run" in command.read_until("train with")
    everything = psutil.Process(command.process.pid).children(recursive=True)

    command.signal(signal.SIGINT)
    code, _ = command.finish()

    assert code == 130
    assert command.pids() == []
    assert not any(process.is_running() for process in everything)
    check_free("127.0.0.1", free_port)


@pytest.mark.parametrize("running", [1, 2, 3, 4])
def test_ctrl_c_while_it_starts_leaves_nothing(start: Start, running: int):
    command = start("up", "--port", "0")
    wait_until(lambda: len(command.pids()) >= running, f"{running} processes")

    command.signal(signal.SIGINT)
    code, output = command.finish()

    # Python that is interrupted before it runs any of our code says so itself, and ends with 1.
    in_python = output.startswith("Fatal Python error: ") or "Could not import runpy module" in output
    assert code in (130, -signal.SIGINT) or (code == 1 and in_python), output
    command.wait_until_nothing_is_left()


def test_a_service_that_dies_is_started_again_and_when_all_is_killed_nothing_is_left(start: Start, tmp_path):
    command = start("up", "--port", "0", "--checkpoint-dir", str(tmp_path / "checkpoints"))
    command.read_until("mlfabric is up")

    psutil.Process(pid_of(command, "--name server-0")).kill()
    assert "was killed by SIGKILL (signal 9); starting it again" in command.read_until("mlfabric: server-0")
    command.read_until("server server-0: ")
    assert pid_of(command, "--name server-0")

    command.signal(signal.SIGKILL)
    command.wait_until_nothing_is_left()


def test_the_spare_of_a_killed_scheduler_takes_over(start: Start, free_port: int):
    command = start("up", "--port", str(free_port))
    command.read_until("mlfabric is up")
    wait_until(lambda: any("--standby" in words_of(pid) for pid in command.pids()), "its spare is there")
    (active,) = [pid for pid in command.pids() if " scheduler " in words_of(pid) and "--standby" not in words_of(pid)]

    psutil.Process(active).kill()
    assert "its spare takes over" in command.read_until("mlfabric: scheduler")
    command.read_until("server server-0: ")

    command.signal(signal.SIGTERM)
    assert command.finish()[0] == 0
    assert command.pids() == []


def test_server_and_replica_change_places_whenever_the_server_dies(start: Start, free_port: int, tmp_path: Path):
    folder = tmp_path / "kept"
    bound = ("--replica-div-max-updates", "0", "--checkpoint-dir", str(folder))
    command = start("up", "--port", str(free_port), *bound)
    command.read_until("mlfabric is up")
    scheduler = f"127.0.0.1:{free_port}"
    model = {"w": torch.zeros(4, requires_grad=True)}
    settings = WorkerSettings(scheduler=scheduler, tcp=TcpOptions())
    with mlfabric.register_as_worker(model, model_name="net", settings=settings) as worker:
        epochs: list[int] = []
        for done in range(3):
            if done:
                wait_until(partial(is_followed, scheduler, done), f"version {done} is at the replica")
                os.kill(pid_at(command, member(scheduler, "server-0").address), signal.SIGKILL)
            worker.get()
            model["w"].grad = torch.ones(4)
            outcome = worker.push().result()
            assert isinstance(outcome, Committed)
            epochs.append(outcome.version.epoch)
    command.signal(signal.SIGTERM)
    command.finish()
    logged = [json.loads(line) for line in (folder / "net.commits.jsonl").read_text().splitlines()]
    assert [(entry["epoch"], entry["version"]) for entry in logged] == list(zip(epochs, (1, 2, 3), strict=True))
    assert len(set(epochs)) == 3


def test_a_port_in_use_is_an_error_that_says_what_to_do(start: Start):
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, output = start("up", "--port", str(other.getsockname()[1])).finish()

    assert code == 2
    assert output.startswith("error: cannot listen on 127.0.0.1:")
    assert "choose another --port" in output


def test_a_metrics_port_in_use_is_found_before_anything_is_started(start: Start, free_port: int):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = start("up", "--port", str(free_port), "--metrics-port", str(port - 1)).finish()

    assert code == 2
    assert output.startswith("error: cannot listen on 127.0.0.1:")
    assert "choose another --metrics-port" in " ".join(output.split())
    assert "[scheduler]" not in output


def test_settings_that_a_service_cannot_use_end_everything(start: Start, tmp_path):
    (tmp_path / "mlfabric.toml").write_text("[monitor]\nreport_every = 0\n")
    command = start("up", "--port", "0")
    code, output = command.finish()

    assert code == 2
    assert "[monitor-0] error: monitor: report_interval_s=0" in output
    assert "error: monitor-0 cannot run with these settings" in output
    assert command.pids() == []


def test_services_read_their_sections_of_the_file_and_sigterm_ends_them_in_order(
    start: Start, tmp_path, free_port: int
):
    (tmp_path / "mlfabric.toml").write_text(f"[up]\nport = {free_port}\nservers = 2\n[server]\nhost = 'elsewhere'\n")
    command = start("up")
    command.read_until("mlfabric is up")

    _, status = start("status", "--json", "--scheduler", f"127.0.0.1:{free_port}").finish()
    command.signal(signal.SIGTERM)
    code, output = command.finish()

    hosts = {member["name"]: member["host"] for member in json.loads(status)["members"] if member["role"] == "server"}
    assert hosts == {"server-0": "elsewhere", "server-1": "elsewhere"}
    assert code == 0
    assert "server-1 left: stopped" in output
    assert command.pids() == []


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ({"server_up": "1G", "server_down": "2G"}, "server-0", "--name server-0 --host server-0 --up 1G --down 2G"),
        (
            {"aggregators": 1, "aggregator_down": ("1G",)},
            "aggregator-0",
            "--name aggregator-0 --host aggregator-0 --down 1G",
        ),
        (
            {"aggregators": 2, "aggregator_hosts": ("a", "b"), "aggregator_up": ("1G",), "metrics_port": 9400},
            "aggregator-1",
            "--name aggregator-1 --host b --up 1G --metrics-port 9403",
        ),
        (
            {"servers": 2, "checkpoint_dir": Path("kept"), "server_host": "a,b"},
            "server-1",
            "--host b --checkpoint-dir kept/server-1",
        ),
        ({"replica_div_max_updates": "40"}, "replica-0", "--replica-of server-0 --div-max-updates 40"),
    ],
)
def test_a_service_has_the_machine_the_card_and_the_folder_that_options_say(
    options: dict[str, Any], name: str, words: str
):
    found = {service.name: " ".join(service.arguments) for service in services(FabricOptions(**options), 1)}
    assert words in found[name]


def test_without_options_services_share_a_machine_and_there_is_no_replica():
    found = {service.name: service.arguments for service in services(FabricOptions(aggregators=1), 1)}
    assert "--host" not in (*found["server-0"], *found["aggregator-0"])
    assert "replica-0" not in found


def test_a_server_that_died_resumes_its_checkpoints(tmp_path):
    server = services(FabricOptions(checkpoint_dir=tmp_path), 1)[1]

    assert "--resume" not in server.arguments
    assert server.again == ("--resume",)


def test_metrics_ports_follow_each_other():
    found = [s.arguments[-1] for s in services(FabricOptions(servers=2, metrics_port=9400), 1)]

    assert found == ["9400", "9401", "9402", "9403"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"servers": 0}, "servers=0; allowed: 1 or more"),
        ({"aggregators": -1}, "aggregators=-1; allowed: 0 or more"),
        ({"servers": 3, "server_host": "a,b"}, "--server-host: 2 values; allowed: one for all, or one for each of 3"),
        ({"aggregators": 3, "aggregator_up": ("1G", "2G")}, "--aggregator-up: 2 values; allowed: one for all, or one"),
        ({"bind": "0.0.0.0"}, "give --advertise"),
    ],
)
def test_options_that_fit_no_fabric_are_refused(options: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        FabricOptions(**options)


def test_restarts_come_later_and_later_within_bounds():
    delays = [backoff_s(deaths) for deaths in range(1, 20)]

    assert delays[:3] == [0.5, 1.0, 2.0]
    assert delays == sorted(delays)
    assert delays[-1] == 30.0
    assert backoff_s(0) == 0.0, "a spare takes over at once"
