"""Log lines as JSON."""

from __future__ import annotations

import json
import logging
import signal
import sys

from mlfabric.protocol import DropReason
from mlfabric.telemetry.log_lines import JsonLines, about
from tests.processes import Start
from tests.scheduler.stage import committed, expected, push, update


def _line(message: str, *arguments: object, **extra: object) -> dict[str, object]:
    logger = logging.getLogger("mlfabric.tried")
    record = logger.makeRecord(logger.name, logging.INFO, __file__, 1, message, arguments, None, extra=extra)
    found: dict[str, object] = json.loads(JsonLines().format(record))
    return found


def test_a_line_has_time_level_logger_message_and_what_it_is_about() -> None:
    found = _line("%s is here", "a", **about(committed(update("a", 3), 7).commits[0]))
    assert str(found.pop("time")).endswith("+00:00")
    assert found == {"level": "info", "logger": "mlfabric.tried", "message": "a is here", "update": "a#3"}


def test_a_sum_is_about_all_of_its_updates() -> None:
    found = about(expected(push("a", 3), 1, 1))
    assert (found["transfer"], found["updates"], found["model"]) == ("a#3", ["a#3"], "net")
    assert about(DropReason.NOT_FINITE) == {}


def test_an_exception_is_in_its_line() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    assert "ValueError: no" in json.loads(JsonLines().format(record))["exception"]


def test_one_id_is_in_all_lines_of_an_update_from_its_plan_to_its_commit(start: Start, free_port: int) -> None:
    trains = """
        import torch

        import mlfabric

        model = torch.nn.Linear(4, 4)
        optimizer = mlfabric.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        optimizer.finish()
    """
    fabric = start("up", "--port", str(free_port), "--log-level", "debug", "--log-format", "json")
    fabric.read_until("train with")
    logged = ("--log-level", "debug", "--log-format", "json")
    code, own = start("run", "--scheduler", f"127.0.0.1:{free_port}", *logged, "SCRIPT", script=trains).finish()
    assert code == 0, own
    fabric.signal(signal.SIGTERM)
    _, output = fabric.finish()
    lines = [json.loads(line) for line in (own + output).splitlines() if line.startswith("{")]
    assert not [line for line in (own + output).splitlines() if line.startswith("mlfabric: ")]
    launcher = [line["message"] for line in lines if line["logger"] == "mlfabric.launch"]
    assert any(message.startswith("status page: http://") for message in launcher)
    about_it = [line for line in lines if "worker-0#1" in (line.get("update"), *line.get("updates", ()))]
    processes = {line["process"] for line in about_it}
    assert processes == {"0", "scheduler", "server-0"}
    assert {line["logger"] for line in about_it} == {"mlfabric.scheduler", "mlfabric.server", "mlfabric.worker"}
    messages = [line["message"] for line in about_it]
    assert any("Expect" in message for message in messages)
    assert any(message.startswith("worker-0#1 is committed as version") for message in messages)
