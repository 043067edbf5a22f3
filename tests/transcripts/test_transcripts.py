"""Scenes of the state machines, event by event, against texts that people have read.

After a change that is meant, ``python -m pytest tests/transcripts --rewrite`` writes the texts anew; each line that
``git diff`` shows is then read, and stands for what the change does.
"""

from __future__ import annotations

from difflib import unified_diff
from itertools import islice
from pathlib import Path

import pytest

from tests.transcripts.fabric import nothing_drawn
from tests.transcripts.scenes import SCENES
from tests.transcripts.transcript import recorded

pytestmark = pytest.mark.usefixtures("compiled_planner")
FOLDER = Path(__file__).parent
MOST_LINES = 80


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_goes_as_its_transcript_says(name: str, request: pytest.FixtureRequest) -> None:
    file = FOLDER / f"{name}.txt"
    with nothing_drawn(), recorded() as transcript:
        SCENES[name](transcript)
    played = f"# {SCENES[name].__doc__}\n{transcript.text}"
    if request.config.getoption("rewrite", default=False):
        file.write_text(played, encoding="utf-8")

    written = file.read_text(encoding="utf-8") if file.exists() else ""
    if played != written:
        change = unified_diff(written.splitlines(), played.splitlines(), file.name, "as played now", "", "", 2, "")
        pytest.fail("\n".join(islice(change, MOST_LINES)), pytrace=False)


def test_every_transcript_has_a_scene() -> None:
    assert {file.stem for file in FOLDER.glob("*.txt")} == set(SCENES)
