"""Processes of Python for tests, which are gone at the end of a block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.fabric.harness import PATIENCE_S

__all__ = ["Program"]


class Program:
    """A process that talks by lines; it is killed at the end at the latest."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd(), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *raised: object) -> None:
        self.signal(signal.SIGCONT)
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def hear(self, line: str) -> None:
        """Wait until it says this."""
        assert self._process.stdout is not None
        for said in self._process.stdout:
            if said.strip() == line:
                return
        raise AssertionError(f"it ended without saying {line!r}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
