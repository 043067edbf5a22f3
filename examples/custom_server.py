"""A parameter server inside a program of one's own, which is told of every commit and every get.

In three terminals::

    mlfabric scheduler
    python examples/custom_server.py
    mlfabric run -n 2 --no-up examples/digits_loop.py

Callbacks run in the server's thread, so they should be brief.
"""

import argparse
import signal
import threading

import mlfabric
from mlfabric.protocol import Commit, GetId

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--scheduler", default="127.0.0.1:50061", help="HOST:PORT of the scheduler")
parser.add_argument("--every", type=int, default=100, help="commits between two lines")
arguments = parser.parse_args()

stop = threading.Event()
signal.signal(signal.SIGINT, lambda *_: stop.set())
signal.signal(signal.SIGTERM, lambda *_: stop.set())


def committed(model: str, commit: Commit) -> None:
    """Say now and then how far the model is."""
    if commit.version.number % arguments.every == 0:
        print(f"{model}: version {commit.version.number} by {commit.update}, delay {commit.tau}", flush=True)


gets: dict[str, int] = {}


def requested(model: str, get: GetId, version: mlfabric.ModelVersion) -> None:
    """Count how often each worker gets the model."""
    gets[get.worker] = gets.get(get.worker, 0) + 1


with mlfabric.register_as_server(mlfabric.ServerOptions(scheduler=arguments.scheduler)) as server:
    server.register_update_callback(committed)
    server.register_request_callback(requested)
    stop.wait()
print("gets:", dict(sorted(gets.items())), flush=True)
