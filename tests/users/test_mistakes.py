"""Calls that cannot be meant: each ends with an error that says what was given, what is allowed and what to do."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes

BEFORE = {
    "register([torch.nn.Linear(1, 1)])": "a mapping of names to tensors; make one of the layers: torch.nn.Sequential(",
    "register(model.parameters())": "(generator); allowed: a torch.nn.Module, or a mapping of names to tensors",
    "register({'w': 1.0})": "model['w']=1.0; allowed: a tensor",
    "register({'w': torch.full((2,), torch.nan, requires_grad=True)})": "w has NaN or Inf when the model is registered",
    "register(model, tau_max=1.5)": "tau_max=1.5; allowed: an integer; or None for twice the workers",
    "register(model, tau_max=True)": "tau_max=True; allowed: an integer; or None for twice the workers",
    "register(model, tau_max=-1)": "tau_max=-1; allowed: 0 or more, or None for twice the workers",
    "register(model, servers=0)": "servers=0; allowed: an integer, 1 or more",
    "register(model, slack='2')": "slack='2'; allowed: an integer",
    "register(model, overlap=1)": "overlap=1; allowed: True or False",
    "register(model, init=True)": "init=True; allowed: 'first', an integer as seed, or the path of a state dict",
    "register(model, rule=sgd)": "(SGD); allowed: a mlfabric.RuleSpec, as in rule=RuleSpec(lr=0.1); an optimizer's",
    "register(model, method='synchronus')": "method='synchronus'; allowed: 'asynchronous', 'synchronous', 'stale-synch",
    "register(model, momentum_at='here')": "momentum_at='here'; allowed: 'server', 'workers'",
    "register(model, name=3)": "name=3; allowed: a text",
    "mlfabric.RuleSpec(lr='0.1')": "lr='0.1'; allowed: a number; write lr=0.1",
    "mlfabric.RuleSpec(kind='adm')": "kind='adm'; allowed: 'sgd', 'adam', 'adadelay'",
    "mlfabric.RuleSpec(schedule='step', milestones=3)": "milestones=3; allowed: versions, as in milestones=(1000,",
    "mlfabric.wrap(model, sgd)": "(Sequential); allowed: a torch.optim.Optimizer, as in wrap(optimizer, model)",
    "mlfabric.wrap(sgd, [model])": "(list); allowed: a torch.nn.Module",
}
AFTER = {
    "worker.push()": "push without a gradient: no parameter has got one since the last push; call backward()",
    "worker.exchange()": "push without a gradient",
    "worker.get(min_version=-1)": "min_version=-1; allowed: an integer, 0 or more",
    "worker.get(min_version=True)": "min_version=True; allowed: an integer, 0 or more",
    "worker.get(min_version=worker.version)": "(ModelVersion); allowed: an integer, 0 or more; or of a ModelVersion",
    "worker.get([model])": "(list); allowed: a torch.nn.Module",
    "mlfabric.FabricSampler(worker, 10, batch_size=2.5)": "batch_size=2.5; allowed: an integer, 1 or more",
    "mlfabric.FabricSampler(sgd, 10, batch_size=2)": "allowed: a registered worker; of a wrapped optimizer it is opt",
    "register(model)": "model_name='model': worker-0 trains a model of this name already; give each a name of",
    "register(model, name='b', rule=rule(lr=0.2))": "'model': rule.lr: 0.2 here, 0.1 at the job's first worker; give",
    "register(model, name='b', method='synchronous')": "'model': method: 'synchronous' here, 'asynchronous' at the",
    "register(model, name='b', overlap=True)": "'model': overlap: on at one, off at the other; give the same",
}
CHANGED = {
    "model[0].weight.requires_grad_(False)": "0.weight was frozen after the model was registered",
    "model.double()": "0.weight was torch.float32 and is torch.float64 after the model was registered",
    "model.pop(1)": "1.weight is not in the model any more",
    "model.append(torch.nn.Linear(1, 1))": "2.weight was not trainable when the model was registered, and is",
    "setattr(model, '0', torch.nn.Linear(2, 2))": "0.weight was replaced by another tensor after the model was",
}
SCRIPT = """
import logging, torch, mlfabric
from functools import partial

register, rule = partial(mlfabric.register_as_worker, momentum_at="workers"), mlfabric.RuleSpec
make = lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
backward = lambda model: model(torch.ones(1, 2)).sum().backward()
model = make()
sgd = torch.optim.SGD(model.parameters(), 0.1)

def said(text, call):
    try:
        call()
        print(text, "->", "nothing")
    except mlfabric.UsageError as error:
        print(text, "->", error)
    except mlfabric.RefusedError as error:
        print(text, "->", error)

for text in BEFORE:
    said(text, lambda: eval(text))
worker = register(model, method="asynchronous", rule=rule(kind="sgd", lr=0.1, schedule="constant"))
worker.get()
for text in AFTER:
    said(text, lambda: eval(text))
kept = list(model)
for text in CHANGED:
    backward(model)
    eval(text)
    said(text, worker.push)
    said(text, worker.get)
    model.float()
    model.__dict__["_modules"] = dict(zip("01", kept))
    model[0].weight.requires_grad_(True)

kept[0](torch.ones(1, 2)).sum().backward()  # some parameters without a gradient, and more than one backward
backward(model)
print("in the end", worker.push().result(60))

class Push(logging.Handler):
    def emit(self, record):
        print(record.getMessage())
        backward(other)
        second.push()

other = make()
with register(other, name="second", rule=rule(lr=0.1)) as second:
    second.get()
    logging.getLogger("mlfabric.worker").addHandler(Push())
    print("reached", worker.get(min_version=2).number)
"""


def test_each_says_what_was_given_what_is_allowed_and_what_to_do(job):
    script = SCRIPT.replace("BEFORE", repr([*BEFORE])).replace("AFTER", repr([*AFTER]))
    code, out = job(script.replace("CHANGED", repr([*CHANGED])), workers=1)
    assert code == 0, out
    for call, words in (BEFORE | AFTER | CHANGED).items():
        lines = [line for line in out.splitlines() if f"{call} -> " in line]
        assert lines, f"{call}\n{out}"
        assert all(words in line for line in lines), lines
    assert "in the end Committed(" in out
    assert "worker-0 waits for version 2 of the model, as get(min_version=2) asks; it was at version 1" in out
    assert "reached 2" in out
