"""The start of a stream, against cumulative curves in plain Python."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.network import HORIZON_NS, Network, down_link, up_link
from mlfabric.scheduler.planning.fluid.stream_forest import make_streams, run_all
from mlfabric.scheduler.planning.fluid.world import World
from tests.scheduler.planning.curves import Curve, overtakes

# Odd and even ones, zero, and the limits of what a network takes.
RATES = st.sampled_from([0, 1, 7, 1000, 3_000_000, 10**9, 10**9, 999_999_937, 3 * 10**9, 2**43])
SIZES = st.sampled_from([0, 1, 1000, 10**6, 1_234_567, 2**30, 2**50])
TIMES = st.sampled_from([0, 1, 1000, 400_000, 8_000_001, 10**9, 10**12])
CHUNKS = st.sampled_from([1, 1000, 64_000, 10**6, 2**40])


@st.composite
def stars(draw: st.DrawFn) -> Network:
    """Inputs a, b, c, a host x that passes on, and a server; rates change, and something is reserved."""
    network = Network.star(10**9, draw(st.sampled_from([0, 1, 1000, 1_000_000])))
    for host in "abcxs":
        network.add_host(host)
    for link in [up_link(h) for h in "abcx"] + [down_link("x"), down_link("s")]:
        network.set_rate(link, draw(RATES))
        for at_ns in draw(st.sets(TIMES.filter(bool), max_size=3)):
            network.plan_rate_change(link, at_ns, draw(RATES))
    for n, source in enumerate(draw(st.lists(st.sampled_from("abcx"), max_size=2))):
        path = network.path(source, "s")
        profile = network.transfer(path, draw(SIZES), draw(TIMES))
        if profile is not None:
            network.reserve(n, path, profile)
    return network


@settings(max_examples=600, deadline=None)
@given(stars(), st.lists(st.tuples(SIZES, TIMES), min_size=1, max_size=3), SIZES, TIMES, CHUNKS)
def test_a_stream_starts_as_early_as_it_can_without_overtaking_an_input(network, inputs, size, own_ns, chunk):
    draft = network.draft()
    curves = []
    for host, (size_bytes, ready_ns) in zip("abc", inputs, strict=False):
        path = network.path(host, "x")
        profile = draft.transfer(path, size_bytes, ready_ns)
        if profile is None:
            return
        draft.reserve(path, profile)
        latency_ns = network.latency_ns(path)
        curves.append((Curve(profile, size_bytes, latency_ns), profile.end_ns + latency_ns))
    size = max([size, *(size_bytes for size_bytes, _ in inputs)])
    found = run(network, inputs, size, own_ns, chunk)
    path = network.path("x", "s")
    floor_ns = max(own_ns, *(curve.first_ns(8 * chunk, arrive_ns) for curve, arrive_ns in curves))
    start_ns, end_ns = found

    def ahead(at_ns: int) -> bool:
        profile = draft.transfer(path, size, at_ns)
        assert profile is not None
        sent = Curve(profile, size, 0)
        return any(overtakes(sent, curve, arrive_ns, 8 * chunk) for curve, arrive_ns in curves)

    profile = draft.transfer(path, size, start_ns)
    assert end_ns == (HORIZON_NS if profile is None else profile.end_ns)
    if profile is None:
        return
    assert not ahead(start_ns)
    assert start_ns >= floor_ns
    if start_ns > floor_ns:
        assert ahead(start_ns - 1)


def run(network: Network, inputs: list[tuple[int, int]], size: int, own_ns: int, chunk: int) -> tuple[int, int]:
    """Let the kernels plan the inputs to x and the stream from there; return its start and end."""
    world = World(network, "abcx", "xs")
    streams = make_streams(len(inputs) + 1, 3)
    for i, (size_bytes, ready_ns) in enumerate(inputs):
        streams.route[i], streams.bits[i], streams.ready_ns[i] = world.route("abc"[i], "x"), 8 * size_bytes, ready_ns
        streams.leaves[i], streams.reaches[i] = 2, 1
    i = len(inputs)
    streams.route[i], streams.bits[i], streams.ready_ns[i] = world.route("x", "s"), 8 * size, own_ns
    streams.leaves[i], streams.reaches[i] = 1, 0
    run_all(world.lines, world.routes, streams, i + 1, 8 * chunk)
    return int(streams.start_ns[i]), int(streams.end_ns[i])
