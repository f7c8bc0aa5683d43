"""Texts of tile IR that break one rule: a whole one with one part replaced."""

from __future__ import annotations

import pytest

from tilec.ir.core import VerifyError
from tilec.ir.text.parser import parse_function
from tilec.ir.verifier import verify


def check_refused(whole: str, good: str, bad: str, rule: str) -> None:
    """The verifier names `rule` if the first `good` in `whole` is `bad`."""
    assert good in whole
    with pytest.raises(VerifyError) as caught:
        verify(parse_function(whole.replace(good, bad, 1)))
    assert rule in str(caught.value)
