"""Kernel sources of a given size: each function returns the text of one kernel file.

The shapes are those that once took minutes or never ended: sequences of `//` and `%`, nested `min` and `max`, tile functions
that call their predecessor twice, long files, deep nesting. `test_slow_kernels.py` states what must be true of each.
"""

from __future__ import annotations

from collections.abc import Callable

HEADER = """import tilec
from tilec import Const, Dim, In, InOut, Out, Scratch, bf16, bid, cdiv, f32, full, grid, i32, i64, load, maximum, minimum
from tilec import num_blocks, requires, store, values, where

class N(Dim): '''elements'''
class M(Dim): '''rows'''

"""
KERNEL = "@tilec.kernel\ndef slow(x: In[f32, N], out: Out[f32, N]):\n    grid(cdiv(N, 64))\n"


def _kernel(lines: list[str], before: str = "") -> str:
    return HEADER + before + KERNEL + "".join(f"    {line}\n" for line in lines)


def _chain(count: int, step: Callable[[int], str], last: str, *before: str) -> str:
    """`i` is the block id and `v0` is `i`; `step` computes the next value from the previous one; `last` uses the last."""
    lines = [*before, "i = bid(0)", "v0 = i"]
    lines += [f"v{k + 1} = {step(k).replace('{v}', f'v{k}')}" for k in range(count)]
    return _kernel([*lines, last.replace("{v}", f"v{count}")])


def _divided(k: int) -> str:
    return f"{{v}} // {k + 2} + {{v}} % {k + 3}"


def _extremum(k: int) -> str:
    return f"{('min', 'max')[k % 2]}({{v}} + {k % 3}, {2 * k + 3} - {{v}})"


def _chosen(k: int) -> str:
    return f"where({{v}} > {3 * k + 1}, {{v}} - {k + 1}, {{v}} + {k + 2})"


WHOLE = "requires(N % 64 == 0)"
LOADED_AT = "store(out, i, load(x, {v}, shape=64, pad=0), mask=True)"
STORED_AT = "store(out, {v}, load(x, i, shape=64, pad=0), mask=True)"


def divisions(count: int) -> str:
    """`count` lines of `//` and `%` by different constants, each on the previous results, then one load."""
    return _chain(count, _divided, LOADED_AT)


def unclipped_divisions(count: int) -> str:
    """As `divisions`, and the last value is an index that must be proven in bounds."""
    return _chain(count, _divided, "store(out, i, load(x, {v} % num_blocks(0), shape=64))", WHOLE)


def stored_divisions(count: int) -> str:
    """As `divisions`, and the last value is the block's store index: refused, since blocks race."""
    return _chain(count, _divided, STORED_AT)


def symbolic_divisions(count: int) -> str:
    """`//` and `%` by launch values: every one adds a product of unknowns."""
    last = "store(out, i, load(x, {v} % num_blocks(0), shape=64))"
    return _chain(count, lambda k: f"{{v}} // num_blocks(0) + ({{v}} + {k}) % num_blocks(0)", last, WHOLE)


def rotations(count: int) -> str:
    """The block id rotated `count` times: every block writes its own element, which must be proven."""
    return _chain(count, lambda k: f"({{v}} + {k + 1}) % num_blocks(0)", "store(out, {v}, load(x, i, shape=64))", WHOLE)


def digits(count: int) -> str:
    """The block id split into `count` digits and put together again, as an index."""
    lines = [WHOLE, "i = bid(0)", "rest0 = i"]
    for k in range(count):
        lines += [f"d{k} = rest{k} % {k % 3 + 2}", f"rest{k + 1} = rest{k} // {k % 3 + 2}"]
    total = f"rest{count}"
    for k in reversed(range(count)):
        total = f"({total}) * {k % 3 + 2} + d{k}"
    lines += [f"j = {total}", "store(out, j, load(x, j, shape=64))"]
    return _kernel(lines)


def extrema(count: int) -> str:
    """`count` nested `min` and `max` of values with wide ranges."""
    return _chain(count, _extremum, LOADED_AT)


def stored_extrema(count: int) -> str:
    """As `extrema`, and the last value is the block's store index: refused, since blocks race."""
    return _chain(count, _extremum, STORED_AT)


def extrema_of_sizes(count: int) -> str:
    """`count` nested `min` and `max` of launch values and the block id, used as store and load index."""
    last = "store(out, i, load(x, max(0, min({v}, num_blocks(0) - 1)), shape=64))"
    return _chain(count, lambda k: f"{('min', 'max')[k % 2]}({{v}} + {k % 3}, num_blocks(0) - {k + 1})", last, WHOLE)


