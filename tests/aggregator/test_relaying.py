"""Models that are handed on over real sockets."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.channels import FrameKind
from mlfabric.protocol import (
    GetId,
    HandOn,
    TransferEnd,
)
from mlfabric.v1 import data_pb2
from tests.aggregator import stage
from tests.aggregator.by_hand import (
    SIZE,
    SPEC,
    Stand,
    a_good_sum_is_made,
    frame_of,
    image,
    model_frame,
    refusal_of,
    want,
)
from tests.aggregator.stage import get
from tests.fabric.harness import wait_until

OWN, X, Y = get("a"), get("wx"), get("wy")


def hand_on(stand: Stand, *targets: GetId) -> HandOn:
    return replace(stage.hand_on(OWN, *targets), model=SPEC.name, address=stand.address)


def test_a_model_is_handed_on_while_it_comes_and_to_those_who_come_late(stand: Stand) -> None:
    stand.scheduler.tell(hand_on(stand, X, Y))
    source = stand.accept()
    frame_of(source, FrameKind.WANT)
    early, late = stand.connect(), stand.connect()
    want(early, X)
    whole = image(7.0)
    source.send(model_frame(4), whole[: SIZE // 2])

    frame = frame_of(early, FrameKind.MODEL)
    version = data_pb2.ModelMeta.FromString(frame.meta).version
    assert (frame.length, frame.digest, version.number) == (SIZE, SPEC.layout.digest, 4)
    first = early._exactly(SIZE // 4)
    source.socket.sendall(whole[SIZE // 2 :])
    rest = early._exactly(SIZE - SIZE // 4)
    assert first is not None
    assert rest is not None
    assert first + rest == whole
    want(late, Y)
    frame_of(late, FrameKind.MODEL)
    assert late._exactly(SIZE) == whole
    assert [stand.scheduler.ended().end for _ in range(2)] == [TransferEnd.SERVED] * 2
    wait_until(lambda: stand.metric("mlfabric_models_handed_on_total") == 2, "both are counted")
    wait_until(lambda: stand.aggregators["a"]._service._buffers.memory_bytes()["models"] == 0, "the buffer is free")


def test_a_model_that_breaks_off_breaks_off_for_everybody(stand: Stand) -> None:
    stand.scheduler.tell(hand_on(stand, X, Y))
    source = stand.accept()
    frame_of(source, FrameKind.WANT)
    line, waiting = stand.connect(), stand.connect()
    want(line, X)
    source.send(model_frame(4), image(7.0)[: SIZE // 2])
    frame_of(line, FrameKind.MODEL)
    source.socket.close()

    ended = {(e.transfer, e.end) for e in (stand.scheduler.ended() for _ in range(3))}
    assert ended == {(get, TransferEnd.BROKEN) for get in (OWN, X, Y)}
    assert line._exactly(SIZE) is None
    waiting.socket.close()
    a_good_sum_is_made(stand)


def test_a_source_that_sends_another_model_is_not_believed(stand: Stand) -> None:
    stand.scheduler.tell(hand_on(stand, X))
    source = stand.accept()
    frame_of(source, FrameKind.WANT)
    line = stand.connect()
    want(line, X)
    source.send(replace(model_frame(4), digest=7))

    assert stand.scheduler.ended().transfer == OWN
    assert "wanted MODEL" in refusal_of(line)
