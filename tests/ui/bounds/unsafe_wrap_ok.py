"""A masked store in an `unsafe` block whose offset wraps: it is accepted, and the mask must stay."""

import tilec
from tilec import InOut, f32, full, grid, i32, store, unsafe


@tilec.kernel
def unsafe_wrap_ok(out: InOut[f32, 4096], n: i32):
    grid(1)
    off = ((n % 65536) * 65536 * 2) // 1048576
    with unsafe("the mask keeps it inside"):
        store(out, full((4,), 1.0, f32), offset=off, mask=True)
