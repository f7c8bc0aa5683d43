"""The measuring process, from its parent's view."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from tilec.tuning import child


def test_output_of_a_reference_or_a_baseline_is_no_reply(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(job: dict[str, Any], device: Any, send: child.Send) -> None:
        print("warming up")
        send({"launch": job["launches"]})

    monkeypatch.setattr(child, "greet", lambda *_, **__: object())
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"launches": [3]}\n'))
    assert child.serve(work) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [{"launch": [3]}]
    assert err == "warming up\n"
