"""Which services an embedded fabric consists of, and how each is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mlfabric.errors import UsageError
from mlfabric.launch.ports import is_wildcard
from mlfabric.launch.workers import per_rank

__all__ = [
    "METRICS_PORT",
    "REPLICA",
    "REPLICATED",
    "SCHEDULER",
    "FabricOptions",
    "Service",
    "changed_places",
    "local_address",
    "metrics_of",
    "metrics_port",
    "protection",
    "services",
]

SCHEDULER = "scheduler"
REPLICATED, REPLICA = "server-0", "replica-0"
METRICS_PORT = "--metrics-port"


@dataclass(frozen=True, kw_only=True)
class FabricOptions:
    """What an embedded fabric consists of; "" and None leave a setting to the service's own default.

    Args:
        bind: address that all listen on.
        advertised: under which others reach them; "" means ``bind``.
        port: the scheduler's; 0 takes any free one.
        servers: how many; >= 1.
        aggregators: how many; >= 0.
        replica_div_max, replica_div_max_updates: bounds of a replica of server-0, as texts; without either of them
            there is none.
        monitor: whether links are measured.
        server_host: machine that the servers are planned to be on, or one for each, joined by commas; "" means this
            one, or, where a network card is emulated, one for each server.
        replica_host: machine that the replica is planned to be on; "" as for the servers.
        server_up, server_down: rates of each server's emulated network card, as in ``"2.5G"``.
        aggregator_hosts: machines that the aggregators are planned to be on: one for all, or one for each; empty means
            this one, or, where a network card is emulated, one for each aggregator.
        aggregator_up, aggregator_down: rates of the aggregators' emulated network cards: one for all, or one for each.
        checkpoint_dir: the servers' checkpoints, of several each in a directory of its own in there; a server that died
            goes on from them.
        resume: begin with the newest of them.
        history: where the scheduler writes down what its status page shows; None for nowhere.
        metrics_port: the scheduler's, which has the status page, too; the others' follow, one by one. None takes any
            free one for the scheduler, and none for the others.
        prometheus: folder of a Prometheus that scrapes all of them; None for none.
        tls: folder of certificates for all roles; None for plain connections.
        insecure: plain connections may leave this machine.
        log_level, log_format: of all services.
        config: settings file that the services read too.
    """

    bind: str = "127.0.0.1"
    advertised: str = ""
    port: int = 50061
    servers: int = 1
    aggregators: int = 0
    replica_div_max: str = ""
    replica_div_max_updates: str = ""
    monitor: bool = True
    server_host: str = ""
    replica_host: str = ""
    server_up: str = ""
    server_down: str = ""
    aggregator_hosts: tuple[str, ...] = ()
    aggregator_up: tuple[str, ...] = ()
    aggregator_down: tuple[str, ...] = ()
    checkpoint_dir: Path | None = None
    resume: bool = False
    history: Path | None = None
    metrics_port: int | None = None
    prometheus: Path | None = None
    tls: Path | None = None
    insecure: bool = False
    log_level: str = "info"
    log_format: str = "text"
    config: Path | None = None

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise UsageError(f"servers={self.servers}; allowed: 1 or more")
        if self.aggregators < 0:
            raise UsageError(f"aggregators={self.aggregators}; allowed: 0 or more")
        for name in ("aggregator_hosts", "aggregator_up", "aggregator_down"):
            given = len(getattr(self, name))
            if given not in (0, 1, self.aggregators):
                wanted = f"one for all, or one for each of {self.aggregators}"
                raise UsageError(f"--{name.replace('_', '-')}: {given} values; allowed: {wanted}")
        hosts = self.server_host.split(",")
        if len(hosts) not in (1, self.servers):
            wanted = f"one for all, or one for each of {self.servers}"
            raise UsageError(f"--server-host: {len(hosts)} values; allowed: {wanted}")
        if self.prometheus is not None and not self.metrics_port:
            raise UsageError(f"--with-prometheus with metrics_port={self.metrics_port}; allowed: a port, as 9400")
        if self.resume and self.checkpoint_dir is None:
            raise UsageError("--resume needs --checkpoint-dir, the directory of the checkpoints")
        if is_wildcard(self.bind) and not self.advertised:
            raise UsageError(f"--bind {self.bind} cannot be dialled; give --advertise, the name that others reach")

    @property
    def has_replica(self) -> bool:
        """Whether server-0 has a replica."""
        return bool(self.replica_div_max or self.replica_div_max_updates)


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service of an embedded fabric: its name, its command line, and what a second start or a spare adds to it."""

    name: str
    arguments: tuple[str, ...]
    again: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()


def services(options: FabricOptions, port: int) -> list[Service]:
    """Return an embedded fabric's services, the scheduler first.

    Args:
        options: what is wanted.
        port: the scheduler's, known by now.
    """
    common = _common(options)
    member = (*common, "--scheduler", local_address(options, port))
    metrics = options.metrics_port
    page = (*_metrics(metrics or 0, 0), *_flags(history=options.history))
    arguments = ("scheduler", *common, "--port", str(port), *page)
    found = [Service(name=SCHEDULER, arguments=arguments, spare=("--standby",))]
    found += [_server(options, member, i) for i in range(options.servers)]
    found += [_aggregator(options, member, i) for i in range(options.aggregators)]
    if options.has_replica:
        found.append(_replica(options, member, _replica_host(options), _replica_place(options)))
    if options.monitor:
        place = options.servers + options.aggregators + 1
        arguments = ("monitor", *member, "--name", "monitor-0", *_metrics(metrics, place))
        found.append(Service(name="monitor-0", arguments=arguments))
    return found


