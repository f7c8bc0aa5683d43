"""Writes the quantised folder of a model folder, atomically: the whole of it appears under the name of the target, or nothing.

The weights that the family's step declares `linear` are quantised; embedding, LM head, norms and the routers of mixtures are
copied in their 16 bits, config.json gets its `quantization_config`, and the files of the tokenizer are copied. The source is
checked as the engine checks it before anything is written, and what was written is read back in the same way before it gets its
name.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from engine.checkpoint.folder_file import path_exists, read_bytes
from engine.checkpoint.json_file import read_object, show
from engine.checkpoint.safetensors_file import SafetensorsFile
from engine.checkpoint.shards import INDEX_FILE, open_checkpoint
from engine.checkpoint.weights import EMBEDDING, FILE_DTYPES, WeightPlan, destinations
from engine.errors import EngineError, ModelError, UsageError
from engine.formats.quantised import WEIGHT
from engine.formats.quantization import matches
from engine.formats.reading import KEY, read_quantization
from engine.models.config import CONFIG_FILE, GENERATION_FILE, LIMIT_BYTES, ModelConfig
from engine.models.families import family_of, read_config
from engine.tools.quantize.calibration import UNDAMAGED, Calibration, sequences_of
from engine.tools.quantize.integers import IntegerFormat
from engine.tools.quantize.rounding import Arrays, Format, NoWeight, Report, round_weight
from engine.tools.quantize.shards import Module, index, shard_names, shards, write_shard
from tilec.untrusted.output import InTheWay, OpenOutput, Output, write_all

COPIED: Final = (
    GENERATION_FILE, "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "LICENSE",
)  # fmt: skip
"""Files that are copied if they are there."""
COPIED_LIMIT: Final = 1 << 28
"""Maximum bytes of one of them."""

HEAD: Final = "lm_head"
NUMBERS: Final = re.compile(r"\.\d+(?=\.)")
"""Numbers of layers and experts in a name, for which a step has `*`."""
FUSED: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Modules that engines fuse into one, which therefore are quantised together or not at all."""


@dataclass(frozen=True, slots=True)
class Quantising:
    """A checked source: the weights in the order of the model, and which of them are quantised."""

    source: Path
    plan: WeightPlan
    files: Mapping[str, SafetensorsFile]
    form: Format
    quantised: tuple[str, ...]
    skipped: tuple[str, ...]
    """Modules that keep 16 bits, as `quantization_config` lists them."""
    calibration: Calibration | None = None
    """What rounds the weights, if they are not rounded to nearest."""

    def modules(self, report: Report) -> Iterator[Module]:
        """What is written, in order; weights are read and rounded when they are."""
        chosen = frozenset(self.quantised)
        for name in self.plan.tensor_names:
            weight = self.plan.tensor(name)
            if name not in chosen:
                yield Module({name: (weight.dtype, weight.shape)}, _same(name, weight), mapped=True)
                continue
            stored = self.form.stored((weight.shape[0], weight.shape[1]), weight.dtype)
            tensors = {f"{name.removesuffix(WEIGHT)}.{end}": facts for end, facts in stored.items()}
            yield Module(tensors, self._rounded(name, report), mapped=False)

    def _rounded(self, name: str, report: Report) -> Callable[[], dict[str, NDArray[Any]]]:
        def make() -> dict[str, NDArray[Any]]:
            if self.calibration is not None:
                return named(name, self.calibration.take(name, report))
            weight = self.plan.tensor(name)
            try:
                arrays, errors = round_weight(weight, self.form)
            except NoWeight as error:
                raise _refused(self.files, name, f"{error}, which is no weight", UNDAMAGED) from None
            report(name, (weight.shape[0], weight.shape[1]), errors)
            return named(name, arrays)

        def named(name: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
            return {f"{name.removesuffix(WEIGHT)}.{end}": array for end, array in arrays.items()}

        return make


def prepare(source: str | os.PathLike[str], form: Format, ignored: Sequence[str] = ()) -> Quantising:
    """Check a model folder and choose the weights that are quantised: all linear modules of the layers but those in `ignored`,
    names or, after `re:`, expressions as in `quantization_config`. ModelError for a folder that the engine could not run, one
    that is quantised, and a weight that the format cannot store; UsageError for what is ignored and is no such module."""
    config = read_config(source)
    if read_quantization(source) is not None:
        raise ModelError("is quantised already", where=source, fix="give the checkpoint of 16 bits it was made from")
    files = open_checkpoint(source)
    plan = _plan(config, source, files)
    every, is_linear = [name.removesuffix(WEIGHT) for name in plan.tensor_names if _is_module(plan, name)], _linear(config)
    modules, others = [one for one in every if is_linear(one)], [one for one in every if not is_linear(one)]
    kept = [module for module in modules if matches(ignored, module)]
    _check_ignored(ignored, modules, kept)
    quantised = tuple(module + WEIGHT for module in modules if module not in kept)
    for name in quantised:
        rows, columns = plan.tensor(name).shape
        problem = form.problem((rows, columns))
        if problem is not None:
            raise _refused(files, name, *problem)
    return Quantising(Path(source), plan, files, form, quantised, (HEAD, *others, *kept))


def calibrated(quantising: Quantising, form: IntegerFormat, text: Path) -> Quantising:
    """The same with weights that are rounded for the activations of a text, by GPTQ. ModelError for a mixture of experts,
    UsageError and ModelError as in `sequences_of`."""
    config = read_config(quantising.source)
    if any(one.items for one in destinations(config, "bf16")):
        what = "is a mixture of experts, which cannot be calibrated: an expert sees too little of a text"
        raise ModelError(what, where=quantising.source, fix="leave --calibration out")
    sequences = sequences_of(text, quantising.source, config)
    refuse = partial(_refused, quantising.files)
    calibration = Calibration(config, quantising.plan, form, frozenset(quantising.quantised), sequences, refuse)
    return replace(quantising, calibration=calibration)


def write_quantised(quantising: Quantising, target: Path, shard_bytes: int, report: Report) -> list[str]:
    """Write the folder `target`, which must not exist; returns the names of its safetensors files, of at most `shard_bytes` if
    no module has more. EngineError if it cannot be written, ModelError for a weight that is no number; nothing is left then."""
    try:
        with contextlib.closing(Output(target.absolute().parent, None, is_there=True).opened()) as parent:
            if parent.has(target.name) or target.name in ("", "..", "."):
                raise UsageError("exists already", where=target, fix="name a new folder")
            staged = parent.temporary()
            try:
                with contextlib.closing(parent.sub(staged)) as folder:
                    names = _fill(quantising, folder, shard_bytes, report)
                os.rename(staged, target.name, src_dir_fd=parent.handle, dst_dir_fd=parent.handle)
            except BaseException:
                parent.remove_tree(staged)
                raise
    except OSError as error:
        fix = error.hint if isinstance(error, InTheWay) else "free space, or name a folder in one that can be written"
        raise EngineError(f"cannot be written: {error.strerror or error}", where=target, fix=fix) from None
    return names


def _fill(quantising: Quantising, folder: OpenOutput, shard_bytes: int, report: Report) -> list[str]:
    parts = shards([*quantising.modules(report)], shard_bytes)
    names = shard_names(len(parts))
    largest = max(sum(module.bytes for module in part if not module.mapped) for part in parts)
    _check_space(folder, sum(module.bytes for part in parts for module in part) + largest)
    for name, part in zip(names, parts, strict=True):
        write_shard(folder, name, part)
    if len(names) > 1:
        _write(folder, INDEX_FILE, index(dict(zip(names, parts, strict=True))))
    _copy(quantising, folder)
    written = WeightPlan.for_model(read_config(folder.path), folder.path)
    if set(written.quantised) != set(quantising.quantised):
        raise AssertionError("the reader finds other quantised weights than were written")
    _sync(folder)
    return names


def _copy(quantising: Quantising, folder: OpenOutput) -> None:
    """config.json with its `quantization_config`, and the files of the tokenizer."""
    path = quantising.source / CONFIG_FILE
    keys = read_object(path, LIMIT_BYTES, "repair the link") | {KEY: quantising.form.config(quantising.skipped)}
    _write(folder, CONFIG_FILE, (json.dumps(keys, indent=2) + "\n").encode())
    for name in COPIED:
        if path_exists(quantising.source / name):
            _write(folder, name, read_bytes(quantising.source / name, COPIED_LIMIT, "repair the link"))


def _write(folder: OpenOutput, name: str, data: bytes) -> None:
    with folder.new(name) as file:
        write_all(file, data)


def _sync(folder: OpenOutput) -> None:
    """All files to disk, before the folder gets its name."""
    for name in os.listdir(folder.handle):
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder.handle)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    os.fsync(folder.handle)


