"""What a training script holds: a worker that pushes updates and gets models.

Not thread-safe: for one training thread.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch

from mlfabric.arguments import enum_of, instance_of, integer_of
from mlfabric.errors import LayoutError, UsageError
from mlfabric.model.samples import LAST_POSITION, MOST_RUNS, Samples, samples_of
from mlfabric.model.specs import Method, TensorKind
from mlfabric.protocol import DropReason, ModelVersion, ReduceOp, SamplesWanted
from mlfabric.shell.forking import tell_copies
from mlfabric.worker_daemon.argument_types import check_arguments
from mlfabric.worker_daemon.contributions import Contribution
from mlfabric.worker_daemon.data_attempts import GivenUpError, Parcel
from mlfabric.worker_daemon.given_tensors import GivenTensors
from mlfabric.worker_daemon.growing_update import GrowingUpdate, Timing, not_finite
from mlfabric.worker_daemon.handles import PushHandle, Tally
from mlfabric.worker_daemon.reduce_tensors import ReduceHandle, StagedTensors
from mlfabric.worker_daemon.registered import Registered, check_gradients
from mlfabric.worker_daemon.tensors import ModelTensors, Trainable
from mlfabric.worker_daemon.thread import CountFuture, DrawFuture, OutcomeFuture, ThreadDaemon, VersionFuture

__all__ = ["PushHandle", "Tally", "Worker"]

log = logging.getLogger("mlfabric.worker")
DRAIN_S = 30.0
MOST_REDUCING = 1024
SAID_AFTER_S = 1.0
"""So long a get waits for a version without a word."""


class Worker:
    """A registered worker; made by ``mlfabric.register_as_worker``.

    Args:
        name: its name in the fabric.
        daemon: carries out what it asks for.
        model: what it trains.
        tensors: the travelling tensors of ``model``.
        method: of its job.
        together: how many workers the first AllReduce waits for, >= 1.

    With a layout that begins with the last layers (``ModelTensors.backwards``) communication overlaps with backward.
    """

    def __init__(
        self,
        name: str,
        daemon: ThreadDaemon,
        model: Trainable,
        tensors: ModelTensors,
        method: Method = Method.ASYNCHRONOUS,
        together: int = 1,
    ) -> None:
        self.name = name
        self.method = method
        self.version = ModelVersion(0, 0)
        self.tally = Tally()
        self._daemon = daemon
        self._model = model
        self._tensors = tensors
        self._registered = Registered(model, tensors)
        self._image = daemon.buffer()
        self._together = together
        self._staged = StagedTensors()
        self._open: deque[OutcomeFuture] = deque()
        self._reducing: deque[CountFuture] = deque()
        self._samples: Samples = ()
        self._drawing: DrawFuture | None = None
        self._coming: VersionFuture | None = None
        self._left = False
        self._growing: GrowingUpdate | None = None
        self._timing = Timing()
        self._is_accumulating = False
        self.tau_max = daemon.join().tau_max
        self._stop_hearing = tensors.when_made(self._made) if tensors.backwards else None
        atexit.register(self.leave)
        tell_copies(self)

    # Pushing and getting

    def get(
        self,
        model: Trainable | None = None,
        *,
        into: Mapping[str, torch.Tensor] | None = None,
        min_version: int = 0,
    ) -> ModelVersion:
        """Install the newest model, at least the one that holds the last push's update if that was committed.

        Args:
            model: where to install it; the registered one unless given.
            into: tensors by name to install it in instead, of the registered shapes and dtypes, on a CPU or GPU: all
                parameters, and those buffers that are wanted.
            min_version: wait for this version or a newer one, however long that takes; after a second a warning says
                what is waited for.

        Returns:
            The model's version.

        Raises:
            LayoutError: ``model`` or ``into`` is not of the registered layout, or the registered model is not what it
                was any more; nothing was changed.
            UsageError: both are given, or gradients are on their way already (overlap); push comes first. Or
                ``min_version`` is none.
            FabricClosedError: this worker has left the fabric.
        """
        least = integer_of("min_version", min_version, least=0, instead="of a ModelVersion its number")
        target = self._target(model) if into is None else self._given_target(model, into)
        if self._growing is not None:
            raise UsageError("get after backward: the gradients are on their way; push first, or compute without them")
        if self._coming is None:
            self._coming = self._daemon.get(ModelVersion(0, 0))
        version = self._arrived(self._coming)
        if version.number < least:
            self._coming = self._daemon.get(ModelVersion(version.epoch, least))
            if self._coming not in futures.wait([self._coming], SAID_AFTER_S).done:
                waits = f"{self.name} waits for version {least} of the model, as get(min_version={least}) asks"
                log.warning("%s; it was at version %s a moment ago", waits, version.number)
            version = self._arrived(self._coming)
        target.install(self._image)
        self.version = version
        self._timing.begin()
        return version

    def _arrived(self, coming: VersionFuture) -> ModelVersion:
        """Wait for the model; interrupted, it is still coming: nothing else may be received into its buffer."""
        version = coming.result()
        self._coming = None
        return version

    def push(
        self,
        model: Trainable | None = None,
        *,
        update: Mapping[str, torch.Tensor] | None = None,
        norm: float | None = None,
        samples: Iterable[tuple[int, int]] = (),
    ) -> PushHandle:
        """Hand over the gradients; ``grad`` of every parameter is None afterwards.

        The model that follows this update is asked for in the same round trip, and fetched while training goes on:
        the next :meth:`get` installs it. Gradients that are NaN or Inf are dropped here.

        Args:
            model: whose gradients; the registered one unless given.
            update: tensors by name that stand in for the gradients, one for each parameter, of its shape and dtype, on
                a CPU or GPU; they must be left alone until the push is settled. The rule makes a step of them: plain
                SGD takes ``lr`` times the update away from the model. Gradients stay where they are; buffers travel as
                in every push.
            norm: at least the l2 norm of ``update``; computed unless given.
            samples: as for :meth:`trains_on`, for this update; with overlap say them there.

        Raises:
            LayoutError: ``model`` or ``update`` is not of the registered layout, or the registered model is not what it
                was any more; nothing was changed.
            UsageError: no model was got yet, no parameter has a gradient since the last push, ``samples`` are out of
                range, ``update`` has NaN or Inf, comes with ``model`` or after a backward whose gradients are on their
                way (overlap), or ``norm`` is too small or has no ``update``; nothing was changed.
            FabricClosedError: this worker has left the fabric.
        """
        if update is not None:
            return self._push_given(model, update, norm, samples)
        if norm is not None:
            raise UsageError("norm without update; the norm of gradients is computed, leave it out")
        tensors = self._target(model)
        self._check_pushable(tensors)
        self.trains_on(samples)
        return self._push(tensors, install_first=False)

    def _push_given(
        self,
        model: Trainable | None,
        update: Mapping[str, torch.Tensor],
        norm: float | None,
        samples: Iterable[tuple[int, int]],
    ) -> PushHandle:
        """Push tensors that are nobody's gradient."""
        if model is not None:
            raise UsageError("push of both model and update; give one of them")
        tensors, said = self._target(None), samples_of((*self._samples, *samples))
        self._check_was_got()
        if self._growing is not None:
            raise UsageError("push of an update after backward: the gradients are on their way; push() them first")
        parcel, norm = tensors.take_given(update, norm)
        self._samples = said
        return self._hand_over(parcel, norm, install_first=False)

    def trains_on(self, samples: Iterable[tuple[int, int]]) -> None:
        """Say what the next update is computed from, so that the fabric can tell which samples were trained on.

        What is said before one push adds up; with overlap it must be said before backward. See ``FabricSampler``.

        Args:
            samples: half-open ranges of positions: sample i of n of the data's epoch e is at ``e * n + i``.

        Raises:
            UsageError: a range is empty or out of range, or there are more than 256; or it is too late (overlap).
        """
        said = samples_of((*self._samples, *samples))
        if self._growing is not None and said != self._samples:
            raise UsageError("samples after backward: with overlap the update may be on its way; say them before")
        self._samples = said

    def draw(
        self, count: int, limit: int, *, again: bool = True, returned: Iterable[tuple[int, int]] = ()
    ) -> DrawFuture:
        """Draw samples that no other worker has or has had; the future gives the answer. One at a time.

        Most scripts use ``FabricSampler``, which does.

        Args:
            count: how many at most, >= 1.
            limit: only positions before this one; see :meth:`trains_on`.
            again: also samples whose updates were dropped.
            returned: samples that were drawn and will not be used, so that others may.

        Raises:
            UsageError: an argument is out of range, or the method is AllReduce.
            FabricClosedError: this worker has left the fabric.
        """
        if self.method is Method.ALL_REDUCE:
            raise UsageError("draw with method all_reduce, which has no server that knows what was trained on")
        count, limit = integer_of("count", count, least=1), integer_of("limit", limit, least=0, most=LAST_POSITION)
        back = samples_of(returned, MOST_RUNS)
        if self._drawing is not None and not self._drawing.done():
            raise UsageError("draw while another draw has no answer; wait for that one's result")
        self._drawing = self._daemon.draw(
            SamplesWanted(worker=self.name, model="", serial=0, count=count, limit=limit, again=again, returned=back)
        )
        return self._drawing

    def exchange(self) -> PushHandle:
        """Push, and install the model that the push before this one brought: communication overlaps computation.

        The gradients of the next step are computed on a model that lacks this step's update; ``tau`` counts that.

        Raises:
            LayoutError: the registered model is not what it was any more; nothing was changed.
            UsageError: no model was got yet, or no parameter has a gradient since the last push.
            FabricClosedError: this worker has left the fabric.
        """
        tensors = self._target(None)
        self._check_pushable(tensors)
        return self._push(tensors, install_first=True)

    def _check_pushable(self, tensors: ModelTensors) -> None:
        self._check_was_got()
        if self._growing is None and not self._left:  # who has left hears that, and not of gradients
            check_gradients(tensors)

    def _push(self, tensors: ModelTensors, install_first: bool) -> PushHandle:
        if self._growing is not None:
            return self._push_grown(self._growing, tensors)
        return self._hand_over(*tensors.take_update(), install_first)

    def _check_was_got(self) -> None:
        if self.version.epoch == 0:
            raise UsageError("push before the first get: updates are computed from a version; call get(model) first")

    def _hand_over(self, parcel: Parcel, norm: float, install_first: bool) -> PushHandle:
        """Push an update that is complete, once the model that is coming has come."""
        computed_from = self.version
        if self._coming is not None:
            version = self._arrived(self._coming)
            if install_first:
                self._tensors.install(self._image)
                self.version = version
        outcome: OutcomeFuture
        if norm < float("inf"):
            outcome, self._coming = self._daemon.push(parcel, norm, computed_from, self._samples)
        else:
            outcome = self._not_finite(norm)
        return self._handle(outcome)

    def _not_finite(self, norm: float) -> OutcomeFuture:
        log.warning("%s: an update was dropped: its norm is %s", self.name, norm)
        outcome = OutcomeFuture()
        outcome.set_result(not_finite(norm).outcome)
        if self._samples:
            self._daemon.drop_samples(self._samples)
        return outcome

    def _handle(self, outcome: OutcomeFuture) -> PushHandle:
        self._open.append(outcome)
        self._samples = ()
        self._count_settled()
        return PushHandle(outcome)

    # Overlap with backward

    def ready(self, parameter: torch.Tensor) -> None:
        """Say that a parameter's gradient is final, so that it may leave before the others are: with overlap only.

        Autograd's backward says so by itself; this is for gradients that are computed in other ways. Nothing leaves
        where the model that followed the last push was not got yet.

        Raises:
            UsageError: the worker was registered without overlap, or the parameter's gradient is on its way already.
            LayoutError: the parameter is none of the registered model's.
        """
        if not self._tensors.backwards:
            raise UsageError("ready without overlap; register with overlap=True")
        self._made(self._tensors.place_of(parameter))

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Let gradients accumulate: what backward makes in this context stays here, with overlap, too."""
        before, self._is_accumulating = self._is_accumulating, True
        try:
            yield
        finally:
            self._is_accumulating = before

    def _made(self, i: int) -> None:
        """Take a gradient, and let it leave if its update is announced, or is to be."""
        if self._left or self._is_accumulating or self.version.epoch == 0:
            return
        if self._growing is None:
            if self._coming is not None:
                return
            self._growing = GrowingUpdate(self._tensors)
        growing = self._growing
        finite = growing.take(i)
        if growing.announced is not None:
            self._tell_growth(growing, finite)
        elif finite and self._timing.is_due(i, growing.times.made_ns[i]):
            self._announce(growing, growing.early_norm)

    def _tell_growth(self, growing: GrowingUpdate, finite: bool) -> None:
        if finite:
            self._daemon.grown(growing.growth, growing.ready_bytes)
        else:
            self._daemon.give_up(growing.growth, not_finite(growing.norm))

    def _announce(self, growing: GrowingUpdate, norm: float) -> OutcomeFuture:
        growing.growth.progress.advance(growing.ready_bytes)
        outcome, self._coming = self._daemon.push(growing.parcel, norm, self.version, self._samples)
        growing.announce(outcome)
        return outcome

    def _push_grown(self, growing: GrowingUpdate, tensors: ModelTensors) -> PushHandle:
        """Push what backward has made, or, of an update that is announced already, the rest."""
        self._growing = None
        try:
            if tensors is not self._tensors:
                raise UsageError("backward went through the registered model, push got another one; push that one")
            finite = growing.complete()
        except UsageError as error:
            if growing.announced is not None:
                self._daemon.give_up(growing.growth, GivenUpError(DropReason.CHANGED, str(error)))
                self._handle(growing.announced)
            raise
        if growing.announced is not None:
            self._tell_growth(growing, finite)
            outcome = growing.announced
        else:
            outcome = self._announce(growing, growing.norm) if finite else self._not_finite(growing.norm)
        self._timing.pushed(growing.times)
        return self._handle(outcome)

    def drain(self, timeout_s: float | None = None) -> Tally:
        """Wait until every push has its outcome; return what became of them all.

        Raises:
            TimeoutError: some outcome was not known in time.
        """
        for future in self._open:
            future.result(timeout_s)
        self._count_settled()
        return self.tally

    def _count_settled(self) -> None:
        while self._open and self._open[0].done():
            self.tally.add(self._open.popleft().result())

    def _target(self, model: Trainable | None) -> ModelTensors:
        if self.method is Method.ALL_REDUCE:
            raise UsageError(f"push or get with method {self.method.value}, which has no server; use all_reduce")
        if model is None or model is self._model:
            self._registered.check()
            return self._tensors
        check_arguments(model=model)
        tensors = ModelTensors(model, self._tensors.shaping, backwards=self._tensors.backwards)
        difference = tensors.layout.difference(self._tensors.layout)
        if difference:
            raise LayoutError(f"this is not the registered model: {difference} (given against registered)")
        return tensors

    def _given_target(self, model: Trainable | None, into: Mapping[str, torch.Tensor]) -> GivenTensors:
        if model is not None:
            raise UsageError("get into both model and tensors by name; give one of them")
        given = GivenTensors(self._target(None).layout, into, frozenset(TensorKind) - {TensorKind.RATES})
        given.check_writable()
        return given

    # AllReduce

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM) -> int:
        """Replace a tensor by the sum (or mean) of those of all workers; return how many took part.

        Every worker gets the same bits. All must call it for the same tensors in the same order; it waits for all that
        have joined. If one dies meanwhile, the others do it again without it. NaN and Inf are summed as they are.

        Args:
            tensor: contiguous, of float16, bfloat16, float32 or float64, of any shape, on CPU or GPU; the same size,
                dtype and ``op`` at all workers.
            op: what to make of them, as in ``"mean"``.

        Raises:
            LayoutError: the tensor is not contiguous, or of another dtype.
            UsageError: the job's method is another one.
            RefusedError: the workers gave different things (says who gave what), it failed too often, or the others
                did it while this worker was silent.
            FabricClosedError: this worker has left the fabric.
                After each of these the tensor is as it was.
        """
        return self.all_reduce_async(tensor, op).result()

    def all_reduce_async(self, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM) -> ReduceHandle:
        """Begin an AllReduce; the handle's ``result`` writes it into the tensor, which must be left alone until then.

        Several may be on their way, slices of one tensor too; they are carried out in the order of these calls. When
        1024 are, this waits for the first of them.

        Args, Raises: as for :meth:`all_reduce`.
        """
        if self.method is not Method.ALL_REDUCE:
            given = f"all_reduce with method {self.method.value}"
            raise UsageError(f"{given}; register with method='all-reduce', or push and get")
        op, tensor = enum_of(ReduceOp, "op", op), instance_of(torch.Tensor, "tensor", tensor, "a tensor")
        while self._reducing and (self._reducing[0].done() or len(self._reducing) >= MOST_REDUCING):
            futures.wait([self._reducing.popleft()])
        staged = self._staged.stage(tensor, op)
        coming = self._daemon.reduce(Contribution(buffers=staged.buffers, op=staged.op, together=self._together))
        self._reducing.append(coming)
        return self._staged.handle(staged, coming)

    # Leaving

    def leave(self, detail: str = "done") -> None:
        """Wait for open pushes and leave the fabric; a second call does nothing. Also a context manager's end."""
        if self._left:
            return
        self._left = True
        atexit.unregister(self.leave)
        if self._stop_hearing is not None:
            self._stop_hearing()
        if self._growing is not None and self._growing.announced is not None:
            gone = GivenUpError(DropReason.CHANGED, f"{self.name} left before the update was complete")
            self._daemon.give_up(self._growing.growth, gone)
            self._open.append(self._growing.announced)
        self._daemon.leave(detail, DRAIN_S)
        self._coming = None
        self._count_settled()

    @property
    def has_left(self) -> bool:
        """Tell whether this worker has left the fabric."""
        return self._left

    def in_a_copy(self) -> None:
        """Have nothing under way and nothing to leave, in a process that was forked from the worker's."""
        self._left = True
        self._coming = self._growing = self._drawing = None
        self._open.clear()
        self._reducing.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave("done" if error is None else f"{type(error).__name__}: {error}")
