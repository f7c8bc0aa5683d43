"""Hand-written kernels that once computed something else in machine code than in the tile IR, or were accepted but did not
build: the interpreter and the PTX emulator agree on them, on every architecture."""

from __future__ import annotations

import pytest

from tests.programs.generate import Program
from tests.programs.machines import examine
from tilec.target.targets import MAIN_TARGETS

IMPORTS = """import tilec
from tilec import Atomic, Dim, In, InOut, Out, abs, atomic_max, atomic_min, bf16, bid, cdiv, f16, f32, f8e4m3, f8e5m2, full
from tilec import grid, i64, load, max, maximum, mma, store, sum, where, zeros
"""

KERNELS = {
    # The guarded shift was folded into the hardware's clamping shift with the amount truncated to 32 bits: 2^32 and -2^63
    # became 0.
    "shift_of_64_bits": """
    x: In[i64, N, 64], y: In[i64, N, 64], out: Out[i64, N, 64]):
    grid(N)
    amount = load(y, (bid(0), 0), shape=(1, 64))
    store(out, (bid(0), 0), load(x, (bid(0), 0), shape=(1, 64)) << where(amount % 2 == 0, amount, amount * 4294967296))
""",
    # An inline assembly operand was a constant spelled in a way that LLVM's parser does not accept.
    "constant_of_8_bits": """
    x: In[f8e4m3, N], out: Out[f8e4m3, N]):
    grid(N)
    store(out, bid(0), maximum(load(x, bid(0)), 0.3))
""",
    # The emulator used the value of a 16-bit scalar as its bits.
    "narrow_scalars": """
    half: f16, brain: bf16, out: Out[f32, N]):
    grid(N)
    store(out, bid(0), half.astype(f32) * 256.0 + brain.astype(f32))
""",
    # The interpreter gave infinity where the hardware conversion saturates to a finite value.
    "arithmetic_of_8_bits": """
    x: In[f8e5m2, N, 32], out: Out[f8e5m2, N, 32], largest: Out[f8e5m2, N], total: Out[f8e4m3, N]):
    grid(N)
    v = load(x, (bid(0), 0), shape=(1, 32))
    store(out, (bid(0), 0), v * 1024.0)
    store(largest, bid(0), max(abs(v), 1))
    store(total, bid(0), sum((v.astype(f32) * 512.0).astype(f8e4m3), 1))
""",
    # LLVM's loop for an atomic of floats begins with a load that races; -0 is below +0 and a NaN loses.
    "atomic_of_floats": """
    x: In[f32, N, 32], low: Atomic[f32, 6], high: Atomic[f32, 6]):
    grid(N)
    for i in range(32):
        atomic_max(high, 0, full((6,), load(x, (bid(0), i)), f32))
        atomic_min(low, 0, full((6,), load(x, (bid(0), i)), f32))
""",
    # A pipelined loop whose lower bound is the outer loop's variable was refused after all proofs.
    "pipeline_from_outer_variable": """
    a: In[bf16, 2, 32, K], b: In[bf16, K, 32], out: Out[f32, N, 32, 32]):
    grid(N)
    acc = zeros((32, 32), f32)
    for g in range(2):
        for t in range(g, cdiv(K, 32)):
            left = load(a, (g, 0, t), shape=(1, 32, 32), pad=0).reshape((32, 32))
            acc = mma(left, load(b, (t, 0), shape=(32, 32), pad=0), acc)
        acc = acc + 1.0
    store(out, (bid(0), 0, 0), acc.reshape((1, 32, 32)))
""",
    # In kernels with pipelines masks are evaluated per element; here the box is in bounds on every axis.
    "mask_of_a_box_that_is_inside": """
    a: In[bf16, 32, K], b: In[bf16, K, 32], out: InOut[f32, 32, 32], edge: InOut[f32, 48, 32]):
    grid(1)
    acc = zeros((32, 32), f32)
    for t in range(cdiv(K, 32)):
        acc = mma(load(a, (0, t), shape=(32, 32), pad=0), load(b, (t, 0), shape=(32, 32), pad=0), acc)
    store(out, (0, 0), acc, mask=True)
    store(edge, (1, 0), acc, mask=True)
""",
}


@pytest.mark.parametrize("name", KERNELS)
def test_machines_agree(name: str) -> None:
    body = KERNELS[name]
    dims = {"N": 5, "K": 72} if "K" in body else {"N": 5}
    scalars = {"half": 3, "brain": -7} if "half" in body else {}
    classes = "".join(f'class {dim}(Dim):\n    """extent {dim}"""\n\n\n' for dim in dims)
    text = f"{classes}@tilec.kernel\ndef k({body.strip()}\n"
    program = Program(3, f"{IMPORTS}\n\n{text}", True, dims, scalars, None, small=("a", "b"))
    outcome = examine(program, tuple(MAIN_TARGETS), seeds=(0, 1), proven=True)
    assert outcome.kind == "equal", f"{outcome.kind}: {outcome.detail}"
