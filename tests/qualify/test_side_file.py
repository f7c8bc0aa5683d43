"""The side file: what is written is read again, and everything else is one clear error."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.artifact.bundle_format import canonical
from tilec.qualify import side_file
from tilec.qualify.side_file import Entry, Expected, Launch, Malformed, SideFile

DIGEST = "ab" * 32


def expected(tensor: str = "out", count: int = 3) -> Expected:
    runs = np.array([[0, 1], [5, count - 1]], np.uint64)
    return Expected(tensor, "bf16", 2.0**-7, 0.25, False, runs, np.arange(count, dtype=np.uint16))


def sample() -> SideFile:
    launch = Launch("smallest", {"N": 8}, {"eps": 1e-6}, "normal", DIGEST, 100, None, True, (expected(),))
    whole = Expected("n", "i32", 0.0, 0.0, True, np.array([[0, 2]], np.uint64), np.array([1, -1], np.int32))
    other = Launch("T at 3", {"T": 3}, {}, "positive", DIGEST, 10, 512, False, (whole, expected("rest", 4)))
    entries = {"add": Entry("add", DIGEST, (launch, other), ("all: why",)), "b": Entry("b", DIGEST, ())}
    return SideFile("cd" * 32, "0.1.0", "a checker", entries)


def header(data: bytes) -> dict[str, Any]:
    size = int.from_bytes(data[8:16], "little")
    return json.loads(data[16 : 16 + size])


def with_header(data: bytes, changed: Any) -> bytes:
    size = int.from_bytes(data[8:16], "little")
    text = changed if isinstance(changed, bytes) else canonical(changed)
    body = data[:8] + len(text).to_bytes(8, "little") + text + data[16 + size : -32]
    return body + hashlib.sha256(body).digest()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    data = side_file.encode(sample())
    path = tmp_path / "x.qualify"
    path.write_bytes(data)
    found = side_file.read(path)
    assert side_file.encode(found) == data
    assert found.digest == hashlib.sha256(data).hexdigest()
    first = found.entries["add"].launches[0]
    assert first.values == {"N": 8}
    assert first.products is None
    assert first.expected[0].positions().tolist() == [0, 5, 6]
    assert found.entries["add"].launches[1].expected[0].bits.tolist() == [1, -1]


@given(st.data())
def test_no_changed_byte_is_accepted(data: st.DataObject) -> None:
    good = side_file.encode(sample())
    index = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[index] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Malformed):
        side_file.decode(bytes(bad))


@given(st.integers(0, 10_000))
def test_no_part_of_a_file_is_accepted(size: int) -> None:
    good = side_file.encode(sample())
    with pytest.raises(Malformed):
        side_file.decode(good[: min(size, len(good) - 1)])


def at(fields: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The header with one value replaced."""
    parts = path.split(".")
    where: Any = fields
    for part in parts[:-1]:
        where = where[int(part) if part.isdigit() else part]
    where[int(parts[-1]) if parts[-1].isdigit() else parts[-1]] = value
    return fields


LAUNCH = "artifacts.0.launches.0"
EXPECTED = f"{LAUNCH}.expected.0"


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("format", 2, "reads format 1"),
        ("bundle", "00", "a digest is not one"),
        ("checker", "x" * 3000, "too long"),
        ("artifacts", {}, "a list is none"),
        ("artifacts.0.name", "../add", "name is not one"),
        ("artifacts.0.name", "c", "not in order"),
        ("artifacts.0.more", 1, "does not have exactly"),
        (f"{LAUNCH}.kind", "zeros", "inputs of no known kind"),
        (f"{LAUNCH}.values", {"N": 1 << 50}, "not an integer in range"),
        (f"{LAUNCH}.values", {"N": True}, "not an integer in range"),
        (f"{LAUNCH}.values", {"a b": 1}, "name is not one"),
        (f"{LAUNCH}.values", [1], "not a table"),
        (f"{LAUNCH}.scalars", {"eps": "1"}, "not a number"),
        (f"{LAUNCH}.timed", 1, "neither true nor false"),
        (f"{LAUNCH}.bytes", 1.5, "not an integer"),
        (f"{LAUNCH}.inputs", "AB" * 32, "a digest is not one"),
        (f"{EXPECTED}.dtype", "f128", "no known dtype"),
        (f"{EXPECTED}.relative", -1.0, "a tolerance is negative"),
        (f"{EXPECTED}.count", 4, "overlap, or are not as many"),
        (f"{EXPECTED}.count", -1, "a size is negative"),
        (f"{EXPECTED}.count", 1 << 40, "fewer bytes than its header says"),
        (f"{EXPECTED}.runs", 1 << 44, "fewer bytes than its header says"),
        (f"{EXPECTED}.tensor", 5, "name is not one"),
    ],
)
def test_a_wrong_value_is_named(path: str, value: Any, reason: str) -> None:
    data = side_file.encode(sample())
    with pytest.raises(Malformed, match=reason):
        side_file.decode(with_header(data, at(header(data), path, value)))


@pytest.mark.parametrize("text", [b"[]", b"{}", b"nonsense", b'{"format": 1}', b"\xff"])
def test_another_header_is_refused(text: bytes) -> None:
    with pytest.raises(Malformed, match="is damaged"):
        side_file.decode(with_header(side_file.encode(sample()), text))


@pytest.mark.parametrize(
    "runs", [[[0, 0], [1, 3]], [[0, 2], [1, 1]], [[5, 2], [0, 1]], [[0, 1], [1 << 50, 2]], [[0, 1], [1, 2]]]
)
def test_runs_that_overlap_or_touch_are_refused(runs: list[list[int]]) -> None:
    launch = sample().entries["add"].launches[0]
    wrong = Expected("out", "bf16", 0.0, 0.0, False, np.array(runs, np.uint64), np.arange(3, dtype=np.uint16))
    side = SideFile(DIGEST, "0", "j", {"add": Entry("add", DIGEST, (replace(launch, expected=(wrong,)),))})
    with pytest.raises(Malformed, match=r"a run of elements is empty or too large|runs of elements overlap"):
        side_file.decode(side_file.encode(side))


def test_bytes_after_the_last_value_are_refused() -> None:
    data = side_file.encode(sample())
    body = data[:-32] + b"\0"
    with pytest.raises(Malformed, match="bytes after its last value"):
        side_file.decode(body + hashlib.sha256(body).digest())


def test_a_header_larger_than_the_file_is_refused() -> None:
    body = side_file.MAGIC + (1 << 62).to_bytes(8, "little") + b"{}"
    with pytest.raises(Malformed, match="larger than the file"):
        side_file.decode(body + hashlib.sha256(body).digest())


def test_another_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.qualify"
    path.write_bytes(b"\0" * 100)
    with pytest.raises(Malformed, match="is not a file of launches"):
        side_file.read(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(Malformed, match="is a link"):
        side_file.read(link)
