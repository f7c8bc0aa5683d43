"""What an op refuses: fake tensors meet the contract of the launch, and what the author gives is checked where the op is made.
And where it launches nothing: an extent of 0 can give an empty result."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilec
from tests.ops import prebuilt
from tests.ops.copying_driver import SIZES, CopyingDriver
from tests.ops.fake_torch import FakeTorch, Tensor
from tilec.runtime import TRUSTED, LaunchError, ValueBounds

SOURCE = """import tilec
from tilec import Const, Dim, Element, In, InOut, Out, Strides, grid, i32, requires, values

class E(Element): ...
class T(Dim): ...
class N(Dim): ...
class V(Dim): ...
class S(Dim): ...

@tilec.kernel
def put(x: In[E, T, N, Strides[S, 1]], ids: In[i32, T], cache: InOut[E, V, N], out: Out[E, T, N], n: i32, *, E: Const):
    requires(N % 8 == 0)
    values(ids, 0, V, distinct=True)
    grid(T)
"""
DISTINCT = {"ids": ValueBounds(0, 5, distinct=True)}


def manifest(element: str) -> dict[str, Any]:
    tensors = [
        prebuilt.tensor("x", "in", element, "T", "N") | {"strides": ["S", 1]}, prebuilt.tensor("ids", "in", "i32", "T"),
        prebuilt.tensor("cache", "inout", element, "V", "N"), prebuilt.tensor("out", "out", element, "T", "N"),
    ]  # fmt: skip
    pairs = [["x", "cache"], ["x", "out"], ["ids", "cache"], ["ids", "out"], ["cache", "out"]]
    scalars = [{"name": "n", "dtype": "i32"}]
    base = prebuilt.manifest("put", {"E": element}, tensors, scalars, ["T", "N", "V"], ["T"], pairs)
    base["abi"].append({"kind": "stride", "name": "S"})
    base["launch_checks"] = [{"condition": ["==", ["%", "N", 8], 0], "text": "requires(N % 8 == 0)"}]
    base["value_checks"] = [{"tensor": "ids", "low": 0, "high": "V", "distinct": True}]
    return base


@pytest.fixture
def put(torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes an op of the kernel above."""
    monkeypatch.setitem(SIZES, "put", [8, 8, 8, 8, 4, 4, 4, 4, 8])
    source = tmp_path / "put.py"
    source.write_text(SOURCE, encoding="utf-8")
    folder = prebuilt.write(tmp_path / "build", manifest("bf16"), manifest("f16"))
    return lambda **options: tilec.op(source, prebuilt=folder, **{"values": DISTINCT} | options)


Case = dict[str, Any]
PLAIN: Case = {
    "x": (3, 8), "ids": (3,), "cache": (5, 8), "dtype": "bfloat16", "id_dtype": "int32", "alias": False, "stride": None,
}  # fmt: skip


