from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time

import pytest

from benchmarks.testbed.hosts import remove_leftovers, testbed
from benchmarks.testbed.namespaces import entered
from mlfabric.errors import UnavailableError, UsageError
from mlfabric.twin.settings import Direction
from tests.processes import wait_until
from tests.testbed.waiting import namespaces_of, runs

pytestmark = pytest.mark.root

BURST_BYTES = 100_000
"""What passes a link of these hosts at once: 8 ms of its full rate."""


def listener(host) -> socket.socket:
    with entered(host.namespace):
        return socket.create_server((host.address, 0))


def connect(host, server: socket.socket) -> socket.socket:
    with entered(host.namespace):
        sock = socket.socket()
    sock.settimeout(30)
    sock.connect(server.getsockname())
    return sock


def send_all(out: socket.socket, size_bytes: int) -> None:
    out.sendall(bytes(size_bytes))
    out.shutdown(socket.SHUT_WR)


def send(sender, receiver, size_bytes: int) -> float:
    """Return how many seconds bytes took from one host to the other."""
    with listener(receiver) as server, connect(sender, server) as out:
        into, _ = server.accept()
        began_s = time.monotonic()
        thread = threading.Thread(target=send_all, args=(out, size_bytes))
        thread.start()
        with into:
            while into.recv(1 << 16):
                pass
        thread.join()
        return time.monotonic() - began_s


def kernels_rate(namespace: str, interface: str) -> int:
    """Return an interface's rate in bit/s as the kernel says."""
    shown = subprocess.run(
        ["tc", "-n", namespace, "-j", "qdisc", "show", "dev", interface], check=True, capture_output=True
    )
    (bucket,) = [q["options"] for q in json.loads(shown.stdout) if q["kind"] == "tbf"]
    return int(bucket["rate"]) * 8


def switch_of(bed):
    return bed.hosts[0].namespace.removesuffix(f"host-{bed.hosts[0].name}") + "switch"


def test_each_host_has_an_address_of_its_own_at_which_all_others_reach_it(four_hosts):
    assert len({host.address for host in four_hosts.hosts}) == 4
    for receiver in four_hosts.hosts:
        with listener(receiver) as server:
            for sender in four_hosts.hosts:
                with connect(sender, server):
                    accepted, (seen, _) = server.accept()
                    accepted.close()
                    assert seen == sender.address


def test_hosts_see_nothing_of_the_computer_they_are_on(four_hosts):
    with entered(four_hosts.hosts[0].namespace):
        interfaces = {name for _, name in socket.if_nameindex()}
    assert "veth0" in interfaces
    assert not interfaces & {name for _, name in socket.if_nameindex() if name.startswith(("eth", "port", "bridge"))}
    with pytest.raises(OSError, match="Cannot assign"), socket.socket() as here:
        here.bind((four_hosts.hosts[0].address, 0))


@pytest.mark.parametrize("slow", [(0, Direction.UP), (1, Direction.DOWN)], ids=["up-link", "down-link"])
def test_no_transfer_is_faster_than_the_slower_of_its_two_links(four_hosts, slow):
    index, direction = slow
    four_hosts.set_rates({(f"h{index}", direction): 4_000_000})

    took_s = send(four_hosts.hosts[0], four_hosts.hosts[1], BURST_BYTES + 150_000)

    assert took_s > 0.9 * 150_000 * 8 / 4_000_000


def test_rates_change_in_the_middle_of_a_transfer(four_hosts):
    four_hosts.set_rates({("h0", Direction.UP): 8_000_000})
    sender, receiver = four_hosts.hosts[:2]
    with listener(receiver) as server, connect(sender, server) as out:
        into, _ = server.accept()
        thread = threading.Thread(target=send_all, args=(out, 400_000))
        thread.start()
        with into:
            got = len(into.recv(100_000, socket.MSG_WAITALL))
            began_s = time.monotonic()
            four_hosts.set_rates({("h0", Direction.UP): 4_000_000})
            here = int.from_bytes(fcntl.ioctl(into, termios.FIONREAD, bytes(4)), sys.byteorder)
            while more := into.recv(1 << 16):
                got += len(more)
            took_s = time.monotonic() - began_s
        thread.join()

    assert got == 400_000
    left = 300_000 - here - BURST_BYTES - 50_000
    assert took_s > 0.9 * left * 8 / 4_000_000, "50 kB may have left at the old rate, and not be here"


