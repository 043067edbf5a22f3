"""Hosts that are cut off: packets vanish one way or both ways, and come again when they are mended."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.testbed.hosts import Host, Testbed
from benchmarks.testbed.namespaces import entered
from mlfabric.errors import UsageError
from mlfabric.twin.settings import Direction

pytestmark = pytest.mark.root

PORT = 7000
GONE_S = 1.0


@pytest.fixture
def ends(four_hosts: Testbed) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Sockets on the first two hosts."""
    with ExitStack() as stack:
        yield stack.enter_context(datagrams(four_hosts.hosts[0])), stack.enter_context(datagrams(four_hosts.hosts[1]))


def datagrams(host: Host) -> socket.socket:
    with entered(host.namespace):
        end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.bind((host.address, PORT))
    end.settimeout(GONE_S)
    return end


def passes(sender: socket.socket, receiver: socket.socket) -> bool:
    sender.sendto(b"x", receiver.getsockname())
    try:
        return bool(receiver.recv(1))
    except TimeoutError:
        return False


def test_a_host_is_cut_off_one_way_or_both_ways_and_mended(four_hosts: Testbed, ends) -> None:
    cut, other = ends
    for directions, comes, goes in (
        ((Direction.UP,), True, False),
        ((Direction.DOWN,), False, True),
        ((), False, False),
    ):
        four_hosts.cut("h0", *directions)
        four_hosts.cut("h0", *directions)
        assert (passes(other, cut), passes(cut, other)) == (comes, goes), directions
        four_hosts.mend("h0")
        four_hosts.mend("h0")
        assert passes(other, cut)
        assert passes(cut, other)


def test_only_hosts_that_are_there_can_be_cut_off(four_hosts: Testbed) -> None:
    with pytest.raises(UsageError, match="host 'h9'; allowed: h0, h1"):
        four_hosts.cut("h9")
