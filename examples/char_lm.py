"""Train a small language model, letter by letter, with several workers: ``mlfabric run -n 4 examples/char_lm.py``.

The text is Python's own documentation, which comes with Python. Three lines make it distributed: the import, ``wrap``
and ``finish``. At the end the first worker generates some text.
"""

# mypy: allow-untyped-calls

import argparse
import math
import os
import pydoc_data.topics
import re

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import mlfabric

BATCH, LENGTH = 32, 64


class LetterModel(torch.nn.Module):
    """Guess each next letter from those before it."""

    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(letters, width)
        self.memory = torch.nn.GRU(width, width, batch_first=True)
        self.guess = torch.nn.Linear(width, letters)

    def forward(self, text: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits of each next letter, [batch, length, letters], and the state after the last."""
        remembered, state = self.memory(self.embedding(text), state)
        return self.guess(remembered), state


def loss_of(model: LetterModel, text: Tensor) -> Tensor:
    """Return the mean cross-entropy of each letter of some random passages."""
    passages = text[torch.randint(len(text) - LENGTH, (BATCH, 1)) + torch.arange(LENGTH + 1)]
    return cross_entropy(model(passages[:, :-1])[0].flatten(0, 1), passages[:, 1:].flatten())


@torch.no_grad()
def validate(model: LetterModel, text: Tensor) -> float:
    """Return the mean cross-entropy over a few batches, in nats a letter."""
    return sum(loss_of(model, text).item() for _ in range(8)) / 8


@torch.no_grad()
def write(model: LetterModel, first: int, length: int) -> list[int]:
    """Return letters, each drawn as the model guesses it."""
    letters, state = [first], None
    for _ in range(length):
        logits, state = model(torch.tensor([letters[-1:]]), state)
        letters.append(int(torch.multinomial((logits[0, -1] / 0.7).softmax(dim=0), 1)))
    return letters


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=250, help="of each worker")
parser.add_argument("--width", type=int, default=128, help="of the model")
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--clip", type=float, default=1.0, help="greatest norm of a gradient")
parser.add_argument("--sample", type=int, default=400, help="letters to write at the end")
arguments = parser.parse_args()
rank = int(os.environ.get("RANK", "0"))
torch.manual_seed(rank)

topics = re.sub(r"(\W)\1{3,}", r"\1", "\n\n".join(pydoc_data.topics.topics.values()))  # no rulers, no indents
alphabet = sorted(set(topics))
number = {letter: i for i, letter in enumerate(alphabet)}
text = torch.tensor([number[letter] for letter in topics])
train, test = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]

model = LetterModel(len(alphabet), arguments.width)
optimizer = mlfabric.wrap(torch.optim.SGD(model.parameters(), lr=arguments.lr), model)

if rank == 0:
    print(f"{len(text)} letters of {len(alphabet)} kinds; a blind guess has loss {math.log(len(alphabet)):.2f}")
for step in range(1, arguments.steps + 1):
    loss = loss_of(model, train)
    loss.backward()
    clip_grad_norm_(model.parameters(), arguments.clip)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 25 == 0:
        print(f"step {step} of {arguments.steps}: loss {loss.item():.2f}")

optimizer.finish()
if rank == 0:
    print("".join(alphabet[i] for i in write(model, number["\n"], arguments.sample)))
    print(f"loss {validate(model, test):.3f}")
