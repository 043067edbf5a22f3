"""The report of a recorded run: one file, in a real browser too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlfabric.errors import UsageError
from mlfabric.status_page.report import report_of
from mlfabric.telemetry.history import History
from tests.processes import Start

BEGAN = 1_700_000_000_000.0
EVIL = "</script><script>document.title = 'evil'</script>"
WORKERS = ["worker-0", "worker-1"]
NET = {"version": 7, "whole": "net", "tau_max": 2}


def _status() -> dict[str, Any]:
    worker = {"model": "net", "committed": 7, "dropped": 0, "dropped_share": 0, "warning": "", "dropped_by_cause": {}}
    return {
        "term": 3,
        "software_version": "0.1.0",
        "members": [
            {"name": name, "role": "worker", "state": "left", "host": "h", "activity": EVIL} for name in WORKERS
        ],
        "workers": [{"name": name, **worker} for name in WORKERS],
        "models": [{"name": "net", "tau_max": 2}],
        "links": [{"host": "h", "up": True, "estimate_bps": 10**9, "age_s": None}],
        "planner": {"plans": 7, "mean_plan_ms": 0.5},
    }


def _round(number: int) -> dict[str, Any]:
    began = BEGAN + 1000 * number
    return {
        "kind": "round",
        "id": f"round {number}",
        "model": "net",
        "version": number,
        "began": began,
        "planned": [began, began + 300],
        "ended": began + 400,
        "outcome": "settled",
        "cause": "",
        "members": WORKERS,
        "receivers": [],
        "arrived": dict.fromkeys(WORKERS, began + 350),
        "delays": dict.fromkeys(WORKERS, 0),
        "bytes": 64,
        "reason": EVIL,
    }


def _record(folder: Path, **status: Any) -> None:
    history = History(folder=folder)
    for number in range(1, 8):
        history.add(_round(number))
    known = {"models": {"net": NET}, "links": {"h": [1, 2]}}
    level = {"kind": "level", "at": BEGAN + 8000, "plans": 7, "mean_plan_ms": 1, **known}
    history.add(level)
    history.add({"kind": "note", "at": BEGAN + 9000, "about": "worker-1", "text": "left", "warning": False})
    history.record({**_status(), **status})
    history.close()


def _recorded_in(text: str) -> Any:
    begins = text.index('id="recorded">') + len('id="recorded">')
    return json.loads(text[begins : text.index("</script>", begins)])


def test_all_that_was_recorded_is_in_the_report(tmp_path):
    _record(tmp_path)
    (tmp_path / "accuracy.jsonl").write_text('{"kind":"accuracy","at":1,"value":0.5}\n{"kind":"accur')  # torn
    text, left_out = report_of(tmp_path)
    recorded = _recorded_in(text)
    assert left_out == 0
    kinds = [entry["kind"] for entry in recorded["entries"]]
    assert kinds == ["accuracy", *["round"] * 7, "level", "note"]
    assert recorded["state"] == {"now": BEGAN + 9000, "status": _status(), "open": []}


def test_a_second_scheduler_adds_to_the_record(tmp_path):
    for number in (1, 2):
        history = History(folder=tmp_path)
        history.add(_round(number))
        history.record(_status())
        history.close()
    assert [entry["version"] for entry in _recorded_in(report_of(tmp_path)[0])["entries"]] == [1, 2]


def test_of_too_many_entries_the_first_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("mlfabric.status_page.report.MOST_ENTRIES", 4)
    _record(tmp_path)
    text, left_out = report_of(tmp_path)
    assert (len(_recorded_in(text)["entries"]), left_out) == (4, 5)


def test_a_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no record of a run there; make one with: mlfabric run --history"):
        report_of(tmp_path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--history .*file/folder: Not a directory"):
        History(folder=tmp_path / "file" / "folder")


def test_the_command_writes_the_report_of_a_run(start: Start, tmp_path, free_port):
    trains = """
        import torch

        import mlfabric

        model = torch.nn.Linear(4, 4)
        optimizer = mlfabric.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        optimizer.finish()
    """
    run = ("run", "-n", "2", "--scheduler", f"127.0.0.1:{free_port}", "--history", "kept", "SCRIPT")
    code, output = start(*run, script=trains).finish()
    assert code == 0, output
    code, output = start("report", "kept").finish()
    assert (code, output) == (0, "kept/report.html\n")
    entries = _recorded_in((tmp_path / "kept/report.html").read_text())["entries"]
    updates = {entry["id"] for entry in entries if entry["kind"] == "update"}
    assert len(updates) == 10
    code, output = start("report", "nothing").finish()
    assert code == 2
    assert "no record of a run there" in output


@pytest.mark.parametrize("ended", [False, True], ids=["broken off", "ended"])
def test_a_browser_shows_it_without_asking_for_anything(ended, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("chromium is missing; on Debian it is in the package chromium")
    _record(tmp_path, **({"models": []} if ended else {}))
    file = tmp_path / "report.html"
    file.write_text(report_of(tmp_path)[0])
    wrong: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda said: wrong.append(said.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: wrong.append(asked.url) if asked.url != file.as_uri() else None)
        page.goto(file.as_uri())
        sync_api.expect(page.locator("#rounds tr")).to_have_count(7)
        sync_api.expect(page.locator("#model")).to_have_text("net (ended)" if ended else "net")
        sync_api.expect(page.locator("#fabric")).to_contain_text("recorded until")
        page.locator("#until").fill("-5")
        sync_api.expect(page.locator("#rounds tr")).to_have_count(3)
        assert page.title() == "mlfabric"
        browser.close()
    assert wrong == []
