"""One process of MPI_Allreduce with skewed calls; ``mpirun -n N python -m benchmarks.eager_mpi ROUNDS PACE_S SKEW_S``.

The first process writes the mean of all processes' and rounds' latencies to standard output, in seconds.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

from benchmarks.skew import latencies_s


def main(rounds: int, pace_s: float, skew_s: float) -> None:
    """Make all rounds."""
    world = MPI.COMM_WORLD
    given, total = np.ones(1, dtype=np.float32), np.empty(1, dtype=np.float32)
    world.Allreduce(given, total)
    begins_s = world.bcast(time.monotonic() + 0.5)
    taken_s = latencies_s(lambda: world.Allreduce(given, total), begins_s, rounds, pace_s, (world.rank + 1) * skew_s)
    means_s = world.gather(sum(taken_s) / rounds)
    if means_s is not None:
        print(sum(means_s) / world.size)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
