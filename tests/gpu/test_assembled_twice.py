"""With a driver, PTX assembles the second time as the first time: its cache lacks the report. Needs a GPU and the compiler."""

from __future__ import annotations

import pytest

from tests.assemble.test_assemble import PTX
from tilec.assemble import assemble
from tilec.runtime import Device
from tilec.target.targets import SM_90A

pytestmark = pytest.mark.gpu


def test_the_second_report_is_the_first() -> None:
    assert Device().architecture
    first, second = (assemble(PTX.format(arch=SM_90A.name), SM_90A) for _ in range(2))
    assert first == second
