"""``register_as_worker`` and ``wrap``: how a training script joins the fabric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch

from mlfabric.arguments import enum_of
from mlfabric.config import WorkerSettings
from mlfabric.errors import UsageError
from mlfabric.model.round_options import MOST_KEPT, RoundOptions
from mlfabric.model.specs import Method, ModelSpec, MomentumAt, RuleSpec
from mlfabric.worker_daemon.argument_types import check_arguments
from mlfabric.worker_daemon.gossip_model import steps_kept
from mlfabric.worker_daemon.gradient_rules import Shaping
from mlfabric.worker_daemon.initial_weights import initialise
from mlfabric.worker_daemon.join_options import Joining, joining, note_worker
from mlfabric.worker_daemon.local_steps import INNER_STEPS, LocalOptimizer, OuterStep, shared_model, steps_between
from mlfabric.worker_daemon.observations import Observer, nobody
from mlfabric.worker_daemon.optimizer import FabricOptimizer
from mlfabric.worker_daemon.optimizer_steps import steps_of
from mlfabric.worker_daemon.round_arguments import check_steps_alone, round_options
from mlfabric.worker_daemon.round_inbox import RoundInbox
from mlfabric.worker_daemon.round_optimizer import Parts, RoundOptimizer
from mlfabric.worker_daemon.sigterm import drain_on_sigterm
from mlfabric.worker_daemon.tensors import ModelTensors, Trainable
from mlfabric.worker_daemon.thread import ThreadDaemon
from mlfabric.worker_daemon.worker import Worker

__all__ = ["register_as_worker", "wrap"]

WithoutServer = Literal[
    "all-reduce",
    "elastic",
    "partial",
    "dpsgd",
    "rand",
    "rand-aware",
    "d1d",
    "adpsgd",
    Method.ALL_REDUCE,
    Method.ELASTIC,
    Method.PARTIAL,
    Method.DPSGD,
    Method.RAND,
    Method.RAND_AWARE,
    Method.D1D,
    Method.ADPSGD,
]
WithInnerSteps = Literal["local-sgd", "diloco", "sma", Method.LOCAL_SGD, Method.DILOCO, Method.SMA]


def register_as_worker(
    model: Trainable,
    *,
    rule: RuleSpec | None = None,
    momentum_at: MomentumAt | str | None = None,
    method: Method | str = Method.ASYNCHRONOUS,
    tau_max: int | None = None,
    slack: int = 0,
    workers: int | None = None,
    servers: int = 1,
    overlap: bool = False,
    init: str | Path | int = "first",
    keep: bool = False,
    resume: bool | None = None,
    model_name: str = "model",
    name: str = "",
    scheduler: str = "",
    settings: WorkerSettings | None = None,
    observer: Observer = nobody,
) -> Worker:
    """Join the fabric as a worker that trains ``model``; waits for the scheduler and a server.

    From then on SIGTERM ends this process by ``SystemExit(143)``: at the exit open pushes are settled, and the worker
    leaves. A handler that the script has set before stays; one that it sets later takes the place of this one. With
    ``MLFABRIC_DRAIN_ON_SIGTERM=0`` in the environment the process dies at once, and open pushes may be lost.

    A process may train several models: it registers each under a ``model_name`` of its own. All counts of workers are
    those of one model's.

    Args:
        model: a module, or a mapping of names to tensors; it is trained in place.
        rule: how the server turns gradients into steps; every worker gives the same. ``RuleSpec()`` unless given.
        momentum_at: who keeps the rule's momentum. None takes what the rule says; where it says nothing, that is the
            workers in asynchronous training, else the server.
        method: how the workers' gradients become a model; every worker gives the same. Synchronous: one step from one
            update of every worker; all wait for the slowest, so a worker that has nothing more to push should leave.
        tau_max: asynchronous only: delay bound, >= 0; None means twice the number of workers.
        slack: stale-synchronous only: how many iterations a worker may be ahead of the slowest, >= 0.
        workers: not if asynchronous: the first iteration (AllReduce) waits until so many workers have joined, >= 1.
            ``MLFABRIC_WORKERS`` (which ``mlfabric run`` sets) unless given, else 1: whoever comes first begins alone.
        servers: over how many servers the model is spread, >= 1; every worker gives the same. It is cut by bytes, each
            part is on another server, and all parts make the same steps: a get returns one version of the whole. The
            worker waits until so many servers have joined.
        overlap: whether gradients leave while backward still makes the others; every worker gives the same. ``push``
            then completes what backward has begun. They must be left alone from backward to ``push``; several backwards
            before one ``push`` go under ``worker.accumulating()``, all but the last. Not with a rule that clips (the
            norm is known only at the end), several servers, AllReduce, or a daemon in a process of its own.
        init: initial weights: ``"first"`` takes those of the first worker that joins; an integer is a seed from which
            every worker makes the same; anything else is the path of a state dict.
        keep: whether the model stays in the fabric when the job is over, for another job to go on with; it does where
            its server has a directory of checkpoints. Not with AllReduce, which leaves nothing.
        resume: what the job begins from if a former job has left a model of this name: True goes on with what is there
            (and begins anew if nothing is), False begins anew whatever is there. None goes on if ``MLFABRIC_RESUME`` is
            1 (``mlfabric run --resume`` sets it); else the worker is refused, and told what is there.
        model_name: the model's name in its job; see ``MLFABRIC_JOB`` for names in the fabric.
        name: this worker's name; ``MLFABRIC_NAME`` or ``worker-<RANK>`` unless given. A further model's worker in the
            same process adds the model's name, as in ``worker-0.discriminator``.
        scheduler: ``host:port``; ``MLFABRIC_SCHEDULER`` or 127.0.0.1:50061 unless given.
        settings: everything about the surroundings; taken from the environment unless given.
        observer: told of finished transfers and settled updates, in the daemon's thread; it should be brief.

    Returns:
        The worker; use it as a context manager, or call ``leave`` at the end.

    Raises:
        LayoutError: the model has nothing to train, tensors that cannot travel, or NaN or Inf in one.
        ConfigError: the model is too small for so many servers, or the method has none.
        UsageError: an argument or an environment variable cannot be used.
        RefusedError: the scheduler refuses: the name is taken, layout or options are not the registered ones, another
            job trains the model, or a former one has left it and ``resume`` does not say what to do.
    """
    how = joining(
        model,
        method=method,
        tau_max=tau_max,
        slack=slack,
        workers=workers,
        servers=servers,
        overlap=overlap,
        init=init,
        keep=keep,
        resume=resume,
        model_name=model_name,
        name=name,
        scheduler=scheduler,
        settings=settings,
    )
    check_arguments(rule=rule, observer=observer)
    if how.method.is_only_wrapped:
        advice = f"mlfabric.wrap(optimizer, model, method={how.method.value!r})"
        raise UsageError(f"register_as_worker with method {how.method.value}; allowed: the other methods, or {advice}")
    rule = _placed(rule or RuleSpec(), momentum_at, how.method)
    return _register(model, rule, Shaping(rule), how, observer)


def _register(model: Trainable, rule: RuleSpec, shaping: Shaping, how: Joining, observer: Observer) -> Worker:
    together, job = how.together, how.claim()
    initialise(model, how.init)
    how.check_overlap(rule)
    tensors = ModelTensors(model, shaping, backwards=how.overlap)
    tensors.check_finite()
    spec = ModelSpec(
        name=how.model_name,
        layout=tensors.layout,
        rule=rule,
        method=how.method,
        tau_max=how.tau_max,
        slack=how.slack,
        frozen_digest=tensors.frozen_digest,
        workers=together if how.method in (Method.SYNCHRONOUS, Method.STALE_SYNCHRONOUS) else 0,
        shards=how.servers,
    )
    daemon = ThreadDaemon(how.settings, spec, tensors.values(), job, observer)
    worker = Worker(how.settings.name, daemon, model, tensors, how.method, together)
    if how.settings.drain_on_sigterm:
        drain_on_sigterm()
    note_worker(worker, how.model_name, worker.name)
    return worker


class WrapOptions(TypedDict, total=False):
    """What :func:`wrap` takes beside the method."""

    momentum_at: MomentumAt | str | None
    tau_max: int | None
    slack: int
    workers: int | None
    servers: int
    overlap: bool
    at_least: float | None
    quorum: str | int | None
    full_every: int | None
    average_every: int | None
    mixing: str | None
    wait: bool | None
    inner_steps: int | None
    fragments: int | None
    outer: OuterStep | None
    init: str | Path | int
    keep: bool
    resume: bool | None
    model_name: str
    name: str
    scheduler: str
    settings: WorkerSettings | None


@overload
def wrap(  # type: ignore[overload-overlap]
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, *, method: WithoutServer, **options: Unpack[WrapOptions]
) -> RoundOptimizer: ...


@overload
def wrap(  # type: ignore[overload-overlap]
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, *, method: WithInnerSteps, **options: Unpack[WrapOptions]
) -> LocalOptimizer: ...


@overload
def wrap(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    *,
    method: Method | str = ...,
    **options: Unpack[WrapOptions],
) -> FabricOptimizer: ...


def wrap(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    *,
    momentum_at: MomentumAt | str | None = None,
    method: Method | str = Method.ASYNCHRONOUS,
    tau_max: int | None = None,
    slack: int = 0,
    workers: int | None = None,
    servers: int = 1,
    overlap: bool = False,
    at_least: float | None = None,
    quorum: str | int | None = None,
    full_every: int | None = None,
    average_every: int | None = None,
    mixing: str | None = None,
    wait: bool | None = None,
    inner_steps: int | None = None,
    fragments: int | None = None,
    outer: OuterStep | None = None,
    init: str | Path | int = "first",
    keep: bool = False,
    resume: bool | None = None,
    model_name: str = "model",
    name: str = "",
    scheduler: str = "",
    settings: WorkerSettings | None = None,
) -> FabricOptimizer | RoundOptimizer | LocalOptimizer:
    """Return an optimizer whose ``step`` goes through the fabric.

    With ``method="elastic"``, ``"partial"`` or ``"all-reduce"`` there is no server, and any torch optimizer will do
    that needs no closure: each ``step`` offers the gradients for a round, waits for it, and steps with the mean of that
    round's gradients, so all workers have the same weights. A worker that joins later has model and optimizer state
    from another one. In gossip each worker steps a model of its own, and rounds average models while the next gradients
    are computed. With the other methods ``step`` pushes to a server and gets the model; asynchronous, that overlaps
    with the next batch.

    Each step goes by what the parameter groups say at that moment: schedulers work, built on the optimizer that is
    given or on the one that is returned. A round steps with the means of its members' numbers. With a server, each
    worker makes the whole step of SGD, momentum included, and the fabric adds the steps up (synchronous: takes their
    mean). Of Adam and AdamW the server keeps the averages; learning rates and weight decay may change, betas may not.

    Args:
        optimizer: with a server a ``torch.optim.SGD``, ``Adam`` or ``AdamW`` over ``model``'s parameters, without
            ``amsgrad``, and Adam without ``maximize``.
        model: what is trained; the fabric's present weights are installed in it.
        momentum_at: who keeps SGD's momentum: the workers unless given. At the server it cannot change, nor be
            Nesterov's or dampened.
        method: ``"elastic"``: whoever is ready makes a round; a worker that is too slow to be worth waiting for joins a
            later one. ``"partial"``: a quorum makes a round; a gradient that misses it is added to its worker's next
            one. ``"all-reduce"``: everybody is in each round. ``"local-sgd"`` and ``"diloco"``: workers step by
            themselves, and make elastic rounds of how far each has come. ``"sma"``: workers step by themselves and are
            drawn to a central model, which moves to their mean with momentum; each round has everybody. Gossip:
            ``"dpsgd"`` averages each worker's model with those of its neighbours in a ring, ``"rand"`` in a ring that
            is drawn anew for each round, ``"rand-aware"`` in groups around those with fast links, ``"d1d"`` with all;
            each step waits for the round before. ``"adpsgd"`` averages pairs of whoever is ready, and waits for nobody.
            Else as for :func:`register_as_worker`.
        tau_max: elastic, local-sgd, diloco: how many rounds may be settled between the model that a gradient was
            computed from and its own round, 2 unless given; a gradient beyond that is dropped. Else as for
            :func:`register_as_worker`.
        at_least: elastic, local-sgd, diloco: the share of the workers that make a round at the least; unless given 0.5
            with elastic, else 0.75; 1.0 waits for all.
        quorum: partial: ``"solo"``, ``"majority"`` (unless given), ``"full"``, ``"auto"``, or a number of workers; see
            ``RoundOptions``.
        full_every: partial: after so many rounds without some, 32 unless given, one waits for all.
        average_every: gossip: in each round whose number this divides, all workers come to the mean of all models;
            never unless given.
        mixing: dpsgd: ``"ring"`` unless given; ``"exponential"``: each averages with the one that is 1, 2, 4, ...
            places further on, in turn.
        wait: partial, local-sgd, diloco: whether ``step`` waits for the round that its gradient, or its movement, is
            in; yes unless given. If not, rounds are made while the worker computes, from weights that are at least one
            round older. Not with overlap.
        inner_steps: local-sgd, diloco, sma: how many steps a worker makes by itself for each round, >= 1; 32 unless
            given, 1 with sma.
        fragments: local-sgd, diloco: into how many parts of about the same size the model is cut, of which each round
            has one, in turn: there is a round every ``inner_steps / fragments`` steps, and each part is in one every
            ``inner_steps``; 1 unless given.
        outer: diloco, sma: makes the optimizer that steps the shared model, from the list of its parameters; unless
            given SGD with lr 0.7 and Nesterov momentum 0.9 (0.8 if workers do not wait), with sma lr 1 and momentum 0.9
            (without momentum it is EA-SGD).
        overlap: whether gradients leave while backward makes the others; every worker gives the same. Not for scripts
            that change gradients between backward and ``step``, as clipping and gradient scalers do; several backwards
            before one ``step`` go under ``accumulating()``, all but the last. Without it asynchronous steps overlap
            with the next batch, and not with their own backward.
        slack, workers, servers, init, keep, resume, model_name, name, scheduler, settings: as for
            :func:`register_as_worker`.

    Raises:
        UsageError: with a server, no rule does what the optimizer does, or it does not hold all of the model's
            trainable parameters; without one, its ``step`` needs a closure; or the method lacks a given option.
        Else as :func:`register_as_worker`.
    """
    check_arguments(optimizer=optimizer, module=model, inner_steps=inner_steps, outer=outer)
    how = joining(
        model,
        method=method,
        tau_max=tau_max,
        slack=slack,
        workers=workers,
        servers=servers,
        overlap=overlap,
        init=init,
        keep=keep,
        resume=resume,
        model_name=model_name,
        name=name,
        scheduler=scheduler,
        settings=settings,
    )
    given: dict[str, Any] = {"at_least": at_least, "quorum": quorum, "full_every": full_every, "wait": wait}
    given |= {"momentum_at": momentum_at, "slack": slack, "servers": servers, "tau_max": tau_max}
    given |= {"average_every": average_every, "mixing": mixing}
    given |= {"inner_steps": inner_steps, "outer": outer, "fragments": fragments, "overlap": overlap}
    options = round_options(how.method, given)
    if options is None:
        placed = None if momentum_at is None else enum_of(MomentumAt, "momentum_at", momentum_at)
        rule, shaping = steps_of(optimizer, model, placed)
        return FabricOptimizer(optimizer, _register(model, rule, shaping, how, nobody), rule)
    if not how.method.has_inner_steps:
        return _in_rounds(optimizer, model, how, options, waits=wait is not False and not how.method.is_gossip)
    waits = wait is not False and how.method is not Method.SMA
    steps = steps_between(inner_steps or INNER_STEPS[how.method], options.fragments)
    shared = shared_model(model, optimizer, how.method, outer, overlaps=not waits, fragments=options.fragments)
    rounds = _in_rounds(shared.optimizer, shared.model, how, options, waits=waits, parts=shared.parts, own=model)
    return LocalOptimizer(optimizer, shared, rounds, steps)


def _in_rounds(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    how: Joining,
    options: RoundOptions,
    *,
    waits: bool,
    parts: Parts | None = None,
    own: torch.nn.Module | None = None,
) -> RoundOptimizer:
    """Join as a worker that applies rounds by itself; see ``RoundOptimizer``."""
    check_steps_alone(optimizer)
    together, job = how.together, how.claim()
    initialise(model, how.init)
    tensors = ModelTensors(model, backwards=how.overlap)
    tensors.check_finite()
    spec = ModelSpec(
        name=how.model_name,
        layout=tensors.layout,
        method=how.method,
        frozen_digest=tensors.frozen_digest,
        rounds=options,
    )

    def start(inbox: RoundInbox) -> ThreadDaemon:
        return ThreadDaemon(how.settings, spec, None, job, nobody, inbox)

    worker = RoundOptimizer(
        optimizer,
        model,
        start,
        together=together,
        passes_late=how.method is Method.PARTIAL,
        waits=waits,
        most_kept=_most_kept(how.method),
        overlap=how.overlap,
        gossips=how.method.is_gossip,
        parts=parts,
        own=own,
    )
    if how.settings.drain_on_sigterm:
        drain_on_sigterm()
    note_worker(worker, how.model_name, how.settings.name)
    return worker


def _most_kept(method: Method) -> int:
    """Return how many steps, or movements, a worker that does not wait for rounds keeps while one is on its way."""
    if method.is_gossip:
        return steps_kept(method)
    return 1 if method.has_inner_steps else MOST_KEPT


def _placed(rule: RuleSpec, momentum_at: MomentumAt | str | None, method: Method) -> RuleSpec:
    """Return the rule with its momentum where it is to be."""
    if momentum_at is not None:
        return replace(rule, momentum_at=enum_of(MomentumAt, "momentum_at", momentum_at))
    if rule.momentum == 0 or rule.momentum_at is not None:
        return rule
    return replace(rule, momentum_at=MomentumAt.WORKERS if method is Method.ASYNCHRONOUS else MomentumAt.SERVER)
