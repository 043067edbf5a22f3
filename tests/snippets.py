"""The fenced blocks of documents: what each is, whether it can be, and how one of Python is run.

A block that cannot run here says so in the line before its fence: ``<!-- not run: it needs two machines -->``. It is
checked all the same as far as it can be read.
"""

from __future__ import annotations

import ast
import inspect
import json
import multiprocessing
import os
import re
import shlex
import tomllib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import mlfabric
from tests.commands import HARMLESS, wrong

__all__ = ["Block", "Prompted", "blocks", "commands_spoken_of", "mistakes", "outcome_of"]

ROOT = Path(__file__).parents[1]
PATIENCE_S = 60.0
_FENCE = re.compile(r"^```(\w*)$", re.MULTILINE)
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->\s*\Z")
_PROMPT = re.compile(r"^([\w-]*)\$ +(.*)$")

PREAMBLE = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.functional import cross_entropy
import mlfabric

torch.manual_seed(0)
dataset = torch.utils.data.TensorDataset(torch.randn(24, 1, 8, 8), torch.randint(0, 10, (24,)))
batches = loader = train_loader = torch.utils.data.DataLoader(dataset, batch_size=8)
images, labels = next(iter(loader))
model = net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
loss_fn = criterion = cross_entropy
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
epochs = 2
"""
"""What a reader has before a snippet: a model, data, an optimizer, by the names that such things usually have."""
PREAMBLES = {
    "docs/planner.md": """
from pathlib import Path
from mlfabric.cli.plan_files import describe
name = "examples/plans/uneven.toml"
found = describe(Path(name).read_text(), is_json=False, name=name)
batch, network, state, config = found.batch, found.network, found.state, found.config
""",
}
"""The same of documents that speak of something else."""


class Block(NamedTuple):
    """A fenced block.

    Args:
        place: document and line, as README.md:20.
        language: "" for pictures and figures.
        not_run: why it cannot run here; "" if it can.
    """

    place: str
    language: str
    text: str
    not_run: str

    @property
    def document(self) -> str:
        """The document that it is in."""
        return self.place.partition(":")[0]


class Prompted(NamedTuple):
    """A command of a console.

    Args:
        host: before the prompt; "" for the reader's own machine.
        line: without prompt, as one line.
    """

    host: str
    line: str

    @property
    def words(self) -> list[str]:
        """What it consists of, without a comment."""
        return shlex.split(self.line, comments=True)

    @property
    def is_harmless(self) -> bool:
        """Whether it can be run by a test."""
        return not self.host and tuple(self.words[:2]) in HARMLESS


def blocks(documents: Sequence[Path]) -> Iterator[Block]:
    """Give all fenced blocks of documents."""
    for path in documents:
        text, name = path.read_text(), str(path.relative_to(ROOT))
        fences = list(_FENCE.finditer(text))
        for begin, end in zip(fences[::2], fences[1::2], strict=True):
            line = text.count("\n", 0, begin.start()) + 1
            not_run = _NOT_RUN.search(text[: begin.start()])
            content = text[begin.end() + 1 : end.start()]
            yield Block(f"{name}:{line}", begin[1], content, not_run[1] if not_run else "")


def prompted(text: str) -> list[Prompted]:
    """Return the commands of a console; lines without a prompt are what they print."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [Prompted(*match.groups()) for line in joined.splitlines() if (match := _PROMPT.match(line))]


def commands_spoken_of(text: str) -> list[str]:
    """Return what stands in code type within a text and begins like a command of ours."""
    spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    return sorted(
        {" ".join(span.split()) for span in spans if re.match(r"(\S+=\S+ )*(mlfabric|make|scripts/\w+) ", span)}
    )


