"""Which rows of a tile a block of a pair needs, by the tile IR of products and of kernels like them."""

from __future__ import annotations

import pytest

from tests.audit import samples
from tests.tensor_products import source
from tilec.audit.halves import LEFT, RIGHT, Rows, halves, rows_of
from tilec.ir.core import Function
from tilec.ir.ops import MemoryOp
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function

TEXT = print_function(source("bf16", 256, 192))


def found(function: Function) -> dict[str, Rows | None]:
    accesses = [op for op in function.body.walk() if isinstance(op, MemoryOp)]
    return {function.parameter_of(op.tensor).name: rows_of(function, op) for op in accesses}


def changed(*edits: tuple[str, str]) -> dict[str, Rows | None]:
    text = TEXT
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return found(parse_function(text))


def test_rows_of_products() -> None:
    assert changed() == {"a": Rows(LEFT, 1), "b": Rows(RIGHT, 1), "out": Rows(LEFT, 1)}
    both = found(parse_function(samples.text("matmul_silu_mul", BM=256, BN=64)))
    assert both == {"a": Rows(LEFT, 1), "b": Rows(RIGHT, 2), "out": Rows(LEFT, 1)}


def test_a_right_operand_of_columns_has_none() -> None:
    loaded = "whole = false} : bf16[192, 64]\n    %48 = permute %47 {axes = [1, 0]} : bf16[64, 192]"
    by_columns = changed(
        ("%b: in tensor<bf16, [N, K]", "%b: in tensor<bf16, [K, N]"),
        ("load %b, %44, %46", "load %b, %46, %44"),
        (loaded, "whole = false} : bf16[64, 192]"),
        ("mma %42, %48", "mma %42, %47"),
    )
    assert by_columns == {"a": Rows(LEFT, 1), "b": None, "out": Rows(LEFT, 1)}


def test_a_result_that_is_turned_has_none() -> None:
    cast = "cast %50 : bf16[256, 192]"
    turned = changed(
        ("%out: out tensor<bf16, [M, N]", "%out: out tensor<bf16, [N, M]"),
        (f"%51 = {cast}", f"%60 = {cast}\n  %51 = permute %60 {{axes = [1, 0]}} : bf16[192, 256]"),
        ("store %out, %51, %53, %55", "store %out, %51, %55, %53"),
    )
    assert turned["out"] is None and turned["a"] == Rows(LEFT, 1)


def test_a_tile_with_another_use_has_none() -> None:
    used = changed(("    %48 = permute", "    %60 = cast %42 : f32[256, 64]\n    %48 = permute"))
    assert used == {"a": None, "b": Rows(RIGHT, 1), "out": Rows(LEFT, 1)}


def test_a_tile_of_both_sides_has_none() -> None:
    """`a @ a.T`, of square tiles."""
    text = print_function(source("bf16", 256, 256))
    at = text.index("= permute %47")
    square = found(parse_function(text[:at] + text[at:].replace("permute %47", "permute %42", 1)))
    assert square["a"] is None and square["b"] is None


@pytest.mark.parametrize(
    ("rows", "shape", "expected"),
    [
        (Rows(LEFT, 1), (256, 64), (0, 128)),
        (Rows(RIGHT, 2), (2, 64, 64), (0, 1)),
        (Rows(RIGHT, 2), (1, 64, 64), (1, 32)),
        (Rows(RIGHT, 2), (3, 64, 64), None),
        (Rows(RIGHT, 1), (1, 64), None),
    ],
)
def test_halves_are_runs_of_rows(rows: Rows, shape: tuple[int, ...], expected: tuple[int, int] | None) -> None:
    assert halves(rows, shape) == expected
