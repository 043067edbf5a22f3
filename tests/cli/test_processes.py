from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import UsageError
from mlfabric.launch.guard import marked
from mlfabric.launch.output import LONGEST_LINE_BYTES, Output
from mlfabric.launch.processes import Nursery, Program, ending_text, exit_code

READY = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush()"
"""In one piece: others may write into the same pipe."""
ENDLESS = f"import time; {READY}; time.sleep(1000)"
DEAF = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}; time.sleep(1000)"


def python(name: str, code: str, **environment: str) -> Program:
    return Program(name=name, argv=(sys.executable, "-c", code), environment={**os.environ, **environment})


class Lines(io.BytesIO):
    """An output that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.more = asyncio.Event()

    def flush(self) -> None:
        self.more.set()

    async def wait_for(self, text: bytes) -> None:
        while text not in self.getvalue():
            self.more.clear()
            await self.more.wait()


async def test_every_line_carries_the_name_of_its_process():
    out, err = Lines(), Lines()
    async with Nursery(Output(out, err)) as nursery:
        process = await nursery.start(python("3", "import sys; print('one\\ntwo'); print('three', file=sys.stderr)"))
        assert await process.wait() == 0

    assert out.getvalue() == b"[3] one\n[3] two\n"
    assert err.getvalue() == b"[3] three\n"


async def test_a_last_line_without_its_end_is_forwarded_whole():
    out = Lines()
    async with Nursery(Output(out, Lines())) as nursery:
        await (await nursery.start(python("0", "print('first\\nlast', end='')"))).wait()

    assert out.getvalue() == b"[0] first\n[0] last\n"


async def test_lines_of_several_processes_do_not_mix():
    out = Lines()
    code = "import os\nfor c in 'abcdefghij\\n' * 300: os.write(1, c.encode())"
    async with Nursery(Output(out, Lines())) as nursery:
        processes = [await nursery.start(python(str(i), code)) for i in range(3)]
        for process in processes:
            await process.wait()

    lines = out.getvalue().splitlines()
    assert sorted(set(lines)) == [b"[0] abcdefghij", b"[1] abcdefghij", b"[2] abcdefghij"]
    assert len(lines) == 900


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_whatever_the_pieces_that_arrive_the_lines_are_those_that_were_written(pieces):
    async def forward() -> bytes:
        reader, out = asyncio.StreamReader(), io.BytesIO()
        for piece in pieces:
            reader.feed_data(piece)
        reader.feed_eof()
        await Output(out, io.BytesIO()).forward(reader, "n", is_error=False)
        return out.getvalue()

    written = b"".join(pieces)
    lines = written.removesuffix(b"\n").split(b"\n") if written else []

    assert asyncio.run(forward()) == b"".join(b"[n] " + line + b"\n" for line in lines)


async def test_a_line_without_end_does_not_fill_the_memory():
    reader, out = asyncio.StreamReader(), io.BytesIO()
    for _ in range(3):
        reader.feed_data(b"x" * (LONGEST_LINE_BYTES + 1))
    reader.feed_eof()
    await Output(out, io.BytesIO()).forward(reader, "n", is_error=False)

    assert out.getvalue().count(b"\n") >= 2
    assert out.getvalue().count(b"x") == 3 * (LONGEST_LINE_BYTES + 1)


async def test_a_process_that_does_not_end_when_asked_is_killed():
    out = Lines()
    async with Nursery(Output(out, Lines()), grace_s=0.1) as nursery:
        process = await nursery.start(python("0", DEAF))
        await out.wait_for(b"ready")
        await process.end(0.1)
        assert await process.wait() == -signal.SIGKILL


async def test_a_second_signal_spares_the_wait():
    out, hurry = Lines(), asyncio.Event()
    async with Nursery(Output(out, Lines()), hurry, grace_s=1000) as nursery:
        process = await nursery.start(python("0", DEAF))
        await out.wait_for(b"ready")
        hurry.set()
        await nursery.end([process])
        assert await process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("escape", ["", ", start_new_session=True"], ids=["same session", "session of its own"])
async def test_processes_that_a_child_leaves_behind_end_with_the_nursery(escape):
    out, mark = Lines(), f"TEST_MARK={os.urandom(8).hex()}"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {ENDLESS!r}]{escape})"
    async with Nursery(Output(out, Lines())) as nursery:
        process = await nursery.start(python("0", code, TEST_MARK=mark.split("=")[1]))
        await out.wait_for(b"ready")
        assert await process.wait() == 0
        assert len(marked(mark)) == 1

    assert marked(mark) == []


async def test_when_the_launcher_is_killed_nothing_is_left(tmp_path: Path):
    """The launcher has a child that ignores SIGTERM, with a child in a session of its own that does so too."""
    mark = f"TEST_MARK={os.urandom(8).hex()}"
    child = tmp_path / "child.py"
    child.write_text(
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {DEAF!r}], start_new_session=True)\n{DEAF}\n"
    )
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import asyncio, os, sys\n"
        "from mlfabric.launch.output import Output\n"
        "from mlfabric.launch.processes import Nursery, Program\n"
        "async def main():\n"
        "    async with Nursery(Output(), grace_s=0.2) as nursery:\n"
        f"        program = Program(name='0', argv=(sys.executable, {str(child)!r}), environment=os.environ)\n"
        "        await (await nursery.start(program)).wait()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(launcher)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "TEST_MARK": mark.split("=")[1]},
    )
    assert process.stdout is not None
    try:
        assert [await process.stdout.readline() for _ in range(2)] == [b"[0] ready\n"] * 2
        process.kill()
        await process.wait()
        while marked(mark):
            await asyncio.sleep(0.01)
    finally:
        for pid in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def test_a_program_that_cannot_be_started_ends_with_a_message():
    err = Lines()
    async with Nursery(Output(Lines(), err)) as nursery:
        process = await nursery.start(Program(name="0", argv=("/nowhere/python",), environment=os.environ))
        assert await process.wait() != 0

    assert b"No such file" in err.getvalue()


async def test_an_argument_that_no_process_can_have_is_a_usage_error():
    async with Nursery(Output(Lines(), Lines())) as nursery:
        with pytest.raises(UsageError, match="cannot be started"):
            await nursery.start(Program(name="0", argv=("x" * 10_000_000,), environment=os.environ))


@pytest.mark.parametrize(
    ("returncode", "code", "text"),
    [(0, 0, "ended with code 0"), (3, 3, "ended with code 3"), (-11, 139, "was killed by SIGSEGV (signal 11)")],
)
def test_an_ending_is_told_as_a_shell_tells_it(returncode, code, text):
    assert exit_code(returncode) == code
    assert ending_text(returncode) == text
