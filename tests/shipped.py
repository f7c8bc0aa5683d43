"""The kernels of build.toml, for tests of every shipped kernel: at the first specialisation unless one is named. Kernels of the
examples can be loaded by name as well."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import tilec
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.passes.prover import positive_divisions
from tilec.passes.schedule import prepare
from tilec.project.read.buildfile import read_build_file
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant
from tilec.target.schedule import NOTHING_FIXED, Overrides, merged
from tilec.target.targets import MAIN_TARGETS, Target

ROOT = Path(tilec.__file__).parent.parent
EXAMPLES = ROOT / "examples" / "kernels"


@cache
def all_entries() -> tuple[KernelEntry, ...]:
    """Every `[[kernel]]`."""
    return read_build_file(ROOT / "build.toml").entries


@cache
def entries() -> dict[str, KernelEntry]:
    """The first entry of each kernel, by name."""
    found: dict[str, KernelEntry] = {}
    for entry in all_entries():
        found.setdefault(entry.name, entry)
    return found


@cache
def example_entries() -> tuple[KernelEntry, ...]:
    """Every `[[kernel]]` of the examples."""
    return read_build_file(EXAMPLES / "build.toml").entries


def source(name: str) -> Path:
    """The file of a shipped kernel or an example."""
    return (ROOT / "kernels_src" if name in entries() else EXAMPLES) / f"{name}.py"


def specialisation(
    name: str, wanted: Mapping[str, Constant], target: Target | None = None
) -> tuple[KernelEntry, dict[str, Constant]]:  # fmt: skip
    """The first specialisation that agrees with `wanted` on the constants that it has, and is built for `target` if that is
    given; LookupError if there is none."""
    for entry in (*all_entries(), *example_entries()):
        built = target is None or target in entry.targets
        for constants in entry.specialisations() if entry.name == name and built else ():
            if all(wanted.get(key, value) == value for key, value in constants.items()):
                return entry, constants
    raise LookupError(f"build.toml has no {name} with {wanted}")


def load(name: str, wanted: Mapping[str, Constant] = {}) -> Function:
    """A fresh function of a specialisation."""
    return pickle.loads(_loaded(name, tuple(wanted.items())))


def prepared(name: str, target: Target, wanted: Mapping[str, Constant] = {}) -> Function:
    """The same, prepared for lowering."""
    return pickle.loads(_prepared(name, target, tuple(wanted.items())))


# A process prepares each function once and hands out copies: dozens of files need the same, and a copy takes a hundredth of the
# time.
@cache
def _loaded(name: str, wanted: tuple[tuple[str, Constant], ...]) -> bytes:
    _, constants = specialisation(name, dict(wanted))
    return pickle.dumps(load_kernel(source(name), constants, root=ROOT))


@cache
def _prepared(name: str, target: Target, wanted: tuple[tuple[str, Constant], ...]) -> bytes:
    constants = dict(wanted) or _first_of_target(name, target)
    return pickle.dumps(prepare_as(name, load(name, constants), target, constants))


def _first_of_target(name: str, target: Target) -> dict[str, Constant]:
    """Nothing, which means the first specialisation; if that is built for other chips only, the first one for `target`."""
    entry, _ = specialisation(name, {})
    try:
        return specialisation(name, {}, target)[1] if entry.targets and target not in entry.targets else {}
    except LookupError:
        return {}


def prepare_as(name: str, function: Function, target: Target, wanted: Mapping[str, Constant] = {}) -> Function:
    """`function` prepared with the options of the kernel's entry."""
    entry, constants = specialisation(name, wanted)
    return prepared_with(function, target, merged(entry.overrides(constants), target))


def prepared_with(function: Function, target: Target, overrides: Overrides = NOTHING_FIXED) -> Function:
    """`function` prepared with these options, as a build does it."""
    positive = frozenset(op.operands[1] for op in positive_divisions(function))
    return prepare(function, target, overrides, positive=positive)


def as_chosen(name: str, target: Target, wanted: Mapping[str, Constant] = {}) -> Function:
    """A specialisation with the compiler's own schedule instead of the build file's."""
    return pickle.loads(_as_chosen(name, target, tuple(wanted.items())))


@cache
def _as_chosen(name: str, target: Target, wanted: tuple[tuple[str, Constant], ...]) -> bytes:
    return pickle.dumps(prepared_with(load(name, dict(wanted)), target))


