"""Makes what `qualify_faults` runs: side files of right bundles, and bundles with one planted fault each.

Needs the assembler (`tilec[compiler]`) and `tilec[audit]`, and no GPU.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec import emulator
from tilec.artifact.bundle_format import encode as encode_bundle
from tilec.artifact.records import Manifest
from tilec.qualify import prepare, preparing
from tilec.qualify.side_file import Entry, Launch, encode, read
from tilec.runtime import Bundle, BundledKernel, open_bundle

Row = dict[str, Any]
Array = NDArray[Any]
AT_EACH: Final = 2
"""Artifacts with a fault of one kind."""
TRIES: Final = 40
"""Places that are tried for a fault of one kind at one artifact."""
EMULATED: Final = 2
"""Launches at which the emulator is asked whether a change matters."""
INSTRUCTIONS: Final = 2_000_000
KERNELS: Final = (
    "rms_norm", "matvec_add_scaled", "embedding", "decode_merge", "qk_norm_rope_kv", "argmax_reduce", "advance_rows",
    "add_rms_norm", "scaled_matvec", "topk_blocks", "gather_row", "matmul_few", "rotary_decode_attention",
)  # fmt: skip
"""Kernels that faults are planted in: those of one kind at the first ones where the emulator shows that it matters, from
another kernel on for each kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: a pattern with one group, and what the group becomes."""

    name: str
    pattern: str
    change: str
    """`+1`, `*2`, `/2`, `float`, `negate`, or the new text."""

    def after(self, old: str) -> str:
        """The changed text."""
        match self.change:
            case "+1":
                return str(int(old) + 1)
            case "*2":
                return str(int(old) * 2)
            case "/2":
                return str(int(old) // 2)
            case "float":
                value = np.uint32(int(old[2:], 16)).view(np.float32) * np.float32(1.125)
                return f"0f{int(np.float32(value).view(np.uint32)):08X}"
            case "negate":
                return old[1:] if old.startswith("!") else f"!{old}"
            case _:
                return self.change


KINDS: Final = (
    Kind("float constant", r"(0f[34][0-9A-F]{7})", "float"),
    Kind("shift distance", r"shl\.b32 \t%r\d+, %r\d+, (\d+);", "+1"),
    Kind("mask", r"and\.b32 \t%r\d+, %r\d+, (\d+);", "/2"),
    Kind("stride of a row", r"mul\.wide\.[us]32 \t%rd\d+, %r\d+, (\d+);", "/2"),
    Kind("offset of a load", r"ld\.global\S* \t?[^;]*\[%rd\d+\+(\d+)\]", "*2"),
    Kind("offset of a store", r"st\.global\S* \t?\[%rd\d+\+(\d+)\]", "*2"),
    Kind("lane of a shuffle", r"shfl\.sync\.bfly\.b32 \t%r\d+, %r\d+, (\d+), 31", "/2"),
    Kind("bound of a comparison", r"setp\.\w+\.[us]32 \t%p\d+, %r\d+, (-?\d+);", "+1"),
    Kind("offset in shared memory", r"ld\.shared\S* \t?[^;]*\[%rd?\d+\+(\d+)\]", "/2"),
    Kind("constant of an addition", r"add\.s(?:32|64) \t%rd?\d+, %rd?\d+, (\d+);", "+1"),
    Kind("operation", r"\t(add\.f32) ", "sub.f32"),
    Kind("predicate", r"@(!?%p\d+) bra", "negate"),
)
"""One wrong constant of ten kinds, a wrong operation and a wrong predicate."""
BYTE: Final = "byte of machine code"


def built(bundles: list[Path], folder: Path, references: Path | None, jobs: int) -> int:
    """Write all files of `qualify_faults` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for path in bundles:
        target = folder / path.name
        if path.resolve() != target.resolve():
            shutil.copyfile(path, target)
        side = target.with_suffix(".qualify")
        with open_bundle(target, trust="none") as bundle:
            found = preparing.entries(prepare.subjects(bundle), jobs, None, references)
            side.write_bytes(encode(prepare.side_file(bundle, found)))
            print(f"{side.name}: {len(found)} artifacts, {side.stat().st_size} bytes", flush=True)
            if path == bundles[0]:
                rows = [*_faulty(bundle, read(side).entries, folder, side.name), *_bytes(bundle, folder, side.name)]
    (folder / "faults.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} faults of {len({row['kind'] for row in rows})} kinds")
    return 0


def _faulty(bundle: Bundle, entries: Mapping[str, Entry], folder: Path, side: str) -> Iterator[Row]:
    """A bundle for each fault, and what it is."""
    texts = bundle.texts()
    for turn, kind in enumerate(KINDS):
        done: list[str] = []
        for step in range(len(KERNELS)):
            name = KERNELS[(turn + step) % len(KERNELS)]
            kernel = next((one for one in bundle.kernels if one.manifest.kernel == name), None)
            if kernel is None or len(done) == AT_EACH:
                continue
            ptx = texts[kernel.manifest.digests["ptx"]].decode()
            found = _planted(kernel.manifest, ptx, entries[kernel.name], kind)
            if found is None:
                continue
            text, cubin, before, after, shown = found
            file = f"fault-{turn:02}-{len(done)}.bundle"
            (folder / file).write_bytes(one_artifact(bundle, kernel, cubin, texts, text.encode()))
            yield {
                "bundle": file, "side": side, "kind": kind.name, "artifact": kernel.name, "before": before, "after": after,
                "emulator": shown,
            }  # fmt: skip
            print(f"{file}: {kind.name}, {kernel.name}: {before} -> {after}: {shown}", flush=True)
            done.append(file)


