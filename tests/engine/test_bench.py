"""The benchmark on a backend with known durations, on a driver that launches nothing, and with bad inputs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from step_contracts import contract
from test_cuda_backend import SMALLEST, FakeDriver
from test_engine_cli import CONFIG

from engine.backends import cuda, load
from engine.backends.cuda import CudaBackend
from engine.errors import DeviceError, EngineError
from engine.graph.contract import Contract
from engine.graph.traffic import streamed
from engine.models.steps import model_step
from engine.sequence import Sequence as Generation
from engine.tools.bench import command, files
from engine.tools.bench.command import run
from engine.tools.bench.machine import driver_version
from engine.tools.bench.measure import generation, measure, step_bytes
from engine.tools.bench.policy import Cell, Policy
from engine.tools.bench.result import Report, Statistic
from engine.tools.dummy_weights import dummy_weights
from engine.tools.head_read import HeadRead
from tilec.runtime import Bundle, Device
from tilec.step.graph import Op


class TimedBackend:
    """A backend with its own clock: prefill takes a millisecond a token, and the n-th generation a second a token times the
    n-th of `paces`. Its tokens are 7, or those of `tokens`."""

    max_seq_len = 4096
    config = SMALLEST
    step = model_step(SMALLEST, 4096)

    def __init__(self, paces: Sequence[float] = (), tokens: Sequence[int] = ()) -> None:
        self.seconds_now, self.position = 100.0, 0
        self.paces, self.tokens = list(paces), list(tokens)
        self.requested: list[tuple[int, int]] = []
        self.prompts: list[list[int]] = []

    def clock(self) -> float:
        return self.seconds_now

    def contract(self, op: Op) -> Contract:
        return contract(op)

    def begin(self) -> Generation:
        self.seconds_now += 50  # before the call, so outside every timed interval
        return Generation()

    def prefill(self, sequence: Generation, ids: Sequence[int], sampling: object = None) -> None:
        assert sequence.length == 0, "not a new one"
        self.position = sequence.length = len(ids)
        self.prompts.append(list(ids))

    def token(self) -> int:
        self.seconds_now += 1e-3 * self.position  # prefill is enqueued; waiting for its token takes the time
        return self.tokens.pop(0) if self.tokens else 7

    def stream_tokens(self, sequence: Generation, token: int, limit: int) -> Iterator[int]:
        assert sequence.length == self.position
        self.requested.append((self.position, limit + 1))
        pace = self.paces.pop(0) if self.paces else 1.0
        for _ in range(limit):
            self.seconds_now += pace
            yield token

    def prompt_logits(self, sequence: Generation, ids: Sequence[int]) -> Any:
        raise AssertionError("greedy decoding needs no logits")

    def decode_logits(self, sequence: Generation, token: int) -> Any:
        raise AssertionError("greedy decoding needs no logits")

    def close(self) -> None: ...


def test_cells_are_two_sweeps_or_every_pair() -> None:
    policy = Policy(pp=(18, 512), tg=(36, 128))
    assert policy.cells() == (Cell(18, 36), Cell(18, 128), Cell(512, 36))
    assert replace(policy, full=True).cells() == (Cell(18, 36), Cell(18, 128), Cell(512, 36), Cell(512, 128))
    assert policy.longest() == 548
    assert len(Policy().cells()) == 8


def test_prompts_are_random_and_repeatable() -> None:
    policy = Policy(seed=3)
    prompt = policy.prompt(2048, 151936)
    assert prompt == policy.prompt(2048, 151936) != Policy(seed=4).prompt(2048, 151936)
    assert len(set(prompt)) > 2000
    assert min(prompt) >= 0 and 150000 < max(prompt) < 151936


def test_statistics_of_known_durations() -> None:
    paces = [99.0, 99.0, 1.0, 0.5, 4.0, 0.5, 2.0, 0.5, 3.0, 0.5, 5.0, 0.5]
    backend = TimedBackend(paces)
    policy = Policy(pp=(10,), tg=(3, 5), reps=5, warmup_reps=1)
    (first, second), speeds = measure(backend, policy, clock=backend.clock)
    assert speeds is None
    assert first.prefill_seconds.samples == pytest.approx([0.01] * 5)
    assert first.decode_seconds.samples == pytest.approx([2, 8, 4, 6, 10])
    assert first.seconds.samples == pytest.approx([2.01, 8.01, 4.01, 6.01, 10.01])
    decode = first.decode_seconds
    assert (decode.q1, decode.median, decode.q3) == pytest.approx((4, 6, 8))
    rate = first.decode_rate
    assert (rate.q1, rate.median, rate.q3) == pytest.approx((1 / 4, 1 / 3, 1 / 2))
    assert first.rate.median == pytest.approx(3 / 6.01)
    assert second.decode_rate.samples == pytest.approx([2.0] * 5)
    assert first.repeatable and second.repeatable


def test_repetitions_are_the_outer_loop_and_prompts_stay() -> None:
    backend = TimedBackend()
    policy = Policy(pp=(4, 9), tg=(2, 3), reps=2, warmup_reps=1)
    reported: list[str] = []
    bandwidths = iter([1.0, 2.0, 3.0])
    _, speeds = measure(backend, policy, clock=backend.clock, bandwidth=lambda: next(bandwidths), progress=reported.append)
    assert backend.requested == [(4, 2), (4, 3), (9, 2)] * 3
    assert backend.prompts[:3] == backend.prompts[3:6] == backend.prompts[6:]
    assert speeds == Statistic((2.0, 3.0))
    assert reported[:2] == ["warm-up: bandwidth", "warm-up: pp 4, tg 2"]
    assert reported[-1] == "repetition 2 of 2: pp 9, tg 2"


def test_different_tokens_in_repetitions_are_reported() -> None:
    backend = TimedBackend(tokens=[5, 6, 5, 5])
    (first, second), _ = measure(backend, Policy((4,), (2, 3), reps=2, warmup_reps=0), clock=backend.clock)
    assert first.repeatable
    assert not second.repeatable


def test_a_generation_that_is_too_short() -> None:
    backend = TimedBackend()
    backend.stream_tokens = lambda sequence, token, limit: iter([token] * (limit - 1))
    with pytest.raises(DeviceError, match="gave 4 tokens where 5 were asked for"):
        generation(backend, [1, 2], 5, backend.clock)


def test_bytes_of_a_cell_are_the_mean_over_its_steps() -> None:
    graph = model_step(SMALLEST, 128).graph("decode")
    every = [sum(streamed(graph, filled, contract)) for filled in range(19, 18 + 36)]
    assert step_bytes(graph, Cell(18, 36), contract) == sum(every) / 35


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder with a config and nothing else."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def bench(
    bundle: Bundle, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command on a fake device; (status, stdout, stderr)."""
    monkeypatch.setattr(load, "CudaBackend", lambda opened, _: CudaBackend(opened, Device(FakeDriver())))

    def run_bench(*arguments: str, **options: Any) -> tuple[int, str, str]:
        values = {"--model": str(model), "--bundle": str(bundle.path), "--pp": "3,5", "--tg": "2,4"} | options
        arguments_list = [part for name, value in values.items() if value is not None for part in (name, value)]
        status = run([*arguments_list, "--dummy-weights", "--reps", "3", "--warmup-reps", "1", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run_bench


@pytest.mark.campaign
def test_a_measurement(bench: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    target, plot = tmp_path / "out.json", tmp_path / "out.svg"
    status, out, err = bench("--json", str(target), "--plot", str(plot), "--nominal-tbs", "1.5")
    assert (status, err) == (0, "")
    data = json.loads(target.read_text())
    assert [(cell["pp"], cell["tg"]) for cell in data["cells"]] == [(3, 2), (3, 4), (5, 2)]
    assert all(cell["decode_seconds"]["n"] == 3 and cell["repeatable"] for cell in data["cells"])
    assert data["machine"]["gpu"] == "fake device"
    assert data["model"]["name"] == "qwen3-0.6b" and data["model"]["weights"] == "random, seed 0"
    assert data["nominal_bytes_per_second"] == 1.5e12
    assert len(data["measured_bandwidth"]["bytes_per_second"]["samples"]) == 3
    assert data["policy"]["max_seq_len"] == 7
    assert plot.read_bytes().startswith(b"<?xml")
    rows = [line.split() for line in out.splitlines()]
    assert ["3", "4"] in [row[:2] for row in rows]
    assert "qwen3-0.6b bf16 on fake device" in out and "…" not in out
    again = Report.from_json(data)
    assert json.loads(json.dumps(again.to_json())) == data


def test_the_lm_head_is_read_as_often_as_planned(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    backend = CudaBackend(bundle, Device(driver))
    backend.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 64)
    read = HeadRead(backend)
    size = 2048 * 1024 * 2 + 2 * (1024 + 2048)  # the weight, a row and its logits
    assert (read.bytes, read.launches) == (size, 256)
    before = len(driver.launches)
    monkeypatch.setattr(cuda, "time", SimpleNamespace(perf_counter=iter([10.0, 10.5]).__next__))
    assert read.sample() == 2 * 256 * size
    assert len(driver.launches) - before == 2 * 256  # once to warm up
    assert {launch.function[1] for launch in driver.launches[before:]} == {"matvec"}
    assert "may have kept 25.0 % at most" in read.what
    backend.close()
    assert not driver.buffers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"--pp": "0,18"}, "--pp: 0 is below 1"),
        ({"--pp": "18,x"}, "--pp: '18,x' is not a list of numbers; write it as 18,128"),
        ({"--pp": ""}, "--pp: '' is not a list of numbers; write it as 18,128"),
        ({"--pp": "18,18"}, "--pp: a number is there twice"),
        ({"--tg": "1"}, "--tg: 1 is below 2; the first token is prefill's, and decode needs another"),
        ({"--tg": "-4"}, "--tg: -4 is below 2; the first token is prefill's, and decode needs another"),
        ({"--pp": "40000", "--tg": "961"}, "40961 tokens are not from 1 to 40960, the positions that the model knows"),
        ({"--max-seq-len": "0"}, "0 tokens are not from 1 to 40960, the positions that the model knows"),
        ({"--max-seq-len": "6"}, "a cell has 7 tokens, and --max-seq-len is 6; raise it or shorten --pp and --tg"),
        ({"--reps": "0"}, "--reps: 0 repetitions measure nothing"),
        ({"--warmup-reps": "-1"}, "--warmup-reps: -1 is below 0"),
        ({"--seed": "-1"}, "--seed: -1 is below 0"),
        ({"--nominal-tbs": "0"}, "--nominal-tbs: 0.0 is not a bandwidth"),
        ({"--nominal-tbs": "nan"}, "--nominal-tbs: nan is not a bandwidth"),
        ({"--plot": "plot.pdf"}, "plot.pdf: a plot is .png or .svg; name it so"),
        ({"--plot": "x.svg", "--json": "./x.svg"}, "x.svg: --json and --plot name the same file"),
        ({"--model": None}, "there is nothing to measure; give --model and --bundle, or --from-json"),
        ({"--from-json": "x.json"}, "--model: nothing is measured with --from-json; drop it"),
    ],
)
def test_bad_options(bench: Callable[..., tuple[int, str, str]], options: dict[str, Any], message: str) -> None:
    repeated = [part for name in ("--reps", "--warmup-reps") if name in options for part in (name, options.pop(name))]
    status, out, err = bench(*repeated, **options)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {message}") and err.count("\n") == 1


