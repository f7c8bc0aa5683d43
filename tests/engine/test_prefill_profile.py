"""The profile of a prompt: each kernel's time goes to the operation that launched it, and what they add is the whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from test_cuda_backend import backend

sys.path.append(str(Path(__file__).resolve().parents[2] / "ci" / "bench"))
from prefill_profile import additions, chunks_of, floor_of, products_of, rows_of

__all__ = ["backend"]  # a fixture of another module


def test_what_kernels_add_is_the_whole() -> None:
    assert additions([(10.0, 14.0), (12.0, 13.0), (13.5, 20.0), (25.0, 26.0)]) == [4.0, 0.0, 6.0, 6.0]
    assert additions([]) == []


def test_each_kernel_is_of_the_operation_at_its_place(backend: tuple[Any, Any]) -> None:
    """Kernels of one microsecond, but the attention of the second chunk, of five."""
    made, _ = backend
    made.chunk_tokens = 96
    chunks = chunks_of(made, 100)
    assert [(chunk.graph.tokens, chunk.past) for chunk in chunks] == [(96, 0), (4, 96)]
    ops = [(number, op) for number, chunk in enumerate(chunks) for op in chunk.graph.ops]
    spans: list[tuple[float, float]] = []
    for number, op in ops:
        begin = spans[-1][1] if spans else 7.0
        spans.append((begin, begin + (5.0 if number == 1 and op.kernel == "flash_attention" else 1.0)))
    rows = {row.name: row for row in rows_of(made, chunks, spans)}
    layers = sum(op.kernel == "flash_attention" for number, op in ops if number == 1)
    attention = rows["layers.*.attention"]
    assert attention.launches == sum(op.kernel == "flash_attention" for _, op in ops) == 2 * layers
    assert attention.adds == attention.each == pytest.approx((5 * layers + layers) / 1e3)
    assert sum(row.launches for row in rows.values()) == len(ops)
    assert sum(row.adds for row in rows.values()) == pytest.approx((spans[-1][1] - 7.0) / 1e3)


def test_floors_are_of_bytes_or_of_products(backend: tuple[Any, Any]) -> None:
    made, _ = backend
    (chunk,) = chunks_of(made, 100)
    ops = {op.kernel: op for op in chunk.graph.ops}
    product = ops["matmul_silu_mul"]
    rows, depth = product.tensors["a"].shape
    assert products_of(chunk, product) == 2 * rows * depth * 2 * product.tensors["out"].shape[1]
    assert products_of(chunk, ops["add_rms_norm"]) == 0
    moved = 2 * (4 * rows * made.config.hidden_size + made.config.hidden_size)
    assert floor_of(made, chunk, ops["add_rms_norm"]) == pytest.approx(1e3 * moved / 4.6e12)
