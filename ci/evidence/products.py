"""Reads and writes the file of all products' digests, one line per artifact.

    {"made_from": "...", "products": {"add-E=bf16": {"tir": "...", "sm_90a": "PTX CUBIN", ...}, ...}}

`made_from` is one digest of all inputs of the products (`Digests.made_from`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

DIGITS: Final = 12
Record = dict[str, dict[str, str]]
"""Digests by kind (`tir`, `ptx:sm_90a`, `cubin:sm_90a`, ...) and artifact."""


def read_products(path: Path) -> tuple[str, Record]:
    """The contents of a file: the digest of the inputs, and the digests of the products."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found: Record = {}
    for name, row in data["products"].items():
        for key, text in row.items():
            kinds = ("tir",) if key == "tir" else (f"ptx:{key}", f"cubin:{key}")
            for kind, digest in zip(kinds, text.split(), strict=True):
                found.setdefault(kind, {})[name] = digest
    return data["made_from"], found


def write_products(path: Path, made_from: str, record: Record) -> None:
    """Write a file. For each architecture, an artifact has both PTX and CUBIN."""
    rows: dict[str, dict[str, str]] = {name: {"tir": digest} for name, digest in record.get("tir", {}).items()}
    for arch in sorted(key.partition(":")[2] for key in record if key.startswith("ptx:")):
        for name, digest in record[f"ptx:{arch}"].items():
            rows[name][arch] = f"{digest} {record[f'cubin:{arch}'][name]}"
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
    path.write_text(f'{{\n "made_from": {json.dumps(made_from)},\n "products": {{\n{lines}\n }}\n}}\n', encoding="utf-8")
