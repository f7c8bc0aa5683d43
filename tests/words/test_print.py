"""`print`: which lines it writes, once each, in the order of the text, on the interpreter and from the PTX of every chip."""

from __future__ import annotations

import numpy as np
import pytest

from tests.campaign import first
from tests.words.kernels import ARCHITECTURES, Array
from tests.words.printing_kernels import HEAD, agreed, compiled, emulated, interpreted, kernel, loaded, vector
from tilec.assemble import ptxas
from tilec.diagnostics.diagnostic import CompileError
from tilec.emulator import emulate
from tilec.passes.schedule import choose
from tilec.target.dtypes import DTYPES, numpy_dtype
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A, SM_100A, Target

COPY = "tl.grid(N)\ni = tl.bid(0)\nv = tl.load(x, i)\n"
STORE = "\ntl.store(out, i, v)"


def test_a_scalar_is_one_line_of_each_block() -> None:
    text = kernel(COPY + 'tl.print("here")\ntl.print("x {} of {{{}}}, 100%", v, i)' + STORE)
    expected = [line for i in range(3) for line in (f"bid ({i}): here", f"bid ({i}): x {i - 1.5:g} of {{{i}}}, 100%")]
    assert agreed(text, vector(3), {"N": 3}) == expected


@pytest.mark.parametrize("shape", [(4,), (33,), (5, 3), (2, 3, 5), (256,), (1000,)])
def test_every_element_is_one_line(shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape))
    text = kernel(COPY + f'tl.print("{{}}", tl.reshape(tl.arange({count}), {shape}))' + STORE)
    listed = [f"bid (0) at ({', '.join(map(str, index))}): {number}" for number, index in enumerate(np.ndindex(shape))]
    assert agreed(text, vector(1), {"N": 1}) == listed


def test_loaded_tiles_that_warps_repeat_are_printed_once() -> None:
    text = kernel(
        'tl.grid(1)\nv = tl.load(x, 0, shape=(12,))\ntl.print("{} {}", v[:, None], tl.sum(v, 0))\n'
        "tl.store(out, 0, v)", "x: tl.In[tl.f32, 12], out: tl.Out[tl.f32, 12]",
    )  # fmt: skip
    assert len(agreed(text, vector(12), {})) == 12


def test_where_chooses_elements_of_any_tile() -> None:
    text = kernel(COPY + 'p = tl.arange(4096)\ntl.print("{}", p * 2, where=(p % 1000 == 1) & (i < 2))' + STORE)
    expected = [f"bid ({i}) at ({p}): {2 * p}" for i in range(2) for p in range(1, 4096, 1000)]
    assert agreed(text, vector(3), {"N": 3}) == expected


def test_a_scalar_condition_chooses_blocks() -> None:
    text = kernel(COPY + 'tl.print("{}", v, where=v > 0.0)' + STORE)
    assert agreed(text, vector(4), {"N": 4}) == ["bid (2): 0.5", "bid (3): 1.5"]


@pytest.mark.parametrize("name", DTYPES)
def test_numbers_of_every_dtype(name: str) -> None:
    dtype = DTYPES[name]
    if dtype.is_float:
        values = np.array([0.1, -0.0, 1 / 3, np.inf if name != "f8e4m3" else 1, np.nan, dtype.largest, -dtype.largest, 1e-3])
    else:
        values = np.array([0, 1, *dtype.integer_range(), 0, 1, 1, 0], numpy_dtype(dtype))
    array = values.astype(numpy_dtype(dtype))
    text = kernel(
        'tl.grid(1)\nv = tl.load(x, 0, shape=(8,))\ntl.print("{}", v)\ntl.store(out, 0, v)',
        f"x: tl.In[tl.{'boolean' if name == 'bool' else name}, 8], out: tl.Out[tl.{'boolean' if name == 'bool' else name}, 8]",
    )
    lines = agreed(text, {"x": array, "out": np.zeros_like(array)}, {}, warps=(2,))
    values = [float(line.rpartition(": ")[2]) for line in lines]
    if dtype.is_float:  # the digits tell the number
        np.testing.assert_array_equal(np.array(values).astype(numpy_dtype(dtype)).astype(np.float64), array.astype(np.float64))
    else:
        assert [line.rpartition(": ")[2] for line in lines] == [str(int(value)) for value in array]