def tensors(torch: FakeTorch, case: Case, device: str) -> list[Tensor]:
    """The arguments of a case, on the device or without memory."""
    x = torch.empty(*case["x"], dtype="bfloat16", device=device)
    ids = torch.empty(*case["ids"], dtype=case["id_dtype"], device=device)
    cache = torch.empty(*case["cache"], dtype="bfloat16", device=device)
    if case["alias"] and case["cache"] == case["x"]:
        cache = x.view(*case["x"])  # the same memory
    x.dtype = case["dtype"]
    if case["stride"]:
        x.strides = case["stride"][: len(x.shape)]
    return [x, ids, cache]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives: the shape and dtype of its result, or its error, without addresses."""
    try:
        out = call()
    except LaunchError as error:
        given = "" if error.code == "E0909" else error.given
        return error.code, error.argument, error.message, given, "" if error.code == "E0909" else error.required
    return out.shape, out.dtype


EXTENTS = st.sampled_from([0, 1, 3, 5])
ROWS = st.sampled_from([0, 8, 12, 16])
SHAPES = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"ids": st.tuples(EXTENTS)}),
    st.fixed_dictionaries({"cache": st.tuples(EXTENTS, ROWS)}),
    st.fixed_dictionaries({"x": st.tuples(ROWS)}),
)
"""Shapes that replace those which fit each other."""
REST = {
    "dtype": st.sampled_from(["bfloat16"] * 4 + ["float16", "float64"]),
    "id_dtype": st.sampled_from(["int32"] * 4 + ["int64"]),
    "alias": st.booleans(),
    "stride": st.sampled_from([None, None, (16, 1), (16, 2)]),
    "n": st.sampled_from([1, 1, 1, True, 1 << 40]),
}
CASES = st.builds(
    lambda t, n, v, shapes, rest: rest | {"x": (t, n), "ids": (t,), "cache": (v, n)} | shapes,
    EXTENTS, ROWS, EXTENTS, SHAPES, st.fixed_dictionaries(REST),
)  # fmt: skip


def test_a_fake_tensor_meets_the_contract_of_the_launch(
    torch: FakeTorch, driver: CopyingDriver, put: Callable[..., Any]
) -> None:
    """For any arguments, tracing gives the result or the error that the launch gives."""
    op, seen = put(), set[str]()

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(CASES)
    def compare(case: Case) -> None:
        before = len(driver.launches)
        on_device = outcome(lambda: op(*tensors(torch, case, "cuda"), case["n"]))
        launched = len(driver.launches) > before
        traced = outcome(lambda: torch.operators["tilec::put"](*tensors(torch, case, "meta"), case["n"]))
        assert traced == on_device, case
        accepted = not isinstance(on_device[0], str)
        assert launched == (accepted and case["x"][0] > 0)
        seen.add("launched" if launched else "empty" if accepted else on_device[0])

    compare()
    assert seen >= {"launched", "empty", "E0904", "E0905", "E0906", "E0907", "E0909", "E0910", "E0912", "E0913"}


class Symbolic:
    """A symbolic integer of PyTorch: computes, and allows no comparison, which would be a guard of the trace."""

    def __init__(self, hint: int | None) -> None:
        self.node = SimpleNamespace(hint=hint)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a guard")

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __index__ = __eq__  # pyright: ignore[reportAssignmentType]

    def _computed(self, other: Any, function: Callable[[int, int], int]) -> Symbolic:
        values = [self.node.hint, other.node.hint if isinstance(other, Symbolic) else other]
        return Symbolic(None if None in values else function(*values))

    def __mul__(self, other: Any) -> Symbolic:
        return self._computed(other, operator.mul)

    __rmul__ = __mul__


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_a_dtype_other_than_the_authors_is_refused(torch: FakeTorch, put: Callable[..., Any], device: str) -> None:
    with pytest.raises(LaunchError, match=r"E0904.*argument `x`.*given `bf16`; required `f16`"):
        put(constants={"E": "f16"})(*tensors(torch, PLAIN, device), 1)


@pytest.mark.parametrize(("rows", "width", "code"), [(3, 16, ""), (3, 12, "E0910"), (None, 12, ""), (0, 16, "")])
def test_symbolic_sizes_are_checked_without_guards(
    torch: FakeTorch, put: Callable[..., Any], rows: int | None, width: int, code: str
) -> None:
    """At the size of the trace; one that depends on data is left to the launch."""
    op, count = put(), Symbolic(rows)
    arguments = tensors(torch, PLAIN | {"x": (count, width), "ids": (count,), "cache": (5, width)}, "meta")
    if code:
        with pytest.raises(LaunchError, match=code):
            op._fake(*arguments, 1)
        return
    assert op._fake(*arguments, 1).shape[0] is count


def test_devices_and_evidence_of_fake_tensors(torch: FakeTorch, put: Callable[..., Any]) -> None:
    x, ids, cache = tensors(torch, PLAIN, "meta")
    for evidence, match in (
        ({}, "E0913"),
        ({"x": TRUSTED}, "E0903.*`x`"),
        ({"ids": ValueBounds(0, 6, distinct=True)}, "E0913"),
    ):
        with pytest.raises(LaunchError, match=match):
            put(values=evidence)._fake(x, ids, cache, 1)
    assert put(values={"ids": TRUSTED})._fake(x, ids, cache, 1).shape == (3, 8)
    ids.device = type(ids.device)("cuda", 0)
    with pytest.raises(LaunchError, match=r"E0914.*`ids`"):
        put()._fake(x, ids, cache, 1)
    for tensor in (x, ids, cache):
        tensor.device = type(ids.device)("cpu")
    with pytest.raises(LaunchError, match=r"E0914.*`x`.*required a CUDA device"):
        put()._fake(x, ids, cache, 1)


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_arguments_that_are_no_dense_tensor(torch: FakeTorch, put: Callable[..., Any], device: str) -> None:
    op = put()
    x, ids, cache = tensors(torch, PLAIN, device)
    ids.layout = "torch.sparse_coo"
    with pytest.raises(
        LaunchError, match=r"E0907.*argument `ids`.*given `torch.sparse_coo`; required `torch.strided`: `ids.to_d"
    ):
        op(x, ids, cache, 1)
    for wrong in (None, 3, [1.0], np.zeros(3)):
        with pytest.raises(LaunchError, match=r"E0914.*argument `ids`: not a PyTorch tensor"):
            op(x, wrong, cache, 1)
    ids.layout, ids.dtype = "strided", "float64"
    with pytest.raises(LaunchError, match=r"E0904.*argument `ids`.*given `float64`; required i32: `ids.to\(int32\)`"):
        op(x, ids, cache, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"constants": {"BLOK": 5}}, "there is no constant `BLOK`; required `E`"),
        ({"constants": {5: 5}}, "there is no constant `5`"),
        ({"constants": {"E": np.float32}}, "give `E` an unknown dtype; given `<class 'numpy.float32'>`; required one of f32"),
        ({"dims": {"N": 2.5}}, "`dims` gives `N` no usable value; given 2.5 of type `float`; required an integer"),
        ({"dims": {"N": True}}, "`dims` gives `N` no extent"),
        ({"dims": lambda known: {"N": known["M"]}}, "`dims` asks for `M`, which no argument determines; required `E`, `T`"),
        ({"constants": lambda known: {"E": known["M"]}}, "`constants` asks for `M`"),
        ({"values": {"idz": TRUSTED}}, "`values` names `idz`, which is no tensor; required `x`, `ids`, `cache`, `out`"),
        ({"values": {7: TRUSTED}}, "`values` names `7`"),
        ({"values": {"ids": (0, 5)}}, "argument `ids`: an op cannot check stored values at every call; given a value of type"),
        ({"values": [TRUSTED]}, "`values` is not a dict by tensor; given a value of type `list`"),
    ],
)  # fmt: skip
def test_what_the_author_gives_is_checked(torch: FakeTorch, put: Callable[..., Any], options: Any, message: str) -> None:
    """Where the op is made, except what a function gives, which is checked at the call."""
    in_function = any(callable(value) for value in options.values())
    with pytest.raises(LaunchError, match="E0919") as caught:
        op = put(**options)
        assert in_function, "the op was made"
        op(*tensors(torch, PLAIN, "cuda"), 1)
    assert message in str(caught.value)


@pytest.mark.parametrize("what", ["constants", "dims"])
def test_a_float_decides_no_kernel(torch: FakeTorch, driver: CopyingDriver, kernels: Path, what: str) -> None:
    """Calls that differ in floats alone share an entry, and would share its constants."""
    options: dict[str, Any] = {what: lambda known: {"BLOCK": 8 if known["eps"] > 0 else 16}}
    rms_norm = tilec.op(prebuilt.KERNELS / "rms_norm.py", prebuilt=kernels, **options)
    x, weight = torch.empty(3, 1024, dtype="bfloat16"), torch.empty(1024, dtype="bfloat16")
    with pytest.raises(LaunchError, match=f"E0919.*`{what}` asks for `eps`, a float.*required an integer or a bool, or an op"):
        rms_norm(x, weight, 1e-6)


def test_a_block_size_of_any_integer_type(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    add = tilec.op(prebuilt.KERNELS / "add.py", prebuilt=kernels, constants={"BLOCK": np.int64(2048)})
    add(*(torch.empty(5000, dtype="bfloat16") for _ in range(2)))
    assert driver.launches[-1].grid == (3, 1, 1)
    with pytest.raises(LaunchError, match=r"E0919.*`constants` gives `BLOCK` no usable value; given \[1\] of type `list`"):
        tilec.op(prebuilt.KERNELS / "add.py", constants={"BLOCK": [1]})


def test_no_rows_give_an_empty_result(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    """Without a kernel and a launch; an argument that would be written is marked as written all the same."""
    norm = tilec.op(prebuilt.KERNELS / "add_rms_norm.py", prebuilt=kernels)
    x, residual = (torch.empty(0, 1024, dtype="bfloat16") for _ in range(2))
    weight = torch.empty(1024, dtype="bfloat16")
    for version in (1, 2, 3):
        out = norm(x, residual, weight, 1e-6)
        assert (out.shape, out.dtype, residual.version) == ((0, 1024), "bfloat16", version)
    assert not driver.launches and not driver.images
    with pytest.raises(LaunchError, match="E0912"):
        norm(x, residual, weight, "a")
    with pytest.raises(LaunchError, match=r"E0906.*`weight`.*given 1000; required .*1024"):
        norm(x, residual, torch.empty(1000, dtype="bfloat16"), 1e-6)
    empty = torch.empty(3, 0, dtype="bfloat16")
    with pytest.raises(LaunchError, match=r"E0906.*argument `x`: `H` is out of range; given 0; required 1 to .*constant"):
        norm(empty, empty, torch.empty(0, dtype="bfloat16"), 1e-6)


SUM = """import tilec
from tilec import Dim, In, Out, f32, grid

