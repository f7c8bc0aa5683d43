"""Converts a bundle to plain data, for tables and JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tilec.artifact.records import Manifest, to_json
from tilec.project.build.report import RUNGS
from tilec.runtime import Bundle, BundledKernel
from tilec.step.requests import choices
from tilec.step.step import DTYPES, Step
from tilec.tuning.table import origin


def proofs_by_rung(manifest: Manifest) -> dict[str, int]:
    """The number of obligations that each rung discharged, strongest rung first."""
    counts = Counter(obligation.rung for obligation in manifest.obligations)
    return {rung: counts[rung] for rung in (*RUNGS, *sorted(counts.keys() - set(RUNGS))) if counts[rung]}


def shared_bytes(manifest: Manifest) -> int:
    """Bytes of shared memory per block, static and dynamic."""
    return manifest.resources.static_shared_bytes + manifest.resources.dynamic_shared_bytes


def kernel_summary(bundle: Bundle, kernel: BundledKernel) -> dict[str, Any]:
    """One row of a list."""
    manifest = kernel.manifest
    return {
        "name": kernel.name,
        "kernel": manifest.kernel,
        "constants": manifest.constants,
        "steps": list(kernel.steps),
        "registers": manifest.resources.registers,
        "spill_bytes": manifest.resources.spill_bytes,
        "shared_bytes": shared_bytes(manifest),
        "proofs": proofs_by_rung(manifest),
        "unsafe": len(manifest.unsafe),
        "cubin_bytes": bundle.blobs[kernel.blob].size,
        "cubin": kernel.blob,
    }


def summary(bundle: Bundle) -> dict[str, Any]:
    """The whole bundle, one row per kernel."""
    return {
        "model": bundle.model,
        "arch": bundle.arch,
        "sha256": bundle.digest,
        "model_digest": bundle.model_digest,
        "has_step": bundle.has_step,
        "bytes": bundle.size,
        "blobs": len(bundle.blobs),
        "cubin_bytes": sum(blob.size for blob in bundle.blobs.values()),
        "config": dict(bundle.config),
        "tuning": bundle.tables,
        "kernels": [kernel_summary(bundle, kernel) for kernel in bundle.kernels],
    }


def kernel_lines(bundle: Bundle, kernel: BundledKernel) -> list[str]:
    """A readable description of one kernel: launch contract, resources, proofs, digests."""
    manifest = kernel.manifest
    used = manifest.resources
    lines = [
        f"{kernel.name} for {manifest.arch}",
        f"  used by {', '.join(kernel.steps)}" if kernel.steps else "  used by no step",
    ]
    lines += ["", "launch"]
    for tensor in manifest.tensors:
        dims = ", ".join(str(dim) for dim in tensor.dims)
        strides = "" if tensor.strides is None else f", strides [{', '.join(str(stride) for stride in tensor.strides)}]"
        lines.append(f"  {tensor.access} {tensor.name}: {tensor.dtype} [{dims}], aligned to {tensor.align} bytes{strides}")
    lines += [f"  scalar {scalar.name}: {scalar.dtype}" for scalar in manifest.scalars]
    lines.append(f"  grid ({', '.join(str(axis) for axis in manifest.grid)}), {manifest.block} threads per block")
    lines += [f"  requires {check.text}" for check in manifest.launch_checks]
    for check in manifest.value_checks:
        lines.append(f"  requires {check.low} <= values of {check.tensor} < {check.high}{check.words}")
    lines += [f"  ensures {promise}" for promise in manifest.promises]
    lines += [f"  {left} and {right} must not overlap" for left, right in manifest.no_alias]
    lines += ["", "resources"]
    lines.append(f"  {used.registers} registers, {used.spill_bytes} bytes of spills, {used.stack_bytes} bytes of stack")
    lines.append(f"  {used.static_shared_bytes} + {used.dynamic_shared_bytes} bytes of shared memory, static + dynamic")
    lines.append(f"  {bundle.blobs[kernel.blob].size} bytes of code")
    lines += ["", "proofs"]
    for one in manifest.obligations:
        facts = f" by {'; '.join(one.facts)}" if one.facts else ""
        lines.append(f"  {one.location}: {one.property} of {one.subject}: {one.rung}{facts}")
    lines += [f"  unsafe: {text}" for text in manifest.unsafe]
    lines += ["", "digests", f"  bundle {bundle.digest}", *(f"  {name} {digest}" for name, digest in manifest.digests.items())]
    lines += ["", "toolchain", *(f"  {name} {text}" for name, text in manifest.toolchain.items())]
    return lines


def kernel_json(bundle: Bundle, kernel: BundledKernel) -> dict[str, Any]:
    """`kernel_lines` as data: the whole manifest."""
    return {"name": kernel.name, "steps": list(kernel.steps), "bundle": bundle.digest, "manifest": to_json(kernel.manifest)}


def tuning_json(bundle: Bundle) -> dict[str, Any]:
    """The tuning tables, and which artifact serves which lengths, for launches that the tuning chooses."""
    numbers = {**bundle.config, **bundle.tuning.numbers}
    step = Step(
        bundle.declaration, numbers, tied=False, dtype=DTYPES[0], max_seq_len=1, weight_format=bundle.weight_format,
        cache_format=bundle.cache_format, ranks=bundle.gpus,
    )  # fmt: skip
    serves = [
        {
            "operation": one.op, "kernel": one.kernel, "tokens": [one.first, one.last], "constants": dict(one.constants),
            "artifacts": [
                kernel.name
                for kernel in bundle.kernels
                if kernel.manifest.kernel == one.kernel and one.constants.items() <= kernel.manifest.constants.items()
            ],
        }
        for one in choices(step, bundle.tuning)
    ]  # fmt: skip
    return {"model": bundle.model, "arch": bundle.arch, "sha256": bundle.digest, "tuning": bundle.tables, "serves": serves}


def tuning_lines(bundle: Bundle) -> list[str]:
    """`tuning_json` as readable lines."""
    data = tuning_json(bundle)
    lines = [f"{bundle.model} for {bundle.arch}"]
    for table in bundle.tables:
        numbers = ", ".join(f"{name} = {value}" for name, value in table.get("numbers", {}).items())
        lines += ["", *([f"numbers {numbers}"] if numbers else [])]
        lines += [f"{table['kernel']} by {table['cost']}"] if "kernel" in table else []
        lines.append(f"  {origin(table['measured'])}")
        for one in data["serves"] if "kernel" in table else ():
            if one["kernel"] == table["kernel"]:
                first, last = one["tokens"]
                constants_text = " ".join(f"{name}={value}" for name, value in one["constants"].items())
                lines.append(f"  {one['operation']:<24} {first:>5} to {last:>5} tokens  {constants_text}")
    return lines
