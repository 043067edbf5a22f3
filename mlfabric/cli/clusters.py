"""A cluster from a file, for ``mlfabric simulate`` and ``mlfabric advise``.

The file is TOML and keeps the words of ``mlfabric plan``'s; docs/twin.md lists its sections and keys. Every key is
checked, so that a misspelt one is an error and not a default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mlfabric.cli.fields import Fields, read_text
from mlfabric.errors import ConfigError
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Method
from mlfabric.twin.cluster import Cluster, Compute, Histogram, Host, RateLine, Spread
from mlfabric.twin.settings import COMPUTE, NETWORK, ComputeSetting, Direction, NetworkSetting
from mlfabric.twin.trace import parse_trace

__all__ = ["read_cluster"]


def read_cluster(path: Path) -> Cluster:
    """Read a cluster from a file; files that it names are looked for beside it.

    Raises:
        ConfigError: no such file, no TOML, an unknown section or key, or a value that no cluster can have; says which.
    """
    try:
        document = tomllib.loads(read_text(path, "a file that exists"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    try:
        return _cluster(Fields(document, str(path)), path.parent)
    except ConfigError as error:
        raise error if str(path) in str(error) else ConfigError(f"{path}: {error}") from error


def _cluster(whole: Fields, folder: Path) -> Cluster:
    fabric, links, run, planner, rounds = (
        whole.table(name) for name in ("fabric", "links", "run", "planner", "rounds")
    )
    usual = _traced(whole, links, folder) if "trace" in links else _drawn(whole, fabric, links)
    compute = _compute(whole.table("compute"), folder) if "compute" in whole else usual.compute
    found = replace(
        usual,
        latency_s=fabric.time_ns("latency_ms", 1e3 * usual.latency_s) / 1e9,
        compute=compute,
        model_bytes=fabric.size_bytes("model", str(usual.model_bytes)),
        method=fabric.choice("method", usual.method, [m for m in Method if not m.has_inner_steps and not m.is_gossip]),
        aggregators=_aggregators(fabric, [worker.name for worker in usual.workers]),
        most_updates=fabric.whole("most_updates", usual.most_updates),
        batch_window_s=fabric.time_ns("batch_window_ms", 1e3 * usual.batch_window_s) / 1e9,
        control_s=fabric.time_ns("control_ms", 1e3 * usual.control_s) / 1e9,
        monitor_lag_s=fabric.time_ns("monitor_lag_ms", 1e3 * usual.monitor_lag_s) / 1e9,
        monitoring=fabric.choice("monitor", usual.monitoring),
        monitor_half_life_s=fabric.time_ns("monitor_half_life_ms", 1e3 * usual.monitor_half_life_s) / 1e9,
        are_rates_told=fabric.flag("rates_told", usual.are_rates_told),
        in_flight=fabric.whole("in_flight", usual.in_flight, least=1),
        tau_max=planner.whole("tau_max") if "tau_max" in planner else usual.tau_max,
        slack=planner.whole("slack", usual.slack),
        rounds=_rounds(rounds),
        waits=rounds.flag("wait", True),
        chunk_bytes=planner.size_bytes("chunk", str(usual.chunk_bytes)),
        iterations=run.whole("iterations", usual.iterations, least=1),
        seed=run.whole("seed", usual.seed),
    )
    whole.table("compute")
    planner.whole_or_none("tau_max")
    for table in (fabric, links, run, planner, rounds, whole):
        table.done()
    return found


def _rounds(given: Fields) -> RoundOptions:
    usual = RoundOptions()
    return RoundOptions(
        tau_max=given.whole("tau_max", usual.tau_max),
        at_least=given.number("at_least", usual.at_least),
        quorum=given.text("quorum", usual.quorum),
        full_every=given.whole("full_every", usual.full_every),
    )


def _drawn(whole: Fields, fabric: Fields, links: Fields) -> Cluster:
    """Make a cluster of hosts that the file describes."""
    workers, server = _hosts(fabric, whole.table("hosts"))
    links.text("trace", "")
    weather, lines, is_server_in_weather = _weather(links), _lines(links), links.flag("server")
    return Cluster(
        workers=workers, server=server, weather=weather, lines=lines, is_server_in_weather=is_server_in_weather
    )


def _traced(whole: Fields, links: Fields, folder: Path) -> Cluster:
    """Make the cluster that replays what was recorded; everything but its hosts and links may be changed."""
    path = folder / links.text("trace")
    if "hosts" in whole:
        raise ConfigError(f"{links.where} has a trace, and there are hosts; the trace says which: leave [hosts] out")
    return parse_trace(read_text(path, "a file that exists"), str(path)).cluster()


def _hosts(fabric: Fields, own: Fields) -> tuple[tuple[Host, ...], Host]:
    usual = str(fabric.rate_bps("rate", "10G"))
    names = [f"w{n}" for n in range(fabric.whole("workers", least=1))]
    server = fabric.text("server", "server")
    given_names = own.keys()
    for name in given_names:
        if name not in (*names, server):
            raise ConfigError(f"{own.where} has {name!r}; allowed: {names[0]} to {names[-1]}, and {server}")
    found = []
    for name in (*names, server):
        given = own.table(name)
        both = str(given.rate_bps("rate", usual))
        up_bps, down_bps = given.rate_bps("up", both), given.rate_bps("down", both)
        slowdown = given.number("slowdown", 1.0)
        given.done()
        found.append(Host(name=name, up_bps=up_bps, down_bps=down_bps, slowdown=slowdown))
    return tuple(found[:-1]), found[-1]


def _aggregators(fabric: Fields, names: list[str]) -> tuple[str, ...]:
    """A number of hosts, or some by name; every worker's host unless it is said."""
    if "aggregators" not in fabric:
        fabric.whole("aggregators", 0)
        return tuple(names)
    try:
        return tuple(fabric.texts("aggregators"))
    except ConfigError:
        count = fabric.whole("aggregators")
    if count > len(names):
        raise ConfigError(f"{fabric.where}: aggregators = {count}; allowed: 0 to {len(names)}, or a list of workers")
    return tuple(names[:count])


