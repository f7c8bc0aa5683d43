"""The machine code of every shipped kernel's first specialisation: wide loads, tensor cores, no spills.

The default run tests sm_90, with those specialisations that are in the bundle shared by other tests, if it has the kernel.
Outside of it, kernels without tensor cores are built for one other architecture each; the ratchet limits the resources of all
artifacts.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import shipped
from tests.campaign import chosen
from tests.machine_code import listings
from tilec.artifact.records import Manifest
from tilec.assemble.sass import instructions
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant
from tilec.project.read.plan import artifact_name
from tilec.runtime import load_artifact, open_bundle
from tilec.target.families import TCGEN05, TMA
from tilec.target.schedule import merged
from tilec.target.targets import SM_90A, Target

WIDE = (
    "add", "rms_norm", "add_rms_norm", "matvec", "matvec_add", "embedding",
    "gather_row", "qk_norm_rope_kv", "decode_merge",
)  # fmt: skip
"""Memory-bound kernels, whose threads must load 16 bytes at once."""
CASES = [*((name, SM_90A) for name in shipped.NAMES), *(case for case in shipped.AROUND if case[1] != SM_90A)]
IDS = [f"{name}-{target}" for name, target in CASES]


def is_current_part(case: tuple[str, Target]) -> bool:
    return case[1] == SM_90A


WARPGROUPS = tuple(
    (name, SM_90A) for name in ("matmul", "matmul_split", "matmul_few", "matmul_silu_mul", "matmul_silu_mul_few")
)
PRODUCTS = list(dict.fromkeys((*(case for case in CASES if case[0] in shipped.TENSOR_CORES), *WARPGROUPS)))


def build_file(target: Target, wanted: Iterable[tuple[KernelEntry, dict[str, Constant]]]) -> str:
    """A build file of these specialisations for one target, with their options and budgets."""
    lines = ["[build]", f"arch = {json.dumps([target.name])}"]
    for entry, constants in wanted:
        given = merged(entry.overrides(constants), target).given()
        lines += [
            "[[kernel]]",
            f"name = {json.dumps(entry.name)}",
            f"constants = {table(constants)}",
            f"budget = {table(entry.budget)}",
            f"schedule = [{table({'arch': [target.name], **given}) if given else ''}]",
        ]
    return "\n".join(lines) + "\n"


def table(fields: Mapping[str, Any]) -> str:
    """Fields as TOML writes them on one line."""
    return f"{{ {', '.join(f'{name} = {json.dumps(value)}' for name, value in fields.items())} }}"


@dataclass(frozen=True)
class Products:
    """The output and products of one build: per kernel and target the manifest, and the count of each opcode in the code."""

    output: str
    manifests: dict[tuple[str, str], Manifest]
    opcodes: dict[tuple[str, str], Counter[str]]


@pytest.fixture(scope="module")
def products(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shipped_store: Path
) -> Callable[[Target], Products]:
    """The products of one target's build, which runs once."""

    @functools.cache
    def build_products(target: Target) -> Products:
        packed_names: set[str] = set()
        if target == SM_90A:
            with open_bundle(request.getfixturevalue("shipped_bundle")) as bundle:
                packed_names = {kernel.name for kernel in bundle.kernels}
        wanted = [first_of(name, target, packed_names) for name, arch in CASES if arch == target]
        return built(tmp_path_factory.mktemp("shipped"), shipped_store, build_file(target, wanted), target)

    return build_products


def first_of(name: str, target: Target, packed_names: set[str]) -> tuple[KernelEntry, dict[str, Constant]]:
    """The first specialisation of a kernel, but for sm_90 of those that are built for the target; without tensor cores,
    preferably one whose artifacts exist already."""
    entries = [entry for entry in shipped.all_entries() if entry.name == name and (target == SM_90A or target in entry.targets)]
    found = [(entry, constants) for entry in entries for constants in entry.specialisations()]
    if name in shipped.TENSOR_CORES:
        return found[0]
    return next((one for one in found if artifact_name(name, one[1]) in packed_names), found[0])