def protection(options: FabricOptions) -> list[str]:
    """Say which server has a replica and which has none; nothing where none was asked for."""
    if not options.has_replica:
        return []
    given = [
        *([f"{options.replica_div_max_updates} updates"] if options.replica_div_max_updates else []),
        *([f"a distance of {options.replica_div_max}"] if options.replica_div_max else []),
    ]
    lead = f"at most {' and '.join(given)} behind"
    others = [f"server-{i}" for i in range(1, options.servers)]
    lines = [f"{REPLICA} protects {REPLICATED}: it takes its place if that dies, {lead}"]
    if others:
        have, what = ("has", "it holds") if len(others) == 1 else ("have", "they hold")
        after = "but for its last checkpoint" if options.checkpoint_dir else "with the process"
        lines.append(f"{', '.join(others)} {have} no replica: what {what} is lost {after}")
    return lines


def _common(options: FabricOptions) -> tuple[str, ...]:
    """Return the flags of all services."""
    flags = _flags(
        bind=options.bind,
        advertise=options.advertised,
        tls=options.tls,
        log_level=options.log_level,
        log_format=options.log_format,
        config=options.config,
    )
    return (*flags, *(("--insecure",) if options.insecure else ()))


def changed_places(options: FabricOptions, port: int) -> tuple[Service, Service]:
    """Return server-0 where its replica was, and that where server-0 was: each on the other's host.

    Args:
        options, port: as for :func:`services`.
    """
    member = (*_common(options), "--scheduler", local_address(options, port))
    server = _server(options, member, 0, _replica_host(options), _replica_place(options))
    return server, _replica(options, member, _server_host(options, 0), 1)


def local_address(options: FabricOptions, port: int) -> str:
    """Return where this machine's processes reach one of the fabric's."""
    return f"{'127.0.0.1' if is_wildcard(options.bind) else options.bind}:{port}"


def _server_host(options: FabricOptions, index: int) -> str:
    emulated = bool(options.server_up or options.server_down)
    return per_rank(tuple(options.server_host.split(",")), index) or (f"server-{index}" if emulated else "")


def _replica_host(options: FabricOptions) -> str:
    return options.replica_host or (REPLICA if options.server_up or options.server_down else "")


def _replica_place(options: FabricOptions) -> int:
    return options.servers + options.aggregators + 2


def _server(
    options: FabricOptions, member: tuple[str, ...], index: int, host: str | None = None, place: int | None = None
) -> Service:
    """Return a server, on its own host and with its own port of metrics unless others are given."""
    name = f"server-{index}"
    flags = _flags(
        name=name,
        host=_server_host(options, index) if host is None else host,
        up=options.server_up,
        down=options.server_down,
        checkpoint_dir=_checkpoint_dir(options, name),
    )
    resume = ("--resume",)
    return Service(
        name=name,
        arguments=(
            "server",
            *member,
            *flags,
            *_metrics(options.metrics_port, place or index + 1),
            *resume[: options.resume],
        ),
        again=resume[: options.checkpoint_dir is not None and not options.resume],
    )


def _checkpoint_dir(options: FabricOptions, server: str) -> Path | None:
    """Return a server's own directory: of one alone the given one, of several one below it for each."""
    alone = options.servers == 1
    return options.checkpoint_dir if alone or options.checkpoint_dir is None else options.checkpoint_dir / server


def _replica(options: FabricOptions, member: tuple[str, ...], host: str, place: int) -> Service:
    flags = _flags(
        name=REPLICA,
        host=host,
        up=options.server_up,
        down=options.server_down,
        replica_of=REPLICATED,
        checkpoint_dir=_checkpoint_dir(options, REPLICATED),
        div_max=options.replica_div_max,
        div_max_updates=options.replica_div_max_updates,
    )
    return Service(name=REPLICA, arguments=("server", *member, *flags, *_metrics(options.metrics_port, place)))


def _aggregator(options: FabricOptions, member: tuple[str, ...], index: int) -> Service:
    name = f"aggregator-{index}"
    up, down = per_rank(options.aggregator_up, index), per_rank(options.aggregator_down, index)
    emulated = name if up or down else ""
    flags = _flags(name=name, host=per_rank(options.aggregator_hosts, index) or emulated, up=up, down=down)
    place = options.servers + index + 1
    return Service(name=name, arguments=("aggregator", *member, *flags, *_metrics(options.metrics_port, place)))


def _flags(**values: str | Path | None) -> tuple[str, ...]:
    given = [(f"--{name.replace('_', '-')}", str(value)) for name, value in values.items() if value]
    return tuple(word for pair in given for word in pair)


def _metrics(first_port: int | None, place: int) -> tuple[str, ...]:
    if first_port is None:
        return ()
    return (METRICS_PORT, str(first_port + place if first_port else 0))


def metrics_port(service: Service) -> int:
    """Return the port of a service's metrics; 0 for any free one, or none."""
    given = service.arguments
    return int(given[given.index(METRICS_PORT) + 1]) if METRICS_PORT in given else 0


def metrics_of(known: Iterable[Service], options: FabricOptions) -> dict[str, list[str]]:
    """Return by role where the services' metrics are."""
    found: dict[str, list[str]] = {}
    for service in known:
        found.setdefault(service.arguments[0], []).append(local_address(options, metrics_port(service)))
    return found
