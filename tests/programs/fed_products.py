"""Random programs whose products a producer feeds: operands come by TMA, products run into tensor memory or by warps.

In: a number. Out: a `Program` with the schedules to try, of which the first that it can have is taken. Even numbers are for
`tcgen05`, odd ones for `mma.sync`. A program has a loop of products, whose boxes are where the language allows them, or
attention; a random epilogue; extents that are rarely multiples of its tiles. The same number gives the same program.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from tests.programs import fed_attention, fed_epilogues
from tests.programs.fed_draft import Draft
from tests.programs.generate import Program
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_100A, SM_120A, Target

TENSOR_ROWS: Final = (64, 64, 128, 128, 256)
TENSOR_COLUMNS: Final = (16, 32, 48, 64, 64, 80, 96, 128, 192)
WARP_ROWS: Final = (32, 64, 64, 128)
WARP_COLUMNS: Final = (16, 24, 32, 40, 64, 96)
WIDE_ROWS: Final = (16, 32, 64)
"""Columns of an operand that lies by rows of the depth: a copy brings 32, 64 or 128 bytes."""
FEW_TILES: Final = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (3, 1))
MANY_TILES: Final = ((1, 1), (1, 3), (3, 1), (2, 2), (2, 3), (3, 2), (5, 1), (1, 7))
"""Tiles of a result along its rows and columns."""
GATED_COLUMNS: Final = 64
"""The most columns of gate and of up, which one product makes together."""


def target_of(number: int) -> Target:
    """The target that a program is for."""
    return SM_120A if number % 2 else SM_100A


def fed_program(number: int) -> Program:
    """The program of a number."""
    r = random.Random(f"fed program {number}")
    draft = Draft(r, tensor=target_of(number) is SM_100A, element=r.choice(["bf16", "f16"]))
    persistent, draft.stores_once = r.random() < 0.4, r.random() < 0.3
    if r.random() < (0.2 if draft.tensor else 0.12):
        fed_attention.write(draft)
        persistent = False
    else:
        _products(draft, persistent=persistent)
    return draft.finished(number, _schedules(draft, persistent))


def _schedules(d: Draft, persistent: bool) -> tuple[Overrides, ...]:
    """Schedules to try: the wanted one, and that without some of its parts."""
    r = d.r
    given: dict[str, Any] = {"copy": "tma"}
    if persistent:
        given["persistent"] = True
    if r.random() < 0.6:
        given["stages"] = r.choice([2, 2, 3, 3, 4, 5, 8] if d.tensor else [2, 2, 3, 4])
    if r.random() < 0.6:
        given["consumers"] = r.choice([1, 2] if d.tensor else [1, 2, 2, 3])
    if r.random() < (0.9 if d.stores_once else 0.2):
        given["store"] = "tma" if d.stores_once else "streamed"
    if r.random() < 0.2:
        given["early"] = r.choice([0, 1, 2])
    if r.random() < 0.15:
        given["next"] = "before"
    if persistent and not d.tensor and r.random() < 0.4:
        given |= {"order": "pingpong", "consumers": 2}
    tried = [given]
    for dropped in ("order", "consumers", "stages", "store", "early", "persistent"):
        if dropped in tried[-1]:
            tried.append({name: value for name, value in tried[-1].items() if name != dropped})
    tried.append({"copy": "tma", "consumers": 1})
    return tuple(Overrides(**one) for one in tried)


def _extent(d: Draft, tile: int, tiles: int, multiple: int = 8) -> int:
    """An extent of about `tiles` tiles, most often ragged."""
    shorter = d.r.choice([0, multiple, tile // 2, tile - multiple, 3 * multiple])
    return max(multiple, (tile * tiles - shorter) // multiple * multiple)


def _products(d: Draft, *, persistent: bool) -> None:
    """A loop of products over tiles of a matrix, and its epilogue."""
    r = d.r
    kind = r.choice(TENSOR_LOOPS if d.tensor else WARP_LOOPS)
    d.rows, d.columns = r.choice(TENSOR_ROWS if d.tensor else WARP_ROWS), r.choice(TENSOR_COLUMNS if d.tensor else WARP_COLUMNS)
    if kind == "gated":
        d.columns = min(d.columns, GATED_COLUMNS)
    d.depth = 64 if d.tensor else r.choice([16, 32, 64, 64])
    down, across = r.choice(MANY_TILES if persistent else FEW_TILES)
    operands = _Operands(d)
    extents = {"M": _extent(d, d.rows, down), "N": _extent(d, d.columns, across)}
    extents["K"] = _extent(d, d.depth, r.choice([1, 2, 3, 5, 7, 11]))
    d.dims |= extents
    if not operands.left_by_columns and r.random() < 0.5:
        d.dims["M"] = max(1, d.dims["M"] - r.choice([1, 3, 5]))
        d.head.append("requires(K % 8 == 0 and N % 8 == 0)")
    else:
        d.head.append("requires(K % 8 == 0 and N % 8 == 0 and M % 8 == 0)")
    if persistent or r.random() < 0.5:
        d.head.append(f"grid(cdiv(M, {d.rows}) * cdiv(N, {d.columns}))")
        d.line(f"m, n = bid(0) // cdiv(N, {d.columns}), bid(0) % cdiv(N, {d.columns})")
    else:
        d.head.append(f"grid(cdiv(M, {d.rows}), cdiv(N, {d.columns}))")
        d.line("m, n = bid(0), bid(1)")
    made = LOOPS[kind](d, operands)
    d.parts.add(kind)
    fed_epilogues.write(d, made)


class _Operands:
    """The tensors of a product's operands, and the text of their boxes. By `tcgen05` both lie along the depth."""

    def __init__(self, d: Draft) -> None:
        r, self.d = d.r, d
        self.left_by_columns = not d.tensor and r.random() < 0.25
        self.right_by_rows = not d.tensor and r.random() < 0.35
        if self.right_by_rows:
            d.columns = r.choice(WIDE_ROWS)
        if self.left_by_columns:
            d.rows = r.choice((32, 64))
        if d.rows == 32:  # two warps share them, and so two share the columns
            d.columns = d.columns // 16 * 16
        self.axes: dict[str, str] = {}
        self.left = self._tensor("K, M" if self.left_by_columns else "M, K")
        self.right = self.another()
        if r.random() < 0.3:
            d.head.append(f"tilec.resident({self.right})")
            d.parts.add("resident")
        d.parts |= {"left by columns"} if self.left_by_columns else set()
        d.parts |= {"right by rows"} if self.right_by_rows else set()

    def _tensor(self, dims: str) -> str:
        """A tensor of a matrix, or of several: along its first axis, or between the two of a matrix."""
        axis = self.d.r.choice(["", "", "", "first", "between"])
        if axis:
            extent = self.d.add_dim("Z", self.d.r.choice([1, 2, 3]))
            first, second = dims.split(", ")
            dims = f"{extent}, {dims}" if axis == "first" else f"{first}, {extent}, {second}"
            self.d.parts.add("one of several matrices")
        name = self.d.add_tensor("In", self.d.element, dims)
        self.axes[name] = axis
        return name

    def another(self) -> str:
        """A further right operand of the same shape."""
        return self._tensor("K, N" if self.right_by_rows else "N, K")

    def load_left(self, k: str) -> str:
        """A step of the left operand."""
        if self.left_by_columns:
            return self._box(self.left, (k, "m"), (self.d.depth, self.d.rows)) + ".T"
        return self._box(self.left, ("m", k), (self.d.rows, self.d.depth))

    def load_right(self, k: str, tensor: str = "") -> str:
        """A step of the right operand, or of another one."""
        if self.right_by_rows:
            return self._box(tensor or self.right, (k, "n"), (self.d.depth, self.d.columns))
        return self._box(tensor or self.right, ("n", k), (self.d.columns, self.d.depth)) + ".T"

    def _box(self, tensor: str, index: tuple[str, str], shape: tuple[int, int]) -> str:
        axis = self.axes[tensor]
        if not axis:
            return f"load({tensor}, ({index[0]}, {index[1]}), shape={shape}, pad=0)"
        which = self.d.r.choice(["0", "Z - 1", "m % Z", "k % Z"])
        indices, box = (index[0], which, index[1]), (shape[0], 1, shape[1])
        if axis == "first":
            indices, box = (which, *index), (1, *shape)
        return f"load({tensor}, ({', '.join(indices)}), shape={box}, pad=0).reshape({shape})"

    def zeros(self) -> str:
        """An accumulator at the start."""
        return f"zeros(({self.d.rows}, {self.d.columns}), f32)"


