"""A fan: one model for many gets, with hosts that may relay it; as columns, and converted back to transfers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mlfabric.network import Network, Piece, Profile
from mlfabric.planning.fluid.capacity_lists import Ints
from mlfabric.planning.fluid.spread_kernel import BY_SERVER, Handing
from mlfabric.planning.fluid.world import World
from mlfabric.planning.lazy import Lazy
from mlfabric.planning.plan import GetServed, Kind, Toward, Transfer
from mlfabric.planning.plan_values import GetCandidate
from mlfabric.planning.problem import Aggregator, Objective

__all__ = [
    "Fan",
    "Row",
    "Way",
    "answers_of",
    "make_fan",
    "transfers_of",
]


class Fan(NamedTuple):
    """The input for planning relays; gets and distributors are numbered by their places."""

    server: str
    gets: Sequence[GetCandidate]
    distributors: Sequence[Aggregator]
    world: World
    handing: Handing

    def cost_ns(self, answered_ns: Sequence[int]) -> int:
        """Return the time from when the model is ready to the last answer, or the sum of these times."""
        spans = [at_ns - int(self.handing.scalars[1]) for at_ns in answered_ns]
        return max(spans) if self.handing.scalars[2] else sum(spans)


class Row(NamedTuple):
    """One transfer: of a get (or ~distributor, which gets the model), by a distributor or BY_SERVER."""

    what: int
    by: int
    ready_ns: int
    end_ns: int
    first: int
    after: int


class Way(NamedTuple):
    """One way to answer all gets of a fan: its transfers, and what it costs."""

    cost_ns: int
    rows: Sequence[Row]
    pieces: Sequence[Piece]

    @classmethod
    def of(cls, cost_ns: int, rows: Ints, pieces: Ints) -> Way:
        """Make one of the tables of rows and of pieces that a kernel found."""
        return cls(cost_ns, list(map(Row._make, rows[1:].tolist())), list(map(Piece._make, pieces.tolist())))


def make_fan(
    network: Network,
    server: str,
    gets: Sequence[GetCandidate],
    distributors: Sequence[Aggregator],
    *,
    ready_ns: int,
    objective: Objective,
    chunk_bytes: int,
) -> Fan:
    """Lay a fan out as columns."""
    hosts = [d.host for d in distributors]
    world = World(network, [server, *hosts], list(dict.fromkeys([*hosts, *(get.destination for get in gets)])))
    place = {host: j for j, host in enumerate(hosts)}
    # Routes from one host to some hosts differ by the same amounts as those from another (World numbers them so).
    first = np.array([world.route(host, hosts[0]) for host in (server, *hosts)], np.int64)
    to_gets = np.array([world.route(server, g.destination) for g in gets], np.int64) - first[0]
    to_hosts = np.array([world.route(server, host) for host in hosts], np.int64) - first[0]
    bits = np.array([8 * g.size_bytes for g in gets], np.int64)
    handing = Handing(
        direct=first[0] + to_gets,
        model=first[0] + to_hosts,
        onward=first[1:, None] + to_gets,
        between=first[1:, None] + to_hosts,
        bits=bits,
        own=np.array([place.get(g.destination, -1) for g in gets], np.int64),
        most=np.array([d.most_updates for d in distributors], np.int64),
        scalars=np.array([bits.max(), ready_ns, objective is Objective.LAST_COMMIT, 8 * chunk_bytes], np.int64),
    )
    return Fan(server, gets, distributors, world, handing)


def _arrivals(fan: Fan, way: Way) -> list[int]:
    """Return when what each row of a way brings is there."""
    latency_ns: list[int] = fan.world.routes.latency_ns[_routes(fan, way)].tolist()
    return [row.end_ns + more_ns for row, more_ns in zip(way.rows, latency_ns, strict=True)]


def _routes(fan: Fan, way: Way) -> list[int]:
    """Return the route of each row."""
    handing = fan.handing
    direct, model = handing.direct.tolist(), handing.model.tolist()
    return [
        (direct[row.what] if row.what >= 0 else model[~row.what])
        if row.by == BY_SERVER
        else int(handing.onward[row.by, row.what] if row.what >= 0 else handing.between[row.by, ~row.what])
        for row in way.rows
    ]


def transfers_of(fan: Fan, way: Way, index: int) -> Iterator[Transfer]:
    """Make the transfers of a way; the first of them is number ``index`` of its plan."""
    brought: dict[int, int] = {}
    model_bytes = int(fan.handing.scalars[0]) // 8
    columns = zip(way.rows, _routes(fan, way), _arrivals(fan, way), strict=True)
    for number, (row, route, arrive_ns) in enumerate(columns, start=index):
        get = fan.gets[row.what] if row.what >= 0 else None
        pieces = tuple(way.pieces[row.first : row.after])
        start_ns = pieces[0].start_ns if pieces else row.end_ns
        if get is None:
            brought[~row.what] = number
        yield Transfer(
            kind=Kind.MODEL,
            toward=Toward.WORKERS,
            source=fan.server if row.by == BY_SERVER else fan.distributors[row.by].host,
            destination=get.destination if get else fan.distributors[~row.what].host,
            path=fan.world.path(route),
            size_bytes=get.size_bytes if get else model_bytes,
            ready_ns=row.ready_ns,
            profile=Profile(start_ns, row.end_ns, pieces),
            arrive_ns=arrive_ns,
            get=get.get if get else None,
            inputs=() if row.by == BY_SERVER else (brought[row.by],),
            cut_through=row.by != BY_SERVER,
        )


def answers_of(fan: Fan, way: Way, index: int, now_ns: int) -> tuple[Sequence[GetServed], list[int]]:
    """Say of each get by which transfer it is answered, when and why so; the instants once more by themselves."""
    arrive_ns = _arrivals(fan, way)
    places = [place for place, row in enumerate(way.rows) if row.what >= 0]

    def answer(n: int) -> GetServed:
        place = places[n]
        row = way.rows[place]
        took = f"{max(0, arrive_ns[place] - now_ns) / 1e6:.1f} ms"
        by = "the server" if row.by == BY_SERVER else fan.distributors[row.by].host
        reason = f"from {by}, one of {len(way.rows)} transfers of the model (tree): {took}"
        return GetServed(
            get=fan.gets[row.what].get, transfer=index + place, arrive_ns=arrive_ns[place], reason=reason
        )  # fmt: skip

    return Lazy(len(places), answer), [arrive_ns[place] for place in places]
