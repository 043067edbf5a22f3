"""Workers with models of their own, drawn to a central one (SMA): ``mlfabric run -n 4 examples/digits_sma.py``."""

# mypy: allow-untyped-calls

import argparse

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import mlfabric

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=500)
steps = parser.parse_args().steps

pixels, labels = load_digits(return_X_y=True)
images, digits = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
train, test = slice(0, 1437), slice(1437, None)

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
optimizer = mlfabric.wrap(sgd, model, method="sma")

for _ in range(steps):
    batch = torch.randint(train.stop, (32,))
    loss = cross_entropy(model(images[batch]), digits[batch])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

optimizer.finish()
right = model(images[test]).argmax(dim=1) == digits[test]
print(f"accuracy {right.float().mean():.3f}")