def _steps(d: Draft) -> str:
    """The bounds of a loop over the depth: all of it, from a scalar on, up to one, or every second step."""
    steps, kind = f"cdiv(K, {d.depth})", d.r.choice(["all", "all", "all", "from", "to", "second"])
    if kind == "all":
        return steps
    if kind == "second":
        d.head.append("requires(K <= 100000)")
        d.parts.add("every second step")
        return f"0, {steps}, 2"
    bound = d.add_scalar("i32", d.r.choice([0, 1, 2, 9]))
    d.head.append(f"requires({bound} >= 0 and {bound} <= 1000)")
    d.parts.add(f"loop {kind} a scalar")
    return f"{bound}, {steps}" if kind == "from" else f"min({bound}, {steps})"


def _one(d: Draft, operands: _Operands) -> list[str]:
    """One loop of one product."""
    d.line(f"acc = {operands.zeros()}")
    d.line(f"for k in range({_steps(d)}):")
    d.line(f"    acc = mma({operands.load_left('k')}, {operands.load_right('k')}, acc)")
    return ["acc"]


def _backwards(d: Draft, operands: _Operands) -> list[str]:
    """The steps of the depth from the last one that a scalar allows down to the first."""
    bound = d.add_scalar("i32", d.r.choice([0, 1, 2, 5]))
    d.head.append(f"requires({bound} >= 0 and {bound} <= 1000)")
    d.line(f"end = min({bound}, cdiv(K, {d.depth}))")
    d.line(f"acc = {operands.zeros()}")
    d.line("for k in range(end):")
    d.line(f"    acc = mma({operands.load_left('end - 1 - k')}, {operands.load_right('end - 1 - k')}, acc)")
    return ["acc"]


