"""What a replica hands over when it is told to take its primary's place; exact actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlfabric.model.samples import Samples
from mlfabric.protocol import (
    AppliedIds,
    Commit,
    FreeModel,
    GroupOf,
    HostModel,
    Logged,
    ModelVersion,
    Promote,
    ServerHolds,
    UpdateKind,
)
from mlfabric.server import actions as act
from mlfabric.server.replica_actions import ApplyPrefix, PrefixApplied, PrefixRefused, TakeOver
from tests.server import stage as on_stage
from tests.server.stage import offer, update
from tests.server.test_replica import SEED, Stage, expect


def commit(counter: int, number: int, samples: Samples = ()) -> Commit:
    """Return a commit of an update of a."""
    made = on_stage.commit(update("a", counter), number, tau=number - 1, step_norm=0.0)
    return replace(made, samples=samples)


def promote(*foretold: Commit, known: Sequence[Commit] = (), server_epoch: int = 2) -> Promote:
    """Order a promotion; ``foretold`` are what may have been committed, ``known`` what has."""
    return Promote(
        to="r",
        server="s",
        server_epoch=server_epoch,
        known=tuple(GroupOf("net", (one,)) for one in known),
        foretold=tuple(GroupOf("net", (one,)) for one in foretold),
        reason="",
    )


def taken(
    stage: Stage, number: int, *recent: tuple[int, int, int], server_epoch: int = 2, base: int | None = None
) -> TakeOver:
    """Return what is handed over at a version; ``recent`` are counter, version and delay of updates of a.

    ``base`` is the last version of the primary's log, the same one if None.
    """
    base = number if base is None else base
    made = tuple((c, ModelVersion(1 if v <= base else server_epoch, v), tau) for c, v, tau in recent)
    applied = AppliedIds(worker="a", incarnation=1, low=0, recent=made)
    holds = ServerHolds(
        server="s",
        spec=stage.spec,
        version=ModelVersion(server_epoch, number),
        initialised=True,
        applied=(applied,) if recent else (),
        epoch_base=base,
        earlier=(ModelVersion(1, 0),),
    )
    alone = tuple(replace(commit(c, v), version=ModelVersion(server_epoch, v), tau=t) for c, v, t in recent if v > base)
    return TakeOver(server="s", holds=(holds,), made=tuple(GroupOf("net", (one,)) for one in alone), reason="")


def applied(stage: Stage, number: int) -> list[object]:
    return stage.tell(PrefixApplied(model="net", version=ModelVersion(1, number)))


def steps(actions: list[object]) -> list[ApplyPrefix]:
    return [action for action in actions if isinstance(action, ApplyPrefix)]


def test_a_replica_that_has_applied_all_hands_over_at_once_and_only_once():
    stage = Stage(version=5)
    assert stage.tell(promote()) == [taken(stage, 5)]
    assert not stage.tell(promote())


def test_what_is_logged_and_here_is_applied_first():
    stage = Stage()
    stage.bring(update("a"))
    stage.log(1, update("a"))
    assert not stage.tell(promote())
    assert applied(stage, 1)[-1] == taken(stage, 1, (0, 1, 0))


def test_what_is_foretold_and_here_is_applied_at_the_next_version():
    stage = Stage(version=3)
    stage.bring(update("a", 4))
    (step,) = steps(stage.tell(promote(commit(3, 5), commit(4, 6))))
    assert (step.parts[0].transfer, step.version) == (update("a", 4), (1, 4))


def test_what_is_foretold_and_cannot_be_applied_is_left_out():
    stage = Stage()
    for counter in (0, 1):
        stage.bring(update("a", counter))
    stage.tell(promote(commit(0, 1), commit(1, 2)))
    (step,) = steps(stage.tell(PrefixRefused(model="net", detail="NaN")))
    assert (step.parts[0].transfer, step.version) == (update("a", 1), (1, 1))
    assert applied(stage, 1)[-1] == taken(stage, 1, (1, 1, 0), base=0)


def test_what_is_foretold_without_its_samples_has_those_that_came_with_its_order():
    stage, own = Stage(), update("a")
    order = expect(own, members=(own,))
    stage.tell(replace(order, members=(order.members[0]._replace(samples=((0, 8),)),)), offer(own))
    stage.tell(act.PayloadReceived(transfer=own, connection=1), promote(commit(0, 1)))
    (handed,) = next(action.holds for action in applied(stage, 1) if isinstance(action, TakeOver))
    assert handed.samples.runs == ((0, 8, 1),)


def test_what_is_foretold_is_made_under_the_new_server_epoch():
    stage = Stage()
    stage.bring(update("a"))
    stage.bring(update("a", 1))
    stage.log(1, update("a"))
    stage.tell(promote(commit(1, 2)))
    applied(stage, 1)
    assert applied(stage, 2)[-1] == taken(stage, 2, (0, 1, 0), (1, 2, 1), base=1)


def test_samples_of_what_was_committed_and_is_not_here_are_lost_and_a_rollback_is_noted():
    stage = Stage()
    for counter in (0, 2):
        stage.bring(update("a", counter))
    made = [commit(n, n + 1, ((10 * n, 10 * n + 10),)) for n in range(3)]
    stage.tell(Logged(to="r", model="net", commits=(made[0],), reason=""))
    stage.tell(promote(made[2], known=made[1:2]))
    applied(stage, 1)
    (over,) = [a for a in applied(stage, 2) if isinstance(a, TakeOver)]
    (holds,) = over.holds
    assert holds.samples.runs == ((0, 10, 1), (20, 30, 1))
    assert holds.samples.not_trained_again == ((10, 20),)
    assert holds.samples.rollbacks == ((1, 1, 2),)


def test_samples_of_what_was_committed_under_a_later_epoch_that_the_primary_was_told_are_lost_as_well():
    stage = Stage()
    made = [commit(n, n + 1, ((10 * n, 10 * n + 10),)) for n in range(2)]
    stage.bring(update("a"))
    stage.tell(Logged(to="r", model="net", commits=(made[0],), reason=""))
    applied(stage, 1)
    under = [replace(one, version=ModelVersion(5, one.version.number)) for one in made]
    (over,) = [a for a in stage.tell(promote(known=under, server_epoch=6)) if isinstance(a, TakeOver)]
    (holds,) = over.holds
    assert holds.samples.not_trained_again == ((10, 20),)
    assert holds.samples.rollbacks == ((5, 1, 2),)


def test_a_replica_that_joins_as_one_again_after_it_was_foretold_something_takes_the_next_seed_whatever_it_is_of():
    stage = Stage(version=7)
    stage.bring(update("a", 4))
    stage.tell(promote(commit(4, 8)))
    applied(stage, 8)
    stage.tell(act.TermBegan(term=0))
    stage.seed(5, term=2)
    assert stage.model.version == (1, 5)
    assert stage.tell(promote(server_epoch=3)) == [taken(stage, 5, server_epoch=3)]


def test_a_replica_whose_models_end_while_it_takes_its_servers_place_follows_what_begins_anew():
    stage = Stage(version=7)
    stage.tell(promote())
    stage.tell(FreeModel(to="r", model="net", epoch=2, reason=""))
    stage.tell(act.StoreFreed(model="net"))
    stage.tell(HostModel(to="r", spec=stage.spec, epoch=3, reason=""))
    stage.seed(5, term=2)
    assert stage.model.version == (1, 5)


def test_a_seed_of_a_server_whose_place_was_taken_is_not_planted():
    stage = Stage(version=7)
    stage.model.version = ModelVersion(2, 7)
    stage.tell(expect(SEED, term=2, kind=UpdateKind.STATE, members=(update("seed"),)))
    held = ServerHolds(server="s", spec=stage.spec, version=ModelVersion(1, 30), initialised=True)
    stage.tell(offer(SEED, seed=act.SeedOffered(holds=held, steps=0)))
    stage.tell(act.PayloadReceived(transfer=SEED, connection=1))
    assert (stage.model.version, stage.model.term) == ((2, 7), 2)