def built(root: Path, shipped_store: Path, text: str, target: Target) -> Products:
    """The products of a build file for one target, by two workers."""
    (root / "kernels_src").symlink_to(shipped.ROOT / "kernels_src")
    (root / "build.toml").write_text(text)
    environment = os.environ | {"TILEC_CACHE_DIR": str(shipped_store)}
    command = [sys.executable, "-m", "tilec", "build", "--jobs", "2"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1800)
    loaded = [load_artifact(path) for path in sorted((root / "artifacts/build").rglob("*.cubin"))]
    found = [instructions(listed) for listed in listings([cubin for _, cubin in loaded], target)]
    keys = [(manifest.kernel, manifest.arch) for manifest, _ in loaded]
    return Products(
        done.stdout + done.stderr,
        {key: manifest for key, (manifest, _) in zip(keys, loaded, strict=True)},
        dict(zip(keys, found, strict=True)),
    )


def of(products: Callable[[Target], Products], kernel: str, target: Target) -> tuple[Manifest, Counter[str]]:
    """Manifest and opcodes of a kernel; fails with the build's output if it has none."""
    found, key = products(target), (kernel, target.name)
    assert key in found.manifests, found.output
    return found.manifests[key], found.opcodes[key]


@pytest.mark.parametrize(("kernel", "target"), chosen(CASES, is_current_part), ids=IDS)
def test_nothing_spills_and_budgets_hold(kernel: str, target: Target, products: Callable[[Target], Products]) -> None:
    manifest, opcodes = of(products, kernel, target)
    assert opcodes["EXIT"] and sum(opcodes.values()) > 20
    assert not [opcode for opcode in opcodes if opcode.split(".")[0] in ("LDL", "STL")]
    assert (manifest.resources.spill_bytes, manifest.resources.stack_bytes) == (0, 0)


@pytest.mark.parametrize(("kernel", "target"), chosen([case for case in CASES if case[0] in WIDE], is_current_part))
def test_memory_is_moved_16_bytes_at_once(kernel: str, target: Target, products: Callable[[Target], Products]) -> None:
    _, opcodes = of(products, kernel, target)
    assert any(opcode.startswith("LDG.E.128") for opcode in opcodes)
    if not kernel.startswith("matvec"):  # whose results are a few sums
        assert any(opcode.startswith("STG.E.128") for opcode in opcodes)


@pytest.mark.parametrize(("kernel", "target"), chosen(PRODUCTS, is_current_part))
def test_products_of_matrices_run_on_tensor_cores(kernel: str, target: Target, products: Callable[[Target], Products]) -> None:
    _, opcodes = of(products, kernel, target)
    entry, constants = first_of(kernel, target, set())
    fed = merged(entry.overrides(constants), target).copy == TMA
    if (kernel, target) in WARPGROUPS:  # matrices are read from shared memory by the tensor cores
        assert any(re.fullmatch(r"HGMMA\.64x\d+x16\.F32\.BF16", opcode) for opcode in opcodes)
        assert not any(opcode.startswith("HMMA") for opcode in opcodes)
        assert any(opcode.startswith("UTMALDG.2D") for opcode in opcodes)
    elif fed and target.has(TCGEN05):  # one thread starts them, into tensor memory
        assert any(opcode.startswith("UTCHMMA") for opcode in opcodes)
        assert any(opcode.startswith("LDTM") for opcode in opcodes)
        assert not any(opcode.startswith("HMMA") for opcode in opcodes)
        assert any(opcode.startswith("UTMALDG") for opcode in opcodes)
    else:
        assert opcodes["HMMA.16816.F32.BF16"] and not opcodes["HMMA.16816.F32"]
        assert any(opcode.startswith("LDSM.16.") for opcode in opcodes)
        assert any(opcode.startswith("UTMALDG" if fed else "LDGSTS.E.BYPASS.128") for opcode in opcodes)
