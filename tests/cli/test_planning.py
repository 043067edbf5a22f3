"""``mlfabric plan``: the real command on real files, and every way to write such a file wrongly."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from mlfabric.cli.plan_files import describe
from mlfabric.errors import ConfigError, UsageError
from mlfabric.network import up_link
from mlfabric.planning import warm_up
from mlfabric.planning.problem import Aggregator, Consistency, DivergenceBound, Objective, Shape
from mlfabric.protocol import GetId, UpdateId

pytestmark = pytest.mark.timeout(600)  # the first test compiles the planner where no machine code is kept yet

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "plans").iterdir())
EXAMPLE = next(file for file in EXAMPLES if file.name == "uneven.toml")
SMALL = """
[fabric]
rate = "1G"
server = "s"
[[updates]]
workers = ["a", "b"]
size = "1M"
"""


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    warm_up(lambda line: None)


def described(text: str):
    return describe(text, is_json=False, name="file")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_is_planned_and_explained(file: Path):
    result = CliRunner().invoke(app, ["plan", str(file)])

    assert result.exit_code == 0, result.output
    assert " committed within " in result.stdout.splitlines()[0]
    assert len(result.stdout.splitlines()) > 3


def test_the_first_line_alone_is_printed():
    whole = CliRunner().invoke(app, ["plan", str(EXAMPLE)]).stdout
    first = CliRunner().invoke(app, ["plan", str(EXAMPLE), "--summary"]).stdout

    assert first == whole.splitlines()[0] + "\n"


def test_the_example_shows_a_drop_a_wait_and_a_sum():
    output = CliRunner().invoke(app, ["plan", str(EXAMPLE)]).stdout

    assert "- Dropped: w6:" in output
    assert "for the replica: committed at once" in output
    assert "are added up" in output


def test_json_has_every_transfer_and_reads_back(tmp_path: Path):
    document = tomllib.loads(EXAMPLE.read_text())
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    found = json.loads(CliRunner().invoke(app, ["plan", str(file), "--json"]).stdout)

    assert found == json.loads(CliRunner().invoke(app, ["plan", str(EXAMPLE), "--json"]).stdout)
    assert {commit["update"] for commit in found["commits"]} == {f"w{n}#0" for n in (1, 2, 3, 4, 5, 7, 8)}
    assert [drop["update"] for drop in found["drops"]] == ["w6#0"]
    first = found["transfers"][0]
    assert first["toward"] == "primary"
    assert all(len(piece) == 3 for piece in first["profile"]["pieces"])
    assert isinstance(first["path"][0], str)


def test_the_papers_planner_and_the_exact_program_can_be_asked(tmp_path: Path):
    file = tmp_path / "plan.toml"
    file.write_text('fabric.rate = "1G"\nfabric.server = "s"\nupdates = [{ workers = ["a", "b", "c"], size = "1M" }]')
    output = CliRunner().invoke(app, ["plan", str(file), "--planner", "paper", "--summary", "--exact"]).stdout

    assert "3 updates (1 MB) committed within 24.0 ms" in output
    assert "In slots of 0.75 ms the mean commit of the best plan is at" in output
    assert "that of the paper's at 16.2 ms; without slots this plan's is at 16.0 ms." in output


def test_a_picture_is_drawn(tmp_path: Path):
    result = CliRunner().invoke(app, ["plan", str(EXAMPLE), "--picture", str(tmp_path / "plan.png")])

    assert result.exit_code == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path):
    error = CliRunner().invoke(app, ["plan", str(tmp_path / "none.toml")]).exception

    assert isinstance(error, UsageError)
    assert "give a file that describes a batch" in str(error)


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path):
    file = tmp_path / "plan.toml"
    file.write_bytes(b"\xff\xfe\x00")
    assert "is no text" in str(CliRunner().invoke(app, ["plan", str(file)]).exception)


def test_all_that_can_be_said_is_read():
    found = described(
        """
        [fabric]
        rate = "1G"
        latency_ms = 0.5
        server = "s"
        version = 7
        aggregators = ["a", { host = "x", most_updates = 3 }]
        distributors = ["b"]
        slowest_clock = 2
        [hosts]
        a = { rate = "100M" }
        b = { up = "200M", down = "300M" }
        [[changes]]
        link = "a up"
        at_ms = 10
        rate = 0
        [[updates]]
        worker = "a"
        size = "2M"
        ready_ms = 1.5
        computed_from = 6
        norm = 0.25
        clock = 1
        [[updates]]
        workers = ["a", "b"]
        host = "x"
        [[gets]]
        worker = "b"
        size = "1M"
        ready_ms = 2
        clock = 3
        [replica]
        host = "r"
        history_norm = 0.5
        pending = [{ worker = "a", size = "1M", norm = 2.0, step_norm = 3.0 }]
        [planner]
        consistency = "stale-synchronous"
        objective = "last-commit"
        shapes = ["direct", "tree"]
        gamma = 0.9
        chunk = "1k"
        div_max = 4
        div_max_updates = 5
        replicate_from = 0.25
        slack = 2
        """
    )
    state, config = found.state, found.config
    assert [(u.update, u.source) for u in found.batch.updates] == [
        (UpdateId("a", 0, 1), "a"),
        (UpdateId("a", 0, 2), "x"),
        (UpdateId("b", 0, 0), "x"),
    ], "a pending update is the older one, so it has the lower number"
    first = found.batch.updates[0]
    assert (first.size_bytes, first.ready_ns, first.computed_from, first.norm, first.clock) == (
        2_000_000,
        1_500_000,
        6,
        0.25,
        1,
    )
    (get,) = found.batch.gets
    assert (get.get, get.destination, get.size_bytes, get.ready_ns, get.clock) == (
        GetId("b", 0, 0),
        "b",
        1_000_000,
        2_000_000,
        3,
    )
    assert (state.server, state.v_init, state.slowest_clock) == ("s", 7, 2)
    assert state.aggregators == (Aggregator(host="a"), Aggregator(host="x", most_updates=3))
    assert state.replica is not None
    assert (state.replica.host, state.replica.history_norm) == ("r", 0.5)
    assert [(p.update, p.source, p.step_norm) for p in state.replica.pending] == [(UpdateId("a", 0, 0), "a", 3.0)]
    assert (config.consistency, config.objective) == (
        Consistency.STALE_SYNCHRONOUS,
        Objective.LAST_COMMIT,
    )
    assert config.shapes == {Shape.DIRECT, Shape.TREE}
    assert config.div_max == DivergenceBound(norm=4.0, updates=5)
    assert (config.gamma, config.chunk_bytes, config.replicate_from, config.slack) == (
        0.9,
        1000,
        0.25,
        2,
    )
    network = found.network
    assert network.hosts == {"a", "b", "r", "s", "x"}
    path = network.path("b", "s")
    assert [network.rate_bps(link, 0) for link in path] == [200_000_000, 10**9]
    assert network.latency_ns(path) == 500_000
    assert [network.rate_bps(up_link("a"), t) for t in (0, 10**7)] == [100_000_000, 0]


def test_a_graph_is_read_with_switches_and_one_way_links():
    found = described(
        """
        [fabric]
        rate = "1G"
        latency_ms = 1
        server = "s"
        [[links]]
        from = "a"
        to = "switch"
        rate = "2G"
        [[links]]
        from = "switch"
        to = "s"
        latency_ms = 3
        one_way = true
        [[links]]
        from = "s"
        to = "switch"
        one_way = true
        [[updates]]
        worker = "a"
        """
    )
    network = found.network
    path = network.path("a", "s")
    assert network.hosts == {"a", "s"}
    assert [str(link) for link in path] == ["a->switch", "switch->s"]
    assert [network.rate_bps(link, 0) for link in path] == [2 * 10**9, 10**9]
    assert network.latency_ns(path) == 4_000_000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("[colour]\n", r"file has 'colour'; allowed: .*updates"),
        ("[planner]\ncolour = 1\n", r"file: planner has 'colour'; allowed: .*tau_max"),
        ("[planner]\ntau_max = -1\n", r"file: planner: tau_max = -1; allowed: a whole number of 0 or more"),
        ("[planner]\ntau_max = true\n", r"tau_max = True; allowed: a whole number"),
        ("[planner]\ngamma = 1.0\n", r"gamma = 1.0; allowed: a number from 0 to 0.999999"),
        ("[planner]\nconsistency = 'eventual'\n", r"consistency = 'eventual'; allowed: asynchronous, synchronous, "),
        ("[planner]\nshapes = ['star']\n", r"shapes = 'star'; allowed: direct, tree, ring"),
        ("[planner]\nshapes = 'tree'\n", r"shapes = 'tree'; allowed: a list"),
        ("[[updates]]\nsize = '1M'\n", r"file: updates 2 has neither worker nor workers"),
        ("[[updates]]\nworker = 5\n", r"file: updates 2: worker = 5; allowed: text"),
        ("[[updates]]\nworker = 'c'\nnorm = -2\n", r"norm = -2; allowed: a number of 0 or more"),
        ("[[updates]]\nworker = 'c'\nnorm = nan\n", r"norm = nan; allowed: a number of 0 or more"),
        ("[[updates]]\nworker = 'c'\nready_ms = 'soon'\n", r"ready_ms = 'soon'; allowed: a number"),
        ("[[updates]]\nworker = 'c'\nsize = 1.5\n", r"size = 1.5; allowed: a size"),
        ("[[updates]]\nworker = 'c'\nsize = 'big'\n", r"size 'big'; allowed: a number with k, M"),
        ("[hosts]\na = 3\n", r"file: hosts: a is 3; allowed: a table"),
        ("[hosts.a]\nspeed = '1G'\n", r"file: hosts: a has 'speed'; allowed: down, rate, up"),
        ("[[changes]]\nlink = 'a'\nat_ms = 1\nrate = 0\n", r"link = 'a'; allowed: s up, s down, a up"),
        ("[[changes]]\nlink = 'a up'\nrate = 0\n", r"file: changes 1 has no at_ms; it must be given"),
        ("[replica]\naggregators = []\n", r"file: replica has no host; it must be given"),
        ("[replica]\nhost = 'r'\npending = [{ worker = 'a', colour = 1 }]\n", r"pending 1 has 'colour'; allowed: "),
        ("[[links]]\nfrom = 'a'\nto = 's'\n", r"host 'b' is on no link; the links join a, s"),
        (
            "[[links]]\nfrom = 'a'\nto = 's'\n[[links]]\nfrom = 'b'\nto = 's'\none_way = 1\n",
            r"one_way = 1; allowed: true or false",
        ),
        (
            "[hosts.a]\n[[links]]\nfrom = 'a'\nto = 's'\n[[links]]\nfrom = 'b'\nto = 's'\n",
            r"file has both hosts and links",
        ),
        (
            "[[links]]\nfrom = 'a'\nto = 's'\n[[links]]\nfrom = 's'\nto = 'a'\n",
            r"file: links 2: s to a is given before; one_way gives each direction its own",
        ),
        ("fabric", r"file is no TOML"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(change: str, says: str):
    with pytest.raises(ConfigError, match=says):
        described(SMALL + change)


@pytest.mark.parametrize(("text", "says"), [(SMALL, "file is no JSON"), ("[]", "file is a list; allowed: a table")])
def test_a_json_file_that_is_no_table_is_an_error(text: str, says: str):
    with pytest.raises(ConfigError, match=says):
        describe(text, is_json=True, name="file")
