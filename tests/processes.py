"""Real ``mlfabric`` processes for tests, all of them gone at the end, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlfabric.launch.guard import marked

PATIENCE_S = 100.0


def wait_until(holds: Callable[[], bool], what: str, every_s: float = 0.01) -> None:
    """Wait until a condition holds, which is looked at every so often."""
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, f"waited {PATIENCE_S} s in vain: {what}"
        time.sleep(every_s)


class Command:
    """One ``mlfabric`` process, or that of a script; it and all its descendants carry a mark of this test."""

    def __init__(
        self, arguments: tuple[str, ...], folder: Path, *, is_script: bool = False, **environment: str
    ) -> None:
        self.mark = f"TEST_MARK={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("MLFABRIC_")}
        self.process = subprocess.Popen(
            [sys.executable, *(() if is_script else ("-P", "-m", "mlfabric")), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**inherited, **environment, name: value, "PYTHONUNBUFFERED": "1"},
            cwd=folder,
            text=True,
        )
        self.seen: list[str] = []

    def pids(self) -> list[int]:
        """Return the processes of this command that run, itself among them."""
        return marked(self.mark)

    def read_until(self, text: str) -> str:
        """Read output up to a line that has ``text``; return that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} did not come in:\n{''.join(self.seen)}")

    def close_output(self) -> None:
        """Read no more of its output, so that it cannot write."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.stdout = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self.process.send_signal(number)

    def finish(self, within_s: float = PATIENCE_S) -> tuple[int, str]:
        """Wait for the end; return code and all output."""
        rest, _ = self.process.communicate(timeout=within_s)
        return self.process.returncode, "".join(self.seen) + rest

    def wait_until_nothing_is_left(self) -> None:
        """Wait until no process of this command runs."""
        wait_until(lambda: not self.pids(), f"still running: {self.pids()}")

    def kill(self) -> None:
        """Kill all that is left."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


Start = Callable[..., Command]


@contextmanager
def commands(folder: Path) -> Iterator[Start]:
    """Give what starts ``mlfabric`` with the given arguments; all of them are gone afterwards.

    A script's text, given as ``script``, is written to a file, whose path takes the place of the argument ``SCRIPT``.
    If that is the first argument, the script itself is started, with the others.
    """
    started: list[Command] = []

    def begin(*arguments: str, script: str | None = None, **environment: str) -> Command:
        is_script = arguments[:1] == ("SCRIPT",)
        if script is not None:
            file = folder / f"script_{len(started)}.py"
            file.write_text(textwrap.dedent(script))
            arguments = tuple(str(file) if argument == "SCRIPT" else argument for argument in arguments)
        started.append(Command(arguments, folder, is_script=is_script, **environment))
        return started[-1]

    try:
        yield begin
    finally:
        for command in started:
            command.kill()


@contextmanager
def fabric_up(folder: Path, *options: str) -> Iterator[str]:
    """Keep ``mlfabric up`` running; gives the scheduler's address."""
    command = Command(("up", "--port", "0", "--log-level", "error", *options), folder)
    try:
        command.read_until("mlfabric is up")
        yield command.read_until("scheduler").split()[-1]
    finally:
        command.signal(signal.SIGTERM)
        command.process.wait(PATIENCE_S)
        command.kill()
