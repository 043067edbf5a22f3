"""A worker's own model beside one that all workers share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import accumulate

import torch

from mlfabric.errors import UsageError
from mlfabric.worker_daemon.round_optimizer import Parts, RoundOptimizer
from mlfabric.worker_daemon.round_steps import NOT_FINITE

__all__ = ["TwoModels", "is_offered"]


def is_offered(rounds: RoundOptimizer) -> bool:
    """Offer the shared model's gradient, and return whether that could be done: not if it has NaN or Inf."""
    dropped = rounds.tally.dropped
    rounds.step()
    return rounds.tally.dropped == dropped or rounds.last is None or rounds.last.reason != NOT_FINITE


def _cut(sizes: Sequence[int], fragments: int) -> list[list[int]]:
    """Return the places of each part of tensors of these sizes: neighbours, at least one in each."""
    if fragments > len(sizes):
        raise UsageError(f"fragments={fragments} of {len(sizes)} parameters; allowed for this model: 1 to {len(sizes)}")
    ends, parts, at = list(accumulate(sizes)), list[list[int]](), 0
    for part in range(1, fragments + 1):
        end, last = at + 1, len(sizes) - fragments + part
        while end < last and 2 * ends[end] - sizes[end] <= 2 * ends[-1] * part / fragments:
            end += 1
        parts.append(list(range(at, last if part == fragments else end)))
        at = end
    return parts


class TwoModels:
    """A model, and a copy of it that has the same bits at all workers.

    Args:
        own: this worker's.
        optimizer: of its steps; what it does not step stays as it is.
        fragments: into how many parts it is cut.

    Attributes:
        shared: the copy.
        pairs: this worker's parameters that the optimizer steps, each with the shared one.
        fragments: places of the pairs in each part; the parts are of about the same size.

    Raises:
        UsageError: it has fewer parameters than parts.
    """

    def __init__(self, own: torch.nn.Module, optimizer: torch.optim.Optimizer, fragments: int = 1) -> None:
        self._own, self.shared, self._optimizer = own, deepcopy(own), optimizer
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        both = zip(own.parameters(), self.shared.parameters(), strict=True)
        self.pairs = [(mine, shared) for mine, shared in both if id(mine) in stepped]
        self.fragments = _cut([mine.numel() for mine, _ in self.pairs], fragments)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The shared ones."""
        return [shared for _, shared in self.pairs]

    @property
    def parts(self) -> Parts:
        """The shared ones of each part."""
        return [[self.pairs[place][1] for place in part] for part in self.fragments]

    @torch.no_grad()
    def start(self) -> None:
        """Let this worker's model be the shared one, with what the optimizer does not step and what is counted."""
        for parameter, common in zip(self._own.parameters(), self.shared.parameters(), strict=True):
            parameter.copy_(common)
        for own, shared in self._buffers():
            own.copy_(shared)

    @torch.no_grad()
    def take_buffers(self) -> None:
        """Let this worker's floating-point buffers be the shared model's."""
        for own, shared in self._buffers():
            if own.is_floating_point():
                own.copy_(shared)

    @torch.no_grad()
    def give_counts(self) -> None:
        """Let the shared model's other buffers, as how many batches were seen, be this worker's."""
        for own, shared in self._buffers():
            if not own.is_floating_point():
                shared.copy_(own)

    def forget_unsound(self) -> None:
        """Forget what the optimizer has averaged, for parameters of which that is not finite."""
        for parameter, state in list(self._optimizer.state.items()):
            averages = [value for value in state.values() if torch.is_tensor(value) and value.is_floating_point()]
            if not all(bool(average.isfinite().all()) for average in averages):
                del self._optimizer.state[parameter]

    def _buffers(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Give both models' buffers; a module may assign a buffer anew."""
        shared = dict(self.shared.named_buffers())
        for name, own in self._own.named_buffers():
            yield own, shared[name]