def _planted(manifest: Manifest, ptx: str, entry: Entry, kind: Kind) -> tuple[str, bytes, str, str, str] | None:
    """Changed PTX, its CUBIN, the instruction before and after, and how the emulator shows that it matters; None if no place
    does."""
    from tilec.assemble import assemble
    from tilec.diagnostics.diagnostic import CompileError
    from tilec.target.targets import Target

    launches = [one for one in entry.launches if not one.timed][:EMULATED]
    rights = [_emulated(manifest, ptx, launch) for launch in launches]
    sites = list(re.finditer(kind.pattern, ptx))
    first = zlib.crc32(f"{manifest.kernel} {kind.name}".encode())
    for number in range(min(len(sites), TRIES)):
        match = sites[(first + number) % len(sites)]
        after = kind.after(match[1])
        if after == match[1]:
            continue
        text = ptx[: match.start(1)] + after + ptx[match.end(1) :]
        shown = next((one for launch, right in zip(launches, rights, strict=True)
                      if (one := _matters(manifest, text, launch, right))), "")  # fmt: skip
        if not shown:
            continue
        try:
            cubin = assemble(text, Target.parse(manifest.arch)).cubin
        except CompileError:
            continue
        lines = [one.count("\n", 0, match.start(1)) for one in (ptx, text)]
        shown_lines = [one.split("\n")[line].strip().replace("\t", " ") for one, line in zip((ptx, text), lines, strict=True)]
        return text, cubin, shown_lines[0], shown_lines[1], shown
    return None


def _emulated(manifest: Manifest, ptx: str, launch: Launch) -> Any:
    arrays = {spec.name: prepare.laid_out(manifest, spec, launch.values, launch.kind)[0] for spec in manifest.tensors}
    limits = emulator.Limits(instructions=INSTRUCTIONS)
    return emulator.emulate(ptx, manifest, arrays, {**launch.values, **launch.scalars}, limits=limits)


def _matters(manifest: Manifest, ptx: str, launch: Launch, right: Any) -> str:
    """How a changed text differs from the right one in the emulator: a fault, or bits of a result; empty if it does not."""
    try:
        found = _emulated(manifest, ptx, launch)
    except (emulator.UnsupportedPtx, MemoryError, ValueError):
        return ""
    kinds = sorted({fault.kind for fault in found.faults} - {"limit"})
    if any(fault.kind == "limit" for fault in found.faults):
        return ""  # it may never end; a hang is another kind of fault
    for spec in manifest.tensors:
        if spec.access not in ("in", "scratch"):
            left, other = (np.ascontiguousarray(one.tensors[spec.name]).view(np.uint8) for one in (right, found))
            if not np.array_equal(left, other):
                return f"`{spec.name}` differs at {launch.name}"
    return f"{kinds[0]} at {launch.name}" if kinds == ["bounds"] else ""


def _bytes(bundle: Bundle, folder: Path, side: str) -> Iterator[Row]:
    """A bundle whose CUBIN has one byte changed: a constant that the assembler put into an instruction. Where it is, is seen by
    assembling the PTX with another constant and comparing."""
    from tilec.assemble import assemble
    from tilec.target.targets import Target

    texts = bundle.texts()
    kernel = next(one for one in bundle.kernels if one.manifest.kernel == "rms_norm")
    ptx = texts[kernel.manifest.digests["ptx"]].decode()
    match = re.search(KINDS[0].pattern, ptx)
    assert match is not None, "`rms_norm` has no float constant"
    other = ptx[: match.start(1)] + KINDS[0].after(match[1]) + ptx[match.end(1) :]
    target = Target.parse(kernel.manifest.arch)
    original = np.frombuffer(bundle.cubin(kernel), np.uint8)
    same, changed = (np.frombuffer(assemble(text, target).cubin, np.uint8) for text in (ptx, other))
    if not np.array_equal(same, original) or changed.size != original.size:
        return
    differing = np.flatnonzero(changed != original)
    runs = np.split(differing, np.flatnonzero(np.diff(differing) > 8) + 1)
    digest_run = next(run for run in runs if run.size <= 4)  # of several, digests of the text that the CUBIN records are longer
    cubin = original.copy()
    cubin[digest_run] = changed[digest_run]
    file = "fault-byte.bundle"
    (folder / file).write_bytes(one_artifact(bundle, kernel, cubin.tobytes(), texts, ptx.encode()))
    before, after = (bytes(code[digest_run]).hex() for code in (original, cubin))
    yield {
        "bundle": file, "side": side, "kind": BYTE, "artifact": kernel.name, "before": before, "after": after, "emulator": "",
    }  # fmt: skip
    print(f"{file}: {digest_run.size} bytes at {int(digest_run[0])}: {before} -> {after}", flush=True)


def one_artifact(bundle: Bundle, kernel: BundledKernel, cubin: bytes, texts: Mapping[str, bytes], ptx: bytes) -> bytes:
    """A bundle of one artifact with other machine code and PTX, and digests that are right."""
    whole = json.loads(bundle.manifest_text)
    (record,) = (one for one in whole["kernels"] if one["name"] == kernel.name)
    digests = record["manifest"]["digests"]
    tir = texts[digests["tir"]]
    digests |= {"cubin": hashlib.sha256(cubin).hexdigest(), "ptx": hashlib.sha256(ptx).hexdigest()}
    record["blob"] = digests["cubin"]
    description = {key: value for key, value in whole.items() if key not in ("blobs", "texts")} | {"kernels": [record]}
    texts = {digests["tir"]: tir, digests["ptx"]: ptx}
    proofs = None if kernel.proofs is None else {kernel.proofs: bundle.proofs()[kernel.proofs]}
    return encode_bundle(description, {digests["cubin"]: cubin}, texts, proofs)
