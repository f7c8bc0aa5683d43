"""Clusters of blocks: whether a kernel states those that its manifest launches.

A launcher multiplies the first axis of the grid by `manifest.cluster`, and leaves it to the code to state the shape (PTX ISA,
"Cluster dimension directives"). So both must agree: a kernel that states no shape runs in single blocks, each of which would
take itself for a part of a pair.
"""

from __future__ import annotations

from typing import Any

from tilec.artifact.records import Manifest
from tilec.audit.copies import Differs, Unclear


def agree(manifest: Manifest, code: Any | None) -> None:
    """Raises Differs if the directives of an entry (None: it is not in the PTX) are not those of the manifest's clusters."""
    directives: dict[str, tuple[int, ...]] = code.directives if code is not None else {}
    stated = directives.get("reqnctapercluster")
    launched = (manifest.cluster, 1, 1)
    if stated is None:
        if "explicitcluster" in directives:
            raise Differs("the PTX demands a cluster and states no shape: it has `.explicitcluster` only")
        if manifest.cluster != 1:
            raise Differs(f"the manifest launches clusters of {manifest.cluster} blocks, and the PTX states none")
    elif (*stated, 1, 1)[:3] != launched:
        shape = " x ".join(map(str, stated))
        raise Differs(f"the PTX states clusters of {shape} blocks, and the manifest launches those of {manifest.cluster}")
    most = directives.get("maxclusterrank")
    if most is not None and most[0] < manifest.cluster:
        raise Differs(f"the PTX allows clusters of {most[0]} blocks, and the manifest launches those of {manifest.cluster}")
    if "blocksareclusters" in directives:
        raise Unclear("`.blocksareclusters`: how many blocks a grid has")
