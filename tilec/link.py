"""Combines the products of the stages into an artifact's manifest and the summary for a build's table.

It is not a stage: the record of proofs contains source lines, which shift with comments. Neither those nor an edit of this file
cause code to be generated again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import MANIFEST_FORMAT, PROOF_FIELDS, json_bytes
from tilec.diagnostics.internal_errors import reported_as_diagnostics
from tilec.ir.text.lines import source_of
from tilec.pipeline import STAGES, Work
from tilec.toolchain import stated
from tilec.version import VERSION

NOTE_CODES: Final = {"narrow_access": "N0101", "tensor_core": "N0102", "spill": "N0103", "layout_change": "N0105"}
"""Codes of notes, by the kind in `tilec.passes.schedule.notes`."""


def link(work: Work) -> None:
    """Adds the product `json`, the manifest, and `summary`, the figures for a build's table."""
    with reported_as_diagnostics(f"the manifest of kernel `{work.request.kernel}`", work.span):
        _link(work)


def _link(work: Work) -> None:
    interface, proofs, schedule, launch, resources = (
        work.data(name) for name in ("interface", "proofs", "schedule", "launch", "resources")
    )
    request = work.request
    assert work.target is not None
    resources["dynamic_shared_bytes"] = launch["dynamic_shared_bytes"]
    one_by_one: bool = resources.pop("one_by_one")
    schedule.pop("most_blocks", None)
    schedule["blocks"] = resources.pop("blocks", schedule["blocks"])
    source, own = digest_of_files(request.sources), digest_of_files(request.compiler)
    manifest: dict[str, Any] = {
        "format": MANIFEST_FORMAT,
        "kernel": request.kernel,
        "entry": launch["entry"],
        "arch": work.target.name,
        "constants": interface["constants"],
        "tensors": [tensor | {"align": launch["alignments"][tensor["name"]]} for tensor in interface["tensors"]],
        "scalars": interface["scalars"],
        "abi": launch["abi"],
        "tensor_maps": launch["tensor_maps"],
        "grid": interface["grid"],
        "block": launch["block"],
        "cluster": schedule["cluster"],
        "schedule": schedule,
        "dependent_launch": launch["dependent_launch"],
        "resources": resources,
        "digests": {"source": source} | {stage.name: work.digests[stage.name] for stage in STAGES},
        "toolchain": {"tilec": f"{VERSION} sha256:{own}"} | stated(request.toolchain),
    }
    manifest |= {name: proofs[name] for name in PROOF_FIELDS if name in proofs}
    manifest_from_json(manifest)
    rungs: dict[str, int] = {}
    for obligation in proofs["obligations"]:
        rungs[obligation["rung"]] = rungs.get(obligation["rung"], 0) + 1
    work.products["json"] = json_bytes(manifest)
    summary = {
        "resources": resources,
        "proofs": rungs,
        "unsafe": len(proofs["unsafe"]),
        "notes": note_records(launch, work.products["spans"], resources["spill_bytes"], one_by_one),
        "aligned": launch["aligned"],
    }
    work.products["summary"] = json_bytes(summary)


def digest_of_files(digests: Mapping[str, str]) -> str:
    """One digest of several named digests."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def note_records(launch: dict[str, Any], spans: bytes, spilled: int = 0, one_by_one: bool = False) -> list[dict[str, Any]]:
    """Performance notes as plain data: code, message, span in the source (None if there is none), hint, and whether the aligned
    version of the kernel has no need of it. `launch` and `spans` are the products; a spill note is included if `spilled` bytes
    is not 0, and a note on serialized `wgmma` if `one_by_one`."""
    found: list[dict[str, Any]] = []
    if one_by_one:
        text = "the assembler has tensor cores wait for each product before they begin the next"
        hint = "choose another schedule; this is a bug in tilec, please report it with the output of `tilec dump --stage ptx`"
        found.append({"code": NOTE_CODES["tensor_core"], "message": text, "span": None, "hint": hint, "aligned": False})
    for note in launch["notes"]:
        text = note["text"]
        if note["kind"] == "spill":
            if not spilled:
                continue
            text = f"{spilled} bytes of registers are kept in memory; the threads' largest share is of {text}"
        location = source_of(spans, note["line"])
        record = {
            "code": NOTE_CODES[note["kind"]],
            "message": text,
            "span": location and asdict(location),
            "hint": note["hint"],
        }
        found.append(record | {"aligned": note["aligned"]})
    return found
