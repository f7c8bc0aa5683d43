"""A shipped kernel as `build.toml` schedules it for a target: what an audit reads of the artifact, without building it."""

from __future__ import annotations

import json
from typing import Any

from tests import shipped
from tests.audit import samples
from tilec.artifact.records import to_json
from tilec.codegen import to_ptx
from tilec.lowering import lower
from tilec.passes.schedule import choose
from tilec.target.schedule import merged
from tilec.target.targets import Target


def scheduled(name: str, wanted: dict[str, Any], target: Target) -> tuple[str, str, dict[str, Any]]:
    """Tile IR, PTX, and the manifest as data, of the specialisation that has the `wanted` constants."""
    entry, constants = shipped.specialisation(name, wanted, target)
    schedule = choose(shipped.load(name, constants), target, merged(entry.overrides(constants), target))
    lowered = lower(shipped.prepared(name, target, constants), target, min_blocks=schedule.blocks)
    data: dict[str, Any] = to_json(samples.manifest(name, **constants))
    data |= {
        "arch": target.name, "abi": to_json(lowered.abi), "tensor_maps": to_json(lowered.tensor_maps),
        "entry": lowered.entry, "block": lowered.num_threads, "cluster": schedule.cluster,
        "schedule": json.loads(json.dumps(schedule.to_json())),
    }  # fmt: skip
    data["resources"]["dynamic_shared_bytes"] = lowered.dynamic_shared_bytes
    return samples.text(name, **constants), to_ptx(lowered.mlir, target), data