def mistakes(block: Block) -> list[str]:
    """Return what is wrong with a block, by reading it."""
    match block.language:
        case "console" | "bash" | "sh" | "shell":
            commands = prompted(block.text)
            if not commands:
                return ["no line has a prompt: $ mlfabric ..."]
            return [f"{one.line}: {why}" for one in commands if (why := wrong(one.line))]
        case "python":
            return _mistakes_of_python(block.text)
        case "toml" | "json":
            try:
                (tomllib.loads if block.language == "toml" else json.loads)(block.text)
            except ValueError as error:
                return [str(error)]
            return []
        case "":
            return ["a console's language is missing: ```console"] if prompted(block.text) else []
        case language:
            return [f"language {language!r}; allowed: console, python, toml, json, or none for figures"]


def _mistakes_of_python(text: str) -> list[str]:
    """Look for names and arguments that the public door does not have."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    found = list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_ours(node.value) and not hasattr(mlfabric, node.attr):
            found.append(f"line {node.lineno}: there is no mlfabric.{node.attr}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_ours(node.func.value):
            called = getattr(mlfabric, node.func.attr, None)
            known = inspect.signature(called).parameters if callable(called) else {}
            is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
            found += [
                f"line {node.lineno}: mlfabric.{node.func.attr} has no argument {given.arg}"
                for given in node.keywords
                if given.arg and given.arg not in known and not is_open
            ]
    return found


def _is_ours(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "mlfabric"


# Running


def outcome_of(block: Block, folder: Path) -> str:
    """Run a block of Python in a process of its own, with a fabric in it; return what went wrong, "" if nothing did.

    Args:
        folder: where it is run; the examples of the checkout are in it.
    """
    servers = max([1, *map(int, re.findall(r"\bservers=(\d+)", block.text))])
    preamble = PREAMBLES.get(block.document, PREAMBLE)
    context = multiprocessing.get_context("forkserver")
    # The first optimizer that a process makes has torch load torch._dynamo: seconds.
    loaded = ["mlfabric.server.service", "mlfabric.worker_daemon.worker", "torch._dynamo", "tests.snippets"]
    context.set_forkserver_preload(loaded)
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(preamble, block.text, folder, servers, theirs))
    process.start()
    try:
        theirs.close()
        if not ours.poll(PATIENCE_S):
            return f"it did not end within {PATIENCE_S:g} s"
        said: str = ours.recv()
        return said
    except EOFError:
        process.join()
        return f"its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def _run(preamble: str, text: str, folder: Path, servers: int, pipe: Connection) -> None:
    """Be the process: start a fabric, run the preamble, then the block; tell how it went."""
    os.chdir(folder)
    try:
        if "mlfabric" in text:
            _begin_fabric(servers)
        names = {"__name__": "__main__"}
        exec(compile(preamble, "preamble", "exec"), names)
        exec(compile(text, "block", "exec"), names)
    except BaseException as error:
        place = [
            frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in ("preamble", "block")
        ]
        where = f"line {place[-1].lineno} of the {place[-1].filename}: " if place else ""
        hint = "; import it, or teach it tests/snippets.py" if isinstance(error, NameError) else ""
        pipe.send(f"{where}{type(error).__name__}: {error}{hint}")
    else:
        pipe.send("")
    os._exit(0)


def _begin_fabric(servers: int) -> None:
    """Run a scheduler in a thread, and servers; they end with the process."""
    import asyncio
    import threading

    from mlfabric.scheduler.runner import SchedulerOptions, SchedulerRunner

    loop, begun, address = asyncio.new_event_loop(), threading.Event(), list[str]()

    def ready(where: str) -> None:
        address.append(where)
        begun.set()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(SchedulerRunner(SchedulerOptions(port=0)).run(asyncio.Event(), ready))

    threading.Thread(target=serve, daemon=True).start()
    begun.wait(PATIENCE_S)
    settings: Mapping[str, str] = {"MLFABRIC_SCHEDULER": address[0], "MLFABRIC_NAME": "worker-0", "RANK": "0"}
    os.environ.update(settings, WORLD_SIZE="1")
    for number in range(servers):
        mlfabric.register_as_server(mlfabric.ServerOptions(scheduler=address[0], name=f"server-{number}"))
