"""Token buckets (tbf) on interfaces of many namespaces, set from one process over rtnetlink.

A socket stays in the namespace in which it was made, so that changing all rates takes two system calls for each
namespace and no ``tc``. Messages as in ``linux/rtnetlink.h`` and ``linux/pkt_sched.h``.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.testbed.namespaces import entered

__all__ = ["MTU_BYTES", "Bucket", "Shaper"]

MTU_BYTES = 1500
ETHERNET_BYTES = MTU_BYTES + 14
BURST_S = 0.008
"""Shorter buckets lose what they could not send while a busy computer kept the kernel's timers waiting: 30 hosts on two
cores were a quarter slower with 2 ms."""

LEAST_BURST_BYTES = 2 * ETHERNET_BYTES
LEAST_QUEUE_BYTES = 32 * ETHERNET_BYTES
MOST_QUEUE_BYTES = 2**32 - 1

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence number, port
_QDISC = struct.Struct("=BxxxiIII")  # tcmsg: family, interface, handle, parent, info
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_RATE = struct.Struct("=BBHhHI")  # tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, bytes/s
_SIZES = struct.Struct("=III")  # of tc_tbf_qopt: limit, buffer, mtu
_ERROR = struct.Struct("=i")

NEW_QDISC = 36
ERROR = 2
REQUEST_ACK_CREATE_REPLACE = 0x001 | 0x004 | 0x400 | 0x100
HANDLE = 0x00010000
ROOT = 0xFFFFFFFF
LINK_LAYER_ETHERNET = 1
KIND, OPTIONS = 1, 2
PARAMETERS, RATE64, BURST = 1, 4, 6
ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A token bucket.

    Args:
        rate_bps: at which it fills, counted with Ethernet headers, > 0.
        full_bps: the link's rate while nothing slows it down, > 0; sets the burst.
        queue_s: how long the queue before it is at most at that rate; never shorter than 32 full packets, for TCP with
            fewer waits for timeouts instead of sending.
    """

    rate_bps: int
    full_bps: int
    queue_s: float

    @property
    def burst_bytes(self) -> int:
        """How much may pass at once after a pause, or after the computer was late: 8 ms of the full rate.

        The same at all rates: tbf cuts packets to the burst when they come, not again when the burst shrinks, and a
        packet that is larger than the burst would wait for ever, and all behind it.
        """
        return max(LEAST_BURST_BYTES, round(self.full_bps / 8 * BURST_S))

    @property
    def queue_bytes(self) -> int:
        """How much may wait; no more than the kernel can count."""
        return min(MOST_QUEUE_BYTES, max(LEAST_QUEUE_BYTES, round(self.rate_bps / 8 * self.queue_s)))


class Shaper:
    """Sets the token buckets of the interfaces of one namespace.

    Args:
        namespace: that exists.
        interfaces: that are in it.

    Raises:
        OSError: the namespace or an interface is not there, or the rights are lacking.
    """

    def __init__(self, namespace: str, interfaces: Sequence[str]) -> None:
        with entered(namespace):
            self._indices = {name: socket.if_nametoindex(name) for name in interfaces}
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._namespace = namespace

    def set(self, buckets: dict[str, Bucket]) -> None:
        """Give interfaces their buckets, in place of those they have; what waits in their queues goes on waiting.

        Raises:
            OSError: the kernel refuses one.
        """
        messages = [_message(self._indices[name], bucket) for name, bucket in buckets.items()]
        self._socket.send(b"".join(messages))
        left = len(messages)
        while left:
            left -= self._acknowledged(self._socket.recv(ANSWER_BYTES))

    def _acknowledged(self, answer: bytes) -> int:
        """Return how many messages an answer acknowledges."""
        at = count = 0
        while at < len(answer):
            length, kind, *_ = _HEADER.unpack_from(answer, at)
            if kind == ERROR:
                (code,) = _ERROR.unpack_from(answer, at + _HEADER.size)
                if code:
                    raise OSError(-code, f"token bucket in {self._namespace}: {os.strerror(-code)}")
                count += 1
            at += _aligned(length)
        return count

    def close(self) -> None:
        """Let go of the namespace; the buckets stay as they are."""
        self._socket.close()


def _message(index: int, bucket: Bucket) -> bytes:
    bytes_per_s = bucket.rate_bps // 8
    rate = _RATE.pack(0, LINK_LAYER_ETHERNET, 0, 0, 0, min(bytes_per_s, 0xFFFFFFFF))
    parameters = rate + _RATE.pack(0, 0, 0, 0, 0, 0) + _SIZES.pack(bucket.queue_bytes, 0, 0)
    options = (
        _attribute(PARAMETERS, parameters)
        + _attribute(RATE64, struct.pack("=Q", bytes_per_s))
        + _attribute(BURST, struct.pack("=I", bucket.burst_bytes))
    )
    payload = _QDISC.pack(0, index, HANDLE, ROOT, 0) + _attribute(KIND, b"tbf\0") + _attribute(OPTIONS, options)
    return _HEADER.pack(_HEADER.size + len(payload), NEW_QDISC, REQUEST_ACK_CREATE_REPLACE, 0, 0) + payload


def _attribute(kind: int, value: bytes) -> bytes:
    return (_ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value).ljust(
        _ATTRIBUTE.size + _aligned(len(value)), b"\0"
    )


def _aligned(length: int) -> int:
    return (length + 3) & ~3
