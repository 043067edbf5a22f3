"""AllReduce of tensors of ever new sizes, as jobs with batches of many lengths have them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes

MOST_GROWTH_BYTES = 110e6


def test_many_sizes_leave_no_buffer_of_each(job):
    """The results have 164 MB in all; 64 MiB of buffers are kept at most."""
    code, out = job(
        """
        import os, torch, mlfabric

        def resident_bytes():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        model = torch.nn.Linear(4, 1)
        with mlfabric.register_as_worker(model, method=mlfabric.Method.ALL_REDUCE, init=0) as worker:
            worker.all_reduce(torch.ones(1))
            before = resident_bytes()
            for n in range(1, 91):
                tensor = torch.ones(10_000 * n)
                assert worker.all_reduce(tensor) == 2
                assert tensor.eq(2).all()
            print("grown by", resident_bytes() - before)
        """
    )
    assert code == 0, out
    grown = [int(line.split()[-1]) for line in out.splitlines() if "grown by" in line]
    assert len(grown) == 2, out
    assert max(grown) < MOST_GROWTH_BYTES, out
