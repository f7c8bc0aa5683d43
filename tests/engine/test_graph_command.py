"""`python -m engine graph` shows every operation, with the memory plan's offsets and last uses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_engine_cli import CONFIG, model
from test_text import folder

from engine.cli import run
from engine.graph.plan import lifetimes, plan_memory
from engine.models.families import read_config
from engine.models.steps import step

__all__ = ["folder", "model"]  # fixtures of other modules


@pytest.mark.parametrize(("tokens", "past"), [(1, 0), (9, 0), (9, 40)])
def test_each_operation_is_drawn_once(model: Path, capsys: pytest.CaptureFixture[str], tokens: int, past: int) -> None:
    options = ["--tokens", str(tokens), "--past", str(past), "--max-seq-len", "128"]
    assert run(["graph", "--model", str(model), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    graph = step(read_config(model), tokens, 128, past=past)
    plan, ends = plan_memory(graph), {name: last for name, (_, last) in lifetimes(graph).items()}
    matches = [re.match(r" *(\d+) ([^:]+): (\w+)\[", line) for line in lines]
    assert [match.groups() for match in matches if match] == [(str(i), op.name, op.kernel) for i, op in enumerate(graph.ops)]
    shown = {
        (name, int(offset))
        for line in lines
        for name, offset in re.findall(r"[(;] ?\w+=(\S+) \w+ \S+(?: from \d+)? @(\d+)", line)
    }
    assert shown == set(plan.offsets.items())
    marked = r"[(;] ?\w+=(\S+) \w+ [\dx]+(?: from \d+)? @\d+!"
    last = [(name, int(line.split()[0])) for line in lines for name in re.findall(marked, line)]
    assert sorted(last) == sorted(ends.items())
    assert lines[-1] == f"arena: {plan.size} bytes"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--tokens", "0"], 2, "error: 0 tokens are no step"),
        (["--tokens", "5", "--past", "-1"], 2, "-1 tokens in the cache"),
        (["--tokens", "5000"], 2, "error: 5000 tokens are no step"),
        (["--max-seq-len", "50000"], 2, "max-seq-len 50000"),
        (["--bundle", "x"], 2, "--bundle"),
    ],
)
def test_impossible_steps_are_refused(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    assert run(["graph", "--model", str(model), *arguments]) == status
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_another_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": "mistral"}))
    assert run(["graph", "--model", str(tmp_path)]) == 3
    assert "mistral" in capsys.readouterr().err
