"""AllReduce among workers over real sockets: torch's sum, the same bits for everyone, whatever happens meanwhile."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric import Method, ReduceOp
from mlfabric.channels import Frame, FrameKind, TcpOptions
from mlfabric.methods.all_reduce import RING_FROM_NS, TREES_FROM_NS
from mlfabric.model.specs import Member
from mlfabric.network import LinkId, down_link
from mlfabric.worker_daemon import daemon, round_lines
from mlfabric.worker_daemon.attempts import BRIEF_BYTES
from tests.fabric.harness import Fabric, Line, wait_until
from tests.fabric.programs import Program


def a_model() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(1, requires_grad=True)}


class Team:
    """Workers of one AllReduce job, each in a thread of its own."""

    def __init__(self, fabric: Fabric, count: int, together: int = 0, **settings: Any) -> None:
        self.fabric = fabric
        self.pool = fabric.enter(ThreadPoolExecutor(count))
        together = together or count
        self.workers = list(self.pool.map(lambda i: self.join(f"w{i}", together, **settings), range(count)))

    def join(self, name: str, count: int = 1, **settings: Any) -> Any:
        where = replace(self.fabric.settings(name), **settings)
        worker = mlfabric.register_as_worker(a_model(), method=Method.ALL_REDUCE, workers=count, settings=where)
        return self.fabric.enter(worker)

    @property
    def rounds(self) -> Any:
        return self.fabric.scheduler.state.reductions["model"]

    def each(self, call: Callable[..., Any], *arguments: list[Any]) -> list[Any]:
        """Call with each worker at the same time."""
        return list(self.pool.map(call, self.workers, *arguments))

    def reduce(self, tensors: list[torch.Tensor], op: ReduceOp = ReduceOp.SUM) -> list[int]:
        return self.each(lambda worker, tensor: worker.all_reduce(tensor, op), tensors)

    def sums(self, given: list[torch.Tensor]) -> None:
        """Reduce copies, and check what they are then."""
        made = [tensor.clone() for tensor in given]
        assert self.reduce(made) == [len(given)] * len(given)
        assert_summed(given, made)

    def begin(self, made: list[torch.Tensor]) -> list[Any]:
        """Let as many workers as there are tensors ask for a reduction; return what each waits for."""
        return [worker.all_reduce_async(tensor) for worker, tensor in zip(self.workers, made, strict=False)]

    def refused(self, tensors: list[torch.Tensor]) -> list[str]:
        """Reduce what will be refused; return the words of each."""

        def one(worker: Any, tensor: torch.Tensor) -> str:
            with pytest.raises(mlfabric.RefusedError) as error:
                worker.all_reduce(tensor)
            return str(error.value)

        return self.each(one, tensors)


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with Fabric() as running:
        yield running


def lasting(fabric: Fabric, ns: int) -> int:
    """Return how many bytes take so long over a link whose rate nobody stated."""
    default_bps: int = fabric.scheduler.state.context.config.default_bps
    return ns * default_bps // (8 * 10**9)


def tensors(count: int, numel: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator, dtype=torch.float64).to(dtype) for _ in range(count)]


def assert_summed(given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
    """The sum to float tolerance, and the same bits everywhere."""
    exact = torch.stack([tensor.double() for tensor in given]).sum(0)
    tolerance = len(given) * torch.finfo(given[0].dtype).eps
    for tensor in made:
        assert torch.equal(tensor.view(torch.uint8), made[0].view(torch.uint8))
        torch.testing.assert_close(tensor.double(), exact, rtol=0, atol=4 * tolerance)


def test_a_hundred_rounds_of_five_workers_with_another_tree_each_time_are_torchs_sum(fabric) -> None:
    team = Team(fabric, 5)
    sizes = [1, 7, 1000, *(lasting(fabric, ns) // 4 + 5 for ns in (TREES_FROM_NS, RING_FROM_NS))]
    reasons = set()
    for n in range(100):
        team.sums(tensors(5, sizes[n % len(sizes)], seed=n))
        reasons.add(team.rounds.how)
    roots = {word for reason in reasons for word in re.sub("[,:]", "", reason).split() if word.startswith("host-")}
    assert len(roots) == 5, f"roots {roots} of {reasons}"
    assert any(reason.startswith("ring of 5") for reason in reasons)
    assert any("trees" in reason for reason in reasons)
    assert any("directly" in reason for reason in reasons)


def test_every_dtype_is_summed_and_averaged_in_place_and_keeps_its_shape(fabric) -> None:
    team = Team(fabric, 3)
    for dtype, op in itertools.product((torch.float16, torch.bfloat16, torch.float32, torch.float64), ReduceOp):
        given = tensors(3, 6006, dtype)
        made = [tensor.clone().view(2, 3, 1001) for tensor in given]
        assert team.reduce(made, op) == [3] * 3, (dtype, op)
        expected = torch.stack([g.double() for g in given]).sum(0) / (3 if op is ReduceOp.MEAN else 1)
        for tensor in made:
            assert torch.equal(tensor, made[0]), (dtype, op)
            torch.testing.assert_close(tensor.view(-1).double(), expected, rtol=0, atol=40 * torch.finfo(dtype).eps)


def test_empty_tensors_single_numbers_nan_and_inf_are_reduced(fabric) -> None:
    team = Team(fabric, 2)
    assert team.reduce([torch.zeros(0, 3), torch.zeros(0, 3)]) == [2, 2]
    numbers = [torch.tensor(2.0), torch.tensor(3.0)]
    team.reduce(numbers)
    assert [float(number) for number in numbers] == [5.0, 5.0]
    made = [torch.tensor([1.0, float("nan"), float("inf")]), torch.ones(3)]
    team.reduce(made)
    for tensor in made:
        assert [float(tensor[0]), bool(tensor[1].isnan()), bool(tensor[2].isinf())] == [2.0, True, True]


def test_workers_on_one_host_are_summed_there(fabric) -> None:
    team = Team(fabric, 4, host="shared")
    for numel in (500_000, 100):
        team.sums(tensors(4, numel))


def test_a_few_bytes_are_summed_over_hosts_with_several_workers_as_many_bytes_are(fabric) -> None:
    team = Team(fabric, 2)
    team.workers += [team.join(f"beside-{i}", host=f"host-w{i}") for i in range(2)]
    for n in range(6):
        given = tensors(4, 1 + BRIEF_BYTES // 4 * (n % 2), seed=n)
        made = [tensor.clone() for tensor in given]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda w, t: w.all_reduce(t), team.workers, made)) == [4] * 4
        assert_summed(given, made)


def test_several_rounds_in_flight_are_carried_out_in_the_same_order_everywhere(fabric) -> None:
    team = Team(fabric, 3)
    flat = [torch.cat([torch.full((1000,), float(10**n * (i + 1))) for n in range(5)]) for i in range(3)]
    given = [list(mine.split(1000)) for mine in flat]  # slices of one tensor may be on their way at the same time
    handles = team.each(lambda worker, mine: [worker.all_reduce_async(tensor) for tensor in mine], given)
    assert [[handle.result(15) for handle in reversed(mine)] for mine in handles] == [[3] * 5] * 3
    assert all(set(mine[n].tolist()) == {6.0 * 10**n} for mine in given for n in range(5))


def test_what_differs_is_named_to_every_worker_and_changes_nothing(fabric) -> None:
    team = Team(fabric, 3)
    made = [torch.ones(4), torch.ones(4), torch.ones(5)]
    words = team.refused(made)
    assert all("sum of 16 bytes of float32 by w0, w1; sum of 20 bytes of float32 by w2" in said for said in words)
    assert [tensor.tolist() for tensor in made] == [[1.0] * 4, [1.0] * 4, [1.0] * 5]
    good = [torch.ones(3) for _ in range(3)]
    assert team.reduce(good) == [3] * 3


def test_a_worker_that_is_alone_gets_its_own_tensor_and_is_refused_what_cannot_be_reduced_in_place(fabric) -> None:
    team = Team(fabric, 1)
    (worker,) = team.workers
    for numel in (0, 1, 300_000):
        (given,) = tensors(1, numel)
        made = given.clone()
        assert team.reduce([made]) == [1]
        assert torch.equal(made, given)
    for bad in (torch.ones(4, 4).t(), torch.ones(3, dtype=torch.int64), torch.ones(3).to_sparse()):
        with pytest.raises(mlfabric.LayoutError, match="cannot be reduced"):
            worker.all_reduce(bad)
    with pytest.raises(mlfabric.UsageError, match="no server"):
        worker.get()
    with pytest.raises(mlfabric.UsageError, match="no server"):
        worker.push()


def test_other_methods_have_no_all_reduce(fabric) -> None:
    fabric.server()
    worker = fabric.worker(a_model())
    with pytest.raises(mlfabric.UsageError, match="method asynchronous"):
        worker.all_reduce(torch.ones(1))
    with pytest.raises(mlfabric.UsageError, match="workers=2"):
        mlfabric.register_as_worker(a_model(), workers=2, settings=fabric.settings())


def test_a_tensor_written_to_meanwhile_is_reported(fabric) -> None:
    team = Team(fabric, 2)
    made = [torch.ones(3), torch.ones(3)]
    handle = team.workers[0].all_reduce_async(made[0])
    made[0] += 1
    team.workers[1].all_reduce(made[1])
    with pytest.raises(mlfabric.UsageError, match="written to"):
        handle.result(15)


def test_those_who_are_left_go_on_when_a_worker_leaves_and_wait_for_one_that_joins(fabric) -> None:
    team = Team(fabric, 3)
    assert team.reduce([torch.ones(2) for _ in range(3)]) == [3] * 3
    handles = team.begin([torch.ones(2), torch.ones(2)])
    team.workers[2].leave()
    assert [handle.result(15) for handle in handles] == [2, 2]
    team.workers[2] = team.join("late")
    assert team.reduce([torch.ones(2) for _ in range(3)]) == [3] * 3


VICTIM = """
import sys, torch, mlfabric
from mlfabric.channels import Frame, FrameKind, TcpOptions
from mlfabric.config import WorkerSettings
settings = WorkerSettings(scheduler=sys.argv[1], name="victim", host="host-victim", tcp=TcpOptions(up_bps=8_000_000))
worker = mlfabric.register_as_worker(
    {"w": torch.zeros(1, requires_grad=True)}, method=mlfabric.Method.ALL_REDUCE, workers=4, settings=settings
)
worker.all_reduce(torch.ones(500_000))
"""


def test_a_worker_killed_in_a_round_is_left_out_and_the_others_do_it_again(fabric) -> None:
    with Program("-c", VICTIM, fabric.scheduler.address) as victim:
        team = Team(fabric, 3, together=4)
        given = tensors(3, 500_000)
        made = [tensor.clone() for tensor in given]
        handles = team.begin(made)
        wait_until(lambda: team.rounds.is_reducing("victim"), "the victim takes part")
        victim.kill()
        assert [handle.result(30) for handle in handles] == [3] * 3
        assert_summed(given, made)


HANGER = (
    VICTIM.replace("worker.all_reduce(torch.ones(500_000))", "")
    + """
