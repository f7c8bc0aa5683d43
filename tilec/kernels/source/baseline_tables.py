"""Rows of tables by PyTorch's operators. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional


def take_rows(ids: Any, table: Any) -> Any:
    return functional.embedding(ids, table)


def embedding_bag(ids: Any, offsets: Any, scales: Any, table: Any) -> Any:
    return functional.embedding_bag(ids, table, offsets.to(ids.dtype), mode="sum") * scales[:, None].to(table.dtype)
