"""The lines of many processes on one terminal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import BinaryIO

from mlfabric.telemetry.log_lines import JSON_LINE, JsonLines

__all__ = ["Output"]

READ_BYTES = 64 * 1024
LONGEST_LINE_BYTES = 1024 * 1024
_LOGGER = "mlfabric.launch"


class Output:
    """Where the lines of all children go: whole lines, each behind its process' name, one write each.

    A log line that is JSON stays JSON, and has the name in it.

    Args:
        own: the launcher's name, if its own lines are to be JSON, too; "" for text.
    """

    def __init__(self, out: BinaryIO | None = None, err: BinaryIO | None = None, *, own: str = "") -> None:
        self._streams = (out or sys.stdout.buffer, err or sys.stderr.buffer)
        self._own = own

    async def forward(self, reader: asyncio.StreamReader, name: str, *, is_error: bool) -> None:
        """Copy everything that ``reader`` brings, until its end."""
        rest = b""
        while data := await reader.read(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._write(name, line, is_error)
            if len(rest) > LONGEST_LINE_BYTES:
                self._write(name, rest, is_error)
                rest = b""
        if rest:
            self._write(name, rest, is_error)

    def _write(self, name: str, line: bytes, is_error: bool) -> None:
        stream = self._streams[is_error]
        if is_error and line.startswith(JSON_LINE):
            whole = _in_process(name, line)
        else:
            whole = b"[" + name.encode() + b"] " + line
        try:
            stream.write(whole + b"\n")
            stream.flush()
        except BrokenPipeError:
            _go_quiet(stream)

    def say(self, text: str, *, is_warning: bool = False) -> None:
        """Write a line of the launcher's own to the error stream."""
        line = f"mlfabric: {text}"
        if self._own:
            level = "WARNING" if is_warning else "INFO"
            record = logging.makeLogRecord({"name": _LOGGER, "levelname": level, "msg": text})
            line = _in_process(self._own, JsonLines().format(record).encode()).decode()
        try:
            self._streams[1].write(f"{line}\n".encode())
            self._streams[1].flush()
        except BrokenPipeError:
            _go_quiet(self._streams[1])


def _in_process(name: str, line: bytes) -> bytes:
    """Say in a line that is JSON which process wrote it."""
    return b'{"process": "' + name.encode() + b'", ' + line[1:]


def _go_quiet(stream: BinaryIO) -> None:
    """Nobody reads on: end in an orderly way, as if told to, and write to nowhere until then."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    signal.raise_signal(signal.SIGTERM)
