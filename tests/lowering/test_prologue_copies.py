"""Products that copy weights before the grid dependency wait: the emulator reports nothing and agrees with the interpreter. If
the PTX reads anything else before the wait, the emulator reports it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.clean import check_clean
from tests.weight_products import differs, emulated, made

STAGES = 3
CASES: list[Any] = [
    ("matmul_few", {}, (1, 8, 8)),  # one iteration, which extends past K
    ("matmul_few", {}, (17, 72, 128)),  # fewer iterations than stages
    ("matmul_few", {}, (16, 64, 192)),  # as many
    ("matmul_few", {"early": 2}, (5, 136, 200)),  # one more
    ("matmul_few", {}, (33, 64, 520)),  # three passes over the ring
    ("matmul_few", {"early": 0}, (17, 72, 264)),
    ("matmul_split", {}, (1, 8, 8)),  # two splits without iterations
    ("matmul_split", {"next": "before"}, (17, 72, 264)),  # splits of two, two and one iterations
    ("matmul_split", {}, (16, 64, 1000)),
    ("matmul_silu_mul_few", {}, (17, 72, 128)),
    ("matmul_silu_mul_few", {}, (8, 64, 328)),
]


@pytest.mark.parametrize(("name", "wanted", "extents"), CASES, ids=str)
def test_the_emulator_finds_nothing_and_agrees(name: str, wanted: Any, extents: tuple[int, int, int]) -> None:
    kernel = made(name, "bf16", 64 if name == "matmul_silu_mul_few" else 16, 64, stages=STAGES, **wanted)
    for seed in (0, 1):
        report, found, expected = emulated(kernel, extents, seed)
        check_clean(report)
        assert not differs(found, expected)


COPY = re.compile(r"\tcp\.async\.bulk\.tensor[^;]*;\n")
WAIT = re.compile(r"\tgriddepcontrol\.wait;\n")
EXTENTS = (16, 64, 264)


def test_activations_copied_before_the_wait_are_found() -> None:
    """Moves the wait past the next copy, which is that of the first stage's activations."""
    kernel = made("matmul_few", "bf16", 16, 64, stages=STAGES)
    wait = list(WAIT.finditer(kernel.ptx))[-1]
    next_copy = COPY.search(kernel.ptx, wait.end())
    assert next_copy is not None
    ptx = kernel.ptx[: wait.start()] + kernel.ptx[wait.end() : next_copy.end()] + wait[0] + kernel.ptx[next_copy.end() :]
    report = emulated(kernel, EXTENTS, 0, ptx)[0]
    assert {fault.kind for fault in report.faults} == {"dependency"}


def test_weights_that_are_not_resident_are_found() -> None:
    kernel = made("matmul_few", "bf16", 16, 64, stages=STAGES)
    tensors = tuple(replace(tensor, resident=False) for tensor in kernel.manifest.tensors)
    report = emulated(kernel._replace(manifest=replace(kernel.manifest, tensors=tensors)), EXTENTS, 0)[0]
    assert {fault.kind for fault in report.faults} == {"dependency"}


def test_a_consumer_that_does_not_wait_is_found() -> None:
    """It stores to memory that earlier kernels may still read."""
    kernel = made("matmul_few", "bf16", 16, 64, stages=STAGES)
    first_wait = WAIT.search(kernel.ptx)
    assert first_wait is not None
    report = emulated(kernel, EXTENTS, 0, kernel.ptx[: first_wait.start()] + kernel.ptx[first_wait.end() :])[0]
    assert {fault.kind for fault in report.faults} == {"dependency"}


@pytest.mark.parametrize(("wanted", "order"), [({}, "wl"), ({"next": "before"}, "lw")])
def test_each_role_waits_and_launches_dependents(wanted: Any, order: str) -> None:
    mlir = made("matmul_few", "bf16", 16, 64, stages=STAGES, **wanted).lowered.mlir
    found = "".join("w" if one == "wait" else "l" for one in re.findall(r"griddepcontrol\.(wait|launch_dependents);", mlir))
    assert found == 2 * order
