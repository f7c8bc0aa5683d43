"""What kernels of a prompt's experts share. Rows of activations are in the order of experts, and those of each expert fill
whole tiles: a tile is of one expert, and its last rows may be of nobody."""

import tilec as tl


class P(tl.Dim):
    """chunks of choices"""


class S(tl.Dim):
    """tiles of rows"""
