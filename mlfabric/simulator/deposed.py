"""The witness of a server whose place another one has taken, and which does not know it yet.

What it commits from then on counts for nothing: it is lost, as is what it committed after the version that the other
one goes on from. All the same it must keep to its rules, and to the bound of the replica that it believes it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from mlfabric.protocol import UpdateId
from mlfabric.server.actions import ApplyStep
from mlfabric.simulator.witness import Witness

__all__ = ["DeposedWitness"]


class DeposedWitness(Witness):
    """What such a server does.

    Args:
        heir: the witness of all others, as it is before it hears of the new server.
    """

    def __init__(self, heir: Witness) -> None:
        super().__init__()
        self._heir = heir
        self.truths, self.rules, self.told = heir.truths, heir.rules, heir.told
        self.applied, self.installed = dict(heir.applied), dict(heir.installed)
        self._given, self._began = set(heir._given), defaultdict(list, heir._began)
        self.leads = heir.leads.of_deposed()
        self._versions = dict(heir._versions)
        self._weights = {model: list(made) for model, made in heir._weights.items()}
        self._steps = set(heir._steps)
        self._bounds = dict(heir._bounds)
        self._expected = dict(heir._expected)

    def _may_be_applied(self, update: UpdateId) -> None:
        assert update not in self.applied, f"{update} is applied twice"

    def commits(self, members: Sequence[UpdateId], action: ApplyStep) -> None:
        """Note that updates were applied together, and are lost."""
        super().commits(members, action)
        outcomes = {update: self.applied[update] for update in members}
        versions = {outcome.version for outcome in outcomes.values()}
        made = {version: self.weights(action.model, version.number) for version in sorted(versions)}
        self._heir.loses(action.model, outcomes, made)
