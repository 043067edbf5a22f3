"""The parameter server's shell: session, data channel, stores, checkpoints, metrics. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlfabric import clock, wire
from mlfabric.channels import Direction, TcpChannel, TransferRecord
from mlfabric.errors import FabricError, UsageError
from mlfabric.fail_stop import Tasks
from mlfabric.model.samples import NO_SAMPLES, SampleCounts
from mlfabric.model.specs import NO_TERM, Role
from mlfabric.protocol import (
    CommitsReported,
    Instruction,
    MemberEvent,
    ModelVersion,
    SamplesReported,
    Seed,
    ServerHolds,
    SumId,
    TransferEnd,
    TransferEnded,
    Unfollowed,
    Welcome,
)
from mlfabric.server import actions as act
from mlfabric.server.callbacks import Callbacks
from mlfabric.server.checkpoint import CheckpointDir, CheckpointExtra
from mlfabric.server.commit_log import CommitLog
from mlfabric.server.hosted import ServerConfig
from mlfabric.server.inheritance import Inheritance
from mlfabric.server.machine_memory import machine_bytes
from mlfabric.server.milestones import Milestones
from mlfabric.server.resume import extra_of, resume
from mlfabric.server.seeds import SeedSender
from mlfabric.server.server_connections import Connections
from mlfabric.server.spans import moments
from mlfabric.server.state import ServerState
from mlfabric.server.stores import Saving, Stores
from mlfabric.shell.driving import Driver
from mlfabric.shell.kept_numbers import keep_number, last_number
from mlfabric.shell.member_shell import MemberDuties, MemberOptions, MemberShell
from mlfabric.shell.session import nothing
from mlfabric.telemetry import ServerMetrics
from mlfabric.telemetry.log_lines import about
from mlfabric.telemetry.otlp import tracer_of
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, types_pb2

__all__ = ["HoldingOptions", "ServerOptions", "ServerService"]

log = logging.getLogger("mlfabric.server")
SAMPLES_REPORT_S = 0.5
SETTLE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class HoldingOptions(MemberOptions):
    """How a member holds models, or would in a server's place: see ``ServerOptions``."""

    receive_budget_bytes: int = 0
    weight_copies: int = 16
    checkpoint_dir: Path | None = None
    checkpoint_every_s: float = 60.0
    keep: int = 3

    def __post_init__(self) -> None:
        if self.checkpoint_every_s <= 0:
            raise UsageError(f"checkpoint_every_s={self.checkpoint_every_s}; allowed: > 0")
        if self.weight_copies < 0:
            raise UsageError(f"weight_copies={self.weight_copies}; allowed: 0 (gets of newer versions wait) or more")


@dataclass(frozen=True, kw_only=True)
class ServerOptions(HoldingOptions):
    """How a server runs.

    Args:
        scheduler: ``host:port`` of the scheduler.
        name, host: see ``Member``.
        tcp: its data channel.
        receive_budget_bytes: memory for transfers on their way; 0 means 1 GiB.
        weight_copies: see ``ServerConfig``.
        checkpoint_dir: where checkpoints and commit logs go; None writes none.
        checkpoint_every_s: seconds between checkpoints, > 0; one is written at the end in any case.
        keep: checkpoints kept of each model.
        resume: begin with the newest checkpoints in ``checkpoint_dir``.
    """

    name: str = "server-0"
    resume: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.checkpoint_dir is None:
            raise UsageError("resume needs checkpoint_dir, the directory of the checkpoints")


