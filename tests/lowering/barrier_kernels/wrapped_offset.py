"""A masked store in an unsafe block whose offset wraps."""

import tilec
from tilec import InOut, f32, full, grid, i32, store, unsafe


@tilec.kernel
def wrapped_offset(out: InOut[f32, 4096], n: i32):
    grid(1)
    off = ((n % 65536) * 65536 * 2) // 1048576
    with unsafe("the mask keeps it inside"):
        store(out, full((4,), 1.0, f32), offset=off, mask=True)
