"""What a server tells the scheduler of one model. Pure."""

from __future__ import annotations

from mlfabric.protocol import (
    Commit,
    CommitsReported,
    Committed,
    Dropped,
    DropReason,
    InitialReceived,
    ModelVersion,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
)
from mlfabric.server.actions import Report
from mlfabric.server.applied import AppliedSet

__all__ = ["Reports"]


class Reports:
    """Makes the reports of one model.

    Args:
        server: who reports.
        model: on what.
    """

    def __init__(self, server: str, model: str) -> None:
        self._server = server
        self._model = model

    def ended(
        self,
        transfer: TransferId,
        end: TransferEnd,
        cause: DropReason | None = None,
        detail: str = "",
        *,
        again: bool = False,
    ) -> Report:
        """Tell how a transfer ended."""
        event = TransferEnded(
            member=self._server, model=self._model, transfer=transfer, end=end, cause=cause, detail=detail
        )
        return Report(event=event, again=again)

    def committed(self, commits: tuple[Commit, ...], *, again: bool = False) -> Report:
        """Tell what was applied together."""
        event = CommitsReported(server=self._server, model=self._model, commits=commits)
        return Report(event=event, again=again)

    def initial(self, version: ModelVersion) -> Report:
        """Tell that there are weights."""
        return Report(event=InitialReceived(server=self._server, model=self._model, version=version))

    def once_more(self, transfer: TransferId, applied: AppliedSet) -> Report:
        """Tell what became of a transfer that is not here (any more); what a sum became, its members' commits said."""
        if isinstance(transfer, UpdateId):
            match applied.outcome(transfer):
                case Committed(version=version, tau=tau):
                    commit = Commit(update=transfer, version=version, tau=tau, lr=0.0, step_norm=0.0)
                    return self.committed((commit,), again=True)
                case Dropped(cause=cause, detail=detail):
                    return self.ended(transfer, TransferEnd.DISCARDED, cause, detail, again=True)
        return self.ended(transfer, TransferEnd.VOIDED, detail="it is not here")
