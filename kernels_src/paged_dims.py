"""The dims that kernels of a cache in pages share."""

import tilec as tl


class PAGES(tl.Dim):
    """pages of the pool"""


class PAGE(tl.Dim):
    """tokens of a page"""


class MAX(tl.Dim):
    """pages that a sequence can have: the columns of a table"""


class ITEMS(tl.Dim):
    """chunks of all rows that there is room for"""
