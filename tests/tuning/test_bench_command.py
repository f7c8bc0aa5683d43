"""`tilec bench`: the measuring process on a fake GPU, the use of its results, and the messages without one."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import py_compile
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.files import ROOT
from tests.tuning import tuned_project
from tilec.cli import bench_command, commands
from tilec.frontend import load_kernel
from tilec.ir.text.printer import print_function
from tilec.passes.prover import prove
from tilec.project.trial.launches import Contract
from tilec.runtime import Device
from tilec.tuning import bench_child
from tilec.tuning.baseline import load_baseline
from tilec.tuning.bench_child import Run, chip
from tilec.tuning.roofline import work

CHILD = """
import json, sys
from pathlib import Path
lines = json.loads(Path(sys.argv[1]).read_text())
say = lambda line: print(json.dumps(line), flush=True)
say(lines["greeting"])
if "failed" in lines["greeting"]:
    sys.exit(1)
order = sys.stdin.readline()
if order:
    Path(sys.argv[1]).with_suffix(".order").write_text(order)
    for line in lines["lines"]:
        say(line)
    sys.exit(lines.get("status", 0))
"""
GREETING = {
    "device": "Fake H200", "driver": "1.2", "arch": "sm_90a", "multiprocessors": 132, "memory_khz": 3_201_000,
    "bus_bits": 6144, "clock_khz": 1_980_000,
}  # fmt: skip
N = 16_777_216
COPIED = 4096
"""Elements of a copy by the driver, on a device whose memory is this machine's."""
LINES: list[dict[str, Any]] = [
    {"at": "kernel"}, {"checked": "kernel", "wrong": ""}, {"copy": [125.0, 124.0, 126.0], "bytes": 536_870_912},
    {"launch": {"N": N}, "us": {"kernel": [25.0, 24.0, 27.0], "baseline": [26.0, 25.5, 26.5]}, "wrong": ""},
]  # fmt: skip


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    root = tuned_project.make(tmp_path / "p")
    monkeypatch.chdir(root)
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(bench_command, "COMMAND", (sys.executable, str(tmp_path / "child.py"), str(tmp_path / "answers.json")))
    says(root)
    return root / "artifacts/tune/double/warps=2/sm_90a/double-BLOCK=64.json"


def says(root: Path, greeting: dict[str, Any] | None = None, lines: list[dict[str, Any]] = LINES, status: int = 0) -> None:
    (root.parent / "answers.json").write_text(json.dumps({"greeting": greeting or GREETING, "lines": lines, "status": status}))


class FakeTensor:
    """The part of a tensor that the baseline's code uses."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self

    def reshape(self, *_: int) -> FakeTensor:
        return FakeTensor(self.array.reshape(-1))

    def __getitem__(self, key: Any) -> FakeTensor:
        return FakeTensor(self.array[key])

    def numpy(self) -> Any:
        return self.array


def fake_torch(gpu: tuned_project.HostGpu) -> Any:
    """A module of the name; it records what a stream enqueues during the driver's capture."""

    @contextlib.contextmanager
    def stream(_: Any) -> Any:
        yield
        if gpu.capturing is not None:
            gpu.capturing.append((0, 5.0))  # pyright: ignore[reportArgumentType]

    cuda = types.SimpleNamespace(
        is_available=lambda: True, synchronize=lambda: None, stream=stream, ExternalStream=lambda handle: handle
    )
    return types.SimpleNamespace(
        cuda=cuda, no_grad=contextlib.nullcontext, from_dlpack=lambda array: FakeTensor(array.to_numpy())
    )


@pytest.fixture(autouse=True)
def copies_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilec.tuning.bench_child.COPY_ELEMENTS", COPIED)


def worked(
    root: Path, gpu: tuned_project.HostGpu, launches: list[dict[str, int]], baseline: str | None = None
) -> list[dict[str, Any]]:
    """The output of the process for candidate 64 of the project."""
    lines_sent: list[dict[str, Any]] = []
    path = next(iter(tuned_project.artifacts(root).values()))
    source = None
    if baseline is not None:
        (root / "kernels_src/baseline.py").write_text(baseline)
        source = [str(root / "kernels_src/baseline.py"), "double"]
    job = {
        "artifact": str(path), "copy": None, "reference": [str(root / "kernels_src/reference.py"), "double"],
        "baseline": source, "launches": launches,
    }  # fmt: skip
    Run(job, Device(gpu), lines_sent.append).work()
    return lines_sent


