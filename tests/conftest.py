"""What all tests share: how hypothesis draws and what it prints, and a port nobody uses. Nothing heavy.

Profiles: ``dev`` draws new examples in every run; ``ci`` draws the same ones each time. Both print how to
replay a failure. ``CI`` in the environment chooses ``ci``; ``--hypothesis-profile`` overrides.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


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
    """Return a TCP port of the loopback address that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
