"""A training process that is told to end, as by torchrun, Slurm or Kubernetes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes


def test_sigterm_settles_what_was_pushed_unless_that_was_declined(lone_job):
    """In a fabric of its own: of a worker that dies the model stays."""
    code, out = lone_job(
        """
        import atexit, os, signal, subprocess, sys

        def train():
            import mlfabric, torch

            atexit.register(lambda: print("drained:", worker.tally.committed, "committed", flush=True))
            model = torch.nn.Linear(2, 1)
            worker = mlfabric.register_as_worker(model, rule=mlfabric.RuleSpec(lr=0.1))
            worker.get()
            model(torch.ones(2)).sum().backward()
            worker.push()
            os.kill(os.getpid(), signal.SIGTERM)
            print("this is never said")

        def begin(**settings):
            return subprocess.Popen([sys.executable, __file__, "child"], env={**os.environ, **settings})

        if len(sys.argv) > 1:
            train()
        else:
            drains = begin(MLFABRIC_NAME="drains")
            dies = begin(MLFABRIC_NAME="dies", MLFABRIC_DRAIN_ON_SIGTERM="0")
            print("ended with", drains.wait(), dies.wait())
        """,
        workers=1,
    )
    assert code == 0, out
    assert "ended with 143 -15" in out
    assert out.count("drained: 1 committed") == 1
    assert "never said" not in out
    assert "Traceback" not in out
