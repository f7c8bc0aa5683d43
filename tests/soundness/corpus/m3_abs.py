"""abs of an unsigned scalar as an index."""

import tilec
from tilec import Dim, InOut, abs, f32, grid, i64, requires, store, u32


class N(Dim):
    """length"""


@tilec.kernel
def m3_abs(out: InOut[f32, N], u: u32):
    grid(1)
    requires(u >= 2147483648, u < 2147483648 + N)
    k = i64(abs(u)) - 2147483648
    store(out, k, 1.0)
