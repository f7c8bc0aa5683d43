"""Loads a model on several ranks: threads of the interpreter, or a process for each GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from engine.backends.backend import Backend
from engine.backends.upload import Progress
from engine.errors import UsageError
from engine.models.config import ModelConfig
from engine.ranks.processes import RankProcesses
from engine.ranks.weights import rank_weights, step_of_ranks
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.ranks import MAX_RANKS


def load_ranks(
    path: str | PathLike[str], config: ModelConfig, gpus: int, backend: str, max_seq_len: int, *, dtype: str | None = None,
    weight_format: str | None = None, cache_format: str | None = None, dummy: int | None = None,
    progress: Progress | None = None,
) -> Backend:  # fmt: skip
    """A backend of `gpus` ranks. UsageError if they cannot have equal parts of the model; on GPUs a DeviceError if there are
    fewer, or one cannot reach another's memory, and otherwise BundleRefused: see `engine.ranks.worker`."""
    if not 1 < gpus <= MAX_RANKS:
        raise UsageError(f"{gpus} GPUs are asked for", fix=f"ask for 1 to {MAX_RANKS}")
    of_model = "f16" if config.dtype == "f16" else "bf16"
    step_of_ranks(config, dtype or of_model, gpus, SIXTEEN_BIT)  # before anything is read or started
    if backend != "interpreter":
        model = {
            "model": fspath(Path(path).resolve()), "ranks": gpus, "dtype": dtype or of_model, "weight_format": weight_format,
        }  # fmt: skip
        start_gpus(gpus, model)
    from engine.ranks.interpreter import InterpreterRanks  # late: GPU runs do without this import

    weights = [
        rank_weights(config, path, rank, gpus, dtype=dtype, dummy=dummy, weight_format=weight_format) for rank in range(gpus)
    ]
    ranks = InterpreterRanks(gpus)
    try:
        ranks.load(config, weights, max_seq_len, weights[0].dtype, progress, cache_format)
    except BaseException:
        ranks.close()
        raise
    return ranks


def worker_command(_: int, descriptor: int) -> list[str]:
    """The command line of a rank's process."""
    safe = ["-P"] if sys.flags.safe_path else []
    return [sys.executable, *safe, "-m", "engine.ranks.worker", str(descriptor)]


def start_gpus(
    gpus: int, model: dict[str, Any], command: Callable[[int, int], list[str]] = worker_command
) -> None:  # fmt: skip
    """Start a process for each GPU, and let all say what they can; the error of the first that cannot go on. Ranks have
    no kernels to meet in yet, so that is always one."""
    with RankProcesses(gpus, command) as ranks:
        ranks.send([{**model, "rank": rank} for rank in range(gpus)])
        ranks.gather()
        ranks.send([{"kind": "go"}] * gpus)
        ranks.gather()
    raise AssertionError("a rank went on without collectives")
