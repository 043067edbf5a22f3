"""What all tests share: how hypothesis draws and what it prints, a port nobody uses, emulated hosts. Nothing heavy.

Profiles: ``dev`` draws new examples in every run; ``ci`` draws the same ones each time. Both print how to
replay a failure. ``CI`` in the environment chooses ``ci``; ``--hypothesis-profile`` overrides.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from benchmarks.testbed.hosts import Testbed
    from tests.processes import Start


settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


# Who starts the tests in the background may ignore signals; all processes that tests start would then, too.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGTERM, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# To look again and again through what is loaded meanwhile would take a quarter of the time of collecting the tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Keep the garbage collector off all that collecting the tests has loaded, which is a million objects.

    Each scheduler that a test starts in here collects first, and would look through them.
    """
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Leave the root logger as it was: a command run in here points it to a stream that is closed after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def free_port() -> int:
    """Return a TCP port of the loopback address that was free a moment ago.

    It is below those that Linux gives to connections (from 32,768), of which tests in other processes open many.
    """
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ``mlfabric`` with the given arguments, as :func:`tests.processes.commands` says."""
    from tests.processes import commands

    with commands(tmp_path) as begin:
        yield begin


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an authority with a certificate for each role; return its folder."""
    from mlfabric.security import ROLES, Identity
    from mlfabric.security.authority import certify, make_authority

    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder, days=1)
    for role in ROLES:
        certify(folder, Identity(role=role), days=1)
    return folder


@pytest.fixture
def four_hosts() -> Iterator[Testbed]:
    """Emulate hosts h0 to h3 with links of 100 Mbit/s; skips without the rights to (mark tests with it ``root``)."""
    from benchmarks.testbed.hosts import testbed
    from mlfabric.errors import UnavailableError

    with ExitStack() as stack:
        try:
            bed = stack.enter_context(testbed([f"h{i}" for i in range(4)], link_bps=100_000_000))
        except UnavailableError as error:
            pytest.skip(str(error))
        yield bed