class T(Dim): ...
class N(Dim): ...

@tilec.kernel
def total(x: In[f32, T, N], out: Out[f32, T]):
    grid(GRID)
"""


@pytest.mark.parametrize("grid", ["T", "N"])
def test_an_empty_sum_is_refused(torch: FakeTorch, driver: CopyingDriver, tmp_path: Path, grid: str) -> None:
    """Its result has elements, which nothing would write."""
    source = tmp_path / "total.py"
    source.write_text(SUM.replace("GRID", grid), encoding="utf-8")
    total = tilec.op(source, prebuilt=tmp_path)
    for device in ("cuda", "meta"):
        with pytest.raises(LaunchError, match=r"E0906.*`x`: `N` is out of range; given 0"):
            total(torch.empty(3, 0, dtype="float32", device=device))
    assert total(torch.empty(0, 0, dtype="float32")).shape == (0,)
    assert not driver.images


def test_no_rows_of_other_arrays(
    torch: FakeTorch, driver: CopyingDriver, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("tilec.ops.tensor_op"), "current_device", lambda: torch._on)
    add = tilec.op(prebuilt.KERNELS / "add.py", prebuilt=kernels, constants={"BLOCK": 2048})
    out = add(*(torch._on.empty((0,), "bf16") for _ in range(2)))
    assert (out.shape, out.dtype, driver.launches) == ((0,), "bf16", [])