COLLECTIVES = ("rank_meet", "all_reduce", "all_reduce_add", "all_reduce_add_scaled", "all_gather")
"""Kernels of which a launch waits for those of other ranks (`rank_launches`)."""
NAMES = tuple(name for name in entries() if name not in COLLECTIVES)
"""Kernels that run alone."""
CASES = [(name, target) for name in NAMES for target in MAIN_TARGETS]
IDS = [f"{name}-{target}" for name, target in CASES]
LIKE = {
    "matmul_silu_mul": "matmul", "matmul_silu_mul_few": "matmul_few", "matmul_split": "matmul_few",
    "matmul_silu_mul_fp8": "matmul_fp8",
    "matmul_split_fp8": "matmul_few_fp8", "matmul_silu_mul_few_fp8": "matmul_few_fp8",
    "matmul_split_int4": "matmul_few_int4", "matmul_silu_mul_few_int4": "matmul_few_int4",
    "decode_attention_wide": "decode_attention", "rotary_decode_attention": "decode_attention",
    "paged_decode_attention_wide": "paged_decode_attention", "paged_merge_wide": "paged_merge",
    "rotary_decode_attention_kv": "decode_attention",
    "rope_kv": "qk_norm_rope_kv", "rope_decode_attention": "decode_attention", "rope_decode_attention_kv": "decode_attention",
    "rope_merge_kv": "decode_merge",
    "rotary_decode_attention_kv_c8": "rotary_decode_attention_c8", "rope_decode_attention_c8": "rotary_decode_attention_c8",
    "rope_decode_attention_kv_c8": "rotary_decode_attention_c8", "rope_kv_c8": "qk_norm_rope_kv_c8",
    "rope_merge_kv_c8": "decode_merge_kv_c8",
    "decode_merge_kv": "decode_merge", "matvec_add_scaled": "matvec_add",
    "matvec_add_scaled_rows": "matvec_add", "scaled_matvec_rows": "scaled_matvec", "scaled_matvec_silu_mul": "scaled_matvec",
    "scaled_matvec_silu_mul_rows": "scaled_matvec", "scaled_matvec_argmax_rows": "matvec_argmax",
    "scaled_matvec_silu_mul_rows_fp8": "scaled_matvec_rows_fp8", "matvec_add_scaled_rows_fp8": "scaled_matvec_rows_fp8",
    "scaled_matvec_silu_mul_fp8": "scaled_matvec_fp8", "matvec_add_scaled_fp8": "scaled_matvec_fp8",
    "matvec_add_fp8": "scaled_matvec_fp8",
    "scaled_matvec_silu_mul_int4": "scaled_matvec_int4", "matvec_add_scaled_int4": "scaled_matvec_int4",
    "matvec_add_int4": "scaled_matvec_int4",
    "scaled_matvec_silu_mul_rows_int4": "scaled_matvec_rows_int4", "matvec_add_scaled_rows_int4": "scaled_matvec_rows_int4",
    "embedding_scaled_rows": "embedding_scaled", "advance_rows": "advance", "add_rms_norm_splits": "add_rms_norm",
    "experts_add_scaled": "experts_add", "experts_silu_mul_fp8": "experts_silu_mul", "experts_add_fp8": "experts_add",
    "experts_add_scaled_fp8": "experts_add", "experts_silu_mul_int4": "experts_silu_mul", "experts_add_int4": "experts_add",
    "experts_add_scaled_int4": "experts_add", "experts_matmul_few_fp8": "matmul_few_fp8",
    "experts_matmul_silu_mul_few_fp8": "matmul_few_fp8", "experts_matmul_few_int4": "matmul_few_int4",
    "experts_matmul_silu_mul_few_int4": "matmul_few_int4", "experts_matmul_fp8": "matmul_fp8",
    "experts_matmul_silu_mul_fp8": "matmul_fp8", "experts_down": "experts_add", "experts_down_fp8": "experts_add",
    "experts_down_int4": "experts_add", "experts_sum": "experts_combine",
}  # fmt: skip
"""Kernels made of another one's steps, and that one. In tests that need one of each form, the default run leaves these out; it
builds, interprets and emulates them all."""


def form(name: str) -> str:
    """The kernel that represents its form."""
    return LIKE.get(name, name)


def of_its_form(case: tuple[str, Target]) -> bool:
    """Whether a case is of `AROUND` and its kernel represents its form."""
    return case in AROUND and case[0] not in LIKE


TENSOR_CORES = ("matmul", "matmul_split", "flash_attention", "decode_attention")
"""Kernels whose code differs between architectures in more than its header."""


def one_target(name: str, turn: int) -> Target:
    """The architecture whose turn it is, or another that the first entry of a kernel is built for."""
    target = MAIN_TARGETS[turn % len(MAIN_TARGETS)]
    built = entries()[name].targets
    return target if target in built else next((one for one in MAIN_TARGETS if one in built), target)


AROUND = [
    (name, target)
    for turn, name in enumerate(NAMES)
    for target in (MAIN_TARGETS if name in TENSOR_CORES else (one_target(name, turn),))
]
"""Every kernel: those with tensor cores on all architectures, the others on one each, round-robin."""
AROUND_IDS = [f"{name}-{target}" for name, target in AROUND]
