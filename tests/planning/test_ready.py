"""Everything that is compiled is loaded before it is needed."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE
from types import ModuleType
from typing import TypeVar

import pytest

from mlfabric.planning import Consistency, Shape, kernel_choice, plan, warm_up
from mlfabric.planning.fluid import jit, ready
from tests.planning.worlds import random_fabric

Found = TypeVar("Found")


def versions() -> dict[str, int]:
    """How often each function was compiled or loaded, for different types."""
    kernels = [kernel for kernel in jit._kernels if kernel.py_func.__module__.startswith("mlfabric.")]
    return {f"{k.py_func.__module__}.{k.py_func.__name__}": len(k.overloads) for k in kernels}


@pytest.mark.timeout(900)  # on a machine on which nothing is compiled yet; scripts/test sees to that beforehand
def test_after_warming_up_no_plan_compiles_anything() -> None:
    ready.load(lambda line: None)
    assert ready.is_compiled()
    before = versions()
    for seed in range(60):
        fabric = random_fabric(random.Random(seed), consistencies=list(Consistency), shapes=frozenset(Shape))
        plan(fabric.batch, fabric.network, fabric.state, fabric.config)
    assert versions() == before


@pytest.mark.parametrize(("is_cold", "said"), [(True, ["compiling", "compiled"]), (False, ["loaded"])])
def test_warming_up_tells_once_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, is_cold: bool, said: list[str]
) -> None:
    warmed: list[str] = []
    stage = ModuleType("a_stage")
    monkeypatch.setattr(stage, "warm", lambda: warmed.append("warmed"), raising=False)
    monkeypatch.setitem(sys.modules, "a_stage", stage)
    monkeypatch.setattr(ready, "STAGES", ("a_stage",))
    monkeypatch.setattr(ready, "is_cold", lambda: is_cold)
    monkeypatch.setattr(ready, "is_kept", lambda: False)
    monkeypatch.setattr(ready, "set_warm", lambda: warmed.append("remembered"))
    monkeypatch.setattr(kernel_choice, "_loaded", [])
    lines: list[str] = []
    warm_up(lines.append)
    warm_up(lines.append)
    assert [line.split()[0] for line in lines] == said
    assert warmed == ["warmed", "remembered"]


@pytest.mark.parametrize("backwards", [False, True])
def test_compiling_may_begin_at_either_end(monkeypatch: pytest.MonkeyPatch, backwards: bool) -> None:
    warmed: list[str] = []
    for name in ("first", "last"):
        stage = ModuleType(name)
        monkeypatch.setattr(stage, "warm", lambda name=name: warmed.append(name), raising=False)
        monkeypatch.setitem(sys.modules, name, stage)
    monkeypatch.setattr(ready, "STAGES", ("first", "last"))
    monkeypatch.setattr(ready, "set_warm", lambda: None)
    ready.load(lambda line: None, backwards=backwards)
    assert warmed == (["last", "first"] if backwards else ["first", "last"])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_what_compiles_from_the_other_end_ends_with_who_started_it(tmp_path: Path, end: signal.Signals) -> None:
    command, nothing_kept = [sys.executable, "-m", "mlfabric.planning.fluid"], {"NUMBA_CACHE_DIR": str(tmp_path)}
    with subprocess.Popen(command, env=os.environ | nothing_kept, stdout=PIPE, stderr=DEVNULL) as compiler:
        helper = wait_until(lambda: [child for child in children(compiler.pid) if is_helper(child)])[0]
        compiler.send_signal(end)
        compiler.wait()
        wait_until(lambda: not is_helper(helper))


def children(pid: int) -> list[str]:
    """The processes that a process has started."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def is_helper(pid: str) -> bool:
    """Whether a process compiles from the other end; one that has ended has no command any more."""
    command = Path(f"/proc/{pid}/cmdline")
    return command.exists() and b"backwards" in command.read_bytes()


def wait_until(happens: Callable[[], Found]) -> Found:
    """Wait until something is true; return what it is."""
    deadline_s = time.monotonic() + 60
    while not (found := happens()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return found


def test_garbage_is_collected_again_after_loading_even_if_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def warm() -> None:
        seen.append(gc.isenabled())
        raise MemoryError

    stage = ModuleType("a_stage")
    monkeypatch.setattr(stage, "warm", warm, raising=False)
    monkeypatch.setitem(sys.modules, "a_stage", stage)
    monkeypatch.setattr(ready, "STAGES", ("a_stage",))
    assert gc.isenabled()
    with pytest.raises(MemoryError):
        ready.load(lambda line: None)
    assert (seen, gc.isenabled()) == ([False], True)


def test_planning_for_a_star_loads_no_graph_library() -> None:
    program = (
        "import sys; from mlfabric.network import Network; import mlfabric.planning; "
        "Network.star(1).add_host('a'); sys.exit('networkx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
