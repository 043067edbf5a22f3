from __future__ import annotations

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from mlfabric.cli.settings import Key, read_file
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


def test_an_unknown_key_is_an_error_that_names_the_allowed_ones(tmp_path, monkeypatch):
    error = scheduler_error(tmp_path, monkeypatch, text="[scheduler]\nprot = 1\n")

    assert "[scheduler] has 'prot'; allowed: advertise, answer, batch_window, bind" in error
    assert "port" in error.split("allowed:")[1]


def test_an_unknown_key_in_another_commands_section_is_found_too(tmp_path, monkeypatch):
    assert "[server] has 'kepe'" in scheduler_error(tmp_path, monkeypatch, text="[server]\nkepe = 1\n")


def test_an_unknown_section_is_an_error_that_names_the_allowed_ones(tmp_path, monkeypatch):
    error = scheduler_error(tmp_path, monkeypatch, text="[scheduling]\nport = 1\n")

    assert "'scheduling' is no section; allowed: [scheduler], [server]" in error


def test_a_key_outside_of_any_section_is_an_error(tmp_path, monkeypatch):
    assert "'port' is no section" in scheduler_error(tmp_path, monkeypatch, text="port = 1\n")


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ('port = "first"', "allowed: a whole number"),
        ("port = true", "allowed: a whole number"),
        ('silence = "long"', "allowed: a number"),
        ("bind = {first = 1}", "allowed: text"),
    ],
)
def test_a_value_of_the_wrong_kind_is_an_error_that_says_what_is_allowed(tmp_path, monkeypatch, line, allowed):
    error = scheduler_error(tmp_path, monkeypatch, text=f"[scheduler]\n{line}\n")

    assert f"[scheduler] {line}".split(" =")[0] in error
    assert allowed in error


def test_true_or_false_is_all_that_a_switch_takes(tmp_path, monkeypatch):
    assert "allowed: true or false" in scheduler_error(tmp_path, monkeypatch, text="[server]\nresume = 1\n")


@pytest.mark.parametrize("text", ["[server\n", "[server]\nname = {first = 1}\n", "\xff"])
def test_a_malformed_file_is_an_error_that_names_it(tmp_path, text):
    path = tmp_path / "odd.toml"
    path.write_text(text, encoding="latin-1")

    with pytest.raises(ConfigError, match=r"odd\.toml"):
        read_file(path, ALLOWED)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        read_file(tmp_path / "nowhere.toml", ALLOWED)


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
