"""What the processes of a start import before the first token: modules that it does not need would delay it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

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
