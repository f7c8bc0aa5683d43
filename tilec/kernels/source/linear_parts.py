"""Dims that the kernels of a linear layer with a cross entropy share."""

import tilec as tl

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


class E(tl.Element):
    """bf16 or f16"""


class L(tl.Element):
    """i32 or i64"""


class T(tl.Dim):
    """number of tokens"""


class H(tl.Dim):
    """elements of a token"""


class V(tl.Dim):
    """size of the vocabulary"""


class TILES(tl.Dim):
    """tiles of the vocabulary"""
