"""Some seconds of the campaign of `ci/bench/judges.py hostile --only models`, which runs thousands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign import first as first_of
from tests.fuzz import model_checker
from tests.fuzz.model_campaign import campaign, summary
from tests.fuzz.model_folders import CHANGES


@pytest.mark.parametrize("first", first_of(1, [0, 1_000_000]))
def test_forged_folders_end_in_one_line(tmp_path: Path, first: int) -> None:
    verdicts = list(campaign(first, 20, tmp_path))
    assert [verdict["seed"] for verdict in verdicts] == list(range(first, first + 20))
    found = summary(verdicts)
    assert found["wrong"] == []
    assert 0 < found["answered"] < 20
    assert len(found["changes"]) > len(CHANGES) // 3


def test_the_watch_sees_what_it_must(tmp_path: Path) -> None:
    """A watch that records nothing would make every test pass."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "evil.py").write_text("import os")
    (tmp_path / "secret").write_text("x")
    source = f"""
import os, subprocess, sys
sys.path.insert(0, {str(Path(model_checker.ROOT))!r})
sys.argv = ["-"]
from tests.fuzz.model_checker import WATCH
WATCH.folder = os.path.realpath("model")
open("secret").read()
try: open("model/new", "w")
except OSError: pass
sys.path.insert(0, "model")
import evil
subprocess.run(["true"])
os.system("true")
WATCH.folder = ""
print(*WATCH.seen, sep="\\n")
"""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", source], cwd=tmp_path, capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    for words in ("opened ", "wrote ", "imported ", "ran ", "started ['true']", "os.system"):
        assert words in ended.stdout, ended.stdout


@pytest.mark.campaign
def test_a_checker_that_dies_or_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = tmp_path / "checker.py"
    checker.write_text(
        "import json, os, sys, time\n"
        "for seed in range(int(sys.argv[2]), int(sys.argv[3])):\n"
        "    print(json.dumps({'begins': seed}), flush=True)\n"
        "    os.abort() if seed == 2 else time.sleep(900) if seed == 4 else None\n"
        "    while seed == 5: pass\n"
        f"    print(json.dumps({json.dumps({'wrong': [], 'forged': ''})[:-1]}, 'seed': seed}}), flush=True)\n"
    )
    monkeypatch.setattr("tests.fuzz.model_campaign.CHECKER", checker)
    verdicts = list(campaign(0, 7, tmp_path, seconds=4, still=2))
    assert [verdict["seed"] for verdict in verdicts] == list(range(7))
    wrong = [[], [], ["the process ended with -6"], [], ["standing still"], ["over its processor time"], []]
    assert [verdict["wrong"] for verdict in verdicts] == wrong
