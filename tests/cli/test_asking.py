from __future__ import annotations

import json
import signal
import time

import pytest

from mlfabric.cli import checks
from mlfabric.cli.checks import Level
from mlfabric.cli.tables import console, status_view
from mlfabric.launch.scheduler_status import StatusReader
from mlfabric.v1 import fabric_pb2, types_pb2
from mlfabric.wire.plain import as_plain
from tests.processes import Start


def full_status() -> fabric_pb2.GetStatusResponse:
    """Return a status with something in every part."""
    return fabric_pb2.GetStatusResponse(
        term=7,
        software_version="0.1.0",
        members=[
            fabric_pb2.MemberStatus(
                name="server-0", role="server", host="a", address="a:7000", state="here", memory_bytes={"models": 2000}
            )
        ],
        models=[
            fabric_pb2.ModelStatus(
                name="model",
                server="server-0",
                version=types_pb2.ModelVersion(epoch=2, number=41),
                initialised=True,
                tau_max=8,
                delay_max=5,
                delay_p50=1.5,
                committed=41,
            )
        ],
        workers=[
            fabric_pb2.WorkerStatus(
                name="worker-1",
                model="model",
                committed=3,
                dropped=1,
                dropped_share=0.25,
                dropped_by_cause={"deadline": 1},
                warning="shut out: its last 10 updates were dropped",
            )
        ],
        links=[
            fabric_pb2.LinkStatus(host="a", up=True, nominal_bps=10**9, estimate_bps=8 * 10**8, age_s=0.5),
            fabric_pb2.LinkStatus(host="a", up=False, estimate_bps=10**10),
        ],
        planner=fabric_pb2.PlannerStatus(plans=12, mean_plan_ms=0.5, mean_batch=3.25),
    )


def shown(status: fabric_pb2.GetStatusResponse) -> str:
    """Return what a status looks like."""
    screen = console()
    with screen.capture() as capture:
        screen.print(status_view(status, "127.0.0.1:50061"))
    return capture.get()


def test_a_status_shows_every_part():
    text = shown(full_status())

    for words in (
        *("scheduler 127.0.0.1:50061, term 7", "server-0", "a:7000", "models 2 kB", "  41  ", "1.5", "25.0%"),
        *("1 deadline", "1 Gbit/s", "800 Mbit/s", "0.5 s", "not measured", "12 plans of 0.50 ms, 3.2 updates in each"),
    ):
        assert words in text


def test_what_was_lost_with_a_server_is_counted_by_model():
    models = [fabric_pb2.ModelStatus(name="net", committed=40, dropped=3, lost=17)]
    lines = shown(fabric_pb2.GetStatusResponse(models=models)).splitlines()

    head = next(number for number, line in enumerate(lines) if line.split()[:2] == ["name", "server"])
    assert lines[head].split()[-3:] == ["committed", "dropped", "lost"]
    assert lines[head + 1].split()[-3:] == ["40", "3", "17"]
    assert not fabric_pb2.WorkerStatus.DESCRIPTOR.fields_by_name.get("lost")


@pytest.mark.parametrize("method", ["all-reduce", "elastic", "partial"])
def test_a_model_without_a_server_has_rounds_and_no_delays(method: str):
    model = fabric_pb2.ModelStatus(
        name="net", method=method, initialised=True, version=types_pb2.ModelVersion(number=7)
    )
    lines = shown(fabric_pb2.GetStatusResponse(models=[model])).splitlines()

    row = next(line for line in lines if line.split()[:1] == ["net"])
    assert row.split()[1:] == ["-", method, "7", "rounds", "-", "-", "-", *"00000"]


def test_a_worker_that_is_shut_out_is_warned_of():
    assert "warning: worker-1 is shut out: its last 10 updates were dropped" in shown(full_status())


def test_what_a_model_on_several_servers_waits_for_is_said_once():
    parts = [fabric_pb2.ModelStatus(name=f"net.shard{i}", waits_for="waiting for server-1") for i in range(2)]

    assert shown(fabric_pb2.GetStatusResponse(models=parts)).count("waiting for server-1") == 1


def test_what_became_of_probes_is_said_of_models_that_have_any():
    probes = fabric_pb2.ProbesStatus(asked=12, answered=11, changed=2)
    models = [fabric_pb2.ModelStatus(name="net", probes=probes), fabric_pb2.ModelStatus(name="other")]

    text = shown(fabric_pb2.GetStatusResponse(models=models))

    assert "probes of net: 12 asked for, 11 answered in time, 2 links found changed" in text
    assert "probes of other" not in text


def test_what_became_of_samples_is_said_of_models_whose_workers_say_it():
    samples = fabric_pb2.SampleStatus(trained=96, repeated=8, dropped=4, missing=2)
    models = [fabric_pb2.ModelStatus(name="net", samples=samples), fabric_pb2.ModelStatus(name="other")]

    text = shown(fabric_pb2.GetStatusResponse(models=models))

    assert "samples of net: 96 trained on, 8 of them more than once, 4 dropped, 2 missing" in text
    assert "samples of other" not in text


