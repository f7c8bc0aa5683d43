"""The kernels of a prompt's experts, one after the other: right for any router, whatever rows of nobody hold, and the same bits
for a token in any company."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests import shipped
from tests.shipped_launches import launch_values, make_arrays, reference
from tilec.frontend import load_kernel
from tilec.interpreter import Accesses, InterpreterError, run
from tilec.ir.core import Function

Array = NDArray[Any]
X, C, BLOCK, H, WIDTH = 8, 2, 16, 32, 24
"""Experts, those of a token, choices of a chunk, and sizes of rows, for which small prompts fill several of each."""
EPS = 1e-6
TILES = {"BN": 32, "BK": 16}
BF16 = ml_dtypes.bfloat16


@cache
def kernel(name: str, **constants: Any) -> Function:
    """A kernel of `kernels_src` with constants of a test."""
    return load_kernel(shipped.source(name), constants, root=shipped.ROOT)


def launched(name: str, constants: dict[str, Any], arrays: dict[str, Array], **scalars: float) -> None:
    """Run a kernel; AssertionError if blocks share an element or leave one unwritten."""
    function = kernel(name, **constants)
    accesses = Accesses(function, arrays)
    run(function, arrays, scalars, accesses=accesses)
    assert accesses.problems() == []


def tiles_of(choices: int, rows: int) -> int:
    """Tiles that no router exceeds, as a step has them."""
    return (choices + min(X, choices) * (rows - 1)) // rows


def unwritten(*shape: int, dtype: Any = BF16) -> Array:
    """What memory may hold: no number, or an integer that is no index."""
    return np.full(shape, -(2**31) if dtype == np.int32 else np.nan, dtype)


def placed(x: Array, experts: Array, rows: int) -> dict[str, Array]:
    """Buffers after `experts_sort`, `experts_tiles` and `experts_gather`, with tiles of `rows` rows."""
    tokens = len(experts)
    chunks, tiles = -(-tokens // (BLOCK // C)), tiles_of(experts.size, rows)
    found: dict[str, Array] = {"x": x, "experts": experts.astype(np.int32)}
    for name in ("order", "ranks"):
        found[name] = unwritten(chunks, BLOCK, dtype=np.int32)
    for name in ("counts", "begins", "starts"):
        found[name] = unwritten(X, chunks, dtype=np.int32)
    found["tiles"], found["places"] = unwritten(tiles, dtype=np.int32), unwritten(tokens, C, dtype=np.int32)
    found["out"] = unwritten(tiles * rows, x.shape[1])

    def take(*names: str) -> dict[str, Array]:
        return {name: found[name] for name in names}

    launched("experts_sort", {"C": C, "X": X, "BLOCK": BLOCK}, take("experts", "order", "ranks", "counts", "begins"))
    tiling = {"X": X, "BM": rows, "CHOICES": BLOCK, "BLOCK": 4}
    launched("experts_tiles", tiling, take("counts", "starts", "tiles"))
    gather = {"E": "bf16", "H": x.shape[1], "C": C, "X": X, "BM": rows, "BLOCK": BLOCK, "ROWS": 4, "CHUNKS": 4, "COLUMNS": 16}
    launched("experts_gather", gather, found)
    return found


def product(name: str, rows: int, a: Array, tiles: Array, b: Array) -> Array:
    """A grouped product, by the kernel for many rows of an expert or by the one for few."""
    out = unwritten(len(a), b.shape[-2])
    group = {} if name.endswith("_few") else {"GROUP": 2}
    launched(name, {"E": "bf16", "BM": rows, **TILES, **group}, {"a": a, "tiles": tiles, "b": b, "out": out})
    return out


def layer(t: dict[str, Array], few: bool, rows: int) -> tuple[Array, Array]:
    """The residual and its norm after all experts of a layer."""
    form = "_few" if few else ""
    found = placed(t["x"], t["experts"], rows)
    act = product(f"experts_matmul_silu_mul{form}", rows, found["out"], found["tiles"], t["gate_up"])
    down = product(f"experts_matmul{form}", rows, act, found["tiles"], t["down"])
    residual, out = t["residual"].copy(), unwritten(*t["residual"].shape)
    arrays = {
        "y": down, "places": found["places"], "weights": t["weights"], "residual": residual, "weight": t["weight"], "out": out,
    }  # fmt: skip
    launched("experts_combine", {"E": "bf16", "H": H, "C": C}, arrays, eps=EPS)
    return residual, out


def problem(experts: Array, seed: int = 0) -> dict[str, Array]:
    """Random inputs of a layer."""
    random = np.random.default_rng(seed)
    tokens = len(experts)

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return (random.normal(size=shape) * scale).astype(BF16)

    return {
        "x": normal(tokens, H), "experts": experts, "residual": normal(tokens, H), "weight": normal(H),
        "gate_up": normal(X, 2, WIDTH, H, scale=1 / 6), "down": normal(X, H, WIDTH, scale=1 / 5),
        "weights": random.dirichlet(np.ones(C), size=tokens).astype(np.float32),
    }  # fmt: skip


def dense(t: dict[str, Array]) -> Array:
    """The residual after a layer in float64, token by token and without any sorting."""
    wide = {name: array.astype(np.float64) for name, array in t.items()}
    total = wide["residual"].copy()
    for token, chosen in enumerate(t["experts"]):
        for c, expert in enumerate(chosen):
            gate, up = (wide["gate_up"][expert, half] @ wide["x"][token] for half in (0, 1))
            total[token] += wide["weights"][token, c] * (wide["down"][expert] @ (gate / (1 + np.exp(-gate)) * up))
    return total


@st.composite
def routers(draw: Any) -> Array:
    """Choices of up to 70 tokens: any, all of few experts, or one after the other; a token may choose an expert twice."""
    tokens = draw(st.integers(1, 70))
    kind = draw(st.sampled_from(["any", "one", "two", "turns", "last"]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if kind == "turns":
        return np.resize(np.arange(X, dtype=np.int32), (tokens, C))
    allowed = {
        "any": np.arange(X),
        "one": random.integers(X, size=1),
        "two": random.integers(X, size=2),
        "last": np.array([X - 1]),
    }
    return random.choice(allowed[kind], (tokens, C)).astype(np.int32)


FORMS = [(False, 16), (True, 4)]


@pytest.mark.parametrize(("few", "rows"), FORMS)
@settings(max_examples=12, deadline=None)
@given(experts=routers(), seed=st.integers(0, 2**32 - 1))
def test_a_layer_is_that_of_each_token_alone(few: bool, rows: int, experts: Array, seed: int) -> None:
    t = problem(experts, seed)
    residual, out = layer(t, few, rows)
    wanted = dense(t)
    assert np.linalg.norm(residual.astype(np.float64) - wanted) <= 2.0**-7 * np.linalg.norm(wanted)
    stored = residual.astype(np.float64)
    norm = stored / np.sqrt(np.mean(stored**2, axis=1, keepdims=True) + EPS) * t["weight"].astype(np.float64)
    assert np.allclose(out.astype(np.float64), norm, rtol=2.0**-7, atol=1e-6)


@pytest.mark.parametrize("rows", [4, 16])
@settings(max_examples=25, deadline=None)
@given(experts=routers())
def test_rows_are_in_the_order_of_experts(rows: int, experts: Array) -> None:
    x = np.random.default_rng(1).normal(size=(len(experts), H)).astype(BF16)
    found = placed(x, experts, rows)
    slots = reference("experts_gather").__globals__["slots_of"](experts, X, rows)
    assert (found["places"] == slots).all()
    assert np.unique(slots).size == slots.size
    assert (found["tiles"][slots // rows] == experts).all()
    wanted = np.zeros((len(found["out"]), H), BF16)
    wanted[slots] = x[:, None]
    assert (found["out"].view(np.uint16) == wanted.view(np.uint16)).all()
    heights = -(-np.bincount(experts.ravel(), minlength=X) // rows)
    assert found["tiles"].tolist() == [*np.repeat(np.arange(X), heights), *[X] * (len(found["tiles"]) - heights.sum())]


@given(st.lists(st.integers(0, 300), min_size=X, max_size=X), st.sampled_from([1, 4, 16, 64, 128]))
def test_no_router_has_more_tiles_than_a_step_has_room_for(counts: list[int], rows: int) -> None:
    assert sum(-(-count // rows) for count in counts) <= tiles_of(sum(counts), rows)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), extreme=st.booleans())
def test_wrong_integers_lead_to_no_row_outside(seed: int, extreme: bool) -> None:
    """Of what has no promised bounds, nothing is trusted: any integers give places within the rows."""
    random = np.random.default_rng(seed)
    tokens, rows, chunks = 19, 4, 3
    tiles = tiles_of(tokens * C, rows)
    low, high = (-(2**31), 2**31) if extreme else (-5, 60)

    def any_of(*shape: int) -> Array:
        return random.integers(low, high, shape).astype(np.int32)

    arrays: dict[str, Array] = {
        "x": np.ones((tokens, H), BF16), "experts": random.integers(0, X, (tokens, C)).astype(np.int32),
        "order": any_of(chunks, BLOCK), "ranks": any_of(chunks, BLOCK),
        "counts": any_of(X, chunks), "begins": any_of(X, chunks),
        "starts": any_of(X, chunks), "tiles": random.integers(0, X + 1, tiles).astype(np.int32),
        "out": unwritten(tiles * rows, H), "places": unwritten(tokens, C, dtype=np.int32),
    }  # fmt: skip
    gather = {"E": "bf16", "H": H, "C": C, "X": X, "BM": rows, "BLOCK": BLOCK, "ROWS": 4, "CHUNKS": 4, "COLUMNS": 16}
    launched("experts_gather", gather, arrays)
    assert ((arrays["places"] >= 0) & (arrays["places"] < tiles * rows)).all()
    assert np.isin(arrays["out"].astype(np.float32), (0, 1)).all()
    scan = {
        "counts": any_of(X, chunks),
        "starts": unwritten(X, chunks, dtype=np.int32),
        "tiles": unwritten(tiles, dtype=np.int32),
    }
    launched("experts_tiles", {"X": X, "BM": rows, "CHOICES": BLOCK, "BLOCK": 4}, scan)
    assert ((scan["tiles"] >= 0) & (scan["tiles"] <= X)).all()


@pytest.mark.parametrize("name", ["experts_sort", "experts_matmul", "experts_combine"])
def test_an_index_outside_its_bounds_is_refused(name: str) -> None:
    t = problem(np.zeros((3, C), np.int32))
    with pytest.raises(InterpreterError):
        if name == "experts_sort":
            placed(t["x"], np.full((3, C), X, np.int32), 4)
        elif name == "experts_matmul":
            product(name, 4, np.zeros((8, WIDTH), BF16), np.array([0, X + 1], np.int32), t["down"])
        else:
            arrays = {
                "y": np.zeros((8, H), BF16), "places": np.full((3, C), 8, np.int32), "weights": t["weights"],
                "residual": t["residual"], "weight": t["weight"], "out": unwritten(3, H),
            }  # fmt: skip
            launched(name, {"E": "bf16", "H": H, "C": C}, arrays, eps=EPS)


@pytest.mark.parametrize(("few", "rows"), FORMS)
def test_rows_of_nobody_and_experts_that_nobody_chose_change_nothing(few: bool, rows: int) -> None:
    form = "_few" if few else ""
    experts = np.array([[1, 4], [4, 6], [1, 4], [6, 6], [4, 1]], np.int32)
    t = problem(experts)
    found = placed(t["x"], experts, rows)
    spoilt = found["out"].copy()
    nobody = np.setdiff1d(np.arange(len(spoilt)), found["places"])
    spoilt[nobody] = np.nan
    for name, b in (
        (f"experts_matmul_silu_mul{form}", t["gate_up"]),
        (f"experts_matmul{form}", np.ascontiguousarray(t["gate_up"][:, 0])),
    ):
        unread = b.copy()
        unread[[0, 2, 3, 5, 7]] = np.nan
        right, other = product(name, rows, found["out"], found["tiles"], b), product(name, rows, spoilt, found["tiles"], unread)
        own = found["places"].ravel()
        assert (right[own].view(np.uint16) == other[own].view(np.uint16)).all()
        assert not right[nobody].any()
        used = np.repeat(found["tiles"] < X, rows)
        assert not other[~used].any()
        assert used.sum() < len(used), "there is a tile of nobody"


@pytest.mark.parametrize(("few", "rows"), FORMS)
def test_a_token_has_the_same_bits_in_any_company(few: bool, rows: int) -> None:
    random = np.random.default_rng(5)
    t = problem(random.integers(0, X, (41, C)).astype(np.int32))
    residual, out = layer(t, few, rows)
    for part in (slice(0, 1), slice(17, 18), slice(3, 30)):
        alone = {name: array if name in ("weight", "gate_up", "down") else array[part] for name, array in t.items()}
        again = layer(alone, few, rows)
        assert (again[0].view(np.uint16) == residual[part].view(np.uint16)).all()
        assert (again[1].view(np.uint16) == out[part].view(np.uint16)).all()


def of_codes(name: str, form: str, **sizes: int) -> Function:
    """A product with weights of codes, two groups side by side."""
    scales = {"F": "bf16"} if form == "int4" else {}
    return kernel(f"{name}_{form}", E="bf16", **scales, SPLIT=2, **sizes)


@pytest.mark.parametrize("form", ["fp8", "int4"])
@pytest.mark.parametrize("name", ["experts_matmul_few", "experts_matmul_silu_mul_few"])
def test_codes_of_experts_that_nobody_chose_are_not_read(name: str, form: str) -> None:
    """Their scales are NaN. Tiles are of the second expert and of nobody, whose rows are zeros."""
    size: dict[str, float | str] = {"S": 3, "X": 3, "K": 512, **({"I": 128, "I2": 256} if "silu" in name else {"N": 128})}
    function = of_codes(name, form, BM=8, ROWS=32)
    arrays = make_arrays(function, launch_values(function, size))
    arrays["tiles"][:] = [1, 1, 3]
    found: list[Array] = []
    for unused in (1.0, np.nan):
        arrays["b_scales"][[0, 2]] = unused
        arrays["out"][:] = np.nan
        accesses = Accesses(function, arrays)
        run(function, arrays, accesses=accesses)
        assert accesses.problems() == []
        found.append(arrays["out"].copy())
    assert found[0].tobytes() == found[1].tobytes()
    assert np.isfinite(found[0].astype(np.float32)).all() and found[0][:16].any() and not found[0][16:].any()
    arrays["tiles"][0] = 4
    with pytest.raises(InterpreterError):
        run(function, arrays)


@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_a_row_of_codes_has_the_same_bits_in_any_company(form: str) -> None:
    """A token's row alone in its tile, and among others in another row of another tile."""
    function = of_codes("experts_matmul_silu_mul_few", form, BM=16, ROWS=64)
    arrays = make_arrays(function, launch_values(function, {"S": 2, "X": 2, "I": 128, "I2": 256, "K": 512}))
    arrays["tiles"][:] = 1
    arrays["a"][:16] = 0
    arrays["a"][0] = arrays["a"][16 + 11]
    run(function, arrays)
    assert arrays["out"][0].tobytes() == arrays["out"][16 + 11].tobytes() != bytes(2 * 128)
