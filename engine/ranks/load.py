"""Loads a model on several ranks: threads of the interpreter, or a process for each GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.backends.backend import Backend
from engine.backends.load import opened_bundle
from engine.backends.upload import Progress
from engine.checkpoint.weights import Weights
from engine.errors import UsageError
from engine.models.config import ModelConfig
from engine.ranks.processes import RankProcesses
from engine.ranks.weights import rank_weights, step_of_ranks
from tilec.runtime import Bundle
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.ranks import MAX_RANKS

if TYPE_CHECKING:
    from engine.ranks.gpus import GpuRanks
    from tilec.runtime.trust import TrustSource

Command = Callable[[int, int], list[str]]


def load_ranks(
    path: str | PathLike[str], config: ModelConfig, gpus: int, backend: str, max_seq_len: int, *, dtype: str | None = None,
    weight_format: str | None = None, cache_format: str | None = None, dummy: int | None = None,
    progress: Progress | None = None, bundle: str | PathLike[str] | None = None, digest: str | None = None,
    trust: TrustSource = None, serves: bool = False,
) -> tuple[Backend, Bundle | None]:  # fmt: skip
    """A backend of `gpus` ranks, and the bundle that the caller closes after it; `serves` as of `CudaBackend.load`. UsageError
    if they cannot have equal parts of the model; on GPUs a DeviceError if there are fewer, or one cannot reach another's
    memory; BundleRefused."""
    if not 1 < gpus <= MAX_RANKS:
        raise UsageError(f"{gpus} GPUs are asked for", fix=f"ask for 1 to {MAX_RANKS}")
    of_model = "f16" if config.dtype == "f16" else "bf16"
    step_of_ranks(config, dtype or of_model, gpus, SIXTEEN_BIT)  # before anything is read or started
    form = {"dtype": dtype, "dummy": dummy, "weight_format": weight_format}
    if backend != "interpreter":
        first = rank_weights(config, path, 0, gpus, dtype=dtype, dummy=dummy, weight_format=weight_format)
        model = {"model": fspath(Path(path).resolve()), "serves": serves, **form}
        loaded = load_gpus(
            model, config, first, gpus, max_seq_len, cache_format, progress, bundle=bundle, digest=digest, trust=trust
        )  # fmt: skip
        return loaded, loaded.bundle
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
    return ranks, None


def worker_command(_: int, descriptor: int) -> list[str]:
    """The command line of a rank's process."""
    safe = ["-P"] if sys.flags.safe_path else []
    return [sys.executable, *safe, "-m", "engine.ranks.worker", str(descriptor)]


def load_gpus(
    model: dict[str, Any], config: ModelConfig, weights: Weights, gpus: int, max_seq_len: int, cache_format: str | None,
    progress: Progress | None = None, *, bundle: str | PathLike[str] | None = None, digest: str | None = None,
    trust: TrustSource = None, command: Command = worker_command,
) -> GpuRanks:  # fmt: skip
    """Start a process for each GPU and load a model in all. `model` is what they load it from, `weights` those of rank 0. A
    bundle that is named is opened before any process starts; else one is found for the architecture of the GPUs."""
    from engine.ranks.gpus import GpuRanks  # late: the interpreter does without it

    def opened(architecture: str) -> Bundle:
        return opened_bundle(
            bundle, config, weights.weight_format, architecture, digest=digest, trust=trust,
            weight_format=model["weight_format"], cache_format=cache_format, gpus=gpus,
        )  # fmt: skip

    named = opened("") if bundle is not None else None
    processes: RankProcesses | None = None
    try:
        processes = RankProcesses(gpus, command)
        processes.send([{"rank": rank, "ranks": gpus} for rank in range(gpus)])
        ready = processes.gather()
        named = opened(str(ready[0]["architecture"])) if named is None else named
        ranks = GpuRanks(processes, named, ready)
        ranks.load(config, weights, max_seq_len, weights.dtype, model, cache_format, progress)
    except BaseException:
        if processes is not None:
            processes.end()
        if named is not None:
            named.close()
        raise
    return ranks
