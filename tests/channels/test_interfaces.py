"""Interfaces of this machine: found by address, counted by the kernel."""

from __future__ import annotations

import socket

from mlfabric.channels.interfaces import carried_bytes, interface_of, is_loopback


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == ""
    assert interface_of("") == ""


def test_the_interface_of_a_host_name_is_that_of_its_address() -> None:
    assert interface_of("localhost") == "lo"
    assert interface_of("no-such-host.invalid") == ""


def test_the_loopback_is_told_from_what_leads_to_other_machines() -> None:
    assert is_loopback("lo")
    assert not is_loopback("eth99")


def test_what_an_interface_has_carried_is_counted_and_one_that_is_gone_carries_nothing() -> None:
    before = carried_bytes("lo")
    assert before is not None
    sender, receiver = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.bind(("127.0.0.1", 0))
        sender.sendto(bytes(10_000), receiver.getsockname())
        receiver.recv(20_000)
    after = carried_bytes("lo")
    assert after is not None
    assert after[0] >= before[0] + 10_000
    assert after[1] >= before[1] + 10_000
    assert carried_bytes("eth99") is None