def test_lines_come_in_the_order_of_the_text() -> None:
    """All lines of a print before those of the next, in loops, branches and tile functions, whatever the order of threads."""
    head = kernel("pass").split("@tl.kernel")[0] + (
        '@tl.function\ndef doubled(v):\n    tl.print("2 {}", v)\n    return v * 2.0\n\n\n@tl.kernel\n'
    )
    text = kernel(
        'tl.grid(1)\nv = tl.load(x, 0, shape=(256,))\ntl.print("1 {}", v)\nw = doubled(v)\nfor j in range(3):\n'
        '    tl.print("{} {}", j + 3, w)\n    if j == 1:\n        tl.print("{} {}", 4, w)\n    w = w + 1.0\n'
        'tl.print("6 {}", tl.max(w, 0))\ntl.store(out, 0, w)', "x: tl.In[tl.f32, 256], out: tl.Out[tl.f32, 256]", head,
    )  # fmt: skip
    expected = interpreted(text, vector(256))
    numbers = [int(line.split(": ")[1].split()[0]) for line in expected]
    assert numbers == [1] * 256 + [2] * 256 + [3] * 256 + [4] * 512 + [5] * 256 + [6]
    for target in ARCHITECTURES:
        for seed in range(4):
            found = emulated(text, vector(256), target, Overrides(warps=4), {}, seed)
            assert [int(line.split(": ")[1].split()[0]) for line in found] == numbers
            assert sorted(found) == sorted(expected)


def test_numbers_that_wrap_may_be_printed() -> None:
    """What is printed decides nothing, so nothing need show that it fits its dtype."""
    text = kernel(COPY + 'j = (i + 1) * 1000000000 * 7\ntl.print("{} {}", j, j * j)' + STORE)
    numbers = [np.array((i + 1) * 7_000_000_000).astype(np.int32) for i in range(3)]
    with np.errstate(all="ignore"):
        assert agreed(text, vector(3), {"N": 3}) == [f"bid ({i}): {j} {j * j}" for i, j in enumerate(numbers)]


@pytest.mark.parametrize("target", ARCHITECTURES, ids=str)
def test_the_assembler_alone_makes_a_cubin(target: Target) -> None:
    """`vprintf` stays undefined in it: the driver has it."""
    text = kernel(COPY + 'tl.print("x {} of {}", v, i)' + STORE)
    cubin, output = ptxas.run(compiled(text, target, Overrides())[0].encode(), target.name)
    assert cubin is not None and b"vprintf\0" in cubin, output


def test_a_block_has_an_index_on_each_axis() -> None:
    text = kernel(
        'i = tl.bid(1)\ntl.print("{}", i)\ntl.store(out, (tl.bid(0), i, tl.bid(2)), 1.0)\ntl.grid(2, 3, 2)',
        "out: tl.Out[tl.f32, 2, 3, 2]",
    )
    expected = [f"bid ({a}, {b}, {c}): {b}" for a in range(2) for b in range(3) for c in range(2)]
    assert agreed(text, {"out": np.zeros((2, 3, 2), np.float32)}, {}) == expected


def test_after_an_early_return_nothing_is_printed() -> None:
    text = kernel(COPY + 'tl.store(out, i, v)\nif i > 1:\n    return\ntl.print("{}", v)')
    assert agreed(text, vector(4), {"N": 4}) == ["bid (0): -1.5", "bid (1): -0.5"]


def test_a_loop_that_breaks_prints_until_then() -> None:
    text = kernel(COPY + 's = v\nfor j in range(9):\n    tl.print("{}", j)\n    if s > 1.0:\n        break\n    s = s + 1.0\n'
                  "tl.store(out, i, s)")  # fmt: skip
    assert agreed(text, vector(1), {"N": 1}) == [f"bid (0): {j}" for j in range(4)]


