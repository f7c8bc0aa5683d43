"""A short run of the campaign of `tests.fuzz.artifacts`, and a test that its oracle detects every kind of wrong launch."""

from __future__ import annotations

import dataclasses
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import artifacts
from tests.fuzz.contract_oracle import Given, Reached, complaint, scalar_bytes
from tests.fuzz.contract_samples import CONTRACTS


def test_mutants_of_artifacts_and_launches(tmp_path: Path) -> None:
    tally = artifacts.campaign(900, 20261122, tmp_path)
    assert tally.sound(), tally.text()
    assert tally.worst_seconds < 10 * artifacts.LIMIT_SECONDS, tally.text()  # CPU time, also on a slow machine
    assert tally.launched > 50 and tally.refused["E0901"] > 200
    assert {"E0904", "E0905", "E0906", "E0907", "E0908", "E0912", "E0913", "E0914"} <= tally.refused.keys()


GATHER = CONTRACTS[1]


def right() -> tuple[dict[str, Any], dict[str, Given], dict[str, Any], dict[str, list[int]], Reached]:
    """A launch of `gather` that its contract allows, computed by hand."""
    tensors = {
        "ids": Given(1 << 20, "i32", (4,), (1,)), "table": Given(1 << 24, "bf16", (9, 8), (8, 1)),
        "out": Given(1 << 40, "bf16", (4, 8), (8, 1)),
    }  # fmt: skip
    scalars = {"scale": 0.5, "pos": -1, "flag": True}
    env = {"T": 4, "H": 8, "V": 9, "pos": -1, "flag": 1}
    slots = [struct.pack("<Q", tensors[name].pointer) for name in ("ids", "table", "out")]
    slots += [struct.pack("<i4x", env[name]) for name in ("T", "H", "V")]
    slots += [struct.pack("<f4x", 0.5), struct.pack("<i4x", -1), struct.pack("<?7x", True)]
    return GATHER.manifest, tensors, scalars, {"ids": [0, 8, 3, 3]}, Reached((1, 8, 1), 128, 1024, slots, env)


def test_the_oracle_agrees_with_a_right_launch() -> None:
    assert complaint(*right()) == ""


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("ids", {"pointer": 1 << 20 | 4}, "address"), ("ids", {"pointer": 0}, "address"), ("ids", {"dtype": "u32"}, "dtype"),
        ("ids", {"shape": (5,)}, "extent"), ("table", {"shape": (9,), "strides": (1,)}, "rank"),
        ("out", {"read_only": True}, "read-only"),
        ("out", {"strides": (16, 1)}, "contiguous"), ("out", {"pointer": 1 << 24}, "overlaps"),
        ("out", {"pointer": 2**64 - 16}, "outside"),
    ],
)  # fmt: skip
def test_the_oracle_detects_a_wrong_tensor(name: str, changes: dict[str, Any], words: str) -> None:
    manifest, tensors, scalars, stored, reached = right()
    tensors[name] = dataclasses.replace(tensors[name], **changes)
    assert words in complaint(manifest, tensors, scalars, stored, reached)


def test_the_oracle_detects_everything_else() -> None:
    manifest, tensors, scalars, stored, reached = right()
    assert "stored" in complaint(manifest, tensors, scalars, {"ids": [0, 9, 1, 1]}, reached)
    distinct = manifest | {"value_checks": [manifest["value_checks"][0] | {"distinct": True}]}
    assert "equal" in complaint(distinct, tensors, scalars, stored, reached)
    assert "fit" in complaint(manifest, tensors, scalars | {"pos": 2**31}, stored, reached)
    assert "launch check" in complaint(
        manifest | {"launch_checks": [{"condition": [">", "T", 4]}]}, tensors, scalars, stored, reached
    )
    assert "names" in complaint(manifest, tensors, {}, stored, reached)
    for changes, words in (
        ({"grid": (2, 8, 1)}, "grid"), ({"block": 64}, "block"),
        ({"shared": 0}, "block"), ({"arguments": [b"\1" * 8] * 9}, "argument"),
    ):  # fmt: skip
        assert words in complaint(manifest, tensors, scalars, stored, dataclasses.replace(reached, **changes))
    strided = {
        "name": "a",
        "access": "out",
        "dtype": "f32",
        "dims": [4, 4],
        "strides": [1, 1],
        "align": 4,
        "resident": False,
        "row": None,
    }
    alone = manifest | {"tensors": [strided], "scalars": [], "abi": [], "no_alias": [], "value_checks": [], "launch_checks": []}
    shared = {"a": Given(4096, "f32", (4, 4), (1, 1))}
    assert "share" in complaint(alone, shared, {}, {}, reached)


def test_plain_launches_are_a_function_of_the_seed() -> None:
    for one in CONTRACTS:
        assert one.launch(random.Random(5)) == one.launch(random.Random(5))
    assert scalar_bytes("bf16", 1.0) == b"\x80\x3f"
