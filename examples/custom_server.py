"""A parameter server, or its replica, in your own program, which reads every version of the model.

In three terminals, and a fourth for a replica that may be 20 updates behind::

    mlfabric scheduler
    python examples/custom_server.py
    mlfabric run -n 2 --no-up examples/digits_loop.py
    python examples/custom_server.py --replica-of server-0

Callbacks are active as soon as they are registered. They run in the server's thread, so they should be short. The
tensors of a view are the server's own memory: only read them, and only during the callback; clone what you want to
keep. If a callback raises, the server ends, and ``wait`` raises the same error.
"""

import argparse
import math
import signal
import sys

import mlfabric

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--scheduler", default="127.0.0.1:50061", help="HOST:PORT of the scheduler")
parser.add_argument("--replica-of", help="be a replica of this server")
parser.add_argument("--every", type=int, default=100, help="versions between two lines")
arguments = parser.parse_args()

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: sys.exit())


def length(view: mlfabric.ModelView) -> float:
    """Return the l2 norm of all tensors of a model."""
    return math.hypot(*(tensor.double().norm().item() for tensor in view.tensors.values()))


def committed(model: str, commit: mlfabric.Commit, view: mlfabric.ModelView) -> None:
    """Say now and then how far the model is."""
    if commit.version.number % arguments.every == 0:
        what = f"by {commit.update}, delay {commit.tau}, length {length(view):.4f}"
        print(f"{model}: version {commit.version.number} {what}", flush=True)


gets: dict[str, int] = {}


def requested(model: str, get: mlfabric.GetId, view: mlfabric.ModelView) -> None:
    """Count how often each worker gets the model."""
    gets[get.worker] = gets.get(get.worker, 0) + 1


def reached(model: str, view: mlfabric.ModelView) -> None:
    """Say which versions the replica comes to: once each, and not all that its server makes."""
    print(f"{model}: the replica is at version {view.version.number}, length {length(view):.4f}", flush=True)


if arguments.replica_of:
    follows = mlfabric.ReplicaOptions(
        scheduler=arguments.scheduler, replica_of=arguments.replica_of, div_max_updates=20
    )
    with mlfabric.register_as_replica(follows) as replica:
        replica.register_update_callback(reached)
        replica.wait()  # until a signal ends it
else:
    with mlfabric.register_as_server(mlfabric.ServerOptions(scheduler=arguments.scheduler)) as server:
        server.register_update_callback(committed)
        server.register_request_callback(requested)
        try:
            server.wait()
        finally:
            print("gets:", dict(sorted(gets.items())), flush=True)
