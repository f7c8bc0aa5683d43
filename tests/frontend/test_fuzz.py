"""Whatever text a kernel file has, the front end accepts it or raises CompileError with a location and a hint."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest
from frontend_kernels import text_of

from tests.campaign import first
from tilec.diagnostics.diagnostic import CompileError, render
from tilec.frontend import load_kernel

SEEDS = [
    """
    grid(cdiv(N, 64))
    requires(N % 8 == 0, pos < N)
    values(ids, 0, N, distinct=True)
    i = bid(0)
    a = load(x, i, shape=64, pad=0)
    b = gather(x, load(ids, i, shape=64, pad=0), pad=-inf)
    m = where(a > b, maximum(a, 0.5), exp2(b) * eps)
    for j in range(i, N, num_blocks(0)):
        if j % 2 == 0 and not j > pos:
            m = m + load(x, offset=j, shape=(64,), pad=0.0)
        else:
            m = -m
    store(out, i, m, mask=True)
    """,
    """
    grid(N, 2)
    i, j = bid(0), bid(1)
    t = full((8, 16), -inf, f32)
    u = arange(8)[:, None] * 16 + arange(16)[None, :]
    s = t + u.astype(f32) / 3 - sum(t, axis=1)[:, None] * math.pi
    p = (s.astype(bf16) @ s.T.astype(bf16)).reshape(64)
    q = mma(s.astype(f16), permute(s, (1, 0)).astype(f16), zeros((8, 8), f32))
    k = argmax(p, axis=0) if pos > 3 else 1
    with unsafe("a reason"):
        store(out, offset=i * 2 + j, tile=twice(max(q, axis=1))[None].reshape(8), mask=True)
    acc = 0.0
    n = x.shape[0] // LIMIT
    for a in range(3):
        for b in range(a, n):
            acc += load(x, b) * (1.0 if a == 1 else 2)
    scatter(out, i + arange(4), acc, mask=True)
    """,
]
BEFORE = """
    LIMIT = 4 * 2 + 1

    @tilec.function
    def twice(v, flag=True):
        if flag:
            return v * 2
        return v
"""
TOKENS = [
    "0", "1", "-1", "2.5", "None", "True", "x", "out", "ids", "pos", "eps", "N", "E", "f32", "bf16", "i", "j", "m", "(", ")",
    "[", "]", ":", ",", "+", "//", "%", "@", "**", "<<", "~", "not", "and", "if", "else", "for", "range", "load", "store",
    "sum", "bid", "tilec", "math", "'text'", "lambda: 0", "*x", "1 << 200", "10 ** 400", "1e999", "grid", "return", "\n",
    "    ", "é", "=", "a.b", "[1, 2][0]", "(1,)", "twice", "k", "while", "0.0", "inf", "float('inf')", "x.shape", "x.T", "is",
    "in", "1j", "b'q'", "...", ".astype(f16)",
]  # fmt: skip


def check(path: Path, text: str) -> bool:
    """Compile `text`; True if it was accepted. Anything but CompileError fails the test."""
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        load_kernel(path, {})
    except CompileError as error:
        assert error.diagnostics
        for diagnostic in error.diagnostics:
            assert diagnostic.code[:3] in ("E01", "E02")
            assert diagnostic.primary is not None or diagnostic.code in ("E0103",), diagnostic
            assert diagnostic.hint, diagnostic
            render(diagnostic)
        return False
    return True


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_seed_is_accepted(tmp_path: Path, seed: int) -> None:
    assert check(tmp_path / "k.py", text_of(SEEDS[seed], before=BEFORE))


@pytest.mark.parametrize("seed", range(20))
def test_mutated_tokens(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        text = text_of(rng.choice(SEEDS), before=BEFORE)
        start = text.index("LIMIT =")
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(start, len(text))
            width = rng.choice((0, 1, 1, 2, 5))
            text = text[:at] + rng.choice(TOKENS) + text[at + width :]
        check(tmp_path / "k.py", text)


class Swap(ast.NodeTransformer):
    """Replaces a few expressions of a tree by others, so that the text remains valid Python."""

    def __init__(self, rng: random.Random, pool: list[ast.expr]) -> None:
        self.rng, self.pool = rng, pool

    def visit(self, node: ast.AST) -> ast.AST:
        replaceable = isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", ast.Load()), ast.Store)
        if replaceable and self.rng.random() < 0.02:
            return self.rng.choice(self.pool)
        return self.generic_visit(node)


@pytest.mark.parametrize("seed", first(8, range(20)))
def test_mutated_trees(tmp_path: Path, seed: int) -> None:
    rng = random.Random(1000 + seed)
    extra = [ast.parse(token, mode="eval").body for token in TOKENS if _is_expression(token)]
    for _ in range(30):
        tree = ast.parse(text_of(rng.choice(SEEDS), before=BEFORE))
        kernel = tree.body[-1]
        pool = [node for node in ast.walk(kernel) if isinstance(node, ast.expr) and not hasattr(node, "id")] + extra
        tree.body[-1] = Swap(rng, pool).visit(kernel)  # pyright: ignore[reportArgumentType]
        try:
            text = ast.unparse(ast.fix_missing_locations(tree))
        except (ValueError, AttributeError, RecursionError):
            continue
        check(tmp_path / "k.py", text)


def _is_expression(token: str) -> bool:
    try:
        ast.parse(token.strip(), mode="eval")
    except SyntaxError:
        return False
    return token.strip() != "" and not token.startswith(" ")


@pytest.mark.parametrize(
    "text",
    ["", "\x00", "\ufeff", "(" * 5000, "x = " + "-" * 100000 + "1", "def", "\r", "class N(Dim): pass", "é" * 10, "1" * 5000,
     "import tilec\n@tilec.kernel\ndef k():\n    grid(" + "+".join(["1"] * 20000) + ")\n"],
)  # fmt: skip
def test_odd_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k.py"
    path.write_bytes(text.encode("utf-8"))
    with pytest.raises(CompileError):
        load_kernel(path, {})