def test_the_process_checks_and_times(tmp_path: Path) -> None:
    root = tuned_project.make(tmp_path)
    lines_sent = worked(root, tuned_project.HostGpu(), [{"N": 1000}, {"N": 20000}])
    assert lines_sent[:2] == [{"at": "kernel"}, {"checked": "kernel", "wrong": ""}]
    assert lines_sent[2] == {"copy": (tuned_project.COPY_MICROSECONDS,) * 3, "bytes": 8 * COPIED}
    assert [one["launch"] for one in lines_sent[3:]] == [{"N": 1000}, {"N": 20000}]
    assert [one["us"]["kernel"][0] for one in lines_sent[3:]] == pytest.approx(
        [tuned_project.microseconds(64, n) for n in (1000, 20000)]
    )
    assert chip(Device(tuned_project.HostGpu())) == {"memory_khz": 0, "bus_bits": 0, "clock_khz": 0}


def test_a_wrong_kernel_is_not_timed(tmp_path: Path) -> None:
    lines_sent = worked(tuned_project.make(tmp_path), tuned_project.HostGpu(wrong=(64,)), [{"N": 1000}])
    assert "`out[" in lines_sent[1]["wrong"] and len(lines_sent) == 2


def test_a_launch_without_a_contract_is_reported(tmp_path: Path) -> None:
    lines_sent = worked(tuned_project.make(tmp_path), tuned_project.HostGpu(), [{"M": 3}])
    assert "gives no `N`" in lines_sent[-1]["refused"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def double(x):\n    x.array = x.array * 2\n    return x\n", ""),
        ("def double(x):\n    return x\n", "where the baseline has"),
        ("def double(y):\n    return y\n", "it asks for `y`"),
        ("def double(x):\n    return x, x\n", "returns 2 tensors; the kernel writes 1"),
        ("def double(x):\n    raise SystemError('no')\n", "the baseline fails: SystemError: no"),
        ("1 / 0\n", "cannot be loaded: ZeroDivisionError"),
    ],
)
def test_a_baseline_is_compared_and_timed(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = tuned_project.HostGpu()
    monkeypatch.setitem(sys.modules, "torch", fake_torch(gpu))
    root = tuned_project.make(tmp_path)
    lines_sent = worked(root, gpu, [{"N": 1000}], text)
    (row,) = [one for one in lines_sent if "launch" in one]
    words = row["wrong"] + "".join(one["note"] for one in lines_sent if "note" in one)
    assert (message in words) if message else not words
    assert row["us"]["kernel"][0] > 0
    assert ("baseline" in row["us"]) == (message in ("", "where the baseline has"))


def test_the_table_and_the_json_report_what_was_measured(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["bench", str(kernel)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("double  BLOCK=64  sm_90a  32 registers, 0 spilled bytes")
    assert "a copy in the same run: 4.29 TB/s of 4.92 TB/s by the chip's clocks" in out[2]
    cells = out[4].split()
    assert cells[:2] == [f"N={N}", "25.00"] and "1.040" in cells
    order = json.loads((kernel.parents[6] / "answers.order").read_text())
    assert order["launches"] == [{"N": N}] and order["reference"][1] == "double" and order["baseline"] is None
    assert commands.run(["bench", str(kernel), "--json", "--dims", "N=5"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["measured"] and data["rates"]["published"] is None
    (row,) = data["launches"]
    assert row["kernel_us"] == {"median": 25.0, "p10": 24.0, "p90": 27.0}
    assert row["bytes"] == 8 * 5
    assert data["rates"]["copy_bytes_per_second"] == pytest.approx(4.295e12, rel=1e-3)


@pytest.mark.campaign
def test_a_figure_is_drawn_and_is_the_same_bytes(kernel: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert commands.run(["bench", str(kernel), "--plot", "a.svg"]) == 0
    assert commands.run(["bench", str(kernel), "--plot", "b.svg"]) == 0
    assert Path("a.svg").read_bytes() == Path("b.svg").read_bytes() and b"<svg" in Path("a.svg").read_bytes()
    assert commands.run(["bench", str(kernel), "--plot", "a.txt"]) == 2
    assert not Path("a.txt").exists()


@pytest.mark.parametrize(
    ("lines", "child", "status", "message"),
    [
        ([LINES[0], {"checked": "kernel", "wrong": "`out[3]` is 1, not 2"}], 0, 1, "`double` is wrong: `out[3]` is 1, not 2"),
        ([*LINES[:3], {**LINES[3], "wrong": "`out` has 1 where"}], 0, 1, "is wrong: `out` has 1 where"),
        ([*LINES[:3], {"launch": {"N": 5}, "us": {}, "wrong": "", "refused": "no"}], 0, 2, "not launched at N=5: no"),
        ([LINES[0], {"lost": "the device is lost"}], 70, 1, "is wrong: the device is lost"),
        ([LINES[0]], 9, 1, "the process that measures ended with status 9"),
    ],
)
def test_failures_are_reported_by_the_status(
    kernel: Path, capsys: pytest.CaptureFixture[str], lines: list[dict[str, Any]], child: int, status: int, message: str
) -> None:
    says(Path.cwd(), lines=lines, status=child)
    assert commands.run(["bench", str(kernel)]) == status
    assert message in capsys.readouterr().err


def test_without_a_gpu_it_reports_that_and_a_floor(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says(Path.cwd(), {"failed": "no NVIDIA driver on this machine"})
    assert commands.run(["bench", str(kernel), "--dims", "N=1000000", "--plot", "a.svg"]) == 3
    out, err = capsys.readouterr()
    assert "error: nothing was measured: no NVIDIA driver on this machine; run it on a machine with a GPU" in err
    assert not Path("a.svg").exists() and "no plot was made" in err
    assert "no measurement: floors by published rates of H200 SXM, 4.8 TB/s" in out
    assert out.splitlines()[-1].split() == ["N=1000000", "8.000", "?", "1.67"]
    assert commands.run(["bench", str(kernel), "--json", "--gpu", "h100"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert not data["measured"] and data["rates"]["published"]["name"] == "H100 SXM"
    assert data["launches"][0]["kernel_us"] is None and data["launches"][0]["floor_us"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "h200"], "this machine has Fake H200, so the GPU is measured"),
        (["-c", "BLOCK=64"], "is built already"),
        (["--dims", "M=5"], "no launch value `M`"),
        (["--dims", "N"], "`N` is not NAME=NUMBER"),
    ],
)
def test_unsupported_requests_are_refused(
    kernel: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert commands.run(["bench", str(kernel), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert commands.run(["bench", "other.json"]) == 2
    assert commands.run(["bench", "a.py:b"]) == 2


def test_no_gpu_of_a_name_that_is_not_known(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says(Path.cwd(), {"failed": "none"})
    assert commands.run(["bench", str(kernel), "--gpu", "gtx"]) == 2
    assert "known are h200, h100, b200, rtx5090" in capsys.readouterr().err


def test_an_architecture_without_published_rates_asks_for_a_gpu(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says(Path.cwd(), {"failed": "no NVIDIA driver on this machine"})
    assert commands.run(["bench", str(kernel), "--arch", "sm_80"]) == 2
    assert "no rates of a GPU are known for sm_80; name a GPU with `--gpu`: h200" in capsys.readouterr().err


def test_the_process_reports_why_there_is_no_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilec.tuning.child.greet", lambda notify, about: notify({"failed": "no driver"}))
    assert bench_child.main() == 1
    assert "failed" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("[build]\nkernels = 'own'\n", "own"),
        ("[build]\n", "kernels_src"),
        ("kernels", "kernels_src"),
        ("[[build]]\n", "kernels_src"),
        ("[build]\nkernels = 3\n", "kernels_src"),
    ],
)
def test_the_reference_of_an_artifact_is_next_to_its_kernel(tmp_path: Path, text: str, folder: str) -> None:
    artifact = tmp_path / "artifacts/build/sm_90a/one.json"
    assert bench_command._kernels(artifact) is None  # pyright: ignore[reportPrivateUsage]
    (tmp_path / "build.toml").write_text(text)
    assert bench_command._kernels(artifact) == tmp_path / folder  # pyright: ignore[reportPrivateUsage]


def test_products_of_an_artifact_are_counted_in_its_source(tmp_path: Path) -> None:
    """Only while the file gives the tile IR that the artifact was made of."""
    for name in ("matmul", "dims"):
        shutil.copy(ROOT / f"kernels_src/{name}.py", tmp_path)
    path = tmp_path / "matmul.py"
    constants: dict[str, Any] = {"E": "bf16", "BM": 64, "BN": 64, "BK": 64, "GROUP": 8}
    function = load_kernel(path, constants)
    digest = hashlib.sha256(print_function(function).encode()).hexdigest()
    source = bench_command._source  # pyright: ignore[reportPrivateUsage]

    def manifest(tir: str) -> Any:
        return types.SimpleNamespace(kernel="matmul", constants=constants, digests={"tir": tir})

    found = source(manifest(digest), tmp_path)
    contract = Contract.of_function(function, prove(function))
    assert work(contract, {"M": 128, "N": 192, "K": 64}, found).products == 2 * 128 * 192 * 64
    assert source(manifest("0" * 64), tmp_path) is None and source(manifest(digest), None) is None
    path.write_text(path.read_text(encoding="utf-8").replace("def matmul(", "def matmul(a b"), encoding="utf-8")
    assert source(manifest(digest), tmp_path) is None
    path.unlink()
    assert source(manifest(digest), tmp_path) is None


def test_a_baseline_is_run_from_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytecode next to it may be from another text than what was read; none is used, and none is written, through a
    link or not."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    folder, outside = tmp_path / "kernels_src", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    text = folder / "baseline.py"
    text.write_text("def double(): return 'shown'\n")
    (folder / "__pycache__").symlink_to(outside)
    assert load_baseline(text, "double")() == "shown" and not any(outside.iterdir())

    other = tmp_path / "other.py"
    other.write_text("def double(): return 'hidden'\n")
    forged = Path(importlib.util.cache_from_source(str(text)))
    py_compile.compile(str(other), str(forged), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert load_baseline(text, "double")() == "shown"


OWN = "\nimport numpy as np\n\ndef double_inputs(rng, dims):\n    return {}\n"


@pytest.mark.parametrize(
    ("returned", "refused"),
    [("{'x': np.arange(dims['N']) % 7}", ""), ("{'x': np.arange(3)}", "gives `x` in another shape")],
)
def test_inputs_of_ones_own_are_timed(returned: str, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, seen, root = tuned_project.HostGpu(), list[Any](), tuned_project.make(tmp_path)
    reference = root / "kernels_src/reference.py"
    reference.write_text(tuned_project.REFERENCE + OWN.replace("{}", returned))
    path = next(iter(tuned_project.artifacts(root).values()))
    lines_sent: list[dict[str, Any]] = []
    job = {
        "artifact": str(path), "copy": None, "reference": [str(reference), "double"], "baseline": None,
        "launches": [{"N": 1000}], "inputs": [str(reference), "double_inputs", str(root)], "given": [],
    }  # fmt: skip
    run = Run(job, Device(gpu), lines_sent.append)
    sets = run.bench.sets
    monkeypatch.setattr(run.bench, "sets", lambda *arguments: seen.extend(found := sets(*arguments)) or found)  # pyright: ignore
    run.work()
    if refused:
        assert refused in lines_sent[-1]["inputs"][0] and lines_sent[-1]["inputs"][1] == "(3,)" and not seen
        return
    inputs = [one.tensors["x"].to_numpy().tolist() for one in seen if one.tensors["x"].shape == (1000,)]
    assert inputs and all(one == [number % 7 for number in range(1000)] for one in inputs)
    assert lines_sent[1]["wrong"] == "" and lines_sent[-1]["us"]["kernel"][0] > 0


def test_refused_inputs_are_one_error(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (Path.cwd() / "kernels_src/reference.py").write_text(tuned_project.REFERENCE + OWN)
    says(Path.cwd(), lines=[LINES[0], {"inputs": ["`reference.py:double_inputs` gives `x` wrongly", "(3,)", "(5,)"]}])
    assert commands.run(["bench", str(kernel)]) == 2
    err = capsys.readouterr().err
    assert "error[E0815]: `reference.py:double_inputs` gives `x` wrongly" in err and "given: (3,)" in err
    order = json.loads((kernel.parents[6] / "answers.order").read_text())
    assert order["inputs"][1] == "double_inputs"