def stored_wheres(count: int) -> str:
    """As `wheres`, and the last value is the block's store index."""
    return _chain(count, _chosen, STORED_AT)


def clamped(count: int) -> str:
    """A sequence of `count` `min` and `max` that clamps an index, which must be proven in bounds."""
    last = "store(out, i, load(x, {v}, shape=64))"
    return _chain(count, lambda k: f"max(min({{v}} + {k + 1}, num_blocks(0) - 1), 0)", last, WHOLE)


def wheres(count: int) -> str:
    """`count` selections by a comparison, each of the previous selection."""
    return _chain(count, _chosen, LOADED_AT)


def doubling(count: int) -> str:
    """`count` tile functions, each of which calls the previous one twice: 2 ** count operations."""
    before = "@tilec.function\ndef f0(v):\n    return v * 1.5\n"
    for k in range(count):
        before += f"@tilec.function\ndef f{k + 1}(v):\n    return f{k}(f{k}(v))\n"
    return _kernel(["i = bid(0)", f"store(out, i, f{count}(load(x, i, shape=64, pad=0)), mask=True)"], before)


def doubling_indices(count: int) -> str:
    """As `doubling`, on an index."""
    before = "@tilec.function\ndef f0(v):\n    return v + 1\n"
    for k in range(count):
        before += f"@tilec.function\ndef f{k + 1}(v):\n    return f{k}(v) + f{k}(v + 1)\n"
    return _kernel(["i = bid(0)", f"store(out, i, load(x, f{count}(i), shape=64, pad=0), mask=True)"], before)


def lines(count: int) -> str:
    """`count` lines of arithmetic on a tile."""
    body = ["i = bid(0)", "v = load(x, i, shape=64, pad=0)", *["v = v * 1.0001 + 0.5"] * count]
    return _kernel([*body, "store(out, i, v, mask=True)"])


def index_lines(count: int) -> str:
    """`count` lines of arithmetic on an index."""
    return _kernel(["i = bid(0)", "j = i", *["j = j + 1"] * count, "store(out, i, load(x, j, shape=64, pad=0), mask=True)"])


def branches(count: int) -> str:
    """`count` branches in sequence that change an index."""
    body = ["i = bid(0)", "j = i"]
    for k in range(count):
        body += [f"if j % {k + 2} == 0:", f"    j = j + {k}", "else:", "    j = j + 1"]
    return _kernel([*body, "store(out, i, load(x, j, shape=64, pad=0), mask=True)"])


def loops(count: int) -> str:
    """`count` nested loops, with an access in the innermost that must be proven in bounds."""
    body = [WHOLE, "i = bid(0)"]
    for k in range(count):
        body.append("    " * k + f"for k{k} in range({k + 2}):")
    total = " + ".join(["i * 0", *[f"k{k}" for k in range(count)]])
    body.append("    " * count + f"v = load(x, ({total}) % num_blocks(0), shape=64)")
    return _kernel([*body, "store(out, i, load(x, i, shape=64))"])


def stores(count: int) -> str:
    """`count` stores to different parts of one tensor: every two of them might race."""
    body = [f"requires(N % {64 * count} == 0)", "i = bid(0)", "t = full(64, 0, f32)"]
    body += [f"store(out, i * {count} + {k}, t)" for k in range(count)]
    return HEADER + KERNEL.replace("cdiv(N, 64)", f"N // {64 * count}") + "".join(f"    {line}\n" for line in body)


def requirements(count: int) -> str:
    """`count` preconditions, most of them useless for every obligation."""
    body = [f"requires(N % {k + 2} != {k + 1} or N > {k})" for k in range(count)]
    return _kernel([*body, WHOLE, "i = bid(0)", "store(out, i, load(x, i, shape=64))"])


SLOW: dict[str, tuple[Callable[[int], str], int]] = {
    "divisions": (divisions, 10), "unclipped_divisions": (unclipped_divisions, 6), "digits": (digits, 8),
    "stored_divisions": (stored_divisions, 10), "symbolic_divisions": (symbolic_divisions, 10), "rotations": (rotations, 8),
    "stored_extrema": (stored_extrema, 16), "extrema_of_sizes": (extrema_of_sizes, 16), "stored_wheres": (stored_wheres, 16),
    "extrema": (extrema, 16), "clamped": (clamped, 16), "wheres": (wheres, 16), "doubling": (doubling, 30),
    "doubling_indices": (doubling_indices, 30), "lines": (lines, 20_000), "index_lines": (index_lines, 2_000),
    "branches": (branches, 12), "loops": (loops, 10), "stores": (stores, 24), "requirements": (requirements, 60),
}  # fmt: skip
"""Every shape with the size at which it once was slow."""
