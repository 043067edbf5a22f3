from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from mlfabric.cli.toml_settings import Key, read_file
from mlfabric.config import parse_size
from mlfabric.errors import ConfigError

ALLOWED = {
    "server": {"name": Key(parameter="name"), "keep": Key(parameter="keep", kind=int)},
    "run": {"worker_up": Key(parameter="up")},
}


def scheduler_error(tmp_path, monkeypatch, *arguments: str, text: str = "", port: str = "") -> str:
    """Return what the scheduler says of its port, having been given ports that are all out of range."""
    monkeypatch.chdir(tmp_path)
    if text:
        (tmp_path / "mlfabric.toml").write_text(text)
    if port:
        monkeypatch.setenv("MLFABRIC_PORT", port)
    return str(CliRunner().invoke(app, ["scheduler", *arguments]).exception)


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path, monkeypatch):
    file = "[scheduler]\nport = 70001\n"

    assert "port=70001" in scheduler_error(tmp_path, monkeypatch, text=file)
    assert "port=70002" in scheduler_error(tmp_path, monkeypatch, text=file, port="70002")
    assert "port=70003" in scheduler_error(tmp_path, monkeypatch, "--port", "70003", text=file, port="70002")


def test_a_file_can_be_named_and_then_beats_the_one_that_is_there(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text("[scheduler]\nport = 70009\n")

    error = scheduler_error(tmp_path, monkeypatch, "--config", "mine.toml", text="[scheduler]\nport = 70001\n")

    assert "port=70009" in error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[scheduler]\nprot = 1\n", r"\[scheduler\] has 'prot'; allowed: advertise, answer, batch_window, bind.* port"),
        ("[server]\nkepe = 1\n", r"\[server\] has 'kepe'"),
        ("[scheduling]\nport = 1\n", r"'scheduling' is no section; allowed: \[scheduler\], \[server\]"),
        ("port = 1\n", "'port' is no section"),
        ('[scheduler]\nport = "first"\n', r"\[scheduler\] port.*allowed: a whole number"),
        ("[scheduler]\nport = true\n", r"\[scheduler\] port.*allowed: a whole number"),
        ('[scheduler]\nsilence = "long"\n', r"\[scheduler\] silence.*allowed: a number"),
        ("[scheduler]\nbind = {first = 1}\n", r"\[scheduler\] bind.*allowed: text"),
        ("[server]\nresume = 1\n", "allowed: true or false"),
    ],
)
def test_a_mistake_in_a_section_is_an_error_that_says_what_is_allowed(tmp_path, monkeypatch, text, said):
    assert re.search(said, scheduler_error(tmp_path, monkeypatch, text=text))


@pytest.mark.parametrize("text", ["[server\n", "[server]\nname = {first = 1}\n", "\xff", None])
def test_a_malformed_or_missing_file_is_an_error_that_names_it(tmp_path, text):
    path = tmp_path / "odd.toml"
    if text is not None:
        path.write_text(text, encoding="latin-1")

    with pytest.raises(ConfigError, match=r"odd\.toml" if text is not None else r"odd\.toml: No such file"):
        read_file(path, ALLOWED)


def test_dashes_and_underscores_are_the_same_and_lists_are_joined(tmp_path):
    path = tmp_path / "fabric.toml"
    path.write_text('[server]\nkeep = 5\n[run]\nworker-up = ["800M", "100M"]\n')

    assert read_file(path, ALLOWED) == {"server": {"keep": 5}, "run": {"up": "800M,100M"}}


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("512M", 512_000_000), ("2Gi", 2 << 30), ("1.5 k", 1500), ("7B", 7)]
)
def test_sizes_are_decimal_or_binary(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "3i", "-1", "2 Gbit"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="in bytes, as in 512M"):
        parse_size(text)
