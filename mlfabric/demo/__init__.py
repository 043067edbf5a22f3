"""``mlfabric demo``: a real model trained through a fabric with a slow worker and a narrow link, on one machine.

scenario            what is run: model, rule, rates, paces; one file that every process reads
digits              the data, the model, accuracy
pace                how long steps take
trainer             a worker process
judge               the process that evaluates the result and trains the same model alone
demo_events         the workers' logs of what happened, written and read
demo_run            fabric, workers and judge as processes, one after the other
compare             then the same training in a plain ring and in elastic rounds
compared_trainer    a worker process of these
ring                the ring
snapshots           the process that evaluates both while they train
comparison          what came of it
progress_bar        what is shown meanwhile
demo_summary        figures at the end, and whether they are as promised
pictures            delay.png, timeline.png
main                all of it together
"""

from __future__ import annotations

from mlfabric.demo.main import run
from mlfabric.demo.scenario import Scenario

__all__ = ["Scenario", "run"]
