"""Linear layers with weights of four and eight bits: kernels and functions at odd sizes, machine code."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.campaign import first
from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import FOLDER, SOURCE, entries, is_prebuilt, request
from tilec.cli import commands
from tilec.project.read.python_file import execute
from tilec.project.trial.trial import trials

reference: Any = execute(SOURCE / "reference_low_bit.py", "reference")
KERNELS = ("int4_matmul", "int4_weights", "fp8_matmul")


@pytest.mark.parametrize("seed", range(3))
def test_products_of_four_bits_are_those_of_the_reference(seed: int) -> None:
    constants = {"E": ("bf16", "f16")[seed % 2], "S": ("f16", "bf16", "f32")[seed], "BM": 16, "BN": 64}
    (trial,) = trials(request("int4_matmul", constants, {"M": (3, 16, 21)[seed], "N": (72, 64, 8)[seed], "K": 256}, seed=seed))
    assert trial.right, trial


@pytest.mark.parametrize("seed", range(3))
def test_converted_weights_are_those_of_the_reference(seed: int) -> None:
    constants = {"E": ("bf16", "f16")[seed % 2], "S": ("f16", "bf16", "f32")[seed], "BN": 64}
    (trial,) = trials(request("int4_weights", constants, {"N": (72, 64, 8)[seed], "K": (128, 256, 384)[seed]}, seed=seed))
    assert trial.right, trial


@pytest.mark.parametrize("seed", range(3))
def test_products_of_eight_bits_are_those_of_the_reference(seed: int) -> None:
    """A last block of inputs or outputs may be partial."""
    constants = {"E": ("f8e4m3", "f8e5m2")[seed % 2], "BM": (16, 64, 128)[seed], "BN": (64, 64, 128)[seed]}
    dims = {"M": (3, 70, 16)[seed], "N": (136, 128, 200)[seed], "K": (256, 144, 16)[seed]}
    (trial,) = trials(request("fp8_matmul", constants, dims, seed=seed))
    assert trial.right, trial


def _pack(fields: Any, axis: int) -> Any:
    """Eight numbers of four bits in each word, low bits first."""
    rows, columns = fields.shape
    parts = fields.reshape(rows, columns // 8, 8) if axis else fields.reshape(rows // 8, 8, columns).transpose(0, 2, 1)
    words = (parts.astype(np.uint32) << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)
    return tensor(words.view(np.int32), np.int32)


@pytest.mark.parametrize(("rows", "many"), [(1, 512), (40, 512), (40, 79)])
@pytest.mark.parametrize("scale", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_the_function_of_four_bits(rows: int, many: int, scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both ways: each block converts weights, or, of 80 rows that are more than `MANY`, a kernel does it once."""
    random = np.random.default_rng(rows)
    x = tensor(random.normal(size=(2, rows, 256)), np.float16)
    q, z = random.integers(0, 16, (256, 24)), random.integers(0, 16, (2, 24))
    scales = tensor(random.random((2, 24)) / 64, scale)
    with interpreted() as library:
        assert library.module.low_bit.MANY == 512
        monkeypatch.setattr("tilec.kernels.low_bit.MANY", many)
        out = library.module.int4_matmul(x, _pack(q, 0), scales, _pack(z, 1))
        assert [call.kernel for call in library.calls] == (["int4_weights", "product"] if 2 * rows > many else ["int4_matmul"])
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    exact = x.astype(np.float64) @ ((q - z.repeat(128, axis=0)) * scales.astype(np.float64).repeat(128, axis=0))
    assert out.dtype == np.float16
    np.testing.assert_allclose(out.astype(np.float64), exact, atol=1e-3 * np.abs(exact).max())


@pytest.mark.parametrize("rows", [1, 20, 257])
@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_the_function_of_eight_bits(rows: int, dtype: Any) -> None:
    random = np.random.default_rng(rows)
    x, weight = tensor(random.normal(size=(rows, 144)), dtype), tensor(random.normal(size=(136, 144)), dtype)
    x_scales, weight_scales = tensor(random.random((rows, 2)), np.float32), tensor(random.random((2, 2)), np.float32)
    with interpreted() as library:
        out = library.module.fp8_matmul(x, weight, x_scales, weight_scales)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    exact = reference.fp8_matmul(x, weight, x_scales, weight_scales)
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(out.astype(np.float64), exact, atol=4e-3 * np.abs(exact).max())


def test_nothing_and_wrong_arguments() -> None:
    x, packed = tensor(np.zeros((3, 256)), np.float16), tensor(np.zeros((32, 24)), np.int32)
    scales, zeros = tensor(np.zeros((2, 24)), np.float16), tensor(np.zeros((2, 3)), np.int32)
    small = tensor(np.zeros((3, 144)), ml_dtypes.float8_e4m3fn)
    with interpreted() as library:
        int4, fp8 = library.module.int4_matmul, library.module.fp8_matmul
        assert int4(x[:0], packed, scales, zeros).shape == (0, 24)
        with pytest.raises(ValueError, match=r"arguments are \[3, 256\], \[32, 24\], \[2, 24\], \[2, 2\]"):
            int4(x, packed, scales, zeros[:, :2])
        with pytest.raises(ValueError, match="arguments are float32, int32, float16, int32"):
            int4(x.astype(np.float32), packed, scales, zeros)
        with pytest.raises(ValueError, match=r"arguments are \[3, 144\], \[3, 144\], \[3, 2\], \[1, 2\]"):
            fp8(small, small, *(tensor(np.zeros(shape), np.float32) for shape in ((3, 2), (1, 2))))
        with pytest.raises(ValueError, match="arguments are float16, float8_e4m3fn, float32, float32"):
            fp8(x, small, *(tensor(np.zeros(shape), np.float32) for shape in ((3, 2), (1, 2))))


@pytest.mark.parametrize(
    ("kernel", "constants", "dims"),
    first(
        2,
        [
            ("int4_matmul", "E=f16,S=f16,BM=16", "M=5,N=72,K=256"), ("fp8_matmul", "E=f8e4m3,BM=64", "M=70,N=72,K=144"),
            ("int4_matmul", "E=bf16,S=f32,BM=128", "M=130,N=72,K=256"), ("fp8_matmul", "E=f8e5m2,BM=16", "M=5,N=136,K=144"),
            ("fp8_matmul", "E=f8e5m2,BM=128", "M=130,N=136,K=272"), ("int4_weights", "E=bf16,S=f32", "N=72,K=256"),
        ],
    ),
)  # fmt: skip
def test_emulated_launches_are_those_of_the_interpreter(
    kernel: str, constants: str, dims: str, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    options = ["--project", str(FOLDER), "--arch", "sm_90", "-c", constants, "--dims", dims, "--schedule-seed", "1"]
    assert commands.run(["emulate", kernel, *options]) == 0, capsys.readouterr()


def test_every_entry_forbids_spills() -> None:
    assert all(entry.budget == {"spill_bytes": 0} for entry in entries(*KERNELS))
