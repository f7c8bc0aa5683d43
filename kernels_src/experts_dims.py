"""The dims that kernels of mixtures of experts share; `dims` has the others."""

import tilec as tl


class C(tl.Dim):
    """experts of a token"""


class X(tl.Dim):
    """experts"""