def test_without_matplotlib_nothing_is_measured(
    bench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = "error: --plot needs matplotlib; install it with `pip install tilec[bench]`\n"
    assert bench("--plot", str(tmp_path / "out.svg")) == (2, "", message)


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_result_that_cannot_be_written(bench: Callable[..., tuple[int, str, str]], tmp_path: Path, option: str) -> None:
    status, out, err = bench(option, str(tmp_path / "absent" / "out.svg"))
    assert (status, out) == (1, "")
    assert "out.svg: cannot be written: No such file or directory; name a file in a folder that can be written" in err
    (tmp_path / "folder.svg").mkdir()
    status, out, err = bench(option, str(tmp_path / "folder.svg"))
    assert (status, out) == (1, "")
    assert "folder.svg: is a folder; name a file" in err


def test_a_disk_that_fills_leaves_the_file_that_was_there(
    bench: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.json"
    target.write_text("before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, out, err = bench("--json", str(target))
    assert status == 1
    assert "tok/s" in out, "the table is lost"
    assert err == f"error: {target}: cannot be written: No space left on device; name a file in a folder that can be written\n"
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.json"]


def test_invalid_files_of_model_and_bundle(bench: Callable[..., tuple[int, str, str]], model: Path, tmp_path: Path) -> None:
    status, out, err = bench(**{"--bundle": str(tmp_path / "absent.bundle")})
    assert (status, out) == (4, "") and "absent.bundle" in err and err.count("\n") == 1
    (model / "config.json").write_text("{")
    status, out, err = bench()
    assert (status, out) == (3, "") and "config.json" in err and err.count("\n") == 1


def test_a_gpu_that_fails_and_a_user_who_stops(
    bench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(load, "CudaBackend", lambda opened, _: CudaBackend(opened, Device(driver)))
    driver.fail["cuGraphLaunch"] = "CUDA_ERROR_LAUNCH_FAILED"
    status, out, err = bench()
    assert (status, out) == (5, "")
    assert err == "error: `cuGraphLaunch` failed with CUDA_ERROR_LAUNCH_FAILED (E0915)\n"
    assert not driver.buffers, "something was not freed"

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure", stop)
    driver.fail.clear()
    assert not any(driver.images), "a module was not unloaded"
    assert bench() == (130, "", "\nerror: interrupted\n")  # click ends the line of the ^C
    assert not driver.buffers, "something was not freed"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n", "535.129.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("something else\n", None),
    ],
)
def test_the_version_of_the_driver(tmp_path: Path, text: str, found: str | None) -> None:
    file = tmp_path / "version"
    file.write_text(text)
    assert driver_version(file) == found
    assert driver_version(tmp_path / "absent") is None


def test_whole_files_replace_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "out"
    files.write_atomically(target, b"one")
    files.write_atomically(target, b"two")
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_result_goes_into_a_pipe_that_was_named(tmp_path: Path) -> None:
    """The command checks the path before the run, but does not open it: the pipe's reader would see end of file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    files.check_writable(pipe)
    handle = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_atomically(pipe, b"one")
    assert os.read(handle, 99) == b"one"
    os.close(handle)
    (tmp_path / "link").symlink_to(pipe)
    with pytest.raises(EngineError, match="is a link"):
        files.check_writable(tmp_path / "link")