def test_parts_with_nothing_in_them_are_left_out():
    text = shown(fabric_pb2.GetStatusResponse(term=1))

    assert "Models" not in text
    assert "planner: 0 plans" in text


def test_plain_values_have_every_field_and_numbers_stay_numbers():
    plain = as_plain(full_status())

    assert json.loads(json.dumps(plain)) == plain
    assert plain["models"][0]["version"] == {"epoch": 2, "number": 41}
    assert plain["links"][0]["age_s"] == 0.5
    assert plain["links"][1]["age_s"] is None
    assert plain["workers"][0]["dropped_by_cause"] == {"deadline": 1}
    assert as_plain(fabric_pb2.GetStatusResponse())["members"] == []


@pytest.mark.processes
def test_the_status_can_be_read_by_programs(start: Start, fabric: str):
    code, output = start("status", "--json", "--scheduler", fabric).finish()
    status = json.loads(output)

    assert code == 0
    assert {member["name"] for member in status["members"]} >= {"server-0", "monitor-0"}
    assert isinstance(status["term"], int)


@pytest.mark.processes
@pytest.mark.parametrize("form", [("--json",), ()])
def test_the_status_can_be_watched_until_ctrl_c(start: Start, fabric: str, form):
    command = start("status", "--watch", "--every", "0.1", *form, "--scheduler", fabric)
    command.read_until("server-0")
    command.read_until("server-0")

    command.signal(signal.SIGINT)
    code, output = command.finish()

    assert code == 130
    assert "Traceback" not in output


@pytest.mark.processes
def test_a_scheduler_that_does_not_answer_is_an_error(start: Start, free_port: int):
    code, output = start("status", "--scheduler", f"127.0.0.1:{free_port}").finish()

    assert code == 1
    assert output.startswith(f"error: no scheduler answers at 127.0.0.1:{free_port}")
    assert "mlfabric up" in output


def test_this_machine_passes_what_tests_need_of_it():
    found = [*checks.python(), *checks.packages(), *checks.rights(), *checks.clock(), *checks.ports()]

    assert [f for f in found if f.level is Level.FAIL] == []
    assert all(f.advice for f in found if f.level is not Level.OK)


async def test_the_data_channel_is_measured():
    found = await checks.loopback_rate()

    assert found.level is not Level.FAIL
    assert "bit/s over loopback" in found.found


@pytest.mark.processes
async def test_a_fabric_in_order_has_no_failures_and_every_member_is_tried(fabric: str):
    found = await checks.fabric(StatusReader(fabric), expected=True)

    assert {f.what for f in found} >= {"scheduler", "versions", "time of day", "server server-0", "monitor monitor-0"}
    assert all(f.level is not Level.FAIL for f in found)


@pytest.mark.parametrize(("expected", "level"), [(True, Level.FAIL), (False, Level.WARN)])
async def test_a_missing_scheduler_is_a_failure_only_where_one_was_named(free_port: int, expected, level):
    (found,) = await checks.fabric(StatusReader(f"127.0.0.1:{free_port}"), expected)

    assert found.level is level
    assert found.advice == f"mlfabric up --port {free_port}"


async def test_a_member_that_cannot_be_reached_is_a_failure(free_port: int):
    member = fabric_pb2.MemberStatus(name="server-0", role="server", address=f"127.0.0.1:{free_port}")
    found = await checks.reachable(member)

    assert found.level is Level.FAIL
    assert "cannot be reached" in found.found


def test_the_rates_that_transfers_have_shown_are_told_and_a_slow_link_is_warned_of():
    status = fabric_pb2.GetStatusResponse(
        links=[
            fabric_pb2.LinkStatus(host="a", up=True, nominal_bps=10**9, estimate_bps=9 * 10**8, age_s=0.2),
            fabric_pb2.LinkStatus(host="b", up=False, nominal_bps=10**9, estimate_bps=10**8, age_s=1.5),
            fabric_pb2.LinkStatus(host="c", up=True, estimate_bps=10**10),
        ]
    )
    good, slow = checks.link_rates(status)

    assert (good.what, good.level) == ("link a up", Level.OK)
    assert good.found.startswith("900 Mbit/s, measured 0.2 s ago")
    assert (slow.what, slow.level) == ("link b down", Level.WARN)


def test_a_clock_behind_the_schedulers_is_warned_of():
    now_ms = time.time_ns() // 1_000_000

    assert checks.time_of_day(now_ms - 1_000_000).level is Level.OK
    assert checks.time_of_day(now_ms + 1_000_000).level is Level.WARN


@pytest.mark.processes
def test_doctor_fails_if_the_named_scheduler_is_not_there(start: Start, free_port: int):
    code, output = start("doctor", "--scheduler", f"127.0.0.1:{free_port}").finish()

    assert code == 1
    assert "FAIL" in output
    assert f"mlfabric up --port {free_port}" in output


@pytest.mark.processes
def test_doctor_passes_where_everything_is_in_order(start: Start, fabric: str):
    code, output = start("doctor", "--scheduler", fabric).finish()

    assert code == 0, output
    assert "server server-0" in output
