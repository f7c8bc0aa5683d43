"""What the kernels of pools share: planes, and outputs."""

import tilec as tl

MOST = 16384
"""Elements of a side of a plane, of a window, of a stride."""


class E(tl.Element):
    """bf16, f16 or f32"""


class M(tl.Dim):
    """planes"""


class H(tl.Dim):
    """rows of a plane"""


class W(tl.Dim):
    """columns of a plane"""


class OH(tl.Dim):
    """rows of outputs"""


class OW(tl.Dim):
    """columns of outputs"""