def _plan(config: ModelConfig, source: str | os.PathLike[str], files: Mapping[str, SafetensorsFile]) -> WeightPlan:
    """The weights in the dtype of the embedding, which all others must have."""
    table = files.get(EMBEDDING)
    dtype = FILE_DTYPES.get(table.tensors[EMBEDDING].dtype, "bf16") if table is not None else "bf16"
    return WeightPlan(config, dtype, files, os.fspath(source), convert=False)


def _is_module(plan: WeightPlan, name: str) -> bool:
    """Whether it is the weight of a module of a layer that multiplies."""
    return name.startswith("model.layers.") and name.endswith(WEIGHT) and plan.tensor(name).ndim == 2


def _linear(config: ModelConfig) -> Callable[[str], bool]:
    """Whether the step of a model declares a weight `linear`, as a function of its module's name."""
    weights = family_of(config.model_type).declaration().weights.values()
    names = {row for weight in weights if weight.linear for row in weight.rows}
    return lambda module: NUMBERS.sub(".*", module + WEIGHT) in names


def _same(name: str, weight: NDArray[Any]) -> Callable[[], Mapping[str, NDArray[Any]]]:
    return lambda: {name: weight}


def _check_ignored(ignored: Sequence[str], modules: Sequence[str], kept: Sequence[str]) -> None:
    for pattern in ignored:
        if not any(matches([pattern], module) for module in modules):
            fix = f"give names such as {modules[0]}, or expressions such as re:.*down_proj"
            raise UsageError(f"--ignore {show(pattern)} is none of the model's linear modules", fix=fix)
    for module in kept:
        before, _, last = module.rpartition(".")
        fused = next((names for names in FUSED if last in names), ())
        others = [f"{before}.{name}" for name in fused if f"{before}.{name}" not in kept]
        if others:
            what = f"--ignore keeps {show(module)} in 16 bits and not {show(others[0])}, which engines fuse with it"
            raise UsageError(what, fix="ignore all of them, or none")
    if len(kept) == len(modules):
        raise UsageError("--ignore leaves nothing to quantise", fix="ignore less")


def _check_space(folder: OpenOutput, needed: int) -> None:
    """OSError if the file system has fewer bytes left."""
    status = os.fstatvfs(folder.handle)
    if status.f_bavail * status.f_frsize < needed:
        what = f"{os.strerror(errno.ENOSPC)}: {needed} bytes are needed, and {status.f_bavail * status.f_frsize} are free"
        raise OSError(errno.ENOSPC, what)


def _refused(files: Mapping[str, SafetensorsFile], name: str, what: str, fix: str) -> ModelError:
    return ModelError(f"tensor {show(name)} {what}", where=files[name].path, fix=fix)
