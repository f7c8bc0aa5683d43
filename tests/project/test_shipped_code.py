"""The machine code of every shipped kernel's first specialisation: wide loads, tensor cores, no spills.

Kernels without tensor cores are built for one architecture each; the ratchet holds the resources of all artifacts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import shipped
from tilec.artifact import Manifest
from tilec.assemble.sass import disassemble, instructions
from tilec.runtime import load_artifact
from tilec.schedule import merged
from tilec.target import TARGETS, Target

WIDE = (
    "add", "silu_mul", "silu_mul_rows", "rms_norm", "add_rms_norm", "matvec", "matvec_add", "matvec_silu_mul", "embedding",
    "gather_row", "kv_update", "qk_norm_rope_kv", "decode_merge",
)  # fmt: skip
"""Kernels bound by memory, whose threads must move 16 bytes at once."""
WARPGROUPS = (("matmul", "sm_90a"), ("matmul_split", "sm_90a"))


def build_file() -> str:
    """A build file of the first specialisations, options and budgets kept."""
    lines = ["[build]", f"arch = {json.dumps([target.name for target in TARGETS])}"]
    for entry in shipped.entries().values():
        first = entry.specialisations()[0]
        targets = [target for name, target in shipped.AROUND if name == entry.name]
        fixed = {target.name: merged(entry.overrides(first), target).given() for target in targets}
        rows = [table({"arch": [arch], **given}) for arch, given in fixed.items() if given]
        lines += [
            "[[kernel]]",
            f"name = {json.dumps(entry.name)}",
            f"arch = {json.dumps([target.name for target in targets])}",
            f"constants = {table(first)}",
            f"budget = {table(entry.budget)}",
            f"schedule = [{', '.join(rows)}]",
        ]
    return "\n".join(lines) + "\n"


def table(fields: Mapping[str, Any]) -> str:
    """Fields as TOML writes them on one line."""
    return f"{{ {', '.join(f'{name} = {json.dumps(value)}' for name, value in fields.items())} }}"


@dataclass(frozen=True)
class Products:
    """What one build said and left: per kernel and target the manifest, and how often each opcode stands in the code."""

    said: str
    manifests: dict[tuple[str, str], Manifest]
    opcodes: dict[tuple[str, str], Counter[str]]


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory, shipped_store: Path) -> Products:
    """One build by two workers."""
    root = tmp_path_factory.mktemp("shipped")
    (root / "kernels_src").symlink_to(shipped.ROOT / "kernels_src")
    (root / "build.toml").write_text(build_file())
    environment = os.environ | {"TILEC_CACHE_DIR": str(shipped_store)}
    command = [sys.executable, "-m", "tilec", "build", "--jobs", "2"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1800)
    loaded = [load_artifact(path) for path in sorted((root / "artifacts/build").rglob("*.cubin"))]
    with ThreadPoolExecutor(2) as pool:
        found = [instructions(sass) for sass in pool.map(disassemble, [cubin for _, cubin in loaded])]
    keys = [(manifest.kernel, manifest.arch) for manifest, _ in loaded]
    return Products(
        done.stdout + done.stderr,
        {key: manifest for key, (manifest, _) in zip(keys, loaded, strict=True)},
        dict(zip(keys, found, strict=True)),
    )


def of(products: Products, kernel: str, target: Target) -> tuple[Manifest, Counter[str]]:
    """Manifest and opcodes of a kernel; fails with what the build said where it has none."""
    key = (kernel, target.name)
    assert key in products.manifests, products.said
    return products.manifests[key], products.opcodes[key]


@pytest.mark.parametrize(("kernel", "target"), shipped.AROUND, ids=shipped.AROUND_IDS)
def test_nothing_spills_and_budgets_hold(kernel: str, target: Target, products: Products) -> None:
    manifest, opcodes = of(products, kernel, target)
    assert opcodes["EXIT"] and sum(opcodes.values()) > 20
    assert not [opcode for opcode in opcodes if opcode.split(".")[0] in ("LDL", "STL")]
    assert (manifest.resources.spill_bytes, manifest.resources.stack_bytes) == (0, 0)


@pytest.mark.parametrize(("kernel", "target"), [case for case in shipped.AROUND if case[0] in WIDE])
def test_memory_is_moved_16_bytes_at_once(kernel: str, target: Target, products: Products) -> None:
    _, opcodes = of(products, kernel, target)
    assert any(opcode.startswith("LDG.E.128") for opcode in opcodes)
    if not kernel.startswith("matvec"):  # whose results are a few sums
        assert any(opcode.startswith("STG.E.128") for opcode in opcodes)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("kernel", shipped.TENSOR_CORES)
def test_products_of_matrices_run_on_tensor_cores(kernel: str, target: Target, products: Products) -> None:
    _, opcodes = of(products, kernel, target)
    if (kernel, target.name) in WARPGROUPS:  # matrices go from shared memory straight to the tensor cores
        assert any(re.fullmatch(r"HGMMA\.64x\d+x16\.F32\.BF16", opcode) for opcode in opcodes)
        assert not any(opcode.startswith("HMMA") for opcode in opcodes)
        assert any(opcode.startswith("UTMALDG.2D") for opcode in opcodes)
    else:
        assert opcodes["HMMA.16816.F32.BF16"] and not opcodes["HMMA.16816.F32"]
        assert any(opcode.startswith("LDSM.16.") for opcode in opcodes)
        assert any(opcode.startswith("LDGSTS.E.BYPASS.128") for opcode in opcodes)
