"""Addresses of parameters: `mov` gives the one in `.param`, `cvta.param` the generic one, and neither stands for the other."""

from __future__ import annotations

import pytest

from tests.emulator.tiny import AT, go, kinds

PARAMETER = "mov.b64 %d2, p0; cvta.param.u64 %d3, %d2; {} mad.wide.u32 %d1, %t, 4, %a1; st.global.u64 [%a1], %d4;"
PARAMETERS = {
    "its address in .param": ("ld.param.b64 %d4, [%d2];", set[str]()),
    "its generic address": ("ld.b64 %d4, [%d3];", set[str]()),
    "its address there and back": ("cvta.to.param.u64 %d5, %d3; ld.param.b64 %d4, [%d5];", set[str]()),
    "32 bits of its address": (
        "mov.b32 %r1, p0; cvt.u64.u32 %d5, %r1; cvta.param.u64 %d5, %d5; ld.b64 %d4, [%d5];", set[str]()),
    "its address in .param as a generic one": ("ld.b64 %d4, [%d2];", {"bounds"}),
    "its name as a generic address": ("ld.b64 %d4, [p0];", {"bounds"}),
    "its generic address as one in .param": ("ld.param.b64 %d4, [%d3];", {"bounds"}),
    "its generic address as a global one": ("ld.global.b64 %d4, [%d3];", {"bounds"}),
    "past the last parameter": ("ld.b64 %d4, [%d3+16];", {"bounds"}),
    "a store": ("st.b64 [%d3], %d2; mov.b64 %d4, %a0;", {"read-only"}),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_has_one_address_in_param_and_another_one_in_generic_space(name: str) -> None:
    body, found = PARAMETERS[name]
    report = go("setp.ne.u32 %p0, %t, 0; @%p0 ret;" + PARAMETER.format(body), checked=False)
    assert kinds(report) - {"poison"} == found
    assert found or report.tensors["out"][:2].any()


def test_which_window_an_address_is_in() -> None:
    body = "mov.b64 %d2, p0; cvta.param.u64 %d3, %d2; "
    for address, space, inside in (("%d3", "param", 1), ("%d3", "global", 0), ("%d2", "param", 0), ("%a0", "param", 0)):
        test = f"isspacep.{space} %p1, {address}; selp.u32 %r1, 1, 0, %p1; {AT} st.global.u32 [%d1], %r1;"
        report = go(body + test)
        assert report.clean and (report.tensors["out"] == inside).all()
