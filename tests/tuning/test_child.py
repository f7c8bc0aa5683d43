"""The measuring process, from its parent's view."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from tilec.tuning import child


def test_what_a_reference_or_a_baseline_prints_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(job: dict[str, Any], device: Any, say: child.Say) -> None:
        print("warming up")
        say({"launch": job["launches"]})

    monkeypatch.setattr(child, "greet", lambda *_, **__: object())
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"launches": [3]}\n'))
    assert child.serve(work) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [{"launch": [3]}]
    assert err == "warming up\n"
