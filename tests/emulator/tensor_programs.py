"""PTX programs with tensor memory for the tests: one block of warps, operands from a byte image in shared memory.

The image lies in shared memory from IMAGE on, so that swizzled operands can begin on a boundary of 1024 bytes; below it are the
address that alloc writes (at 0) and four mbarriers with a count of one (from BARRIERS).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.emulator.tiny import launch, program
from tilec.emulator import Report

Array = NDArray[Any]
IMAGE = 1024
BARRIERS = 16
REGISTERS = """
.reg .b32 %tm; .reg .b32 %own; .reg .b32 %warp; .reg .b32 %sm; .reg .b32 %x<8>; .reg .b64 %a_desc; .reg .b64 %b_desc;
.reg .b64 %y<8>; .reg .pred %one; .reg .pred %first; .reg .pred %yes; .reg .pred %no; .reg .pred %done; .reg .b32 %v<512>;
"""
START = """
mov.u32 %sm, smem; shr.u32 %warp, %t, 5; setp.eq.u32 %one, %t, 0; setp.lt.u32 %first, %t, 32;
setp.eq.u32 %yes, 0, 0; setp.eq.u32 %no, 0, 1;
"""


def alloc(columns: int = 64, *, relinquish: bool = True) -> str:
    """Warp 0 allocates; afterwards %tm is the address and %own that of the warp's lanes."""
    return f"""
@%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%sm], {columns};
{"@%first tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" if relinquish else ""}
bar.sync 0;
ld.shared.b32 %tm, [%sm];
and.b32 %own, %warp, 3; shl.b32 %own, %own, 21; add.u32 %own, %own, %tm;
"""


def free(columns: int = 64) -> str:
    """All threads come together and warp 0 frees the columns."""
    return f"bar.sync 0; @%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tm, {columns};"


def barriers(count: int = 4) -> str:
    """Thread 0 makes the mbarriers, visible to the async proxy."""
    made = "\n".join(f"@%one mbarrier.init.shared::cta.b64 [%sm+{BARRIERS + 8 * k}], 1;" for k in range(count))
    return f"{made} fence.mbarrier_init.release.cluster; bar.sync 0;"


def wait(number: int = 0, parity: int = 0, label: str = "") -> str:
    """Every thread waits for a phase of a barrier."""
    name = f"wait{number}_{parity}{label}"
    at = BARRIERS + 8 * number
    return f"{name}: mbarrier.try_wait.parity.shared::cta.b64 %done, [%sm+{at}], {parity}; @!%done bra {name};"


def commit(number: int = 0, guard: str = "@%one ") -> str:
    """Thread 0 commits to a barrier."""
    return f"{guard}tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%sm+{BARRIERS + 8 * number}];"


def names(count: int, first: int = 0) -> str:
    """A vector operand of registers %v."""
    return "{" + ", ".join(f"%v{first + k}" for k in range(count)) + "}"


def store_registers(count: int, tensor: int = 0, first: int = 0) -> str:
    """Thread t writes its registers to row t of a tensor [threads, count]."""
    lines = [f"mad.wide.u32 %y7, %t, {4 * count}, %a{tensor};"]
    lines += [f"st.global.b32 [%y7+{4 * k}], %v{first + k};" for k in range(count)]
    return "\n".join(lines)


def numbered(count: int, step: int) -> str:
    """Register k of thread t becomes step * t + k."""
    return f"mul.lo.u32 %x0, %t, {step};" + "".join(f" add.u32 %v{k}, %x0, {k};" for k in range(count))


def read_back(columns: int, address: str = "%own") -> str:
    """Every thread reads its lane's columns."""
    return f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {names(columns)}, [{address}]; tcgen05.wait::ld.sync.aligned;"


def copy_image(size: int, tensor: int = 1) -> str:
    """The threads copy a tensor of bytes to shared memory and make it visible to the async proxy."""
    return f"""
mul.lo.u32 %x1, %t, 16;
copy: setp.ge.u32 %done, %x1, {size}; @%done bra copied;
cvt.u64.u32 %y0, %x1; add.u64 %y0, %y0, %a{tensor}; add.u32 %x2, %sm, %x1;
ld.global.v4.b32 {{%x3, %x4, %x5, %x6}}, [%y0]; st.shared.v4.b32 [%x2+{IMAGE}], {{%x3, %x4, %x5, %x6}};
add.u32 %x1, %x1, 2048; bra copy;
copied: fence.proxy.async.shared::cta; bar.sync 0;
"""


def descriptor(register: str, offset: int, lbo: int = 0, sbo: int = 128, mode: int = 0, extra: int = 0) -> str:
    """A shared memory descriptor of the image from `offset`; `extra`: bits to set besides."""
    rest = (lbo >> 4 << 16) | (sbo >> 4 << 32) | 1 << 46 | mode << 61 | extra
    return f"""
add.u32 %x1, %sm, {IMAGE + offset}; shr.u32 %x1, %x1, 4; cvt.u64.u32 {register}, %x1;
or.b64 {register}, {register}, {rest};
"""


def mma(
    idesc: int, kind: str = "f16", *, a: str = "%a_desc", p: str = "%no", d: str = "%tm", guard: str = "@%one ", more: str = ""
) -> str:
    """Thread 0 issues a product."""
    return f"mov.b32 %x7, {idesc}; {guard}tcgen05.mma.cta_group::1.kind::{kind} [{d}], {a}, %b_desc, %x7, {p}{more};"


def go(
    body: str,
    out_columns: int = 64,
    *,
    image: Array | None = None,
    threads: int = 128,
    shared: int = 1 << 15,
    seed: int = 0,
    written: bool = True,
    **more: Any,
) -> Report:
    """Runs a body with `out` [threads, out_columns] of words and the image (bytes)."""
    tensors: dict[str, Array] = {"out": np.zeros((threads, out_columns), np.uint32)}
    tensors["image"] = np.zeros(16, np.uint8) if image is None else image
    text = program(START + body, list(tensors), registers=REGISTERS, shared=shared, target="sm_100a")
    out: Sequence[str] = ("out",) if written else ()
    return launch(text, tensors, threads=threads, out=out, read_only=("image",), shared=shared, seed=seed, **more)


def whole(report: Report, columns: int, dtype: Any = np.float32) -> Array:
    """`out` as [threads, columns]."""
    return report.tensors["out"].view(dtype).reshape(-1, columns)
