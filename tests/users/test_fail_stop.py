"""Who cannot carry out what was decided ends with the reason; the others are told, and go on by the stated rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import Start

pytestmark = pytest.mark.processes

# Whoever is silent is waited for all the time that these tests take: what goes on sooner was told.
SCHEDULER = ("scheduler", "--port", "0", "--silence", "600")
TRAINS = """
    import os, sys, time, torch, mlfabric

    while not os.path.exists("go"):
        time.sleep(0.01)
    model, steps = {"w": torch.zeros(int(sys.argv[1]), requires_grad=True)}, 0
    with mlfabric.register_as_worker(model) as worker:
        worker.get()
        print("trains", flush=True)
        first = worker.version.epoch
        while steps < 3:
            model["w"].grad = torch.full_like(model["w"], -1.0)
            worker.push().result()
            worker.get()
            steps += worker.version.epoch > first or sys.argv[2] == "any"
    print("trained", flush=True)
"""


@pytest.fixture
def address(start: Start) -> str:
    """Start a scheduler; gives its address."""
    found = re.search(r"scheduler at (\S+),", start(*SCHEDULER).read_until("scheduler at"))
    assert found is not None
    return found[1]


def test_a_server_whose_callback_raises_ends_with_that_error_and_its_replica_takes_its_place(
    start: Start, address: str, tmp_path: Path
) -> None:
    server = start(
        *("SCRIPT", address),
        script="""
        import os, sys, mlfabric

        def committed(model, commit, view):
            if os.path.exists("enough"):
                raise ValueError("that is enough")

        options = mlfabric.ServerOptions(scheduler=sys.argv[1])
        with mlfabric.register_as_server(options) as server:
            server.register_update_callback(committed)
            named = mlfabric.AggregatorOptions(scheduler=sys.argv[1], name="server-0")
            for register, what in ((mlfabric.register_as_server, options), (mlfabric.register_as_aggregator, named)):
                try:
                    register(what)
                except mlfabric.RefusedError as refused:
                    print("refused:", refused, flush=True)
            print("serves", flush=True)
            server.wait()
        """,
    )
    start("server", "--replica-of", "server-0", "--div-max-updates", "2", "--scheduler", address)
    worker = start("SCRIPT", "100", "later", script=TRAINS, MLFABRIC_SCHEDULER=address)
    (tmp_path / "go").touch()
    worker.read_until("trains")
    while "follows model" not in start("status", "--scheduler", address).finish()[1]:
        pass
    server.read_until("serves")
    (tmp_path / "enough").touch()

    code, said = server.finish()
    assert code == 1, said
    assert len(re.findall("refused: .*'server-0' is taken by a live server", said)) == 2, said
    assert "server-0 cannot go on: ValueError: that is enough, in the update callback" in said
    assert said.rstrip().splitlines()[-2:] == ["ValueError: that is enough", "in the update callback"]
    code, said = worker.finish()
    assert (code, "trained" in said) == (0, True), said


def test_a_server_without_memory_for_the_weights_ends_and_training_begins_with_another_one(
    start: Start, address: str, tmp_path: Path
) -> None:
    server = start(
        *("SCRIPT", address),
        script="""
        import resource, sys, mlfabric

        with mlfabric.register_as_server(mlfabric.ServerOptions(scheduler=sys.argv[1])) as server:
            used_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (100 << 20), resource.RLIM_INFINITY))
            open("go", "w").close()
            server.wait()
        """,
    )
    floats = 24 << 20  # 96 MiB: there is room for those that come, and none for the weights that they are to become
    worker = start("SCRIPT", str(floats), "any", script=TRAINS, MLFABRIC_SCHEDULER=address)
    code, said = server.finish()
    assert code == 1, said
    assert re.search(r"server-0 cannot go on: MemoryError: .*, while it carried out InstallInitial", said), said
    start("server", "--scheduler", address)
    code, said = worker.finish()
    assert (code, "trained" in said) == (0, True), said