def _weather(links: Fields) -> NetworkSetting:
    given = links.text("network", "N0")
    if given not in NETWORK:
        raise ConfigError(f"{links.where}: network = {given!r}; allowed: {', '.join(NETWORK)}")
    usual = NETWORK[given]
    period_s = links.number("period_s", usual.period_s)
    if period_s <= 0:
        raise ConfigError(f"{links.where}: period_s = {period_s}; allowed: more than 0")
    return NetworkSetting(name=given, period_s=period_s, shares=usual.shares, chances=usual.chances)


def _lines(links: Fields) -> Mapping[tuple[str, Direction], RateLine]:
    """What is known of single links: rows of a host, a direction, an instant and the rate from then on."""
    rows: dict[tuple[str, Direction], list[tuple[float, float]]] = {}
    for change in links.tables("changes"):
        key = change.text("host"), change.choice("direction", Direction.UP)
        rows.setdefault(key, []).append((change.number("at_s", 0.0), float(change.rate_bps("rate"))))
        change.done()
    return {
        key: RateLine(times_s=tuple(at for at, _ in sorted(found)), bps=tuple(bps for _, bps in sorted(found)))
        for key, found in rows.items()
    }


def _compute(table: Fields, folder: Path) -> Compute:
    spread = table.choice("distribution", Spread.CONSTANT)
    if spread is Spread.RECORDED:
        raise ConfigError(f"{table.where}: distribution = 'recorded' comes with a trace: give [links] trace")
    histogram = _histogram(table, folder) if spread is Spread.HISTOGRAM else None
    usual_s = 0.1 if histogram is None else histogram.mean_s
    found = Compute(
        mean_s=table.time_ns("mean_ms", 1e3 * usual_s) / 1e9,
        spread=spread,
        deviation_s=table.time_ns("deviation_ms", 0.0) / 1e9,
        histogram=histogram,
        stragglers=_stragglers(table),
    )
    table.done()
    return found


def _stragglers(table: Fields) -> ComputeSetting:
    given = table.text("stragglers", "C0")
    if given not in COMPUTE:
        raise ConfigError(f"{table.where}: stragglers = {given!r}; allowed: {', '.join(COMPUTE)}")
    usual = COMPUTE[given]
    chance, factor = table.number("chance", usual.chance, most=1.0), table.number("factor", usual.factor)
    if factor < 1:
        raise ConfigError(f"{table.where}: factor = {factor}; allowed: 1 or more")
    return ComputeSetting(name=given, chance=chance, factor=factor)


def _histogram(table: Fields, folder: Path) -> Histogram:
    path = folder / table.text("file")
    lines = [line.split("#")[0].strip() for line in read_text(path, "a file that exists").splitlines()]
    try:
        counts = tuple(float(line) for line in lines if line)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; allowed: a count on each line, and comments after #") from error
    return Histogram(first_s=table.number("first_s"), bin_s=table.number("bin_s"), counts=counts)
