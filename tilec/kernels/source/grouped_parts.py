"""Dims that grouped products share."""

import tilec as tl

ROWS = 16
"""Rows of a tile of `group_tiles`."""
LIMIT = 16777216


class E(tl.Element):
    """bf16 or f16"""


class T(tl.Dim):
    """rows of all groups"""


class X(tl.Dim):
    """groups"""


class N(tl.Dim):
    """outputs"""


class K(tl.Dim):
    """inputs"""