def test_the_kernel_has_every_rate_that_was_set(four_hosts):
    wanted = {
        (host.name, direction): 1_000_000 * (2 * i + 1 + (direction is Direction.UP))
        for i, host in enumerate(four_hosts.hosts)
        for direction in Direction
    }
    four_hosts.set_rates(wanted)

    switch = switch_of(four_hosts)
    for i, host in enumerate(four_hosts.hosts):
        assert kernels_rate(host.namespace, "veth0") == wanted[host.name, Direction.UP]
        assert kernels_rate(switch, f"port{i}") == wanted[host.name, Direction.DOWN]
    assert four_hosts.rates_bps == wanted


@pytest.mark.parametrize(
    "bad", [{("h9", Direction.UP): 1_000_000}, {("h1", Direction.UP): 0}, {("h1", Direction.DOWN): 10**12}]
)
def test_rates_that_cannot_be_change_nothing(four_hosts, bad):
    before = dict(four_hosts.rates_bps)

    with pytest.raises(UsageError, match="allowed"):
        four_hosts.set_rates({("h0", Direction.UP): 5_000_000} | bad)

    assert four_hosts.rates_bps == before
    assert kernels_rate(four_hosts.host("h0").namespace, "veth0") == 100_000_000


@pytest.mark.parametrize("names", [[], ["a", "a"], ["a b"], ["-a"], ["../a"], [f"n{i}" for i in range(251)]])
def test_names_that_cannot_be_are_refused(names):
    with pytest.raises(UsageError), testbed(names, link_bps=1_000_000):
        pass
    assert not namespaces_of(os.getpid())


def test_two_testbeds_do_not_meet(four_hosts):
    with testbed(["h0", "h1"], link_bps=100_000_000) as other, listener(four_hosts.hosts[3]) as server:
        with entered(other.hosts[0].namespace):
            sock = socket.socket()
        sock.settimeout(0.2)
        with sock, pytest.raises(OSError, match=r"No route to host|timed out"):
            sock.connect(server.getsockname())


def test_at_the_end_all_is_gone_and_so_is_what_still_ran_in_a_host():
    with testbed(["a", "b"], link_bps=1_000_000) as bed:
        left = subprocess.Popen([*bed.host("a").command, "sleep", "1000"])
        inode = os.stat(f"/run/netns/{bed.host('a').namespace}").st_ino
        wait_until(lambda: os.stat(f"/proc/{left.pid}/ns/net").st_ino == inode, "sleep is in its host")
        assert len(namespaces_of(os.getpid())) == 3

    assert left.wait(60) == -signal.SIGKILL
    assert not namespaces_of(os.getpid())


CRASHING = """
import os, subprocess, sys
from benchmarks.testbed.hosts import testbed
with testbed(["a", "b"], link_bps=1_000_000) as bed:
    left = subprocess.Popen([*bed.host("a").command, "sleep", "1000"], stdout=subprocess.DEVNULL)
    while os.stat(f"/proc/{left.pid}/ns/net").st_ino != os.stat(f"/run/netns/{bed.host('a').namespace}").st_ino:
        pass
    print(left.pid, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_behind_goes_when_the_next_testbed_is_made(four_hosts):
    command = [sys.executable, "-c", CRASHING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        left = int(owner.stdout.readline())
        assert not any(f"-{owner.pid}-" in name for name in remove_leftovers()), "its owner lives"
        assert runs(left)
        assert len(namespaces_of(owner.pid)) == 3
        owner.kill()

    with testbed(["a"], link_bps=1_000_000):
        assert not namespaces_of(owner.pid)
        wait_until(lambda: not runs(left), "what ran in its host is killed")
        assert len(namespaces_of(os.getpid())) == 5 + 2, "those of the living stay"


def test_without_rights_it_says_what_to_do():
    script = (
        "import os; from benchmarks.testbed.hosts import testbed; os.setuid(65534)\n"
        "with testbed(['a'], link_bps=1_000_000): pass"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)

    assert "UnavailableError" in ended.stderr
    assert "run as root" in ended.stderr


def test_without_iproute2_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="install iproute2"), testbed(["a"], link_bps=1_000_000):
        pass
    assert not namespaces_of(os.getpid())
