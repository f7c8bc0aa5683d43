"""`tilec estimate`: the predicted time of a launch, and what it refuses."""

from __future__ import annotations

import json

import pytest

from tests.shipped import ROOT
from tilec.cli import commands

pytestmark = pytest.mark.usefixtures("kept_workers")
MATMUL = ["estimate", "matmul", "-c", "E=bf16", "-c", "BM=128", "-c", "BN=256", "--project", str(ROOT)]
DIMS = ["--dims", "M=2048,N=6144,K=2560"]


def test_the_table_names_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run([*MATMUL, *DIMS]) == 0
    out = capsys.readouterr().out
    assert "H200 SXM; the model was compared with measurements on it" in out
    assert " us predicted, at 1." in out and "bound by tensor cores" in out
    rows = [line.split("  ")[0] for line in out.splitlines()[3:]]
    assert rows == [
        "alone", "tensor cores", "shared memory", "copies", "copy issue", "arithmetic", "chain", "memory", "epilogue", "launch",
    ]  # fmt: skip


def test_json_has_what_the_table_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run([*MATMUL, *DIMS, "--json", "--overlapped", "--gpu", "H100"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["card"] == "H100 SXM" and found["compared"] is True
    assert found["multiply_adds"] == 2048 * 6144 * 2560
    assert found["bytes"]["written"] == 2 * 2048 * 6144
    assert found["bound"] == "tensor cores"
    assert 80 < found["predicted_us"] < 120  # 98.3 in ci/bench/results/products.json


def test_a_card_that_nobody_measured_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run([*MATMUL, *DIMS, "--gpu", "rtx5090"]) == 0
    out = capsys.readouterr().out
    assert "RTX 5090; the model was never compared with a measurement on it" in out and "mma_sync" in out


def test_strides_that_are_not_given_leave_no_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "attention_rows", "-c", "E=bf16,D=64,BM=64", "--project", str(ROOT / "tilec" / "kernels")
    dims = {"B": 2, "T": 100, "HKV": 4, "G": 2}
    for given, strides in [
        ({}, {"OG": 64, "OH": 2 * 64, "OT": 4 * 2 * 64, "OB": 100 * 4 * 2 * 64}),
        ({"OT": 1024}, {"OG": 64, "OH": 2 * 64, "OT": 1024, "OB": 100 * 4 * 2 * 64}),
    ]:
        text = ",".join(f"{name}={value}" for name, value in {**dims, **given}.items())
        assert commands.run(["estimate", *rows, "--dims", text, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["launch"] == {**dims, **strides}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dims", "M=2048,N=6144"], "`--dims` leaves `K` open"),
        (["--dims", "M=2048,N=6144,K=7"], "the kernel requires K % 8 == 0"),
        (["--dims", "M=x"], "`M=x` is not NAME=NUMBER"),
        ([*DIMS, "--gpu", "a100"], "unknown GPU `a100`; known are h200, h100, b200, rtx5090"),
        (["--dims", "M=1000000,N=1000000,K=64"], "`matmul` has no estimate: a launch of 30525391 blocks is not counted"),
        (["--dims", "M=64,N=64,K=2147483640"], "`matmul` has no estimate: the loop over `k` has 33554432 iterations"),
    ],
)
def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert commands.run([*MATMUL, *options]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: ") and message in err