IN_LOOP = 'tl.print("{} {}", k, acc, where=(row == 77) & (column % 32 == 1))'
PRODUCT = """tl.requires(M % 128 == 0)
tl.grid(M // 128)
i = tl.bid(0)
row, column = tl.arange(128)[:, None], tl.arange(64)[None, :]
acc = tl.zeros((128, 64), tl.f32)
for k in range(4):
    acc = tl.mma(tl.load(a, (i, k), shape=(128, 64)), tl.permute(tl.load(b, (0, k), shape=(64, 64)), (1, 0)), acc)
    {}
tl.print("8 {{}}", acc, where=(row % 50 == 7) & (column == 33))
tl.print("9 {{}}", tl.sum(tl.sum(acc, 1), 0))
tl.store(out, (i, 0), acc)"""
PARAMETERS = "a: tl.In[tl.bf16, M, 256], b: tl.In[tl.bf16, 64, 256], out: tl.Out[tl.f32, M, 64]"


def product(inside: str) -> str:
    head = HEAD.replace("N(", "M(")
    return kernel(PRODUCT.format(inside), PARAMETERS, head)


def check_product(text: str, target: Target, wanted: Overrides, lines: int) -> None:
    """A product prints as on the interpreter, each block's prints in the order of the text."""
    random = np.random.default_rng(3)
    a, b = (random.integers(-2, 3, shape).astype(numpy_dtype(DTYPES["bf16"])) for shape in ((384, 256), (64, 256)))
    arrays = {"a": a, "b": b, "out": np.zeros((384, 64), np.float32)}
    expected = interpreted(text, arrays)
    assert len(expected) == 3 * lines
    for seed in range(2):
        found = emulated(text, arrays, target, wanted, {"M": 384}, seed)
        assert sorted(found) == sorted(expected)
        for block in range(3):
            kept = [[line for line in lines if line.startswith(f"bid ({block})")] for lines in (found, expected)]
            values = [[line.split(": ")[1].split()[0] for line in lines] for lines in kept]
            assert values[0] == values[1]


@pytest.mark.parametrize("target", first(1, MAIN_TARGETS), ids=str)
@pytest.mark.parametrize("wanted", [Overrides(), Overrides(stages=3, copy="cp_async")], ids=["none", "cp_async"])
def test_loops_of_products_print_each_line_once(target: Target, wanted: Overrides) -> None:
    check_product(product(IN_LOOP), target, wanted, 4 * 2 + 3 + 1)


@pytest.mark.parametrize("target", first(1, MAIN_TARGETS), ids=str)
@pytest.mark.parametrize("persistent", [False, True])
def test_consumers_print_next_to_a_producer(target: Target, persistent: bool) -> None:
    wanted = Overrides(copy="tma", persistent=persistent)
    assert len(choose(loaded(product("pass")), target, wanted).roles) > 1
    check_product(product("pass"), target, wanted, 3 + 1)


@pytest.mark.parametrize(
    ("target", "wanted", "reason"),
    [
        (SM_90A, Overrides(copy="tma", persistent=True, order="pingpong"), "nothing orders the lines of two consumers"),
        (SM_100A, Overrides(copy="tma", cluster=2), "knows the positions in its half only"),
    ],
    ids=["pingpong", "pair"],
)
def test_schedules_that_would_tear_lines_are_refused(target: Target, wanted: Overrides, reason: str) -> None:
    text = product("pass").replace("128", "256")
    without = "\n".join(line for line in text.split("\n") if "tl.print" not in line)
    choose(loaded(without), target, wanted)
    with pytest.raises(CompileError, match=reason):
        choose(loaded(text), target, wanted)


def test_ptx_that_prints_leaves_results_as_they_are() -> None:
    body = COPY + "{}w = v * 3.0\n" + "tl.store(out, i, w)"
    plain, prints = (kernel(body.format(line)) for line in ("", 'tl.print("{}", v)\n'))
    results: list[Array] = []
    for text in (plain, prints):
        ptx, launched = compiled(text, SM_90A, Overrides())
        results.append(emulate(ptx, launched, vector(5), {"N": 5}).tensors["out"])
    np.testing.assert_array_equal(results[0], results[1])
