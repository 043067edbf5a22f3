"""The calls of the paper's Table 1, for tensors that are nobody's gradient: docs/api.md has the table."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes

SERVICES = """
    import os, pathlib, time, mlfabric

    told = {"server": [], "get": [], "replica": []}

    def committed(model, commit, view):
        told["server"].append((commit.version.number, view.tensors["counts"].tolist()))

    def requested(model, get, view):
        told["get"].append((view.version.number, view.tensors["counts"].tolist()))

    def reached(model, view):
        told["replica"].append((view.version.number, view.tensors["counts"].tolist()))
        if len(told["replica"]) == 4:
            pathlib.Path("enough").touch()

    where = os.environ["MLFABRIC_SCHEDULER"]
    with mlfabric.register_as_server(mlfabric.ServerOptions(scheduler=where)) as server:
        server.register_update_callback(committed)
        server.register_request_callback(requested)
        follows = mlfabric.ReplicaOptions(scheduler=where, replica_of="server-0", div_max_updates=0)
        with mlfabric.register_as_replica(follows) as replica:
            replica.register_update_callback(reached)
            while not os.path.exists("done"):
                time.sleep(0.01)
    for kind, notes in told.items():
        numbers = [number for number, _ in notes]
        assert notes, told
        assert kind == "get" or numbers == sorted(set(numbers)), told
        assert all(counts == [number, 2.0 * number] for number, counts in notes), told
    assert [number for number, _ in told["server"]] == list(range(1, len(told["server"]) + 1)), told
    print("callbacks agree")
"""

WORKER = """
    import os, pathlib, torch, mlfabric

    def refused(call, kind):
        try:
            call()
        except kind as error:
            return str(error)
        raise AssertionError("not refused")

    counts = {"counts": torch.zeros(2, dtype=torch.float64, requires_grad=True)}
    seen = {"counts": torch.empty(2, dtype=torch.float64)}
    update = {"counts": torch.tensor([-1.0, -2.0], dtype=torch.float64)}
    with mlfabric.register_as_worker(counts, rule=mlfabric.RuleSpec(lr=1.0)) as worker:
        step = worker.get().number
        while not os.path.exists("enough"):
            step += 1
            worker.push(update=update, norm=3.0 if step % 2 else None)
            assert worker.get(into=seen).number == step
            assert seen["counts"].tolist() == [step, 2.0 * step]
        wrong = {"counts": torch.ones(3, dtype=torch.float64)}
        print(refused(lambda: worker.push(update=wrong), mlfabric.LayoutError))
        print(refused(lambda: worker.push(update={}), mlfabric.LayoutError))
        print(refused(lambda: worker.push(update={"counts": update["counts"] / 0}), mlfabric.UsageError))
        print(refused(lambda: worker.push(update=update, norm=1.0), mlfabric.UsageError))
        print(refused(lambda: worker.get(into={**seen, "more": seen["counts"]}), mlfabric.LayoutError))
        assert isinstance(worker.push(update=update).result(), mlfabric.Committed)
        print(counts["counts"].tolist(), "left alone")
    pathlib.Path("done").touch()
"""


def test_tensors_are_pushed_and_got_by_name_while_callbacks_read_every_version(start, free_port):
    where = f"127.0.0.1:{free_port}"
    start("scheduler", "--port", str(free_port)).read_until("running; Ctrl-C")
    services = start("run", "-n", "1", "--no-up", "--scheduler", where, "SCRIPT", script=SERVICES)
    worker = start("run", "-n", "1", "--no-up", "--scheduler", where, "SCRIPT", script=WORKER)
    code, out = worker.finish()
    assert code == 0, out
    assert "counts is float64[3]; allowed: float64[2]" in out
    assert "no counts; allowed: counts" in out
    assert "counts has NaN or Inf" in out
    assert "norm=1.0; allowed: at least 2.23607" in out
    assert "more, which cannot be given" in out
    assert "[0.0, 0.0] left alone" in out
    code, out = services.finish()
    assert code == 0, out
    assert "callbacks agree" in out
