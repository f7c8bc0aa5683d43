"""What the processes of a start import before the first token: modules that it does not need would delay it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from engine import generate_command
from engine.early_device import BLAS_THREADS
from engine.errors import UsageError
from engine.serving import command as serve

ROOT: Final = Path(__file__).resolve().parents[2]

COMPILER: Final = ("tilec.frontend", "tilec.passes", "tilec.lowering", "tilec.interpreter", "tilec.emulator", "torch")
LIBRARIES: Final = (
    "asyncio", "jinja2", "llguidance", "rich", "safetensors", "ssl", "starlette", "tokenizers", "unittest", "uvicorn",
    "importlib.resources", "importlib.metadata",
)  # fmt: skip
TEXTS: Final = ("engine.text.tokenizer", "engine.text.chat_template", "engine.text.template_process")
FORMATS: Final = (
    "engine.formats.awq", "engine.formats.coded_head", "engine.formats.compressed_tensors", "engine.formats.gptq",
    "engine.formats.kept", "engine.formats.nvfp4", "engine.formats.readers", "engine.formats.stored",
)  # fmt: skip
NOT_TO_COMPUTE: Final = (*COMPILER, *LIBRARIES, *TEXTS, *FORMATS, "engine.ranks.load", "engine.tools", "tilec.ship")
NOT_TO_TOKENIZE: Final = (
    *COMPILER, *FORMATS, "asyncio", "numpy", "ml_dtypes", "engine.api", "engine.backends", "engine.models", "tilec.step",
    "tilec.runtime", "cuda",
)  # fmt: skip
NOT_TO_BEGIN: Final = (*NOT_TO_TOKENIZE, *LIBRARIES, *TEXTS)

PROCESSES: Final = {
    "a server until its engine's process starts": (("engine.cli", "engine.serving.command"), NOT_TO_BEGIN, 14),
    "the engine's process of a server": (("engine.serving.worker", "engine.serving.work"), NOT_TO_COMPUTE, 155),
    "one prompt until its tokenizer's process starts": (("engine.cli", "engine.generate_command"), NOT_TO_BEGIN, 30),
    "one prompt": (("engine.cli", "engine.generate_command", "engine.api"), NOT_TO_COMPUTE, 140),
    "the tokenizer's process": (("engine.text.text_worker", "engine.text.tokenizer"), NOT_TO_TOKENIZE, 20),
}  # fmt: skip
"""The modules that each begins with, what it must not import, and the most modules of this project that it may."""


def imported(modules: tuple[str, ...]) -> set[str]:
    """The modules that a process has after it has imported some."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**environment, "PYTHONPATH": str(ROOT)}
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("name", PROCESSES)
def test_a_start_imports_nothing_that_can_wait(name: str) -> None:
    modules, forbidden, most = PROCESSES[name]
    before = imported(("sys",))  # what `site` loads depends on the installation
    found = imported(modules) - before
    needless = sorted(one for one in found if any(one == other or one.startswith(f"{other}.") for other in forbidden))
    assert not needless, f"{name} imports {', '.join(needless)}"
    own = sorted(one for one in found if one.partition(".")[0] in ("engine", "tilec"))
    assert len(own) <= most, f"{name} imports {len(own)} modules of the project: {', '.join(own)}"


@pytest.mark.parametrize("backend", ["cuda", "interpreter"])
def test_where_a_gpu_computes_numpy_starts_no_threads(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor in processes that begin before NumPy is imported; the interpreter's products have all processors."""
    found: list[tuple[str, str | None]] = []

    def begun(*_: object, **others: object) -> None:
        found.append(("begun", os.environ.get(BLAS_THREADS)))
        raise UsageError("no further")

    monkeypatch.setattr(generate_command, "TextProcess", begun)
    monkeypatch.setattr(generate_command, "_load", begun)
    monkeypatch.setattr(serve, "engine_started", begun)
    commands = {
        generate_command.command: ["--model", "x", "--prompt", "y", "--backend", backend],
        serve.serve_command: ["x", "--port", "0", "--backend", backend],
    }
    for command, arguments in commands.items():
        for own in (None, "3"):
            with monkeypatch.context() as patch:
                patch.setenv(BLAS_THREADS, "3")  # so that it is restored
                if own is None:
                    patch.delenv(BLAS_THREADS)
                result = CliRunner().invoke(command, arguments)
                assert isinstance(result.exception, UsageError) and result.exception.what == "no further"
    expected = "1" if backend == "cuda" else None
    assert found == [("begun", expected), ("begun", "3")] * 2


def test_numpy_starts_no_thread_if_the_environment_says_so() -> None:
    code = "import os; import numpy; print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env={**os.environ, BLAS_THREADS: "1"})
    assert done.stdout.split() == [b"1"]
