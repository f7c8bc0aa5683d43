"""Mistakes in products that run into tensor memory, and in products that a producer feeds to warps: the audit confirms neither.

The artifacts are those of `matmul_split`, whose threads store through masks. Right ones are clean and confirmed.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from tests.audit.scheduled import scheduled
from tilec.audit.tasks import Task, arguments_task, emulate_task, prove_task
from tilec.target.targets import SM_100A, SM_120A, Target

pytest.importorskip("tilec.emulator")
NAME = "matmul_split"
WANTED = {"BM": 16, "S": 2}


@cache
def compiled(target: Target) -> tuple[str, str, dict[str, Any]]:
    """Tile IR, PTX, and the manifest as data."""
    return scheduled(NAME, WANTED, target)


def task(target: Target, pattern: str = "", replacement: str = "", **changed: Any) -> Task:
    """The artifact, with one change of its PTX, or with other fields of its manifest."""
    tir, ptx, data = compiled(target)
    text = re.sub(pattern, replacement, ptx, count=1, flags=re.DOTALL) if pattern else ptx
    assert (text != ptx) == bool(pattern)
    return Task(tir, text, data | changed, launches=3, seeds=1)


@pytest.mark.parametrize("target", [SM_100A, SM_120A], ids=str)
def test_a_right_artifact_is_clean_and_confirmed(target: Target) -> None:
    right = task(target)
    emulation = emulate_task(right)
    assert (emulation["status"], emulation["reason"]) == ("clean", "")
    assert not any(row.get("differs") for row in emulation["launches"])
    assert arguments_task(right)["status"] == "confirmed"


@pytest.mark.parametrize(
    ("target", "pattern", "replacement", "kind"),
    [
        # The last branch before the first store skips it where a row is outside.
        (SM_100A, r"@%p\d+ bra \t\$L__BB\d+_\d+;((?:(?!bra)[^@])*?st\.global)", r"\1", "bounds"),
        (SM_120A, r"@%p\d+ bra \t\$L__BB\d+_\d+;((?:(?!bra)[^@])*?st\.global)", r"\1", "bounds"),
        (SM_100A, r"(st\.global\S+ \t\[%rd\d+\+)16\]", r"\g<1>1048576]", "bounds"),
        (SM_120A, r"(st\.global\S+ \t\[%rd\d+)\]", r"\g<1>+1048576]", "bounds"),
        (SM_100A, r"(tcgen05\.ld\.[^;]*\[%r\d+ \+ )0\]", r"\g<1>32]", "bounds"),
        (SM_100A, r"(tcgen05\.ld\.[^;]*\[%r\d+ \+ )0\]", r"\g<1>2097152]", "tensor-memory"),
        (SM_100A, r"(add\.u32 to, %r\d+, )0;", r"\g<1>64;", "bounds"),
        (SM_100A, r"(add\.s64 b, %rd\d+, )6;", r"\g<1>4096;", "bounds"),
    ],
    ids=["no mask", "no mask, by warps", "store outside", "store outside, by warps", "load of other columns",
         "load of other lanes", "product into other columns", "operand elsewhere"],
)  # fmt: skip
def test_code_that_reaches_outside_is_faulty(target: Target, pattern: str, replacement: str, kind: str) -> None:
    found = emulate_task(task(target, pattern, replacement))
    assert found["status"] == "faulty"
    assert any(fault.startswith(f"{kind}: ") for row in found["launches"] for fault in row["faults"]), found["launches"]


@pytest.mark.parametrize("target", [SM_100A, SM_120A], ids=str)
@pytest.mark.parametrize("tensor", ["a", "b", "parts"])
def test_a_tensor_with_another_stride_is_refuted(target: Target, tensor: str) -> None:
    """A map's strides are those of its tensor, of which the manifest says that its rows are eight elements longer."""
    _, _, data = compiled(target)
    other = [dict(spec) for spec in data["tensors"]]
    spec = next(one for one in other if one["name"] == tensor)
    spec["dims"] = [*spec["dims"][:-1], ["+", spec["dims"][-1], 8]]
    findings = prove_task(task(target, tensors=other))
    assert findings[0]["verdict"] == "refuted" and findings[0]["reason"] == "the tensors differ from the tile IR's"


def test_a_departure_from_the_text_of_the_isa_is_not_confirmed() -> None:
    found = emulate_task(task(SM_100A, r"tcgen05\.fence::after_thread_sync;", ""))
    assert found["status"] == "unknown" and "tensor-fence: " in found["reason"]
    assert all(not row["faults"] for row in found["launches"])
