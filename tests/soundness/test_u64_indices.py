"""Kernels that compute indices in u64: the prover refuses each that wraps at 2^64, or at the end of a dtype it converts to,
and accepts those that do not.

A launch that faults, found with Python's integers, confirms every refusal. Every acceptance is tried on launches whose numbers
are at the ends of the dtype. So a prover that took u64 for a signed dtype would fail here in one direction or the other.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.soundness.sketch import imports
from tests.soundness.verdict import examine_function
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.passes.prover import prove

OF_DATA = "x: In[f32, N], y: In[u64, N], out: Out[f32, N]"
OF_SCALAR = "x: In[f32, N], p: u64, out: Out[f32, N]"
OF_FLOAT = "x: In[f32, N], y: In[f32, N], out: Out[f32, N]"
OF_SIGNED = "x: In[f32, N], y: In[i64, N], out: Out[f32, N]"
BOX = "x: In[f32, N], y: InOut[f32, N], p: u64"
READ = "store(out, b, load(x, {}))"
CLAMPED = READ.format("minimum(i, N - 1)")
CLAMPED_U64 = READ.format("minimum(i, u64(N - 1))")
REFUSED = {
    "conversion to i64": (OF_DATA, "i = i64(load(y, b))", READ.format("i")),
    "conversion to i64, clamped": (OF_DATA, "i = minimum(maximum(i64(load(y, b)), 0), N - 1)", READ.format("i")),
    "conversion to i64, modulo": (OF_DATA, "i = i64(load(y, b)) % N", READ.format("i")),
    "conversion to i32": (OF_DATA, "i = i32(load(y, b))", READ.format("minimum(maximum(i, 0), N - 1)")),
    "conversion of a float": (OF_FLOAT, "i = i64(u64(load(y, b)))", READ.format("minimum(maximum(i, 0), N - 1)")),
    "bits as signed": (OF_DATA, "i = tilec.bitcast(load(y, b), i64)", CLAMPED),
    "the highest bit": (OF_DATA, "i = i64(u64(1) << 63)", CLAMPED),
    "below zero": (OF_DATA, "i = u64(b) - 1", CLAMPED_U64),
    "below zero, padded": (OF_DATA, "i = u64(b) - 1", "store(out, b, load(x, i, pad=0.0))"),
    "below zero and back": (OF_DATA, "i = u64(b) - 1 + 1", READ.format("i")),
    "past the end": (OF_DATA, "i = load(y, b) + 1", CLAMPED_U64),
    "past the end, as signed": (OF_SCALAR, "requires(p >= 2**63)\ni = p + 2**63", CLAMPED_U64),
    "a product": (OF_SCALAR, "i = p * p % u64(N)", READ.format("i")),
    "a shift that loses bits": ("x: In[f32, N], out: Out[f32, N]", "i = (u64(b) << 63) >> 63",
                                "store(out, offset=i, tile=load(x, b))"),
    "a scalar of one too much": (OF_SCALAR, "requires(p <= 2**63)\ni = i64(p)", CLAMPED),
    "a comparison as signed": (OF_DATA, "i = load(y, b)", "if i >= 2**63:\n    " + READ.format("i") + "\nelse:\n    "
                               "store(out, b, 0.0)"),
    "the size of a number": (OF_DATA, "i = abs(load(y, b))", READ.format("i")),
    "a loop downwards": (OF_DATA, "c = u64(0)\nfor k in range(3):\n    c = c - 1", READ.format("c + 3")),
    "the end of a box": (BOX, "if b == 0:", "    store(y, full((4,), 1.0, f32), offset=p, mask=True)"),
    "stored numbers from 0": (OF_DATA, "values(y, 0, 2**64)", READ.format("load(y, b)")),
    "stored numbers below": (OF_DATA, "values(y, 0, 2**63 + N)", READ.format("load(y, b) - 2**63")),
}  # fmt: skip
ACCEPTED = {
    "clamped": (OF_DATA, "i = minimum(load(y, b), u64(N - 1))", READ.format("i")),
    "clamped, then i32": (OF_DATA, "i = i32(minimum(load(y, b), u64(N - 1)))", READ.format("i")),
    "modulo": (OF_DATA, "i = load(y, b) % u64(N)", READ.format("i")),
    "complement": (OF_DATA, "i = ~load(y, b)", CLAMPED_U64),
    "of a float": (OF_FLOAT, "i = u64(load(y, b))", CLAMPED_U64),
    "of negative numbers": (OF_SIGNED, "i = tilec.bitcast(load(y, b), u64)", CLAMPED_U64),
    "a scalar that fits": (OF_SCALAR, "requires(p < 2**63)\ni = i64(p)", CLAMPED),
    "padded": (OF_DATA, "i = load(y, b)", "store(out, b, load(x, i, pad=0.0))"),
    "compared": (OF_DATA, "i = load(y, b)", "if i < u64(N):\n    " + READ.format("i") + "\nelse:\n    store(out, b, 0.0)"),
    "a box that ends": (BOX, "requires(p < 2**64 - 4)\nif b == 0:", "    store(y, full((4,), 1.0, f32), offset=p, mask=True)"),
    "stored numbers from 2^63": (OF_DATA, "values(y, 2**63, 2**63 + N)", READ.format("load(y, b) - 2**63")),
}  # fmt: skip


def kernel(signature: str, *lines: str, grid: str = "N") -> Function:
    body = "\n".join(f"    {line}" for part in lines for line in part.splitlines())
    dims = 'class N(Dim):\n    """n"""\n\n\nclass P(Dim):\n    """p"""\n\n\n'
    text = f"{dims}@tilec.kernel\ndef k({signature}):\n    grid({grid})\n    b = bid(0)\n{body}\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.py"
        path.write_text(f'"""One index."""\n\n{imports(text)}\n\n{text}')
        return load_kernel(path, {}, root=path.parent)


@pytest.mark.parametrize("name", REFUSED)
def test_an_index_that_wraps_is_refused(name: str) -> None:
    verdict = examine_function(kernel(*REFUSED[name]))
    assert verdict.kind == "refused_confirmed" and set(verdict.codes) <= {"E0301", "E0304"}, verdict


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_index_that_does_not_wrap_is_accepted(name: str) -> None:
    verdict = examine_function(kernel(*ACCEPTED[name]))
    assert verdict.kind == "accepted", verdict


@pytest.mark.parametrize(
    ("grid", "signature", "body"),
    [
        ("N", "x: In[f32, N, Strides[P % 7 + 1]], P: u64, out: Out[f32, N]", "store(out, b, 1.0)"),
        ("N", "x: In[f32, P % 7 + 1], P: u64, out: Out[f32, N]", "store(out, b, 1.0)"),
        ("P % 7 + 1", "x: In[f32, N], P: u64, out: InOut[f32, N]", "if b == 0:\n    store(out, 0, 1.0)"),
    ],
    ids=["stride", "extent", "grid"],
)
def test_a_scalar_in_an_extent_is_one_that_the_kernel_evaluates_alike(grid: str, signature: str, body: str) -> None:
    """The launch has exact integers and the kernel signed ones of 64 bits, of which -1 is 6 modulo 7 and 2^64 - 1 is 1."""
    checks = prove(kernel(signature, body, grid=grid)).launch_checks

    def accepts(number: int) -> bool:
        return all(check.condition.evaluate({"N": 1, "P": number}) for check in checks)

    assert accepts(0) and accepts(2**63 - 1)
    assert not accepts(2**63) and not accepts(2**64 - 1)
    assert any(check.text.endswith("is below 2^63") for check in checks)
