"""Child processes: each in a group of its own, output forwarded line by line, ended with all that they started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from mlfabric.errors import UsageError
from mlfabric.launch import child, guard
from mlfabric.launch.first_of import first_of
from mlfabric.launch.output import Output
from mlfabric.launch.signals import EXIT_ON_SIGNAL, StopSignals

__all__ = ["GRACE_S", "Nursery", "Output", "Process", "Program", "Work", "ending_text", "exit_code", "launch"]

GRACE_S = 10.0
MARK = "MLFABRIC_LAUNCH"
OUTPUT_AFTER_END_S = 1.0
_BARE_PYTHON = (sys.executable, "-I", "-S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to start.

    Args:
        name: shown before each line of its output.
        argv: path of the executable, and its arguments.
        environment: all of it.
        stands_by: it waits for ``Process.begin`` when it has loaded everything.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    stands_by: bool = False


def exit_code(returncode: int) -> int:
    """Return the code that a shell would report: 128 and the signal's number for a process that a signal ended."""
    return returncode if returncode >= 0 else EXIT_ON_SIGNAL - returncode


def ending_text(returncode: int) -> str:
    """Say in words how a process ended."""
    if returncode >= 0:
        return f"ended with code {returncode}"
    number = -returncode
    name = signal.Signals(number).name if number in set(signal.Signals) else "an unnamed signal"
    return f"was killed by {name} (signal {number})"


class Process:
    """One running child, the leader of a process group; made inside the event loop.

    A thread waits for its end: asyncio's own processes do not end before their pipes do, which descendants may hold.
    """

    def __init__(self, program: Program, popen: subprocess.Popen[bytes]) -> None:
        self.program = program
        self.pid = popen.pid
        self._popen = popen
        self._ended = asyncio.Event()
        self._forwarding: list[asyncio.Task[None]] = []
        self._pipes: list[asyncio.ReadTransport] = []
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._reap, args=(loop,), name=f"wait for {program.name}", daemon=True).start()

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(self._ended.set)

    async def forward(self, output: Output) -> None:
        """Begin to forward its lines."""
        for pipe, is_error in ((self._popen.stdout, False), (self._popen.stderr, True)):
            assert pipe is not None, "started with pipes"
            reader = await self._reader(pipe)
            copying = output.forward(reader, self.program.name, is_error=is_error)
            self._forwarding.append(asyncio.create_task(copying))

    async def _reader(self, pipe: IO[bytes]) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        self._pipes.append(transport)
        return reader

    async def wait(self) -> int:
        """Wait for its end and for its last lines; return its code, negative for a signal.

        Descendants that still hold its output are not waited for.
        """
        await self._ended.wait()
        await self._last_lines()
        return int(self._popen.returncode)

    async def _last_lines(self) -> None:
        if self._forwarding:
            await asyncio.wait(self._forwarding, timeout=OUTPUT_AFTER_END_S)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet, as far as is known."""
        return not self._ended.is_set()

    def begin(self) -> None:
        """Tell a program that stands by to begin; nothing happens if it has ended."""
        assert self._popen.stdin is not None, "it was started to stand by"
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(b"begin\n")

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to its process group; nothing happens if that has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def end(self, grace_s: float = GRACE_S) -> None:
        """Ask it to end, kill it after ``grace_s`` seconds; returns when it has ended."""
        if self._ended.is_set():
            return
        self.tell(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._ended.wait(), grace_s)
        except TimeoutError:
            self.tell(signal.SIGKILL)
        await self.wait()

    async def close(self) -> None:
        """Forward what descendants wrote last, and no more."""
        await self._last_lines()
        for task in self._forwarding:
            task.cancel()
        await asyncio.gather(*self._forwarding, return_exceptions=True)
        for transport in self._pipes:
            transport.close()
        if self._popen.stdin is not None:
            self._popen.stdin.close()


class Nursery:
    """Starts programs; when it is left, or this process dies, all of them and their descendants end.

    Args:
        output: where their lines go.
        hurry: when set, nobody is given time to end.
        grace_s: time to end in an orderly way, in seconds.
    """

    def __init__(self, output: Output, hurry: asyncio.Event | None = None, grace_s: float = GRACE_S) -> None:
        self.output = output
        self._hurry = hurry or asyncio.Event()
        self._grace_s = grace_s
        self._mark = uuid.uuid4().hex
        self._running: list[Process] = []
        self._guard: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        self._guard = subprocess.Popen(
            [*_BARE_PYTHON, _script(guard.__file__), f"{MARK}={self._mark}", str(self._grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )
        return self

    async def start(self, program: Program) -> Process:
        """Start a program; standard input is empty, but for one that stands by.

        Raises:
            UsageError: it cannot be executed.
        """
        try:
            popen = subprocess.Popen(
                [*_BARE_PYTHON, _script(child.__file__), str(os.getpid()), *program.argv],
                stdin=subprocess.PIPE if program.stands_by else subprocess.DEVNULL,
                bufsize=0,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**program.environment, MARK: self._mark},
                process_group=0,
            )
        except OSError as error:
            raise UsageError(f"{program.name} cannot be started: {error}") from error
        process = Process(program, popen)
        self._running.append(process)
        await process.forward(self.output)
        return process

    async def end(self, processes: list[Process]) -> None:
        """End processes at the same time, at once if somebody is in a hurry."""
        ending = asyncio.gather(*(process.end(self._grace_s) for process in processes))
        hurried = asyncio.create_task(self._hurry.wait())
        hurried.add_done_callback(lambda task: None if task.cancelled() else _kill(processes))
        try:
            await ending
        finally:
            hurried.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end(self._running)
        if self._guard is not None:
            await asyncio.to_thread(self._guard.communicate, guard.AT_ONCE if self._hurry.is_set() else None)
        for process in self._running:
            await process.close()


Work = Callable[[Nursery], Awaitable[int]]
"""Does something with processes that it starts in a nursery; returns an exit code."""


async def launch(work: Work, output: Output) -> int:
    """Do work that starts processes, until it is done or a signal comes; end all it started.

    Returns:
        The work's code, or 128 + the signal's number if one ended it.
    """
    signals = StopSignals()

    async def told() -> int:
        await signals.stop.wait()
        return 0

    async def working(nursery: Nursery) -> int:
        return await work(nursery)

    with signals.watch():
        async with Nursery(output, signals.hurry) as nursery:
            code = await first_of(told(), working(nursery))
    return EXIT_ON_SIGNAL + signals.received if signals.received else code


def _kill(processes: list[Process]) -> None:
    for process in processes:
        process.tell(signal.SIGKILL)


def _script(module_file: str | None) -> str:
    assert module_file is not None, "a module of files"
    return str(Path(module_file).resolve())
