"""The PyTorch baseline of a kernel: the function with the kernel's name in a file `baseline*.py` next to the kernels.

In: the file, the function's name, and the arguments of a launch on a device. Its parameters are named like those of a
reference: the kernel's inputs, scalars, dims or constants; tensors are PyTorch views of the same memory. It returns what the
kernel writes, in the same order. Out: an object that is launched and captured like a plan, and its results. The file's code is
executed.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilec.project.read.python_file import execute
from tilec.project.trial.launches import Contract
from tilec.tuning.bench import Arguments


class NoBaseline(Exception):
    """The baseline cannot be used; the text says why."""


def torch_here() -> Any:
    """The module `torch`; NoBaseline if it is missing or has no CUDA device."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise NoBaseline("torch is not installed: pip install torch") from None
    if not torch.cuda.is_available():
        raise NoBaseline("this torch has no CUDA")
    return torch


def load_baseline(path: Path, name: str) -> Any:
    """The function `name` of the file; NoBaseline if it cannot be loaded."""
    try:
        return getattr(execute(path, "baseline"), name)
    except (Exception, SystemExit) as error:
        raise NoBaseline(f"`{path.name}:{name}` cannot be loaded: {type(error).__name__}: {error}") from None


class Baseline:
    """One launch of a baseline with fixed arguments, which `clock.timed` accepts like a plan."""

    def __init__(
        self, torch: Any, function: Any, contract: Contract, arguments: Arguments, values: Mapping[str, float]
    ) -> None:
        given: dict[str, Any] = {name.lower(): value for name, value in contract.constants.items()}
        given |= {**contract.constants, **values, **arguments.scalars}
        for spec in contract.tensors:
            if spec.access in ("in", "inout", "atomic"):
                given[spec.name] = torch.from_dlpack(arguments.tensors[spec.name])
        wanted = inspect.signature(function).parameters
        missing = [name for name in wanted if name not in given]
        if missing:
            raise NoBaseline(f"it asks for `{missing[0]}`; there are {', '.join(f'`{name}`' for name in given)}")
        self._torch, self._function = torch, function
        self._kept: Any = None
        self._given = {name: given[name] for name in wanted}

    def launch(self, stream: int = 0) -> None:
        """Enqueue it on the stream with this handle. The results stay allocated until the next launch, so that each argument
        set has its own output memory, as it has for the kernel. Output memory shared by all sets would stay in the L2 cache."""
        self._kept = self.results(stream)

    def results(self, stream: int = 0) -> Sequence[Any]:
        """Enqueue it and return its result tensors."""
        on = self._torch.cuda.stream(self._torch.cuda.ExternalStream(stream)) if stream else contextlib.nullcontext()
        with on, self._torch.no_grad():
            found: Any = self._function(**self._given)
        return list(found) if isinstance(found, tuple | list) else [found]  # pyright: ignore[reportUnknownArgumentType]
