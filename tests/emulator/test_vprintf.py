"""`vprintf`: formats of C, arguments that lie as in a structure of C, and several formats at one call."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from tiny import launch, program

from tilec.emulator import UnsupportedPtx

CALL = """{
.param .b64 param0;
.param .b64 param1;
.param .b32 retval0;
st.param.b64 [param0], %f;
st.param.b64 [param1], %g;
call.uni (retval0), vprintf, (param0, param1);
ld.param.b32 %r, [retval0];
}
st.global.u32 [%a0], %r;
"""
DECLARED = ".extern .func (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b);"


def text(name: str, value: str) -> str:
    data = value.encode() + b"\0"
    return f".global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};"


def printed(form: str, layout: str, *values: float) -> list[str]:
    """What one thread prints of values that lie as `struct` lays them out."""
    data = struct.pack("@" + layout, *values)
    data += bytes(-len(data) % 4)
    stores = "".join(
        f"st.local.b32 [buffer+{at}], {int.from_bytes(data[at : at + 4], 'little')};\n" for at in range(0, len(data), 4)
    )
    body = (
        f".local .align 8 .b8 buffer[{max(8, len(data))}];\n{stores}mov.u64 %g, buffer;\ncvta.local.u64 %g, %g;\n"
        f"mov.u64 %f, form;\ncvta.global.u64 %f, %f;\n{CALL}"
    )
    source = program(body, ["out"], registers=".reg .b64 %f, %g; .reg .b32 %r;", globals_=DECLARED + text("form", form))
    report = launch(source, {"out": np.zeros(1, np.uint32)}, threads=1)
    assert report.clean, report.faults[0]
    assert report.tensors["out"][0] == len(values)
    return report.printed


@pytest.mark.parametrize(
    ("form", "layout", "values", "expected"),
    [
        ("%d %d", "ii", (1, -2), "1 -2"),
        ("%d %lld %d", "iqi", (1, -(2**40), 3), f"1 {-(2**40)} 3"),
        ("%d %g", "id", (7, 0.1), "7 0.1"),
        ("%.9g|%10.3f|%e", "ddd", (1 / 3, -2.5, 1e9), "0.333333333|    -2.500|1.000000e+09"),
        ("%u %llu %x %llX", "IQIQ", (2**32 - 1, 2**63, 255, 2**40 - 1), f"{2**32 - 1} {2**63} ff FFFFFFFFFF"),
        ("%c%%%5d", "ii", (65, 42), "A%   42"),
        ("%g %g", "dd", (float("inf"), float("-inf")), "inf -inf"),
        ("nothing", "", (), "nothing"),
    ],
)
def test_fields(form: str, layout: str, values: tuple[float, ...], expected: str) -> None:
    assert printed(form, layout, *values) == [expected]


def test_a_specifier_that_is_not_known_is_refused() -> None:
    with pytest.raises(UnsupportedPtx, match="unknown specifier"):
        printed("%s", "q", 0)


def test_threads_of_one_call_may_have_several_formats() -> None:
    body = (
        ".local .align 8 .b8 buffer[8];\nst.local.u32 [buffer], %t;\nmov.u64 %g, buffer;\ncvta.local.u64 %g, %g;\n"
        "mov.u64 %f, even;\nmov.u64 %h, odd;\nand.b32 %r, %t, 1;\nsetp.eq.u32 %q, %r, 1;\nselp.b64 %f, %h, %f, %q;\n"
        f"cvta.global.u64 %f, %f;\n{CALL.replace('st.global.u32 [%a0], %r;', '')}st.global.u32 [%a0], 1;\n"
    )
    registers = ".reg .b64 %f, %g, %h; .reg .b32 %r; .reg .pred %q;"
    source = program(
        body.replace("st.global.u32 [%a0], 1;", "mul.wide.u32 %h, %t, 4; add.u64 %h, %h, %a0; st.global.u32 [%h], %r;"),
        ["out"], registers=registers, globals_=DECLARED + text("even", "even %d\n") + text("odd", "odd %d\n"),
    )  # fmt: skip
    report = launch(source, {"out": np.zeros(6, np.uint32)}, threads=6)
    assert report.clean, report.faults[0]
    assert report.printed == [f"{'odd' if i % 2 else 'even'} {i}" for i in range(6)]
