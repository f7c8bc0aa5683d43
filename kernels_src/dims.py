"""The dims and the element type that several kernels share. A name has one meaning in all kernels that import it."""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class B(tl.Dim):
    """number of sequences, or of rows of activations: one of each sequence"""


class D(tl.Dim):
    """elements of a head"""


class G(tl.Dim):
    """query heads that share a key head"""


class H(tl.Dim):
    """hidden size"""


class HKV(tl.Dim):
    """key heads, and value heads"""


class I(tl.Dim):  # noqa: E742
    """intermediate size"""


class I2(tl.Dim):
    """twice the intermediate size"""


class K(tl.Dim):
    """inputs"""


class M(tl.Dim):
    """rows of activations (tokens)"""


class N(tl.Dim):
    """outputs"""


class P(tl.Dim):
    """parts that a row or a sequence is split into"""


class R(tl.Dim):
    """positions in the table"""


class S(tl.Dim):
    """slots of a sequence"""


class T(tl.Dim):
    """number of tokens"""


class V(tl.Dim):
    """vocabulary size"""
