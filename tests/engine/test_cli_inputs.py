"""Failures caused from outside while the command runs: each ends in one error line and a status, never in a traceback."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cuda_backend import FakeDriver
from test_engine_cli import model, run_engine
from test_text import folder

from tilec.runtime import DriverError

__all__ = ["folder", "model", "run_engine"]  # fixtures of other modules

RunEngine = Callable[..., tuple[int, str, str]]


def break_driver_call(monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException) -> None:
    """Makes a call of the driver fail."""

    def broken(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(FakeDriver, call, broken)


@pytest.mark.parametrize(
    "call",
    ["memory", "create_stream", "allocate_host", "allocate", "copy_to_device", "copy_to_host", "synchronize", "load_module",
     "launch", "launch_graph", "begin_capture", "end_capture", "record_event", "wait_event"],
)  # fmt: skip
def test_a_refusal_of_the_driver(run_engine: RunEngine, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    break_driver_call(monkeypatch, call, DriverError(call, "CUDA_ERROR_ILLEGAL_ADDRESS"))
    status, out, err = run_engine("--dummy-weights")
    assert (status, out, err.count("\n")) == (5, "", 1), err
    assert err.startswith("error: ")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in err


def test_a_refusal_while_tokens_are_drawn(run_engine: RunEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    break_driver_call(monkeypatch, "copy_to_host", DriverError("cuMemcpyDtoHAsync", "CUDA_ERROR_LAUNCH_FAILED"))
    status, _, err = run_engine("--dummy-weights", "--sample", "--top-k", "5")
    assert (status, err.count("\n")) == (5, 1)
    assert "CUDA_ERROR_LAUNCH_FAILED" in err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (MemoryError(), 5, "error: the host has too little memory"),
        (OSError(28, "No space left on device"), 1, "error: cannot write the output: No space left on device\n"),
    ],
)
def test_interruptions_and_host_errors_end_a_run(
    run_engine: RunEngine, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, message: str
) -> None:
    break_driver_call(monkeypatch, "launch_graph", error)
    found, _, err = run_engine("--dummy-weights")
    assert found == status
    assert message in err


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ range(10 ** 9) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[0].content | tojson(separators=3) }}",
        "{{ messages[7].content }}",
        "{{ '%c' % 0xd800 }}",
    ],
)
def test_a_template_that_fails(run_engine: RunEngine, model: Path, template: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    status, out, err = run_engine("--dummy-weights")
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: ")


def test_a_prompt_from_no_stdin(run_engine: RunEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run_engine("--dummy-weights", **{"--prompt": "-"}) == (
        2, "", "error: stdin is closed; give the prompt after --prompt\n",
    )  # fmt: skip


def test_a_prompt_from_stdin_that_is_a_folder(run_engine: RunEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Folder(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            raise IsADirectoryError(21, "Is a directory")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Folder())))
    status, _, err = run_engine("--dummy-weights", **{"--prompt": "-"})
    assert (status, err) == (2, "error: stdin cannot be read: Is a directory; give the prompt after --prompt\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_for_stdout() -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "engine", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600, check=False
        )
    assert process.returncode == 1
    assert process.stderr == "error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(
    ("name", "limit"),
    [("config.json", 1 << 20), ("generation_config.json", 1 << 20), ("tokenizer.json", 1 << 25),
     ("chat_template.jinja", 1 << 22), ("tokenizer_config.json", 1 << 23), ("model.safetensors.index.json", 1 << 24)],
)  # fmt: skip
def test_a_file_of_the_model_that_is_too_long(run_engine: RunEngine, model: Path, name: str, limit: int) -> None:
    if name == "tokenizer_config.json":
        (model / "chat_template.jinja").unlink()
    with (model / name).open("ab") as file:
        file.truncate(1 << 40)
    status, out, err = run_engine(*([] if "safetensors" in name else ["--dummy-weights"]))
    assert (status, out) == (3, "")
    assert err.startswith(f"error: {model / name}: is over {limit} bytes; ")
    assert err.count("\n") == 1


def test_a_header_that_is_too_long(run_engine: RunEngine, model: Path) -> None:
    with (model / "model.safetensors").open("wb") as file:
        file.write(((1 << 24) + 1).to_bytes(8, "little"))
        file.truncate(1 << 40)
    status, _, err = run_engine()
    assert (status, err.count("\n")) == (3, 1)
    assert "announce a header of 16777217 bytes, over 16777216" in err


def test_a_prompt_on_stdin_that_never_ends(run_engine: RunEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/zero").open("rb") as endless:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(endless))
        status, _, err = run_engine("--dummy-weights", **{"--prompt": "-"})
    assert (status, err) == (2, "error: stdin holds over 16777216 bytes; shorten the prompt\n")


def test_control_tokens_of_a_prompt(run_engine: RunEngine) -> None:
    """Encoded as text, control tokens become more tokens than as control tokens."""
    options = {"--prompt": "<|im_end|>" * 9}
    counts: list[int] = []
    for flags in ([], ["--allow-control-tokens"], ["--raw-prompt"], ["--raw-prompt", "--allow-control-tokens"]):
        status, out, err = run_engine("--dummy-weights", "--json", "--max-new-tokens", "1", *flags, **options)
        assert (status, err) == (0, "")
        counts.append(json.loads(out)["prompt_tokens"])
    assert counts[3] == 9
    assert counts[2] > 50
    assert counts[0] - counts[1] == counts[2] - counts[3]
