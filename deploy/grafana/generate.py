"""Writes the dashboards beside it: python deploy/grafana/generate.py

They are made by Grafana's own builders, so that they have the form that Grafana reads. What a panel asks is tried on a
real Prometheus by tests/deploy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

FOLDER = Path(__file__).parent
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
ALL, HALF = 24, 12
OF_INTERVALS = ("auto", "auto_count", "auto_min")
"""The builders give these to all variables, and Grafana's schema knows them of intervals only."""
OF_MODEL = 'model=~"$model"'
COMMITTED = f'mlfabric_updates_total{{{OF_MODEL}, outcome="committed"}}'
DROPPED = f'mlfabric_updates_total{{{OF_MODEL}, outcome="dropped"}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture.

    Args:
        asks: queries, each with the legend of its lines.
        unit: as Grafana names it.
        words: what it shows, and what is good or bad.
    """

    title: str
    asks: dict[str, str]
    unit: str = "short"
    words: str
    width: int = HALF


def _quantile(share: float, metric: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{OF_MODEL}}}[1m])))"


OVERVIEW = (
    Panel(
        title="Updates and gradients per second",
        asks={
            f"sum by (model) (rate({COMMITTED}[1m]))": "{{model}}",
            f"sum by (model) (rate({DROPPED}[1m]))": "{{model}} dropped",
        },
        unit="ops",
        words="What comes into the models, and what is dropped.",
    ),
    Panel(
        title="Versions",
        asks={f"mlfabric_model_version{{{OF_MODEL}}}": "{{model}}"},
        words="A line that is level shows that a model makes no progress.",
    ),
    Panel(
        title="Members",
        asks={"sum by (role, state) (mlfabric_members)": "{{role}} {{state}}"},
        words="Who is here, silent, or has left.",
    ),
    Panel(
        title="What waits for what",
        asks={f"sum by (model, cause) (mlfabric_waiting_requests{{{OF_MODEL}}})": "{{model}}: {{cause}}"},
        words="Requests that no plan holds yet.",
    ),
    Panel(
        title="Time of a plan",
        asks={
            "histogram_quantile(0.5, sum by (le) (rate(mlfabric_plan_seconds_bucket[1m])))": "median",
            "histogram_quantile(0.99, sum by (le) (rate(mlfabric_plan_seconds_bucket[1m])))": "99 %",
        },
        unit="s",
        words="Whether the scheduler keeps up.",
    ),
    Panel(
        title="Plans per second",
        asks={"sum(rate(mlfabric_plan_seconds_count[1m]))": "plans"},
        unit="ops",
        words="How often the scheduler plans.",
    ),
)
DELAY = (
    Panel(
        title="Delay of updates and gradients, in versions",
        asks={
            _quantile(0.5, "mlfabric_update_delay_versions", "model"): "{{model}} median",
            _quantile(0.99, "mlfabric_update_delay_versions", "model"): "{{model}} 99 %",
            f"mlfabric_delay_bound_versions{{{OF_MODEL}}}": "{{model}} bound",
        },
        words="Close to the bound, updates are about to be dropped.",
    ),
    Panel(
        title="Dropped, by reason",
        asks={
            f"sum by (model, cause) (rate({DROPPED}[5m]))": "{{cause}}",
        },
        unit="ops",
        words="A few percent are normal, because nobody waits.",
    ),
    Panel(
        title="Divergence of replicas",
        asks={
            f"mlfabric_replica_divergence{{{OF_MODEL}}}": "{{model}}",
            f"mlfabric_replica_divergence_bound{{{OF_MODEL}}}": "{{model}} bound",
        },
        words="A bound of the l2 distance of a replica from its model. At the bound the server holds commits back.",
    ),
    Panel(
        title="Updates that replicas are behind",
        asks={
            f"mlfabric_replica_lead_updates{{{OF_MODEL}}}": "{{model}}",
            f"mlfabric_replica_lead_bound_updates{{{OF_MODEL}}}": "{{model}} bound",
        },
        words="The same, counted.",
    ),
    Panel(
        title="Time of a round",
        asks={
            _quantile(0.5, "mlfabric_round_seconds", "model"): "{{model}} median",
            _quantile(0.99, "mlfabric_round_seconds", "model"): "{{model}} 99 %",
        },
        unit="s",
        words="From its plan until every worker has the result.",
    ),
    Panel(
        title="Rounds begun and given up",
        asks={f"sum by (model) (rate(mlfabric_rounds_voided_total{{{OF_MODEL}}}[5m]))": "{{model}}"},
        unit="ops",
        words="A worker died, or links became slow.",
    ),
)
NETWORK = (
    Panel(
        title="Rates that plans use",
        asks={"8 * mlfabric_link_rate_bytes_per_second": "{{host}} {{direction}}"},
        unit="bps",
        words="One direction of each host's link.",
        width=ALL,
    ),
    Panel(
        title="Links at less than half of the usual rate",
        asks={
            "count(mlfabric_link_rate_bytes_per_second < on (direction) group_left () 0.5 * quantile by (direction)"
            " (0.5, mlfabric_link_rate_bytes_per_second)) or vector(0)": "slow links"
        },
        words="Plans avoid them.",
    ),
    Panel(
        title="Age of measurements",
        asks={"mlfabric_link_estimate_age_seconds": "{{host}} {{direction}}"},
        unit="s",
        words="Of an old one plans go back to the nominal rate, step by step.",
    ),
    Panel(
        title="Sent on data channels",
        asks={"8 * sum by (instance) (rate(mlfabric_sent_bytes_total[1m]))": "{{instance}}"},
        unit="bps",
        words="Payload, by member.",
    ),
    Panel(
        title="On the monitor's network card",
        asks={"8 * rate(mlfabric_nic_bytes_total[1m])": "{{interface}} {{direction}}"},
        unit="bps",
        words="Of whatever program.",
    ),
)
MEMBERS = (
    Panel(
        title="Updates and gradients per second, by worker",
        asks={f"sum by (worker) (rate({COMMITTED}[1m]))": "{{worker}}"},
        unit="ops",
        words="A worker that is far below the others is a straggler, or its link is slow.",
        width=ALL,
    ),
    Panel(
        title="Dropped share, by worker",
        asks={
            f"sum by (worker) (rate({DROPPED}[5m]))"
            f" / sum by (worker) (rate(mlfabric_updates_total{{{OF_MODEL}}}[5m]))": "{{worker}}"
        },
        unit="percentunit",
        words="A worker whose updates are all dropped is shut out.",
    ),
    Panel(
        title="Lost members",
        asks={"sum by (cause) (mlfabric_members_lost_total)": "{{cause}}"},
        words="Found not to answer any more, by what showed it.",
    ),
    Panel(
        title="Servers' memory",
        asks={"sum by (instance, kind) (mlfabric_server_memory_bytes)": "{{instance}} {{kind}}"},
        unit="bytes",
        words="Tensors held, by kind.",
    ),
    Panel(
        title="Commits per second, by server",
        asks={"sum by (instance, model) (rate(mlfabric_commits_total[1m]))": "{{instance}} {{model}}"},
        unit="ops",
        words="Updates applied to models.",
    ),
)
DASHBOARDS = {
    "overview": ("mlfabric: overview", OVERVIEW),
    "delay": ("mlfabric: delay and divergence", DELAY),
    "network": ("mlfabric: network", NETWORK),
    "members": ("mlfabric: members", MEMBERS),
}


def _panel(panel: Panel) -> timeseries.Panel:
    made = timeseries.Panel().title(panel.title).description(panel.words).unit(panel.unit).datasource(SOURCE)
    made = made.span(panel.width).height(8).min(0)
    for number, (ask, legend) in enumerate(panel.asks.items()):
        query = prometheus.Dataquery().expr(ask).legend_format(legend).ref_id("ABCDEFGH"[number])
        made = made.with_target(query)
    return made


def _dashboard(name: str, title: str, panels: tuple[Panel, ...]) -> str:
    model = dashboard.QueryVariable("model").label("Model").query("label_values(mlfabric_model_version, model)")
    made = (
        dashboard.Dashboard(title)
        .uid(f"mlfabric-{name}")
        .tags(["mlfabric"])
        .refresh("5s")
        .time("now-15m", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(model.datasource(SOURCE).multi(True).include_all(True).all_value(".*"))
    )
    for panel in panels:
        made = made.with_panel(_panel(panel))
    found = json.loads(JSONEncoder().encode(made.build()))
    for variable in found["templating"]["list"]:
        for key in OF_INTERVALS:
            variable.pop(key, None)
    return json.dumps(found, sort_keys=True, indent=2) + "\n"


def generated() -> Iterator[tuple[Path, str]]:
    """Give each dashboard's file and text."""
    for name, (title, panels) in DASHBOARDS.items():
        yield FOLDER / f"{name}.json", _dashboard(name, title, panels)


if __name__ == "__main__":
    for path, text in generated():
        path.write_text(text, encoding="utf-8")
