"""No pickle: not in what is installed, and not on any wire. Unpickling runs whatever code the sender likes."""

from __future__ import annotations

import ast
import asyncio
import io
import pickle
import pickletools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from tests.fabric.harness import Fabric, wait_until

PACKAGE = Path(mlfabric.__file__).parent
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "multiprocessing"}
HARMLESS = {("pickle", "UnpicklingError")}
"""An error that torch.load raises for a file that is damaged."""
AMONG_ITS_OWN = {"cli/fuzz_command.py": ["from multiprocessing import get_context"]}
"""Who talks by pickles with children of its own, over pipes that nobody else can open."""


def faults(source: str) -> list[str]:
    """Return what in a module could read or write a pickle that somebody else has made or will read."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [f"import {n.name}" for n in names if n.name.split(".")[0] in UNPICKLERS - {"pickle"}]
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in UNPICKLERS:
                found.append(f"from {module} import {', '.join(n.name for n in names)}")
            case ast.Attribute(value=ast.Name(id="pickle"), attr=attr) if ("pickle", attr) not in HARMLESS:
                found.append(f"pickle.{attr}")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load"), keywords=keywords):
                safe = [k for k in keywords if k.arg == "weights_only" and ast.unparse(k.value) == "True"]
                found += [] if safe else ["torch.load without weights_only=True"]
            case ast.Call(keywords=keywords) if any(k.arg == "allow_pickle" for k in keywords):
                found.append("allow_pickle")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(b'')",
        "from pickle import loads",
        "import multiprocessing.connection",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert faults(source)


def test_nothing_that_is_installed_reads_or_writes_pickles() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    assert len(modules) > 100
    found = {str(path.relative_to(PACKAGE)): bad for path in modules if (bad := faults(path.read_text("utf-8")))}
    assert found == AMONG_ITS_OWN


def pickles_in(data: bytes) -> list[bytes]:
    """Return every pickle of protocol 2 or newer in some bytes that does something, and torch's own in archives."""
    found, at = [], 0
    while (at := data.find(b"\x80", at)) >= 0:
        if at + 1 < len(data) and 2 <= data[at + 1] <= pickle.HIGHEST_PROTOCOL:
            try:
                ops = list(pickletools.genops(io.BytesIO(data[at:])))
            except (ValueError, EOFError, UnicodeDecodeError):
                ops = []
            if len(ops) > 2:
                found.append(data[at : at + 40])
        at += 1
    return found + [word for word in (b"data.pkl", b"_rebuild_tensor", b"PK\x03\x04") if word in data]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [{"a": 1}, [1.5], (None, "x"), torch.Size([3])])
def test_the_search_finds_pickles_between_other_bytes(value: Any, protocol: int) -> None:
    assert pickles_in(b"\x80\x02MLFB" + bytes(300) + pickle.dumps(value, protocol) + bytes(300))
    assert not pickles_in(b"\x80\x02MLFB" + bytes(300) + b"\x80\x80\x03")


def test_the_search_finds_what_torch_saves() -> None:
    file = io.BytesIO()
    torch.save(torch.ones(3), file)
    assert pickles_in(file.getvalue())


class Tap:
    """Passes connections on from one loopback address to another, and keeps all bytes, both ways."""

    def __init__(self, there: str, port: int) -> None:
        self.kept = bytearray()
        self.connections = 0
        self._there = there, port
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def listen(self, host: str, port: int = 0) -> int:
        """Listen and return the port."""

        async def begin() -> asyncio.Server:
            return await asyncio.start_server(self._pass_on, host, port)

        self._server = asyncio.run_coroutine_threadsafe(begin(), self._loop).result(30)
        return int(self._server.sockets[0].getsockname()[1])

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        out_reader, out_writer = await asyncio.open_connection(*self._there)
        try:
            await asyncio.gather(self._pump(reader, out_writer), self._pump(out_reader, writer))
        finally:
            for end in (writer, out_writer):
                end.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                self.kept.extend(data)
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        sink.close()

    def close(self) -> None:
        """Stop passing on."""

        async def end() -> None:
            assert self._server is not None
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0)  # connections that were aborted are closed in the next turn

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop.close()


@contextmanager
def tapped(there: str, port: int, host: str, at: int = 0) -> Iterator[tuple[Tap, int]]:
    tap = Tap(there, port)
    try:
        yield tap, tap.listen(host, at)
    finally:
        tap.close()


def test_what_members_say_and_send_while_they_train_has_no_pickle_in_it(free_port: int) -> None:
    model = {"w": torch.ones(50_000, requires_grad=True)}
    with Fabric() as running:
        # The server listens on one loopback address and says another one, at which the tap listens.
        running.server(tcp=TcpOptions(ports=(free_port, free_port), advertised_host="127.0.0.2"))
        wait_until(lambda: running.status().members, "the server has joined")
        with (
            tapped("127.0.0.1", free_port, "127.0.0.2", free_port) as (data, _),
            tapped("127.0.0.1", running.scheduler.port, "127.0.0.1") as (control, port),
        ):
            settings = WorkerSettings(scheduler=f"127.0.0.1:{port}", name="w0", host="h", tcp=TcpOptions())
            with mlfabric.register_as_worker(model, rule=mlfabric.RuleSpec(lr=1.0), settings=settings) as worker:
                for _ in range(3):
                    worker.get()
                    model["w"].grad = torch.ones(50_000)
                    assert isinstance(worker.push().result(30), mlfabric.Committed)
    assert data.connections
    assert b"MLFB" in data.kept
    assert len(data.kept) > 2 * 3 * 4 * 50_000
    assert b"mlfabric.v1.FabricService" in control.kept
    assert pickles_in(bytes(data.kept)) == []
    assert pickles_in(bytes(control.kept)) == []