for line in sys.stdin:
    print(worker.all_reduce(torch.ones(100_000)), flush=True)
"""
)


@pytest.mark.parametrize("has_asked", [True, False])
def test_a_worker_that_hangs_is_left_out_and_told_so_when_it_wakes_up(has_asked: bool) -> None:
    with Fabric() as fabric:
        command, pipe = [sys.executable, "-c", HANGER, fabric.scheduler.address], subprocess.PIPE
        hanger = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            team = Team(fabric, 3, together=4)
            print(file=hanger.stdin, flush=True)
            assert team.reduce([torch.ones(100_000) for _ in range(3)]) == [4] * 3
            assert hanger.stdout is not None
            assert hanger.stdout.readline() == "4\n"
            if has_asked:
                print(file=hanger.stdin, flush=True)
                wait_until(lambda: team.rounds.is_waiting("victim"), "it has asked for the second round")
            os.kill(hanger.pid, signal.SIGSTOP)
            given = tensors(3, 100_000)
            made = [tensor.clone() for tensor in given]
            handles = team.begin(made)
            assert [handle.result(30) for handle in handles] == [3] * 3
            assert_summed(given, made)
            os.kill(hanger.pid, signal.SIGCONT)
            said = hanger.communicate("again\n", timeout=30)[1]
            assert "the others have done this round without it" in said
        finally:
            hanger.kill()
            hanger.communicate()


def test_a_round_survives_the_schedulers_restart(fabric) -> None:
    team = Team(fabric, 3)
    assert team.reduce([torch.ones(2) for _ in range(3)]) == [3] * 3
    given = tensors(3, 1000)
    made = [tensor.clone() for tensor in given]
    handles = team.begin(made[:2])
    fabric.restart_scheduler()
    handles.append(team.workers[2].all_reduce_async(made[2]))
    assert [handle.result(30) for handle in handles] == [3] * 3
    assert_summed(given, made)


def test_the_status_shows_the_job_and_what_each_worker_waits_for(fabric) -> None:
    team = Team(fabric, 2)
    assert team.reduce([torch.ones(2), torch.ones(2)]) == [2, 2]
    handle = team.workers[0].all_reduce_async(torch.ones(2))
    wait_until(lambda: "waits for w1" in [m.activity for m in fabric.status().members], "the request is there")
    status = fabric.status()
    (model,) = status.models
    assert (model.method, model.committed, model.version.number, model.server) == ("all-reduce", 1, 1, "")
    assert {m.name: m.activity for m in status.members} == {"w0": "waits for w1", "w1": "computing"}
    team.workers[1].all_reduce(torch.ones(2))
    handle.result(15)


def test_whoever_comes_without_a_ticket_is_turned_away_and_rounds_go_on(fabric, monkeypatch) -> None:
    monkeypatch.setattr(round_lines, "EXPECTED_WITHIN_S", 0.05)
    team = Team(fabric, 2)
    address = fabric.scheduler.state.context.address("w0")
    for kind in (FrameKind.OFFER, FrameKind.WANT, FrameKind.GRANT):
        line = fabric.enter(Line(address))
        line.send(Frame(kind=kind, ticket=bytes(16)))
        assert line.is_closed()
    noise = fabric.enter(Line(address))
    noise.socket.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(200))
    assert noise.is_closed()
    assert team.reduce([torch.ones(2), torch.ones(2)]) == [2, 2]


STATED_BPS, CARRIED_BPS = 40_000_000, 8_000_000


class Narrow(Team):
    """A team whose links all carry what is stated, but for the way down to w3."""

    def join(self, name: str, count: int = 1, **settings: Any) -> Any:
        down_bps = CARRIED_BPS if name == "w3" else STATED_BPS
        return super().join(name, count, tcp=TcpOptions(up_bps=STATED_BPS, down_bps=down_bps), **settings)


def test_a_link_that_carries_less_than_was_stated_is_found_out_while_workers_compute(fabric, monkeypatch) -> None:
    slow = down_link("host-w3")
    stated = {"up_bps": STATED_BPS, "down_bps": STATED_BPS}
    monkeypatch.setattr(daemon, "Member", lambda **fields: Member(**{**fields, **stated}))
    team = Narrow(fabric, 8)
    network = fabric.scheduler.state.context.network
    known: dict[LinkId, int] = {}
    for n in range(40):  # where this process is held up probes are late; later ones mend that
        team.sums(tensors(8, 200_000, seed=n))
        known = {link: network.rate_bps(link, 0) for link in network.links}
        if known[slow] == min(known.values()) < STATED_BPS // 2:
            return
        time.sleep(0.2)
    pytest.fail(f"{slow} is not known as slow: {known}")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_tensor_on_a_gpu_is_summed_with_those_on_cpus(fabric) -> None:
    given = tensors(2, 100_003)
    made = [given[0].clone().cuda(), given[1].clone()]
    assert Team(fabric, 2).reduce(made) == [2, 2]
    assert made[0].is_cuda
    assert_summed(given, [made[0].cpu(), made[1]])