def _gated(d: Draft, operands: _Operands) -> list[str]:
    """Gate and up projection in one product of twice the columns, whose result is divided."""
    columns = d.columns
    weights = d.add_tensor("In", d.element, "2, N, K")
    d.line(f"wide = zeros(({d.rows}, {2 * columns}), f32)")
    d.line(f"for k in range({_steps(d)}):")
    d.line(f"    y = load({weights}, (0, n, k), shape=(2, {columns}, {d.depth}), pad=0).reshape(({2 * columns}, {d.depth}))")
    d.line(f"    wide = mma({operands.load_left('k')}, y.T, wide)")
    d.line(f"both = wide.reshape(({d.rows}, 2, {columns}))")
    d.line("is_gate = (arange(2) == 0)[None, :, None]")
    d.line("acc = tilec.sum(where(is_gate, both, 0.0), axis=1)")
    d.line("other = tilec.sum(where(is_gate, 0.0, both), axis=1)")
    return ["acc", "other"]


def _begun(d: Draft, operands: _Operands) -> list[str]:
    """An accumulator that does not begin as zero."""
    start = d.r.choice([f"full(({d.rows}, {d.columns}), 3.0, f32)", f"{operands.zeros()} + m.astype(f32)"])
    d.line(f"acc = {start}")
    d.line(f"for k in range({_steps(d)}):")
    d.line(f"    acc = mma({operands.load_left('k')}, {operands.load_right('k')}, acc)")
    return ["acc"]


def _carried(d: Draft, operands: _Operands) -> list[str]:
    """A loop that carries a scalar, a tile or both besides the accumulator, or changes the accumulator itself."""
    number, tile, scaled = d.r.random() < 0.7, d.r.random() < 0.6, d.r.random() < 0.2
    d.line(f"acc = {operands.zeros()}")
    d.line(f"shift = zeros(({d.columns},), f32)")
    d.line(f"count = {d.add_scalar('i32', 3) if number else 2}")
    d.line(f"for k in range({_steps(d)}):")
    d.line(f"    acc = mma({operands.load_left('k')}, {operands.load_right('k')}, {'acc * 0.5' if scaled else 'acc'})")
    if number:
        d.line("    count = count % 7 + k % 3")
    if tile:
        d.line("    shift = minimum(shift + (count % 4).astype(f32), 64.0)")
    d.line("acc = acc + shift[None, :] + (count % 100).astype(f32)")
    return ["acc"]


def _two(d: Draft, operands: _Operands) -> list[str]:
    """Two accumulators in one loop, whose products share the left operand or not."""
    other = operands.another()
    d.line(f"acc = {operands.zeros()}")
    d.line(f"other = {operands.zeros()}")
    d.line(f"for k in range({_steps(d)}):")
    d.line(f"    left = {operands.load_left('k')}")
    d.line(f"    acc = mma(left, {operands.load_right('k')}, acc)")
    again = d.r.choice(["left", "left", operands.load_left("k")])
    d.line(f"    other = mma({again}, {operands.load_right('k', other)}, other)")
    return ["acc", "other"]


LOOPS: Final[dict[str, Callable[[Draft, _Operands], list[str]]]] = {
    "one product": _one, "backwards": _backwards, "gated": _gated, "begun": _begun, "carried": _carried, "two products": _two,
}  # fmt: skip
TENSOR_LOOPS: Final = ("one product", "one product", "backwards", "gated")
WARP_LOOPS: Final = ("one product", "one product", "backwards", "gated", "begun", "carried", "carried", "two products")
