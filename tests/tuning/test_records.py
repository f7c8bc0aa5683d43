"""Measurements persist, whatever happens to the process; a table is read only for what it was measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.tuning.records import MeasuredOn, Time, read_records, shape_of
from tilec.tuning.table import Kept, Table, read_table, stale

THIS_GPU = MeasuredOn("H", "1", 132, "2026-11-22")


def test_a_line_for_each_result_and_a_truncated_line_loses_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "tuning" / "k-sm_90a.jsonl"
    records = read_records(path, "H")
    records.describe("c1", {"constants": {"B": 1}})
    records.describe("c1", {"constants": {"B": 1}})
    records.checked("c1", "", THIS_GPU)
    shape = shape_of({"N": 5, "M": 2})
    records.timed(shape, {"c1": (3.0, 2.0, 4.0)}, THIS_GPU)
    path.write_bytes(path.read_bytes() + b'{"shape":{"N":')
    again = read_records(path, "H")
    assert (again.wrong, again.times, again.lost) == ({"c1": ""}, {shape: {"c1": (3.0, 2.0, 4.0)}}, 1)
    again.timed(shape_of({"N": 6}), {"c1": (1.0, 1.0, 1.0)}, THIS_GPU)
    assert len(read_records(path, "H").times) == 2
    assert read_records(path).device == "H"
    assert read_records(path, "another").times == {}
    assert path.read_bytes().count(b'"candidate"') == 1


@given(st.tuples(*3 * [st.floats(1e-3, 1e6)]))
def test_a_time_is_the_same_before_and_after_it_is_read(tmp_path_factory: pytest.TempPathFactory, time: Time) -> None:
    path = tmp_path_factory.mktemp("tuning") / "k.jsonl"
    records = read_records(path, "H")
    records.timed(shape_of({"N": 5}), {"c1": time}, THIS_GPU)
    assert read_records(path, "H").times == records.times


@pytest.mark.parametrize(
    "line",
    [
        "[]", "3", "{}", '{"shape": {}, "us": {}}',
        '{"checked": 3, "device": "H", "driver": "", "date": "", "multiprocessors": 1}',
        '{"shape": {"N": 1}, "us": {"c": [1, 2]}, "device": "H", "driver": "", "date": "", "multiprocessors": 1}',
        '{"shape": {"N": 1}, "us": {"c": [0, 0, 0]}, "device": "H", "driver": "", "date": "", "multiprocessors": 1}',
        '{"shape": {"N": "1"}, "us": {}, "device": "H", "driver": "", "date": "", "multiprocessors": 1}',
        '{"shape": {"N": 1}, "us": {}, "device": "H", "driver": "", "date": "", "multiprocessors": "many"}', "\x00", "[" * 5000,
    ],
)  # fmt: skip
def test_lines_that_are_no_measurement_are_counted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "k.jsonl"
    path.write_text(line + "\n")
    assert read_records(path).lost == 1


TABLE = Table(
    "k", "sm_90a", "H", "1", ("2026-11-22", "2026-11-23"), {}, {}, "start",
    (Kept({"B": 1}, {"warps": 2}, {"start": 1.5}, {"k-B=1": "ab"}),), 3, 4, (0.01, 0.1), (0.02, 0.2),
)  # fmt: skip


def test_a_table_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    assert read_table(path) is None
    path.write_text(json.dumps(TABLE.to_json()))
    assert read_table(path) == TABLE
    assert (
        "4 candidates at 3 shapes on H, driver 1, 2026-11-22 to 2026-11-23. A held-out shape takes 2.0 %" in TABLE.description()
    )


CHANGES: list[dict[str, Any]] = [
    {"format": 2}, {"kept": []}, {"kept": [{}]}, {"kept": None}, {"kernel": 3}, {"device": "x" * 600}, {"shapes": "3"},
    {"regret": [1]}, {"regret": [1, 2]}, {"held_out": 3}, {"dates": ["a"]}, {"sources": {"a": 1}}, {"sources": []},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_table_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "k.json"
    path.write_text(json.dumps(TABLE.to_json() | change))
    with pytest.raises(ValueError, match="is no"):
        read_table(path)


def test_a_table_is_stale_where_its_sources_or_packages_are_others(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("a")
    digest = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"

    def stale_reason(sources: dict[str, str], toolchain: dict[str, str] | None = None) -> str:
        data = TABLE.to_json() | {"sources": sources, "toolchain": toolchain or {}}
        path = tmp_path / "k.json"
        path.write_text(json.dumps(data))
        table = read_table(path)
        assert table is not None
        return stale(table, tmp_path)

    assert stale_reason({"k.py": digest}) == ""
    assert "names no sources" in stale_reason({})
    assert stale_reason({"k.py": "00"}) == "`k.py` is not what was measured"
    for elsewhere in ("/etc/passwd", "../k.py", "absent.py", ""):
        assert "is not what was measured" in stale_reason({elsewhere: digest}), elsewhere
    assert "it was measured with numpy 0.1" in stale_reason({"k.py": digest}, {"numpy": "0.1 sha256:ab"})
    assert stale_reason({"k.py": digest}, {"no-such-package": "1"}) == ""