class ServerService:
    """One parameter server.

    Args:
        options: see there.
        metrics: counts what happens.
        inheritance: what it begins with if it was a replica until now.
    """

    def __init__(self, options: ServerOptions, metrics: ServerMetrics, inheritance: Inheritance | None = None) -> None:
        self.options = options
        self._metrics = metrics
        self._inheritance = inheritance
        self._promoted = inheritance.replica if inheritance is not None else ""
        directory = options.checkpoint_dir
        self._checkpoints = checkpoints = CheckpointDir(directory, options.keep) if directory else None
        held = resume(checkpoints, options.name) if checkpoints and options.resume else []
        self._noted_epochs = {holds.spec.name: holds.version.epoch for holds, _ in held}
        self._shown_epochs = {
            name: max(epoch, last_number(checkpoints.epoch_path(name)) if checkpoints else 0)
            for name, epoch in self._noted_epochs.items()
        }
        held += inheritance.held if inheritance is not None else ()
        budget = options.receive_budget_bytes or 1 << 30
        config = ServerConfig(name=options.name, receive_budget_bytes=budget, weight_copies=options.weight_copies)
        self._state = ServerState(config, [h for h, _ in held])
        self._tracer = tracer_of("server", options.name, moments)
        see = self._tracer.see if self._tracer else None
        self._driver = Driver[act.ServerEvent, act.Action](self._state, self._do, see)
        saving = Saving(directory=checkpoints, extra=self._extra) if checkpoints else None
        self._stores = Stores(self._driver.take_in, saving)
        for holds, store in held:
            self._stores.add(holds.spec, store)
            log.info("model %s goes on from version %s", holds.spec.name, holds.version.number)
        duties = MemberDuties(
            register=self._register,
            admitted=self._admitted,
            instructed=self._instructed,
            memory_bytes=self._memory_bytes,
            failure=self._driver.failure,
        )
        self._shell = MemberShell(options, Role.SERVER, duties, metrics, self._promoted)
        self._report = self._shell.report
        self._connections = Connections(
            self._stores, options.host, self._driver.take_in, self._recorded, metrics.connection_broke
        )
        self._channel = TcpChannel(options.tcp) if inheritance is None else inheritance.channel
        self._seeds = SeedSender(
            self._state, self._stores, self._channel, options.host, self._driver.take_in, self._metrics.transfer
        )
        self._log = CommitLog(directory)
        self.callbacks = Callbacks(self._driver.failure)
        self._settled = asyncio.Event()
        self._milestones: dict[str, Milestones] = {}
        self._saving = Tasks(self._driver.take_in)
        self._counts: dict[str, SampleCounts] = {}
        self._does: dict[type, Callable[[Any], None]] = {
            act.Grant: self._connections.grant,
            act.Answer: self._connections.answer,
            act.Refuse: self._connections.refuse,
            act.Abandon: self._connections.abandon,
            act.ServeModel: self._serve,
            act.CreateStore: self._create,
            act.FreeStore: self._free,
            act.Forget: lambda action: self._stores.forget(action.transfer),
            act.InstallInitial: self._stores.install,
            act.ApplyStep: self._stores.apply,
            act.PrepareStep: self._stores.prepare,
            act.CommitStep: self._stores.commit,
            act.DiscardStep: self._stores.discard,
            act.PinModel: self._stores.pin,
            act.UnpinModel: lambda action: self._stores.unpin(action.get),
            act.Report: self._say,
            act.Settled: lambda _: self._settled.set(),
        }
        self.address = ""

    # Running

    async def run(self, stop: asyncio.Event, joined: Callable[[], None] = nothing) -> None:
        """Serve until ``stop`` is set, then drain: finish what runs, write checkpoints, say good-bye.

        Args:
            joined: called whenever the scheduler has admitted the server.

        Raises:
            RefusedError: the scheduler refuses this server for good.
            UsageError: the data address cannot be listened on.
            Exception: something that was decided could not be carried out, as a callback raised this; it has been told.
        """
        self.address = await self._listen()
        seen = self._inheritance.seen if self._inheritance is not None else NO_TERM
        jobs = (self._checkpoint_now_and_again(), self._report_samples())
        try:
            async with self._shell.joined(self.address, joined, *jobs, seen=seen) as wait:
                await wait(stop)
                await self._settle()
                self._report_changed_samples()
                await self._shell.session.leave("stopped")
                await self._saving.wait()
                await self._save()
        finally:
            await self._saving.close()
            await self._seeds.close()
            if not self._promoted:
                await self._channel.close()
            await self._stores.close()
            self._log.close()
            self._driver.close()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)

    def _note_epochs(self) -> None:
        """Keep the server epochs that began beside the checkpoints: who resumes from older ones shows them."""
        if self._checkpoints is None:
            return
        for name, model in self._state.models.items():
            epoch = model.version.epoch
            if epoch == self._noted_epochs.get(name):
                continue
            self._noted_epochs[name] = epoch
            try:
                keep_number(self._checkpoints.epoch_path(name), epoch)
            except FabricError as error:  # nobody else can serve: better so than not at all
                log.error("%s", error)

    async def _listen(self) -> str:
        if self._inheritance is None:
            return await self._channel.listen(self._connections.serve)
        self._channel.serve_by(self._connections.serve)
        return self._inheritance.address

    async def _settle(self) -> None:
        """Wait for the end of what is prepared, so that the parts of a model stay at one version; not for ever."""
        self._driver.take_in(act.Stopping())
        try:
            await asyncio.wait_for(self._settled.wait(), SETTLE_S)
        except TimeoutError:
            log.warning("a unit of work was prepared and never concluded; other parts may have committed it")

    async def _register(
        self, stub: fabric_pb2_grpc.FabricServiceAsyncStub, member: types_pb2.Member
    ) -> fabric_pb2.Admission:
        held = self._state.brings()
        request = fabric_pb2.RegisterAsServerRequest(
            member=member,
            models=[wire.to_spec(holds.spec) for holds in held],
            server_epochs=[self._shown_epochs.get(holds.spec.name, holds.version.epoch) for holds in held],
            promoted=self._promoted,
            promoted_token=self._inheritance.token() if self._inheritance is not None else b"",
            succeeds=self._inheritance.replica if self._inheritance is not None else "",
            keeps=self.options.checkpoint_dir is not None,
            machine_bytes=machine_bytes(),
        )
        return (await stub.RegisterAsServer(request)).admission

    def _admitted(self, welcome: Welcome) -> list[MemberEvent]:
        if self._inheritance is not None and self._promoted:
            self._promoted = ""
            self._inheritance.admitted()
            for group in self._inheritance.made:
                self._log.append(group.model, group.commits)
            self._save_soon()
        self._seeds.stop_all()
        self._driver.take_in(act.TermBegan(term=welcome.term, server_epoch=welcome.server_epoch))
        self._shown_epochs.clear()
        return list(self._state.holds())

    def _instructed(self, instruction: Instruction) -> None:
        if isinstance(instruction, Seed):
            self._seeds.send(instruction)
        else:
            if isinstance(instruction, Unfollowed):
                self._seeds.stop(instruction.model)
            self._driver.take_in(instruction)  # type: ignore[arg-type]

    def _do(self, action: act.Action) -> None:
        self._note_epochs()
        self._does[type(action)](action)

    def _say(self, action: act.Report) -> None:
        self._report(action.event)
        if not action.again:
            self._note(action.event)

    def _serve(self, action: act.ServeModel) -> None:
        if (held := self._connections.serve_model(action)) is not None:
            store = self._stores.store(action.model)
            self.callbacks.requested(action.model, store, action.get, action.version, held)

    def _create(self, action: act.CreateStore) -> None:
        self._set_aside(action.spec.name)
        self._stores.add(action.spec)
        log.info("model %s: %s", action.spec.name, action.reason)

    def _set_aside(self, model: str) -> None:
        """Keep checkpoints of a former model of this name apart from those of one that begins."""
        if self._checkpoints is not None and self._checkpoints.latest(model) is not None:
            log.info("checkpoints of a former model %s go to %s", model, self._checkpoints.directory / "removed")
            self._stores.set_aside(model)

    def _free(self, action: act.FreeStore) -> None:
        """Hold nothing of a model any more; its epoch stays noted on disk."""
        log.info("model %s has ended: %s", action.model, action.reason)
        self._seeds.stop(action.model)
        for known in (self._milestones, self._counts, self._noted_epochs):
            known.pop(action.model, None)
        self._log.forget(action.model)
        self._stores.free(action)

    def _note(self, event: MemberEvent) -> None:
        if isinstance(event, CommitsReported):
            self._committed(event)
        elif isinstance(event, ServerHolds):  # it went on under a later epoch, which older checkpoints do not know
            self._save_soon([event.spec.name])
        elif isinstance(event, TransferEnded) and event.end is TransferEnd.RECEIVED:
            self._metrics.received(event.model, "sum" if isinstance(event.transfer, SumId) else "update")

    def _committed(self, event: CommitsReported) -> None:
        self._log.append(event.model, event.commits)
        self._passed(event.model, event.commits[-1].version.number)
        for commit in event.commits:
            self._metrics.commit(event.model, commit)
            log.debug("%s is committed as version %s", commit.update, commit.version.number, extra=about(commit))
        self.callbacks.committed(event.model, self._stores.store(event.model), event.commits)

    def _recorded(self, record: TransferRecord, peer: str) -> None:
        self._metrics.transfer(record, peer)
        if record.direction is Direction.IN:
            self._shell.reporter.record(record, peer, self.options.host)

    # Now and again

    async def _checkpoint_now_and_again(self) -> None:
        """Save models now and again; a part of one at its milestones, or once it has come to rest."""
        before: dict[str, ModelVersion] = {}
        while True:
            await asyncio.sleep(self.options.checkpoint_every_s)
            models = self._state.models
            await self._save([n for n, m in models.items() if m.spec.shard is None or before.get(n) == m.version])
            before = {name: model.version for name, model in models.items()}

    def _extra(self, model: str) -> CheckpointExtra:
        hosted = self._state.models[model]
        return extra_of(hosted.version, hosted.applied.snapshot(), hosted.began, hosted.samples.counts())

    def _passed(self, model: str, version: int) -> None:
        """Save a part of a model if it has come to a milestone."""
        if self._state.models[model].spec.shard is None:
            return
        now_s = clock.monotonic_s()
        begun = Milestones(self.options.checkpoint_every_s, version - 1, now_s)
        if self._milestones.setdefault(model, begun).is_due(version, now_s):
            self._save_soon([model])

    def _save_soon(self, models: Sequence[str] | None = None) -> None:
        self._saving.spawn(self._save(models))

    async def _save(self, models: Sequence[str] | None = None) -> None:
        try:
            for saved in await self._stores.save(models):
                self._metrics.checkpoint(saved.model, saved.seconds)
                log.info("checkpoint of %s: %s", saved.model, saved.path)
        except FabricError as error:
            log.error("no checkpoint was written: %s", error)

    async def _report_samples(self) -> None:
        """Tell the scheduler what has become of samples, now and again."""
        while True:
            self._report_changed_samples()
            await asyncio.sleep(SAMPLES_REPORT_S)

    def _report_changed_samples(self) -> None:
        for name, model in self._state.models.items():
            counts = model.samples.counts()
            if counts is not self._counts.get(name, NO_SAMPLES):
                self._counts[name] = counts
                self._metrics.samples(name, counts)
                self._report(SamplesReported(server=self.options.name, model=name, counts=counts))

    def _memory_bytes(self) -> dict[str, int]:
        return {**self._stores.memory_bytes(), "lacking": self._state.lacking_bytes()}
