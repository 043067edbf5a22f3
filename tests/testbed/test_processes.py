from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from benchmarks.testbed.hosts import testbed
from benchmarks.testbed.processes import ChildError, Launcher
from mlfabric.errors import UnavailableError, UsageError
from tests.processes import wait_until
from tests.testbed import tasks
from tests.testbed.waiting import runs

pytestmark = [pytest.mark.root, pytest.mark.processes]

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def two_hosts():
    try:
        with testbed(["h0", "h1"], link_bps=100_000_000) as bed:
            yield bed
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def launcher(two_hosts):
    with Launcher() as made:
        yield made


def test_a_function_runs_in_its_host_and_its_result_comes_back(two_hosts, launcher):
    children = [launcher.start(host, tasks.who) for host in two_hosts.hosts]

    found = [child.join(PATIENCE_S) for child in children]

    for host, child, (name, namespace, pid) in zip(two_hosts.hosts, children, found, strict=True):
        inode = os.stat(f"/run/netns/{host.namespace}").st_ino
        assert (name, namespace, pid) == (host.name, f"net:[{inode}]", child.pid)


def test_arguments_and_results_may_be_larger_than_any_buffer(two_hosts, launcher):
    child = launcher.start(two_hosts.hosts[0], tasks.add, b"x" * 10**7, b"y" * 10**7)

    assert child.join(PATIENCE_S) == b"x" * 10**7 + b"y" * 10**7


def test_an_exception_comes_back_with_its_traceback_and_what_was_printed(two_hosts, launcher):
    child = launcher.start(two_hosts.hosts[1], tasks.fail, "xyzzy", name="failing")

    with pytest.raises(ChildError) as caught:
        child.join(PATIENCE_S)

    text = str(caught.value)
    assert text.startswith("failing on h1 raised ValueError: raised xyzzy")
    assert 'raise ValueError(f"raised {word}")' in text
    assert text.count("Traceback") == 1
    assert text.endswith("  | printed xyzzy")


def test_a_child_that_the_kernel_kills_is_an_error_that_says_so(two_hosts, launcher):
    with pytest.raises(ChildError, match="was ended by SIGSEGV") as caught:
        launcher.start(two_hosts.hosts[0], tasks.crash).join(PATIENCE_S)
    assert "Segmentation fault" in str(caught.value)


def test_a_result_that_cannot_be_sent_is_an_error(two_hosts, launcher):
    with pytest.raises(ChildError, match="pickle"):
        launcher.start(two_hosts.hosts[0], tasks.unpicklable).join(PATIENCE_S)


def test_children_begin_with_one_thread_although_everything_is_imported(two_hosts, launcher):
    assert launcher.start(two_hosts.hosts[0], tasks.threads).join(PATIENCE_S) == 1


def test_one_that_still_runs_is_a_timeout_and_can_be_stopped_in_an_orderly_way(two_hosts, launcher, tmp_path):
    child = launcher.start(two_hosts.hosts[0], tasks.wait_for_ever, str(tmp_path / "end"))
    assert child.messages.recv() == child.pid
    with pytest.raises(TimeoutError, match="still runs"):
        child.join(0.0)

    child.stop(PATIENCE_S)

    assert not runs(child.pid)
    assert (tmp_path / "end").read_text() == "tidied up"
    with pytest.raises(ChildError, match="ended with code 143"):
        child.join(PATIENCE_S)


def test_one_that_will_not_end_is_killed(two_hosts, launcher):
    child = launcher.start(two_hosts.hosts[0], tasks.never_end)
    assert child.messages.recv() == child.pid

    child.stop(0.01)

    with pytest.raises(ChildError, match="was ended by SIGKILL"):
        child.join(PATIENCE_S)


def test_what_cannot_be_started_is_refused_and_starts_nothing(two_hosts, launcher):
    host = two_hosts.hosts[0]
    launcher.start(host, tasks.add, 1, 1, name="taken")
    with pytest.raises(UsageError, match="each name once"):
        launcher.start(host, tasks.add, 1, 1, name="taken")
    with pytest.raises(UsageError, match="allowed"):
        launcher.start(host, tasks.add, 1, 1, name="../elsewhere")
    with pytest.raises(UsageError, match="cannot be sent"):
        launcher.start(host, lambda: None)


def test_leaving_the_block_stops_all_that_is_left_and_keeps_what_was_printed(two_hosts, tmp_path):
    with Launcher(tmp_path / "run") as launcher:
        children = [
            launcher.start(two_hosts.hosts[0], tasks.wait_for_ever, str(tmp_path / "end")),
            launcher.start(two_hosts.hosts[1], tasks.print_and_wait, "here", name="sleeps"),
        ]
        children[0].messages.recv()
        wait_until(lambda: children[1].output.exists() and children[1].output.read_text() == "here\n", "it runs")

    assert not any(runs(child.pid) for child in children)
    assert (tmp_path / "end").read_text() == "tidied up"
    assert {file.name for file in (tmp_path / "run").iterdir()} == {"h0-wait_for_ever.log", "sleeps.log"}


OWNER = """
import signal, sys
from benchmarks.testbed.hosts import testbed
from benchmarks.testbed.processes import Launcher
from tests.testbed import tasks
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore SIGINT
with testbed(["a"], link_bps=1_000_000) as bed, Launcher() as launcher:
    children = [launcher.start(bed.hosts[0], tasks.never_end) for _ in range(2)]
    for child in children:
        child.messages.recv()
    print(*(child.pid for child in children), flush=True)
    try:
        sys.stdin.read()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
"""


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_with_their_launcher_however_that_ends(kind):
    command = [sys.executable, "-c", OWNER]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True) as owner:
        assert owner.stdout is not None
        children = [int(pid) for pid in owner.stdout.readline().split()]
        assert all(runs(pid) for pid in children)
        owner.send_signal(kind)
        owner.wait(PATIENCE_S)

    wait_until(lambda: not any(runs(pid) for pid in children), f"end of {children}")
