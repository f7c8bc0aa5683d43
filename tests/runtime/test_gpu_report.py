"""The report of a GPU run: floors decide the exit code, the fastest variant counts, and failures are never dropped."""

from __future__ import annotations

import json
import queue
import sys
from pathlib import Path
from typing import Any

import pytest

from ci.bench.kernels import children, report
from ci.evidence.verdicts import Verdict, Verdicts


def timed(kernel: str, label: str, ratio: float, floor: float | None, variant: str = "a") -> dict[str, Any]:
    return {
        "kind": "timed", "kernel": kernel, "label": label, "dtype": "bf16", "variant": variant, "library": "torch",
        "us": 10 / ratio,
        "us_low": 9.0, "us_high": 11.0, "library_us": 10.0, "library_low": 9.0, "library_high": 11.0, "bytes": 10**7,
        "flops": 0, "ratio": ratio, "floor": floor, "sets": 1, "launches": 1,
    }  # fmt: skip


CHECKED = {
    "kind": "checked", "kernel": "add", "variant": "a", "dtype": "bf16", "sizes": 9, "right": True, "ours": 1e-3, "torch": 1e-3,
    "ratio": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([timed("add", "2^26", 0.98, 0.97)], 0),
        ([timed("add", "2^26", 0.96, 0.97)], 1),
        ([timed("add", "2^26", 0.5, 0.97, "slow"), timed("add", "2^26", 0.99, 0.97, "fast")], 0),
        ([timed("matmul", "1024^3", 0.3, None)], 0),
        ([timed("matvec", "a", 1.2, 1.0), timed("matvec", "b", 1.2, 1.0)], 0),
        ([timed("matvec", "a", 1.1, 1.0), timed("matvec", "b", 1.1, 1.0)], 1),
        ([timed("matvec", "a", 0.99, 1.0), timed("matvec", "b", 2.0, 1.0)], 1),
        ([CHECKED], 0),
        ([{"kind": "problem", "kernel": "add", "text": "hung"}], 1),
        ([{"kind": "wrong", "kernel": "add", "variant": "a", "dims": {"N": 7}, "text": "bytes next to the tensor"}], 1),
    ],
)
def test_exit_code(records: list[dict[str, Any]], expected: int) -> None:
    assert report.report(records)[1] == bool(expected)


def test_a_wrong_kernel_is_named_with_its_size() -> None:
    wrong = {"kind": "wrong", "kernel": "add", "variant": "BLOCK=8", "dims": {"N": 7}, "text": "", "output": "out",
             "ours": ["nan", "nan"], "torch": ["0.001", "0.002"]}  # fmt: skip
    line = next(line for line in report.report([CHECKED, wrong])[0].splitlines() if "WRONG" in line)
    assert "add (BLOCK=8) at {'N': 7}" in line
    assert "nan" in line


def test_passed_results_are_kept_by_cubin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of a run and those from the file are in the next file; cubins that the run did not see are dropped."""
    monkeypatch.setattr(report, "Verdicts", lambda name: Verdicts(name, tmp_path / "before"))
    old_verdicts = Verdicts("kernels_gpu", tmp_path / "before")
    old_verdicts.add("add:a", ["11111111"], Verdict("right", {"sizes": 9}))
    old_verdicts.add("add:gone", ["22222222"], Verdict("right", {"sizes": 9}))
    records = [{**CHECKED, "kept": "11111111"}, {**CHECKED, "case": "add:b", "key": "33333333", "right": False}]
    report.keep_verdicts(records, tmp_path, every=True)
    new_verdicts = Verdicts("kernels_gpu", tmp_path / "verdicts")
    assert {case: line.verdict.word for case, line in new_verdicts.lines.items()} == {"add:a": "right", "add:b": "wrong"}
    assert new_verdicts.find("add:b", "33333333") is not None and new_verdicts.find("add:b", "11111111") is None


CHILD = """
import json, os, sys, time
from ci.bench.kernels.children import emit
names = json.loads(sys.argv[-1]) or ["add", "dies", "hangs", "matmul"]
emit("todo", kernels=names)
print("a line for people")
for name in names:
    emit("begin", kernel=name)
    if name == "dies":
        os._exit(7)
    if name == "hangs":
        time.sleep(60)
    emit("timed", kernel=name)
    emit("end", kernel=name)
"""


class Lines(queue.Queue[str | None]):
    """Lines of a child, each waited for as long as it takes; only after the beginning of `hangs` none comes in time. So the
    test does not depend on how busy the machine is."""

    latest = ""

    def get(self, block: bool = True, timeout: float | None = None) -> str | None:
        assert timeout == children.SILENCE_SECONDS
        if '"hangs"' in self.latest and '"begin"' in self.latest:
            raise queue.Empty
        line = super().get()
        self.latest = line or ""
        return line


def test_a_child_that_fails_loses_only_its_own_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "command", lambda case, given, names: [sys.executable, "-c", CHILD, json.dumps(names)])
    monkeypatch.setattr(children.queue, "Queue", Lines)
    found = [(one["kind"], one["kernel"], one.get("text")) for one in children.run("kernels_gpu", [], [])]
    assert found == [
        ("timed", "add", None), ("problem", "dies", "the process died with status 7"),
        ("problem", "hangs", "hung or out of time"), ("timed", "matmul", None),
    ]  # fmt: skip
    (late,) = children.run("kernels_gpu", [], ["add", "dies"], seconds=-1)
    assert (late["kernel"], late["text"]) == ("add,dies", "not run: out of time")


def test_a_child_that_cannot_start_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "command", lambda case, given, names: [sys.executable, "-c", "raise SystemExit(5)"])
    (one,) = children.run("products", [], ["a", "b"])
    assert (one["kernel"], one["text"]) == ("between kernels", "the process died with status 5")
