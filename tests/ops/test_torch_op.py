"""Ops on PyTorch tensors, with a stub of PyTorch and of the driver that record: the launches, the registrations in PyTorch, and
the path of each call."""

from __future__ import annotations

import importlib
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilec
from tests.ops import prebuilt
from tests.ops.copying_driver import CopyingDriver
from tests.ops.fake_torch import FakeTorch, Parameter, Tensor
from tilec.runtime import BundleError, DriverError, LaunchError

EPS = 1e-6


def make_op(kernels: Path, kernel: str, **options: Any) -> Any:
    return tilec.op(prebuilt.KERNELS / f"{kernel}.py", prebuilt=kernels, **options)


def rows(torch: FakeTorch, count: int, hidden: int = 1024) -> tuple[Tensor, Tensor]:
    return torch.empty(count, hidden, dtype="bfloat16"), torch.empty(hidden, dtype="bfloat16")


def test_a_call_launches_the_specialisation_of_its_tensors(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    """The first call of its kind and later ones use different paths, and launch the same."""
    rms_norm = make_op(kernels, "rms_norm")
    for count, hidden in ((3, 1024), (3, 1024), (5, 1024), (3, 2048), (3, 1024)):
        x, weight = rows(torch, count, hidden)
        out = rms_norm(x, weight, eps=EPS)
        assert (out.shape, out.dtype) == ((count, hidden), "bfloat16")
        launch = driver.launches[-1]
        assert (launch.grid, launch.stream) == ((count, 1, 1), 7)
        pointers = [struct.pack("<Q", tensor.data_ptr()) for tensor in (x, weight, out)]
        assert driver.sent[-1] == [*pointers, struct.pack("<i", count), struct.pack("<f", EPS)]
    assert len(driver.images) == 2  # one kernel for each hidden size
    assert torch.operators["tilec::rms_norm"].calls == 0  # none of it through the dispatcher


def test_mutated_arguments_are_written_and_marked(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    add_rms_norm = make_op(kernels, "add_rms_norm")
    x, weight = rows(torch, 3)
    residual, _ = rows(torch, 3)
    for version in (1, 2):
        out = add_rms_norm(x, residual, weight, EPS)
        assert residual.version == version
        pointers = [struct.pack("<Q", tensor.data_ptr()) for tensor in (x, residual, weight, out)]
        assert driver.sent[-1][:4] == pointers
    schema = "add_rms_norm(Tensor x, Tensor(a!) residual, Tensor weight, float eps) -> Tensor"
    assert torch.operators["tilec::add_rms_norm"].schema == schema
    with pytest.raises(LaunchError, match="E0919"):
        add_rms_norm.register_autograd(lambda ctx, grad: grad)
    into = make_op(kernels, "rms_norm", mutates=["out"])
    out = torch.empty(3, 1024, dtype="bfloat16")
    assert into(x, weight, out, EPS) is None
    assert out.version == 1
    assert torch.operators["tilec::rms_norm"].schema == "rms_norm(Tensor x, Tensor weight, Tensor(a!) out, float eps) -> ()"


def test_constants_are_chosen_by_dtype_and_by_the_author(torch: FakeTorch, driver: CopyingDriver, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def choose(known: dict[str, Any]) -> dict[str, Any]:
        seen.append(known)
        return {"BLOCK": 2048 if known["N"] > 4096 else 256}

    folder = prebuilt.write(tmp_path, prebuilt.add("bf16"), prebuilt.add("f16"), prebuilt.add("f16", 256))
    add = make_op(folder, "add", constants=choose)
    for dtype, size, blocks in (("bfloat16", 5000, 3), ("float16", 5000, 3), ("float16", 1000, 4)):
        add(*(torch.empty(size, dtype=dtype) for _ in range(2)))
        assert driver.launches[-1].grid == (blocks, 1, 1)
    assert seen[0] == {"E": "bf16", "N": 5000}
    with pytest.raises(BundleError, match=r"has no kernel for `add`, E = bf16, BLOCK = 256, sm_90a"):
        add(*(torch.empty(1000, dtype="bfloat16") for _ in range(2)))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda torch, x: setattr(x, "strides", (2, 1)), "E0907"),
        (lambda torch, x: setattr(x, "device", torch.empty(1, dtype="bfloat16", device="cpu").device), "E0914"),
        (lambda torch, x: setattr(x, "dtype", "complex64"), "E0904"),
        (lambda torch, x: setattr(x, "shape", (3, 1000)), "E0707"),
        (lambda torch, x: setattr(x, "shape", (3, 4, 1024)), "E0905"),
        (lambda torch, x: setattr(x, "data_ptr", lambda: 4098), "E0908"),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_the_contract_is_enforced_on_every_call(
    torch: FakeTorch, driver: CopyingDriver, kernels: Path, change: Any, code: str, warm: bool
) -> None:
    """Also after a call with the same shapes."""
    rms_norm = make_op(kernels, "rms_norm")
    x, weight = rows(torch, 3)
    for _ in range(3 * warm):
        rms_norm(x, weight, EPS)
    before = len(driver.launches)
    change(torch, x)
    if code == "E0914":
        weight.device = x.device
    with pytest.raises((LaunchError, BundleError), match=code):
        rms_norm(x, weight, EPS)
    assert len(driver.launches) == before


def test_strides_of_a_tensor_that_says_so_are_part_of_the_call(torch: FakeTorch, driver: CopyingDriver, tmp_path: Path) -> None:
    source = tmp_path / "rows.py"
    source.write_text(prebuilt.ROWS)
    strided = tilec.op(source, prebuilt=prebuilt.write(tmp_path / "build", prebuilt.rows()))
    x = torch.empty(4, 64, dtype="bfloat16")  # room for the largest stride: nothing else may lie in it
    x.shape = (4, 8)
    for stride, number in ((8, 1), (64, 1), (64, 2), (8, 1), (64, 2)):
        x.strides = (stride, 1)
        strided(x, number)
        assert driver.sent[-1][3:] == [struct.pack("<q", stride), struct.pack("<i", number)]
    for number in (True, 2**31, -(2**31) - 1, 1.0):
        with pytest.raises(LaunchError, match="E0912"):
            strided(x, number)
    assert torch.operators["tilec::rows"].schema == "rows(Tensor x, SymInt n) -> Tensor"


@pytest.mark.parametrize("named", [False, True])
def test_an_integer_that_no_clause_names_costs_no_check(
    torch: FakeTorch, driver: CopyingDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Each other value of an integer is checked like a first call if a clause of the contract names it, and only then."""
    source = tmp_path / "rows.py"
    source.write_text(prebuilt.ROWS)
    checks = [{"condition": ["<=", "n", 8], "text": "n is at most 8"}] if named else []
    folder = prebuilt.write(tmp_path / "build", prebuilt.rows() | {"launch_checks": checks})
    strided = tilec.op(source, prebuilt=folder)
    first, firsts = type(strided).plan, list[int]()
    monkeypatch.setattr(
        type(strided), "plan", lambda self, given, *more: firsts.append(given["n"]) or first(self, given, *more)
    )
    x, other = (torch.empty(extent, 8, dtype="bfloat16") for extent in (4, 5))
    for number in (1, 2, 2, 3, 1):
        strided(x, number)
        strided(other, number + 1)
        assert [sent[4] for sent in driver.sent[-2:]] == [struct.pack("<i", number), struct.pack("<i", number + 1)]
    assert firsts == ([1, 2, 2, 3, 3, 4] if named else [1, 2])
    if named:
        with pytest.raises(LaunchError, match="n is at most 8"):
            strided(x, 9)
    else:
        strided(x, 9)


def test_integers_that_constants_may_follow_are_part_of_the_call(
    torch: FakeTorch, driver: CopyingDriver, tmp_path: Path
) -> None:
    seen: list[int] = []
    source = tmp_path / "rows.py"
    source.write_text(prebuilt.ROWS)
    folder = prebuilt.write(tmp_path / "build", prebuilt.rows())
    strided = tilec.op(source, prebuilt=folder, constants=lambda known: seen.append(known["n"]) or {})
    x = torch.empty(4, 8, dtype="bfloat16")
    for number in (1, 2, 1, 2):
        strided(x, number)
    assert {*seen} == {1, 2} and len(driver.launches) == 4


def test_tensors_may_not_overlap(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    add_rms_norm = make_op(kernels, "add_rms_norm")
    x, weight = rows(torch, 3)
    residual, _ = rows(torch, 3)
    add_rms_norm(x, residual, weight, EPS)
    with pytest.raises(LaunchError, match=r"E0909.*overlaps `residual`"):
        add_rms_norm(residual, residual, weight, EPS)
    assert len(driver.launches) == 1


@pytest.mark.parametrize("eps", [1, True, "a", None, 1e39, float("nan")])
def test_scalars_are_checked_against_their_type(torch: FakeTorch, driver: CopyingDriver, kernels: Path, eps: Any) -> None:
    rms_norm = make_op(kernels, "rms_norm")
    x, weight = rows(torch, 3)
    rms_norm(x, weight, EPS)
    if (eps == 1 and eps is not True) or eps != eps:
        rms_norm(x, weight, eps)
        assert driver.sent[-1][4] == struct.pack("<f", eps)
        return
    with pytest.raises(LaunchError, match="E0912"):
        rms_norm(x, weight, eps)


def test_only_plain_tensors_bypass_the_dispatcher(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    rms_norm = make_op(kernels, "rms_norm")
    operator = torch.operators["tilec::rms_norm"]
    x, weight = rows(torch, 3)
    parameter = Parameter(weight.array, weight.dtype, weight.shape, weight.device)
    rms_norm(x, parameter, EPS)
    assert operator.calls == 0

    class Subclass(Tensor):
        pass

    def calls(**state: Any) -> int:
        for name, value in state.items():
            setattr(torch, name, value)
        before = operator.calls
        rms_norm(x, weight, EPS)
        for name in state:
            setattr(torch, name, False)
        return operator.calls - before

    calls()
    assert [calls(compiling=True), calls(modes=1), calls(grad=True)] == [1, 1, 0]
    weight.requires_grad = True
    assert [calls(grad=True), calls(), calls(), calls(), calls(grad=True)] == [1, 0, 0, 0, 1]
    weight.requires_grad, x.negated = False, True
    assert calls() == 1
    x.negated = False
    x = Subclass(x.array, x.dtype, x.shape, x.device)
    assert calls() == 1
    assert len({launch.grid for launch in driver.launches}) == 1


def test_tensors_like_the_last_need_one_check(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    """If PyTorch lacks the guard function, or has something else of that name, tensors are checked one by one."""
    rms_norm = make_op(kernels, "rms_norm")
    x, weight = rows(torch, 3)
    for checks in (0, 0, 1, 2):
        rms_norm(x, weight, EPS)
        assert torch.alike == checks
    other, _ = rows(torch, 5)
    for tensor in (other, other, x, x):
        rms_norm(tensor, weight, EPS)
    assert (torch.alike, len(driver.launches)) == (3, 8)
    for guards in (SimpleNamespace(), SimpleNamespace(TensorGuards=lambda: None)):
        torch._C._dynamo.guards = guards
        rms_norm = make_op(kernels, "rms_norm")
        for _ in range(4):
            rms_norm(x, weight, EPS)
    assert (torch.alike, len(driver.launches)) == (3, 16)


def test_weights_that_require_a_gradient_are_accepted_without_one(
    torch: FakeTorch, driver: CopyingDriver, kernels: Path
) -> None:
    """Under `no_grad` any number of calls launch directly, with one check as others; outside of it those of an op without a
    gradient go to the dispatcher, also right after calls that looked the same."""
    rms_norm = make_op(kernels, "rms_norm")
    x, weight = rows(torch, 3)
    weight.requires_grad = True
    for _ in range(5):
        assert rms_norm(x, weight, eps=EPS).shape == (3, 1024)
    assert (torch.alike, len(driver.launches)) == (3, 5)
    for calls in (1, 2):
        torch.grad = True
        rms_norm(x, weight, eps=EPS)
        assert torch.operators["tilec::rms_norm"].calls == calls
        torch.grad = False
        rms_norm(x, weight, eps=EPS)
    assert torch.operators["tilec::rms_norm"].calls == 2


def test_a_gradient_is_recorded_without_the_dispatcher(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    rms_norm = make_op(kernels, "rms_norm")
    given: list[Any] = []
    rms_norm.register_autograd(lambda ctx, grad: ("given", grad), setup_context=lambda *context: given.append(context))
    x, weight = rows(torch, 3)
    weight.requires_grad = torch.grad = True
    out = rms_norm(x, weight, EPS)
    assert (out.shape, len(driver.launches), torch.operators["tilec::rms_norm"].calls) == ((3, 1024), 1, 0)
    ((ctx, inputs, output),) = given
    assert (ctx, inputs, output) == (torch.contexts[0], (x, weight, EPS), out)
    assert rms_norm._function.backward(ctx, 2) == ("given", 2)
    for state in ({"modes": 1}, {"compiling": True}):  # tracing sees the op itself
        for name, value in state.items():
            setattr(torch, name, value)
        rms_norm(x, weight, EPS)
    assert (len(torch.contexts), torch.operators["tilec::rms_norm"].calls) == (3, 2)  # and the op has the gradient


def test_registration_in_pytorch(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    """Of a version without the private functions that an operator of graphs takes."""
    del torch._C._AutoDispatchBelowAutograd
    rms_norm = make_op(kernels, "rms_norm", name="mine::norm")
    operator = torch.operators["mine::norm"]
    assert operator.schema == "norm(Tensor x, Tensor weight, float eps) -> Tensor"
    x = torch.empty(7, 4096, dtype="bfloat16", device="meta")
    torch.compiling = True
    fake = rms_norm(x, torch.empty(4096, dtype="bfloat16", device="meta"), EPS)
    assert (fake.shape, fake.dtype, fake.device.type) == ((7, 4096), "bfloat16", "meta")
    assert not driver.images  # a fake tensor needs no kernel
    backward, setup = operator.autograd
    setup(None, (), None)
    with pytest.raises(LaunchError, match=r"E0919.*no gradient"):
        backward(None, 1)
    rms_norm.register_autograd(lambda ctx, grad: ("given", grad), setup_context=lambda ctx, inputs, output: ctx.append(inputs))
    ctx: list[Any] = []
    setup(ctx, (1,), None)
    assert (backward(ctx, 2), ctx) == (("given", 2), [(1,)])
    assert make_op(kernels, "rms_norm")._overload is torch.operators["tilec::rms_norm"]
    assert make_op(kernels, "rms_norm")._overload is torch.operators["tilec::rms_norm_2"]
    with pytest.raises(LaunchError, match="E0919"):
        make_op(kernels, "rms_norm", name="no namespace")


UNKNOWN = ("float64", "complex64", "complex128", "float8_e4m3fnuz", "float8_e8m0fnu", "qint8", "bits8", None)


@pytest.mark.parametrize("dtype", UNKNOWN)
@pytest.mark.parametrize("index", [0, 1])
def test_a_fake_tensor_of_an_unsupported_dtype_is_refused(
    torch: FakeTorch, driver: CopyingDriver, kernels: Path, dtype: Any, index: int
) -> None:
    """As for a tensor of the device."""
    rms_norm = make_op(kernels, "rms_norm")
    x, weight = (torch.empty(*shape, dtype="bfloat16", device="meta") for shape in ((7, 1024), (1024,)))
    (x, weight)[index].dtype = dtype
    torch.compiling = True
    name = ("x", "weight")[index]
    message = f"E0904.*kernel `rms_norm`, argument `{name}`: wrong element type; given `{dtype}`; required one of f32"
    with pytest.raises(LaunchError, match=message):
        rms_norm(x, weight, EPS)


def test_a_fake_tensor_with_another_tensors_dtype_is_refused(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    rms_norm = make_op(kernels, "rms_norm")
    torch.compiling = True
    x = torch.empty(7, 1024, dtype="int32", device="meta")
    with pytest.raises(LaunchError, match=r"E0904.*argument `weight`: wrong element type; given `bf16`; required `i32`"):
        rms_norm(x, torch.empty(1024, dtype="bfloat16", device="meta"), EPS)


FILL = """import tilec
from tilec import Const, Dim, Element, In, Out, bid, f32, grid, load, store

class E(Element): ...
class N(Dim): ...

@tilec.kernel
def fill(x: In[f32, N], out: Out[E, N], *, E: Const):
    grid(N)
    store(out, bid(0), load(x, bid(0), shape=1).astype(E))
"""


def test_a_result_of_a_nonexistent_dtype_is_refused(
    torch: FakeTorch, driver: CopyingDriver, kernels: Path, tmp_path: Path
) -> None:  # fmt: skip
    path = tmp_path / "fill.py"
    path.write_text(FILL, encoding="utf-8")
    message = r"E0919.*kernel `fill`: `constants` give `E` an unknown dtype; given `f64`; required one of f32.*by name"
    with pytest.raises(LaunchError, match=message):
        tilec.op(path, constants={"E": "f64"}, prebuilt=kernels)
    fill = tilec.op(path, constants=lambda known: {"E": "f64"}, prebuilt=kernels)
    torch.compiling = True
    with pytest.raises(LaunchError, match=message):
        fill(torch.empty(7, dtype="float32", device="meta"))


def test_other_devices_and_threads_without_a_context(
    torch: FakeTorch, driver: CopyingDriver, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rms_norm = make_op(kernels, "rms_norm")
    x, weight = rows(torch, 3)
    rms_norm(x, weight, EPS)
    torch.current, torch.used = 1, []
    rms_norm(x, weight, EPS)
    assert (driver.launches[-1].stream, torch.used, torch.current) == (7, [0], 1)
    torch.current = 0
    contexts: list[Any] = []
    monkeypatch.setattr(driver, "use_context", contexts.append)
    for name, expected in (("CUDA_ERROR_INVALID_CONTEXT", [1]), ("CUDA_ERROR_LAUNCH_FAILED", [1])):
        driver.fail["cuLaunchKernel"] = name
        with pytest.raises(DriverError, match=name):  # this test's driver has no context afterwards either
            rms_norm(x, weight, EPS)
        assert contexts == expected
    driver.fail["cuLaunchKernel"], before = "CUDA_ERROR_INVALID_CONTEXT", len(driver.launches)
    monkeypatch.setattr(driver, "use_context", lambda context: driver.fail.clear())
    rms_norm(x, weight, EPS)
    assert len(driver.launches) == before + 1


def test_foreign_arrays_and_a_late_pytorch_import(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    device = torch._on
    op_module = importlib.import_module("tilec.ops.tensor_op")
    arrays = [device.empty((3, 1024), "bf16"), device.empty((1024,), "bf16")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op_module, "current_device", lambda: device)
        rms_norm = make_op(kernels, "rms_norm")
        out = rms_norm(*arrays, EPS)
        assert (out.shape, out.dtype, driver.launches[-1].stream) == ((3, 1024), "bf16", 7)
        patch.delitem(sys.modules, "torch")
        plain = make_op(kernels, "rms_norm")
        out = plain(*arrays, eps=EPS, stream=9)
        assert (out.shape, out.stream, driver.launches[-1].stream) == ((3, 1024), 9, 9)
        patch.setattr(Tensor, "__module__", "torch")
        with pytest.raises(LaunchError, match=r"E0919.*`import torch` before"):
            plain(*rows(torch, 3), EPS)
        with pytest.raises(LaunchError, match="E0903"):
            plain(*arrays)
