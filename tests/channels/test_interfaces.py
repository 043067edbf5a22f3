"""Interfaces of this machine: found by address, counted by the kernel."""

from __future__ import annotations

import pytest

from mlfabric.channels.interfaces import carried_bytes, interface_of, is_loopback


@pytest.mark.parametrize(
    ("address", "interface"),
    [("127.0.0.1", "lo"), ("192.0.2.1", ""), ("", ""), ("localhost", "lo"), ("no-such-host.invalid", "")],
)
def test_the_interface_of_an_address_or_of_a_host_name_is_found(address: str, interface: str) -> None:
    assert interface_of(address) == interface


def test_the_loopback_is_told_from_what_leads_to_other_machines_and_what_is_gone_carries_nothing() -> None:
    assert is_loopback("lo")
    assert not is_loopback("eth99")
    assert carried_bytes("eth99") is None
