"""Random kernels that read and write the same tensors through tiles of many shapes, in loops and branches.

In: a seed. Out: the source of a kernel of one block on integers stored as f32, with all accesses in bounds by construction. Its
result does not depend on rounding, so the interpreter and the lowered code must agree exactly.
"""

from __future__ import annotations

import random

ROWS, COLUMNS, LENGTH = 8, 64, 512
SHAPES = ((1, 64), (8, 64), (2, 32), (4, 16), (8, 8), (1, 16), (8, 1), (4, 64))
LENGTHS = (1, 8, 32, 64, 128, 256, 512)
HEAD = '''"""Random accesses of one block."""
import tilec
from tilec import In, InOut, Scratch, arange, f32, full, gather, grid, i32, load, max, minimum, permute, scatter, store, sum

@tilec.kernel
def k(x: In[f32, {rows}, {columns}], a: InOut[f32, {rows}, {columns}], b: InOut[f32, {length}], s: Scratch[f32, {length}],
      turns: i32, flag: i32):
    grid(1)
    store(s, full(({length},), 1.0, f32), offset=0)
'''


class Program:
    """Source text under construction; `names` maps the tiles in scope to their shapes, `loops` are the loop variables in
    scope."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.count = 0
        self.remaining = self.random.randint(5, 11)

    def source(self) -> str:
        self.body(1, {}, [])
        head = HEAD.format(rows=ROWS, columns=COLUMNS, length=LENGTH)
        return head + "\n".join(self.lines) + "\n"

    def emit(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def body(self, depth: int, names: dict[str, tuple[int, ...]], loops: list[str]) -> None:
        names = dict(names)
        start = len(self.lines)
        for _ in range(self.random.randint(2, 4)):
            if self.remaining > 0:
                self.remaining -= 1
                self.statement(depth, names, loops)
        while depth == 1 and self.remaining > 0:
            self.remaining -= 1
            self.statement(depth, names, loops)
        if len(self.lines) == start:
            self.store(depth, names, loops)

    def statement(self, depth: int, names: dict[str, tuple[int, ...]], loops: list[str]) -> None:
        kinds = [self.load] * 4 + [self.store] * 4 + [self.combine] * 3 + [self.gather, self.scatter]
        if depth < 3:
            kinds += [self.loop] * 3 + [self.branch] * 2
        self.random.choice(kinds)(depth, names, loops)

    def new_name(self, names: dict[str, tuple[int, ...]], shape: tuple[int, ...]) -> str:
        self.count += 1
        names[f"v{self.count}"] = shape
        return f"v{self.count}"

    def offset(self, extent: int, size: int, loops: list[str]) -> str:
        slack = extent - size
        kind = self.random.randrange(4)
        if not slack or kind == 0:
            return "0"
        if not loops or kind == 1:
            return str(self.random.choice((slack, slack // 2, self.random.randint(0, slack))))
        step = self.random.choice((1, size, max(1, size // 2), 3))
        return f"({self.random.choice(loops)} * {step} + {self.random.randint(0, slack)}) % {slack + 1}"

    def box(self, loops: list[str]) -> tuple[str, tuple[int, ...], str]:
        tensor = self.random.choice("aabbs")
        if tensor == "a":
            shape: tuple[int, ...] = self.random.choice(SHAPES)
            offsets = [self.offset(extent, size, loops) for extent, size in zip((ROWS, COLUMNS), shape, strict=True)]
            return tensor, shape, f"({', '.join(offsets)})"
        size = self.random.choice(LENGTHS)
        return tensor, (size,), self.offset(LENGTH, size, loops)

    def load(self, depth: int, names: dict[str, tuple[int, ...]], loops: list[str]) -> None:
        tensor, shape, offset = self.box(loops)
        self.emit(depth, f"{self.new_name(names, shape)} = load({tensor}, offset={offset}, shape={shape})")

    def tile(self, depth: int, names: dict[str, tuple[int, ...]], loops: list[str], shape: tuple[int, ...]) -> str:
        """A tile of a shape: one in scope, one in scope converted to the shape, or a new one."""
        fitting = [name for name, other in names.items() if other == shape]
        size = 1
        for extent in shape:
            size *= extent
        transposed = [name for name, other in names.items() if len(other) == 2 and other[::-1] == shape]
        reshaped = [name for name, other in names.items() if other != shape and _size(other) == size]
        kind = self.random.randrange(5)
        if transposed and kind == 0:
            return f"permute({self.random.choice(transposed)}, (1, 0))"
        if reshaped and kind in (1, 2):
            return f"{self.random.choice(reshaped)}.reshape({shape})"
        if fitting and kind:
            return self.random.choice(fitting)
        if names and kind == 3:
            name = self.random.choice(list(names))
            total = f"sum({name}, axis=0)" if len(names[name]) == 1 else f"sum(max({name}, axis=1), axis=0)"
            return f"minimum({total} + full({shape}, 1.0, f32), full({shape}, 1000.0, f32))"
        return f"full({shape}, {float(self.random.randint(1, 9))}, f32)"

    def store(self, depth: int, names: dict[str, tuple[int, ...]], loops: list[str]) -> None:
        tensor, shape, offset = self.box(loops)
        self.emit(depth, f"store({tensor}, {self.tile(depth, names, loops, shape)}, offset={offset})")

    def combine(self, depth: int, names: dict[str, tuple[int, ...]], loops: list[str]) -> None:
        if not names:
            self.load(depth, names, loops)
            return
        shape = names[self.random.choice(list(names))]
        left, right = (self.tile(depth, names, loops, shape) for _ in range(2))
        text = f"minimum({left} + {right}, full({shape}, 1000.0, f32))"
        self.emit(depth, f"{self.new_name(names, shape)} = {text}")

    def indices(self, loops: list[str], size: int) -> str:
        """Distinct indices into a tensor of LENGTH, a power of two, scattered by an odd step."""
        shift = self.random.choice([*loops, str(self.random.randint(0, 99))])
        return f"(arange({size}) * {self.random.choice((1, 3, 5, 511))} + {shift}) % {LENGTH}"

    def gather(self, depth: int, names: dict[str, tuple[int, ...]], loops: list[str]) -> None:
        size = self.random.choice((8, 64, 256))
        indices = self.indices(loops, size)
        self.emit(depth, f"{self.new_name(names, (size,))} = gather({self.random.choice('bs')}, {indices})")

    def scatter(self, depth: int, names: dict[str, tuple[int, ...]], loops: list[str]) -> None:
        size = self.random.choice((8, 64, 256))
        value = self.tile(depth, names, loops, (size,))
        self.emit(depth, f"scatter({self.random.choice('bs')}, {self.indices(loops, size)}, {value})")

    def loop(self, depth: int, names: dict[str, tuple[int, ...]], loops: list[str]) -> None:
        self.count += 1
        variable = f"i{self.count}"
        self.emit(depth, f"for {variable} in range({self.random.choice(('turns', '3', '2'))}):")
        self.body(depth + 1, names, [*loops, variable])

    def branch(self, depth: int, names: dict[str, tuple[int, ...]], loops: list[str]) -> None:
        """A condition on a launch value, on the loop iteration, or on memory."""
        self.count += 1
        conditions = ["flag > 0", *(f"{variable} % 2 == 0" for variable in loops)]
        offset = self.random.randrange(LENGTH)
        self.emit(depth, f"c{self.count} = sum(load(b, offset={offset}, shape=(1,)), axis=0)")
        conditions.append(f"c{self.count} > 3.0")
        self.emit(depth, f"if {self.random.choice(conditions)}:")
        self.body(depth + 1, names, loops)
        if self.random.random() < 0.5:
            self.emit(depth, "else:")
            self.body(depth + 1, names, loops)


def _size(shape: tuple[int, ...]) -> int:
    out = 1
    for extent in shape:
        out *= extent
    return out


def source(seed: int) -> str:
    """The kernel of a seed."""
    return Program(seed).source()
