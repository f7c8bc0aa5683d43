"""What pairs of blocks would gain that share their weights: products as they are built beside the same PTX, edited, in which
the two blocks of a cluster each copy half of a tile's weights into the shared memory of both (PTX ISA, "Data Movement and
Conversion Instructions: cp.async.bulk.tensor", `.multicast::cluster`).

    python ci/bench/pairs.py FOLDER                  build what is missing, check, time
    python ci/bench/pairs.py FOLDER --build-only     on a machine with no GPU; FOLDER then goes to one that has it

An experiment, whose outcome is why no schedule has clusters: nothing proves the edited code. A stage is given back to both
blocks, by each warp of consumers for itself, and neither block ends before the other. Rows of tiles must be even in number, so
that neighbours in the grid have the same weights. `pairs_gpu.py` checks and times them, and writes its report to `--out`. Exit
code 1 where a build fails or a kernel is wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from candidates import ARCH, IN_TURNS, PERSISTENT, ROOT, STORED, arguments, run, tma
from products import parts

sys.path.insert(0, str(ROOT))

TILES: Final = (
    tma(64, 160, 1, 7),
    tma(64, 160, 2, 6, IN_TURNS),
    tma(128, 80, 2, 6),
    tma(128, 160, 2, 4, IN_TURNS, 16),
    tma(128, 192, 2, 4, PERSISTENT + STORED),
    tma(128, 256, 2, 3, PERSISTENT + STORED, 16),
)
PAIRED: Final = "_paired"
"""What the names of edited candidates end with."""
SHARED: Final = "b"
MEET: Final = "barrier.cluster.arrive.{};\n\tbarrier.cluster.wait.acquire;"
ARRIVE: Final = re.compile(r"@(%p\d+) mbarrier\.arrive\.shared::cta\.b64 _, \[(%rd\d+)\];")
INIT: Final = re.compile(r"(mbarrier\.init\.shared::cta\.b64 \[%rd\d+\], )(\d+);")
COPY: Final = re.compile(
    r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile\.mbarrier::complete_tx::bytes "
    r"\[(%rd\d+)\], \[(%rd\d+), \{(%r\d+), (%r\d+)\}\], \[(%rd\d+)\];"
)


def main() -> int:
    """Build, then time; the exit status."""
    options = arguments("products of pairs of blocks that share their weights").parse_args()
    timed, options.build_only = not options.build_only, True
    if run(options, TILES, parts, ""):
        return 1
    for one in TILES:
        if options.only in one.name and not (options.folder / (one.name + PAIRED)).is_dir():
            pair(options.folder / one.name, options.folder / (one.name + PAIRED))
    options.build_only = False
    return run(options, TILES, parts, "pairs_gpu.py") if timed else 0


def pair(folder: Path, made: Path) -> None:
    """A candidate like that of `folder`, whose blocks work in pairs."""
    from tilec.assemble import assemble
    from tilec.target import Target

    shutil.copytree(folder, made)
    (path,) = (made / "artifacts" / "build" / f"{ARCH}a").glob("*.json")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    (weights,) = (one for one in manifest["tensor_maps"] if one["tensor"] == SHARED)
    weights["box"][0] //= 2
    text = paired(path.with_suffix(".ptx").read_text(encoding="utf-8"), manifest, weights)
    path.with_suffix(".ptx").write_text(text, encoding="utf-8")
    cubin = assemble(text, Target.parse(ARCH)).cubin
    path.with_suffix(".cubin").write_bytes(cubin)
    manifest["digests"] |= {"ptx": hashlib.sha256(text.encode()).hexdigest(), "cubin": hashlib.sha256(cubin).hexdigest()}
    path.write_text(json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def paired(text: str, manifest: dict[str, Any], weights: dict[str, Any]) -> str:
    """The PTX of a product whose blocks are alone, for pairs; `weights` describes the box that a block of a pair copies."""
    stages = manifest["schedule"]["pipelines"][0]["stages"]
    rows, columns = weights["box"]
    found = {"empty": 0, "copies": 0}

    def init(match: re.Match[str]) -> str:
        if match[2] == "1":  # who starts copies, which each block does for itself
            return match[0]
        found["empty"] += 1
        return f"{match[1]}{int(match[2]) * (2 if found['empty'] <= stages else 1)};"  # turns are passed on inside a block

    def arrive(match: re.Match[str]) -> str:
        both = "mbarrier.arrive.shared::cluster.b64 _"
        return (
            "{ .reg .pred e, f, g; .reg .b32 a, b, x, y; "
            f"cvt.u32.u64 a, {match[2]}; mov.u32 b, dynamic_shared; sub.u32 b, a, b; setp.lt.u32 e, b, {16 * stages}; "
            f"and.pred f, e, {match[1]}; not.pred e, e; and.pred g, e, {match[1]}; "
            f"mapa.shared::cluster.u32 x, a, 0; mapa.shared::cluster.u32 y, a, 1; @f {both}, [x]; @f {both}, [y]; "
            f"@g mbarrier.arrive.shared::cta.b64 _, [{match[2]}]; }}"
        )

    def copy(match: re.Match[str]) -> str:
        found["copies"] += 1
        if found["copies"] % 2:  # of the activations, which are a block's own
            return match[0]
        to, tensor, depth, row, barrier = match.groups()
        return (
            "{ .reg .b32 r, c; .reg .b64 d, o; .reg .b16 k; mov.u32 r, %cluster_ctarank; "
            f"mad.lo.s32 c, r, {rows}, {row}; mul.wide.u32 o, r, {2 * rows * columns}; add.s64 d, {to}, o; mov.b16 k, 3; "
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
            f"[d], [{tensor}, {{{depth}, c}}], [{barrier}], k; }}"
        )

    text = COPY.sub(copy, ARRIVE.sub(arrive, INIT.sub(init, text)))
    text = re.sub(r"^\.reqntid \d+$", r"\g<0>\n.reqnctapercluster 2, 1, 1", text, flags=re.MULTILINE)
    start = f"bar.sync \t0;\n\tfence.mbarrier_init.release.cluster;\n\t{MEET.format('release')}"
    text = text.replace("bar.sync \t0;", start, 1)
    return text.replace("\tret;", f"\t{MEET.format('relaxed')}\n\tret;")


if __name__ == "__main__":
    sys.exit(main())
