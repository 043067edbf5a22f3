from __future__ import annotations

import re
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import UsageError
from mlfabric.launch.workers import JobOptions, per_rank, worker_environment
from tests.processes import Start

pytestmark = pytest.mark.processes


def options(workers: int = 2, **changes) -> JobOptions:
    return JobOptions(command=("train.py",), workers=workers, scheduler="127.0.0.1:50061", **changes)


@pytest.fixture
def script(tmp_path):
    """Write a training script and return its name."""

    def write(text: str) -> str:
        (tmp_path / "train.py").write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + text)
        return "train.py"

    return write


def test_lines_carry_their_rank_and_arguments_reach_the_script(start: Start, fabric: str, script):
    name = script("print('arguments', *sys.argv[1:]); print('last', end='', file=sys.stderr)\n")
    code, output = start("run", "-n", "2", "--scheduler", fabric, name, "--epochs", "3", "-n", "7").finish()

    assert code == 0
    first, *lines = output.splitlines()
    assert re.fullmatch(r"mlfabric: status page: http://127\.0\.0\.1:\d+/", first)
    assert sorted(lines) == [
        *("[0] arguments --epochs 3 -n 7", "[0] last", "[1] arguments --epochs 3 -n 7", "[1] last")
    ]


def test_a_module_is_run_by_its_name(start: Start, fabric: str, tmp_path):
    (tmp_path / "trainer.py").write_text("import sys; print(sys.argv[1:])")
    code, output = start("run", "--scheduler", fabric, "-m", "trainer", "--fast").finish()

    assert (code, output.splitlines()[1:]) == (0, ["[0] ['--fast']"])


def test_the_rank_that_fails_is_named_its_code_passed_on_and_the_others_ended(start: Start, fabric: str, script):
    name = script("if rank == 1: sys.exit(7)\ntime.sleep(1000)\n")
    command = start("run", "-n", "3", "--scheduler", fabric, name)
    code, output = command.finish()

    assert code == 7
    assert "mlfabric: rank 1 ended with code 7; ending the others" in output
    assert command.pids() == []


def test_a_rank_that_a_signal_ends_counts_as_failed(start: Start, fabric: str, script):
    name = script("if rank == 0: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(1000)\n")
    code, output = start("run", "-n", "2", "--scheduler", fabric, name).finish()

    assert code == 128 + signal.SIGSEGV
    assert "rank 0 was killed by SIGSEGV (signal 11)" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_no_worker_is_left(start: Start, fabric: str, script, number):
    name = script("print('training', flush=True)\ntime.sleep(1000)\n")
    command = start("run", "-n", "2", "--scheduler", fabric, name)
    command.read_until("training")

    command.signal(number)
    code, _ = command.finish()

    assert code == (-number if number is signal.SIGKILL else 128 + number)
    command.wait_until_nothing_is_left()


def test_workers_may_drain_when_it_is_interrupted(start: Start, fabric: str, script):
    drain = "signal.signal(signal.SIGTERM, lambda *_: sys.exit('drained'))"
    name = script(f"{drain}\nprint('training', flush=True)\ntime.sleep(1000)\n")
    command = start("run", "--scheduler", fabric, name)
    command.read_until("training")

    command.signal(signal.SIGINT)
    code, output = command.finish()

    assert code == 130
    assert "[0] drained" in output


def test_a_fabric_is_started_if_none_answers_and_training_goes_through_it(start: Start, script, free_port: int):
    name = script(
        "import torch, mlfabric\n"
        "model = torch.nn.Linear(4, 2)\n"
        "with mlfabric.register_as_worker(model, servers=2) as worker:\n"
        "    worker.get(model)\n"
        "    for _ in range(3):\n"
        "        model(torch.ones(1, 4)).sum().backward()\n"
        "        outcome = worker.push(model).result(30)\n"
        "        assert isinstance(outcome, mlfabric.Committed), outcome\n"
        "        worker.get(model)\n"
        "print('trained', os.environ['MLFABRIC_NAME'], os.environ['MLFABRIC_HOST'])\n"
    )
    fabric = ("--servers", "2", "--scheduler", f"127.0.0.1:{free_port}")
    command = start("run", "-n", "2", "--host-per-worker", *fabric, name)
    code, output = command.finish()

    assert code == 0, output
    assert "[0] trained worker-0 host-0" in output
    assert "[1] trained worker-1 host-1" in output
    assert command.pids() == []


def test_without_a_fabric_and_told_not_to_start_one_it_says_so(start: Start, free_port: int):
    code, output = start("run", "--no-up", "--scheduler", f"127.0.0.1:{free_port}", "train.py").finish()

    assert code == 1
    assert output.startswith(f"error: no scheduler answers at 127.0.0.1:{free_port}")


def test_no_fabric_is_started_for_an_address_of_another_machine(start: Start):
    code, output = start("run", "--insecure", "--scheduler", "192.0.2.1:50061", "train.py").finish()

    assert code == 2
    assert "which is not this machine" in output


def test_the_environment_is_torchruns_and_ours():
    job = options(host_per_worker=True, up=("800M", "100M"), down=("1G",), metrics_port=9000)
    found = worker_environment(job, 1, 29500, {"HOME": "/root", "RANK": "9", "OMP_NUM_THREADS": "3"})

    assert found["HOME"] == "/root"
    assert found["OMP_NUM_THREADS"] == "3"
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"]) == ("1", "1", "2", "2")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("127.0.0.1", "29500")
    assert (found["MLFABRIC_SCHEDULER"], found["MLFABRIC_NAME"]) == ("127.0.0.1:50061", "worker-1")
    assert (found["MLFABRIC_HOST"], found["MLFABRIC_UP"], found["MLFABRIC_DOWN"]) == ("host-1", "100M", "1G")
    assert (found["MLFABRIC_METRICS_PORT"], found["MLFABRIC_WORKERS"]) == ("9001", "2")


def test_one_thread_each_unless_said_otherwise():
    assert worker_environment(options(), 0, 29500, {})["OMP_NUM_THREADS"] == "1"


@given(st.integers(1, 64), st.booleans())
def test_rates_are_one_for_all_or_one_for_each(workers, each):
    rates = tuple(f"{rank + 1}M" for rank in range(workers if each else 1))

    assert {per_rank(rates, rank) for rank in range(workers)} == set(rates)


def test_what_does_not_fit_the_number_of_workers_is_refused():
    with pytest.raises(UsageError, match="2 rates; allowed: one for all, or one for each of 3"):
        options(workers=3, host_per_worker=True, up=("1G", "2G"))
    with pytest.raises(UsageError, match="add --host-per-worker"):
        options(up=("1G",))
    with pytest.raises(UsageError, match="1 worker or more"):
        options(workers=0)


def test_a_malformed_rate_is_refused_before_anything_starts(start: Start):
    code, output = start("run", "--host-per-worker", "--worker-up", "fast", "train.py").finish()

    assert code == 2
    assert "error: rate 'fast'; allowed: a number with k, M, G or T" in output


def test_when_nobody_reads_on_it_ends(start: Start, fabric: str, script):
    name = script("while True: print('training', flush=True)\n")
    command = start("run", "-n", "2", "--scheduler", fabric, name)
    command.read_until("training")

    command.close_output()

    assert command.process.wait(60) == 128 + signal.SIGTERM
    command.wait_until_nothing_is_left()
