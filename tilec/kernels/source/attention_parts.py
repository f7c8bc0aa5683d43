"""Dims, strides and functions that the kernels of attention share."""

import tilec as tl

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


class E(tl.Element):
    """bf16 or f16"""


class B(tl.Dim):
    """sequences"""


class T(tl.Dim):
    """queries of a sequence"""


class S(tl.Dim):
    """keys of a sequence"""


class HKV(tl.Dim):
    """heads of keys and values"""


class G(tl.Dim):
    """heads of queries for each head of keys"""


class D(tl.Dim):
    """elements of a head"""


class N(tl.Dim):
    """sequences with slopes of their own, or 1"""


class PAGES(tl.Dim):
    """pages of a cache"""


class PAGE(tl.Dim):
    """tokens of a page"""


class MAX(tl.Dim):
    """most pages of a sequence"""


class PARTS(tl.Dim):
    """parts that the tokens of a sequence are divided into"""


class QB(tl.Dim):
    """elements from sequence to sequence of `q`"""


class QT(tl.Dim):
    """elements from query to query of `q`"""


class QH(tl.Dim):
    """elements from group to group of heads of `q`"""


class QG(tl.Dim):
    """elements from head to head in a group of `q`"""


class KB(tl.Dim):
    """elements from sequence to sequence of `k`"""


class KS(tl.Dim):
    """elements from key to key of `k`"""


class KH(tl.Dim):
    """elements from head to head of `k`"""


class VB(tl.Dim):
    """elements from sequence to sequence of `v`"""


class VS(tl.Dim):
    """elements from key to key of `v`"""


class VH(tl.Dim):
    """elements from head to head of `v`"""


class OB(tl.Dim):
    """elements from sequence to sequence of `dout`"""


class OT(tl.Dim):
    """elements from query to query of `dout`"""


class OH(tl.Dim):
    """elements from group to group of heads of `dout`"""


class OG(tl.Dim):
    """elements from head to head in a group of `dout`"""
