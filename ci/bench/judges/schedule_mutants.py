"""Plants mistakes in warp-specialized schedules and in the PTX of such kernels: are they refused, or found when they run?

In: products and attention with TMA copies, at a few tile sizes. Each mistake in a prepared function
(`tests/passes/schedule_mutants.py`) is given to the schedule verifier; accepted ones are lowered and run in the emulator, in
three interleavings, and compared with the interpreter. Each mistake in the PTX is given to the emulator only. Out:
`schedule_mutants.json` and `.md`; status 1 if a mistake is not found and no reason is known.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from ci.bench.front import Outcome
from ci.bench.markdown import grid, page
from tests import tensor_attention, tensor_products
from tests.passes.schedule_mutants import mutants
from tests.tensor_products import Made
from tilec.codegen import to_ptx
from tilec.emulator import UnsupportedPtx
from tilec.ir.core import VerifyError
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.lowering import lower
from tilec.passes.schedule.checks.verify import verify
from tilec.target.targets import SM_100A

KERNELS: Final[tuple[tuple[Any, tuple[Any, ...], dict[str, Any], tuple[int, ...]], ...]] = (
    (tensor_products, ("bf16", 64, 64), {"stages": 2}, (72, 72, 392)),
    (tensor_products, ("f16", 128, 64), {"stages": 3, "consumers": 2}, (136, 72, 328)),
    (tensor_products, ("bf16", 64, 64), {"stages": 2, "persistent": True}, (136, 72, 200)),
    (tensor_products, ("bf16", 64, 64), {"stages": 3, "persistent": True, "order": "pingpong"}, (136, 200, 200)),
    (tensor_attention, ("bf16", 64, 64, 64), {"stages": 2}, (65, 170, 256, 1)),
    (tensor_products, ("bf16", 64, 64, SM_100A), {"stages": 2}, (72, 72, 392)),
    (tensor_products, ("bf16", 64, 64, SM_100A), {"stages": 2, "persistent": True}, (136, 264, 136)),
    (tensor_products, ("f16", 128, 64, SM_100A), {"stages": 3, "persistent": True, "store": "tma"}, (264, 200, 200)),
)
"""The module that compiles and runs a kernel, dtype and tile, the requested schedule, and extents of the launch: two tiles on
each axis, the second partial, with an odd or even number of iterations that use the ring buffer at least twice; six tiles for
two or three persistent blocks; two query tiles after cached tokens, of which the first sees all of four key tiles except part
of the last. With accumulators in tensor memory, at least twelve tiles, so that a block computes into each again."""
SEEDS: Final = (0, 1, 2)
NOTHING: Final = {
    "proxy_fence doubled": "the same twice",
    "barrier doubled": "the same twice",
    "shared_free doubled": "bytes are free by the plan, and it stays as it was",
    "shared_free dropped": "nothing uses the bytes after it",
    "shared_free moved": "bytes are free by the plan, and it stays as it was",
    "proxy_fence moved": "still between the ring and its barrier",
    "barrier moved": "past what touches no memory",
    "wait_mma moved": "past what touches neither accumulators nor memory",
    "acquire moved": "past arithmetic",
    "commit moved": "past arithmetic",
    "tensor_copy moved": "past the other copy, of another buffer",
    "waits for other products": "waits for more than it must",
    "wrong place": "to bytes that are free too",
    "group_mma moved": "past arithmetic",
    "wait moved": "past arithmetic",
    "release moved": "past arithmetic",
    "brings rows outside": "as zeros, of which nothing that is stored follows",
    "barrier of other number": "the barrier of all threads is in use no more",
    "product wait dropped": "of the first iteration, before which there is no product",
    "product wait weaker": "of the first iteration, before which there is no product",
    "wait asks once": "what is waited for is there by then, in these interleavings",
    "another tile": "of the first row of a group, where the launch has one group",
    "warp_barrier doubled": "the same twice",
    "warp_barrier moved": "past arithmetic",
    "wait_stores doubled": "the same twice",
    "wait_stores moved": "past arithmetic",
    "tmem_reserve moved": "still before the barrier",
    "tmem_alloc moved": "past a constant",
    "another space": "more columns than are used",
    "commit_mma moved": "past arithmetic",
    "release_mma moved": "past arithmetic",
    "accumulates wrongly: ne": "no iteration is before the first",
    "leaves out products: le": "no iteration is before the first",
    "load wait dropped": "the emulator has the values at once, and notes each use before a wait",
    "mbarrier count": "one arrival too few shows where that warp comes last, which it does in none of these interleavings",
    "proxy fence dropped": "the emulator takes mbarriers as known to copies once they are made; the verifier wants the fence",
}
"""Why mistakes of a kind, or of a kind and a detail, may remain undetected: they change nothing that a launch can observe."""
OF_ATTENTION: Final = {
    "release dropped": "of the last stage, which nobody fills again",
    "arrival dropped": "of the last stage, which nobody fills again",
    "arrival of all threads": "of the last stage, which nobody fills again",
    "wrong stage": "of the only stage, or of the first iteration",
    "wrong parity": "of the only round, or of the first",
    "counts other stages": "of the second iteration, from what is known of the first",
    "leaves out rows of q": "rows of queries are rows of what is stored",
    "leaves out rows of v_cache": "the cache ends where a tile does",
    "leaves out rows of k_cache": "a select keeps scores of keys outside from what is stored",
    "wrong coordinate": "the launch has one head of keys, and one of queries for it",
    "wait dropped": "for a first round, or for a stage of keys, which is free before that of the values before it",
}
"""The same for attention."""
OF_PINGPONG: Final = {
    "another tile": "of the first row of a group, where the launch has one group; or of a place that is the same for all tiles "
    "of a consumer, or modulo two rounds of the ring",
    "counts other stages": "of the second consumer's first place, which is less than two rounds of the ring",
    "loop begins elsewhere": "the first of two consumers begins all of its tiles at stage 0 of two",
}
"""The same for ping-pong consumers (`tests/passes/test_iterations_unchanged.py` runs the mistakes in places)."""
IN_TENSOR_MEMORY: Final = {
    "tensor fence dropped": "the emulator notes a missing fence, and orders without it",
    "barrier dropped": "before the columns are freed, by a warp that has met the other ones since they loaded",
}
"""The same for products in tensor memory."""
OF_ONE_TILE: Final = dict.fromkeys(
    ("release dropped", "arrival dropped", "arrival of all threads", "wait dropped", "warp barrier dropped"),
    "of an accumulator that nobody computes again",
)
"""The same where a block computes one tile there."""
OTHER_BYTES: Final = r"(@%\w+ mbarrier\.complete_tx\S+ \[%\w+\], )(%\w+);"


def more_bytes(match: re.Match[str], more: int) -> str:
    """Another count of the out-of-bounds bytes, which is in a register."""
    return f"{{ .reg .b32 other; add.s32 other, {match[2]}, {more}; {match[1]}other; }}"


PTX: Final[tuple[tuple[str, str, Callable[[re.Match[str]], str]], ...]] = (
    ("mbarrier count", r"(mbarrier\.init\.[\w:.]+ \[%\w+\], )(\d+);", lambda m: f"{m[1]}{int(m[2]) + 1};"),
    ("mbarrier count", r"(mbarrier\.init\.[\w:.]+ \[%\w+\], )([2-9]|\d\d+);", lambda m: f"{m[1]}{int(m[2]) - 1};"),
    ("mbarrier init dropped", r"mbarrier\.init\.[\w:.]+ \[%\w+\], \d+;", lambda m: ""),
    ("bytes expected", r"(mbarrier\.arrive\.expect_tx\.[\w:.]+ _, \[%\w+\], )(\d+);", lambda m: f"{m[1]}{int(m[2]) - 16};"),
    ("bytes expected", r"(mbarrier\.arrive\.expect_tx\.[\w:.]+ _, \[%\w+\], )(\d+);", lambda m: f"{m[1]}{int(m[2]) + 16};"),
    ("announcement dropped", r"mbarrier\.arrive\.expect_tx[^;]*;", lambda m: ""),
    ("arrival dropped", r"@%\w+ mbarrier\.arrive\.shared[^;]*;", lambda m: ""),
    ("arrival of all threads", r"@%\w+ (mbarrier\.arrive\.shared[^;]*;)", lambda m: m[1]),
    ("wait dropped", r"\{ \.reg \.pred done; again: [^}]*\}", lambda m: ""),
    ("wait asks once", r"(\{ \.reg \.pred done; again: [^}]*;) @!done bra again; \}", lambda m: f"{m[1]} }}"),
    ("copy dropped", r"cp\.async\.bulk\.tensor[^;]*;", lambda m: ""),
    ("copy counted elsewhere", r"(cp\.async\.bulk\.tensor[^;]*\[%\w+)\];", lambda m: f"{m[1]}+8];"),
    ("copy goes elsewhere", r"(cp\.async\.bulk\.tensor\S+ \[%\w+)\]", lambda m: f"{m[1]}+128]"),
    ("proxy fence dropped", r"fence\.proxy\.async[^;]*;", lambda m: ""),
    ("barrier dropped", r"bar\.sync[^;]*;", lambda m: ""),
    ("barrier of other threads", r"bar\.sync \t(\d+), (\d+);", lambda m: f"bar.sync \t{m[1]}, {int(m[2]) - 32};"),
    ("barrier of other threads", r"bar\.sync \t(\d+), (\d+);", lambda m: f"bar.sync \t{m[1]}, {int(m[2]) + 32};"),
    ("barrier of other number", r"bar\.sync \t([1-9]), (\d+);", lambda m: f"bar.sync \t0, {m[2]};"),
    ("missing bytes not counted", r"@%\w+ mbarrier\.complete_tx[^;]*;", lambda m: ""),
    ("missing bytes counted elsewhere", r"(@%\w+ mbarrier\.complete_tx\S+ \[%\w+)\]", lambda m: f"{m[1]}+8]"),
    ("missing bytes counted where none are", r"@(%\w+ mbarrier\.complete_tx)", lambda m: f"@!{m[1]}"),
    ("other missing bytes", OTHER_BYTES, lambda m: more_bytes(m, 16)),
    ("other missing bytes", OTHER_BYTES, lambda m: more_bytes(m, -16)),
    ("box of other rows", r"(selp\.b64 \t%rd\d+, )(%rd\d+), (%rd\d+)", lambda m: f"{m[1]}{m[3]}, {m[2]}"),
    ("fewer rows than lie inside", r"(setp\.lt\.s32 \t%p\d+, %r\d+, )\d+(;\s+selp\.b64)", lambda m: f"{m[1]}{1 << 20}{m[2]}"),
    ("product wait dropped", r"wgmma\.wait_group[^;]*;", lambda m: ""),
    ("product commit dropped", r"tcgen05\.commit[^;]*;", lambda m: ""),
    ("product commit elsewhere", r"(tcgen05\.commit[^;]*\[%\w+)\];", lambda m: f"{m[1]}+8];"),
    ("product dropped", r"tcgen05\.mma[^;]*;", lambda m: ""),
    ("product adds to what was there", r"(tcgen05\.mma[^;]*, )%p\d+;", lambda m: f"{m[1]}more;"),
    ("product forgets what was there", r"setp\.eq\.u32 more, 0, 0;", lambda m: "setp.ne.u32 more, 0, 0;"),
    ("product of other columns", r"(add\.s64 [ab], %rd\d+, )(\d+);", lambda m: f"{m[1]}{int(m[2]) + 2};"),
    ("load wait dropped", r"tcgen05\.wait::ld[^;]*;", lambda m: ""),
    ("load of other columns", r"(tcgen05\.ld[^;]* \+ )(\d+)\];", lambda m: f"{m[1]}{int(m[2]) + 8}];"),
    ("warp barrier dropped", r"bar\.warp\.sync[^;]*;", lambda m: ""),
    ("tensor fence dropped", r"tcgen05\.fence[^;]*;", lambda m: ""),
    ("fewer columns allocated", r"(tcgen05\.alloc[^;]*, )(\d+);", lambda m: f"{m[1]}{int(m[2]) // 2};"),
    ("columns not freed", r"tcgen05\.dealloc[^;]*;", lambda m: ""),
    ("product wait weaker", r"(wgmma\.wait_group\.sync\.aligned )(\d);", lambda m: f"{m[1]}{int(m[2]) + 1};"),
)  # fmt: skip
"""Mistakes of lowering: a kind, the pattern it applies to, and the replacement."""


def by_ptx(text: str) -> Iterator[tuple[str, str, str]]:
    """Kind, line and PTX of each mistake."""
    for kind, pattern, edit in PTX:
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            yield kind, f"line {line}", text[: match.start()] + edit(match) + text[match.end() :]


def maker(kernel: Made) -> Any:
    """The module that runs a kernel."""
    return tensor_attention if kernel.prepared.name == "flash_attention" else tensor_products


def run(kernel: Made, extents: tuple[int, ...], ptx: str) -> str:
    """The fault found by the emulator or by comparison with the interpreter; empty if there is none."""
    try:
        for seed in SEEDS:
            report, found, right = maker(kernel).emulated(kernel, extents, seed, ptx)
            if not report.clean:
                return f"fault: {report.faults[0].kind}"
            if maker(kernel).differs(found, right):
                return "another result"
    except (UnsupportedPtx, ValueError) as error:
        return f"refused: {error}"
    return ""


def idle_lines(kernel: Made, extents: tuple[int, ...]) -> set[str]:
    """PTX lines that the launch does not execute: in a loop unrolled by LLVM, the remainder of an even number of iterations."""
    counts: dict[int, int] = maker(kernel).emulated(kernel, extents, 0)[0].statistics["lane_counts"]
    return {f"line {line}" for line, count in counts.items() if not count}


def detect(kernel: Made, extents: tuple[int, ...], text: str) -> tuple[str, str]:
    """Which check finds a mistake in a prepared function, and its message."""
    function = parse_function(text)
    try:
        verify(function, kernel.target)
        lowered = lower(function, kernel.target)
        ptx = to_ptx(lowered.mlir, kernel.target)
    except VerifyError as error:
        return "verifier", str(error)
    if ptx == kernel.ptx:
        return "nobody", "the same code"
    described = replace(kernel.manifest, abi=lowered.abi, tensor_maps=lowered.tensor_maps)  # other copies, other tensor maps
    return emulated(kernel._replace(manifest=described), extents, ptx)


def emulated(kernel: Made, extents: tuple[int, ...], ptx: str) -> tuple[str, str]:
    """The emulator and what it finds in PTX, or nobody."""
    message = run(kernel, extents, ptx)
    return ("emulator", message) if message else ("nobody", "")


_kept: list[tuple[Made, tuple[int, ...]]] = []
"""In a process of the pool: the kernel whose mistakes it checks, and the extents of its launch. A pool forks with them, since
targets are compared by identity."""


def _keep(kernel: Made, extents: tuple[int, ...]) -> None:
    _kept[:] = [(kernel, extents)]


def _checked(planted: tuple[str, str]) -> tuple[str, str]:
    """Which check finds a mistake of a level ("schedule", or "PTX"), and its message."""
    level, text = planted
    return (detect if level == "schedule" else emulated)(*_kept[0], text)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--kernels", type=int, default=len(KERNELS))


def measure(options: argparse.Namespace) -> Iterator[Outcome]:
    """Check all mistakes, one kernel after the other; status 1 if one remains without a reason."""
    rows: list[dict[str, Any]] = []
    start = time.monotonic()
    idle: set[str] = set()

    def add(level: str, name: str, kind: str, what: str, verdict: tuple[str, str]) -> None:
        by, message = verdict
        known = NOTHING | (OF_ATTENTION if name.startswith("flash_attention") else OF_PINGPONG if "pingpong" in name else {})
        if kernel.target is SM_100A:
            known |= IN_TENSOR_MEMORY | ({} if kernel.schedule.persistent else OF_ONE_TILE)
        reason = known.get(kind, known.get(f"{kind}: {what.partition(', ')[2]}", ""))
        reason = "the launch does not run the line" if what in idle else reason
        why = (message or reason) if by == "nobody" else ""
        rows.append({"level": level, "kernel": name, "kind": kind, "what": what, "by": by, "said": message, "why": why})
        if by == "nobody":
            print(f"{name}: {kind}, {what}: nobody{f' ({why})' if why else ''}", flush=True)

    for number, (by, sizes, wanted, extents) in enumerate(KERNELS[: options.kernels], 1):
        kernel = by.made(*sizes, **wanted)
        name = f"{kernel.prepared.name} {sizes[1]}x{sizes[2]}x64 {sizes[0]}, {kernel.schedule}"
        text, idle = print_function(kernel.prepared), idle_lines(kernel, extents)
        assert detect(kernel, extents, text) == ("nobody", "the same code") and not run(kernel, extents, kernel.ptx)
        planted = [("schedule", mutant.kind, mutant.what, mutant.text) for mutant in mutants(text)]
        planted += [("PTX", *mistake) for mistake in by_ptx(kernel.ptx)]
        with multiprocessing.get_context("fork").Pool(options.jobs, _keep, (kernel, extents)) as pool:
            verdicts = pool.imap(_checked, [(level, mistaken) for level, _, _, mistaken in planted])
            for (level, kind, what, _), verdict in zip(planted, verdicts, strict=True):
                add(level, name, kind, what, verdict)
        yield outcome(rows, time.monotonic() - start, whole=number == len(KERNELS))  # all take an hour on two cores


def outcome(rows: list[dict[str, Any]], seconds: float, *, whole: bool) -> Outcome:
    """The results so far; `whole`: of all kernels."""
    counts, by = Counter((row["level"], row["kind"], row["by"]) for row in rows), Counter(row["by"] for row in rows)
    explained = sum(bool(row["why"]) for row in rows)
    lines = [
        "# Mistakes in schedules of roles", "",
        "One mistake each in kernels whose operands come by `tma` (`ci/bench/judges/schedule_mutants.py`): in the prepared",
        "function, which the second verifier checks, and the emulator what it accepts; and in the PTX, which the emulator",
        "checks.", "",
        f"{len(rows)} mistakes: {by['verifier']} refused by the verifier, {by['emulator']} found by the emulator, "
        f"{by['nobody']} by nobody, {explained} of them for a reason given below.", "",
    ]  # fmt: skip
    checkers, table = ("verifier", "emulator", "nobody"), list[tuple[object, ...]]()
    for level, kind in dict.fromkeys((row["level"], row["kind"]) for row in rows):
        found = [counts[level, kind, one] for one in checkers]
        table.append((level, kind, sum(found), *found))
    lines += grid(["in", "mistake", "planted", *checkers], table, left=2)
    unfound = sorted({(row["kind"], row["why"] or "**not known**") for row in rows if row["by"] == "nobody"})
    lines += ["", "What nobody finds, and why:", "", *(f"- {kind}: {reason}" for kind, reason in unfound)]
    data = {"kernels": list(dict.fromkeys(row["kernel"] for row in rows)), "seconds": round(seconds), "mistakes": rows}
    status = int(any(row["by"] == "nobody" and not row["why"] for row in rows))
    return Outcome(data, {"schedule_mutants.md": page(lines)}, status, whole)
