"""What `ranks_check` measures of a model, each in a process of its own: on one GPU, on two, in repetitions, of a rank that is
killed, and of ranks with a planted mistake.

A process writes what it has found after each measurement, so that one that is stopped leaves the others. Weights are those of
`RankBlocks`: the same in one process and in ranks.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ci.bench.engine.low_bit_weights import LowBitWeights
from ci.bench.engine.ranks_worker import MISTAKE, ONE_GPU, block_weights, command
from ci.bench.engine.weights import config_of, prompt_of
from engine.backends.backend import Backend
from engine.backends.load import load_on_gpu
from engine.errors import EngineError
from engine.models.config import ModelConfig
from engine.models.families import read_config
from engine.paged_batch import PagedBatch
from engine.ranks.gpus import GpuRanks
from engine.ranks.load import load_gpus
from tilec.step.formats import SIXTEEN_BIT

Floats = NDArray[np.float32]

GPUS: Final = 2
ARCHITECTURES: Final = {"qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "llama": "LlamaForCausalLM"}
FORMATS: Final = ("fp8", "int4", "w8a8")
"""Formats of weights that the name of a model may end in."""
SLOTS: Final = (18, 512, 4096)
PREFILLS: Final = (18, 512, 2048, 8192)
CAPACITY: Final = 8192 + 256
COUNTED: Final = 64
"""Tokens that a rate is the mean of."""
TIMES: Final = 5
"""Rates and times of which the median is taken, after one that does not count."""
LENGTHS: Final = (17, 512, 3000)
"""Tokens of the prompts whose logits are compared."""
STEPS: Final = 16
"""Teacher-forced decode steps after each of them."""
EVERY: Final = 4
"""Every fourth of these steps is also computed as a prompt."""
AGAIN: Final = 20
FEW: Final = 3
"""Times that a prompt is computed again, and that where ranks share a GPU."""
REPEATS: Final = 1000
ROWS: Final = (16, 128)
ROW_TOKENS: Final = 100
ROW_STEPS: Final = 20
ROW_PAGES: Final = 5
"""Of a row: those of its prompt and of its steps."""
KILL_AFTER: Final = 64
"""Tokens after which a rank is killed."""
GONE_SECONDS: Final = 10.0
"""How long processes of a killed rank are looked for."""
LAYERS: Final = 4
"""Of a model with a planted mistake, and of ranks that share a GPU."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A part: what it measures, of which model, where bundles are, and the file for what it finds. `one_gpu`: both ranks take
    turns on GPU 0, so nothing is timed."""

    part: str
    model: str
    bundles: Path
    file: Path
    one_gpu: bool = False
    layers: int = 0
    """Of the model; 0: all."""

    @property
    def config(self) -> ModelConfig:
        """The config of the model, cut to some layers."""
        config = config_of(self.name)
        return replace(config, num_hidden_layers=self.layers) if self.layers else config

    @property
    def name(self) -> str:
        """The model without the format of its weights."""
        return self.model.removesuffix(f"-{self.form}")

    @property
    def form(self) -> str:
        """The format of its weights."""
        return next((form for form in FORMATS if self.model.endswith(f"-{form}")), SIXTEEN_BIT)


class Found:
    """What a part has found so far, in its file: JSON, and arrays next to it."""

    def __init__(self, file: Path) -> None:
        self.file, self.data, self._began = file, dict[str, Any](), time.perf_counter()

    def keep(self, **values: Any) -> None:
        """Add values, and how many seconds were spent until then, and write all."""
        spent: dict[str, float] = self.data.setdefault("spent_s", {})
        spent |= dict.fromkeys(values, time.perf_counter() - self._began)
        self.data |= values
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.data), encoding="utf-8")
        new.replace(self.file)

    def keep_arrays(self, arrays: Mapping[str, Floats]) -> None:
        """Write arrays."""
        given: dict[str, Any] = dict(arrays)
        np.savez(array_file(self.file), **given)


def array_file(file: Path) -> Path:
    """Where the arrays of a part are."""
    return file.with_suffix(".npz")


def bundle_of(bundles: Path, model: str, gpus: int) -> Path:
    """The bundle of a model for one GPU or several."""
    return bundles / (f"{model}-sm_90a.bundle" if gpus == 1 else f"{model}-{gpus}-gpus-sm_90a.bundle")


def run_part(asked: Asked) -> None:
    """Measure a part and write what it finds; an error is written too, and raised."""
    found = Found(asked.file)
    try:
        PARTS[asked.part](asked, found)
    except BaseException as error:
        found.keep(error=f"{type(error).__name__}: {error}")
        raise


def on_one(asked: Asked) -> Backend:
    """A model on one GPU."""
    config = asked.config
    weights = LowBitWeights(config, "bf16", asked.form)
    return load_on_gpu(bundle_of(asked.bundles, asked.model, 1), config, weights, CAPACITY, "bf16")


def on_two(asked: Asked, options: Sequence[str] = ()) -> GpuRanks:
    """A model on two, with options of its ranks."""
    options = [*options, *([ONE_GPU] if asked.one_gpu else [])]
    config, form = asked.config, None if asked.form == SIXTEEN_BIT else asked.form
    with tempfile.TemporaryDirectory() as folder:
        numbers = {field.name: getattr(config, field.name) for field in fields(config)}
        text = json.dumps({"architectures": [ARCHITECTURES[config.model_type]], "model_type": config.model_type, **numbers})
        (Path(folder) / "config.json").write_text(text, encoding="utf-8")
        read = read_config(folder)
        weights = block_weights(read, folder, 0, GPUS, dtype="bf16", weight_format=form)
        model = {"model": folder, "serves": False, "dtype": "bf16", "dummy": 0, "weight_format": form}
        return load_gpus(
            model, read, weights, GPUS, CAPACITY, None, bundle=bundle_of(asked.bundles, asked.model, GPUS),
            command=lambda _, descriptor: [*command(options), str(descriptor)],
        )  # fmt: skip


def measured(load: Callable[[Asked], Backend], asked: Asked, found: Found) -> None:
    """A model, loaded on one GPU or on two."""
    began = time.perf_counter()
    backend = load(asked)
    found.keep(load_s=time.perf_counter() - began)
    measure(backend, asked, found)
    backend.close()


def measure(backend: Backend, asked: Asked, found: Found) -> None:
    """What is measured of a model, in the order of its value."""
    if not asked.one_gpu:
        speed(backend, found)
    logits, rounding = compared(backend, asked.part == "one")
    found.keep_arrays(logits)
    finite = all(bool(np.isfinite(one).all()) for one in logits.values())
    found.keep(finite=finite, **({"rounding": rounding} if rounding else {}))
    again = FEW if asked.one_gpu else AGAIN  # ranks that take turns take long
    found.keep(same=_same(backend, again), again=again)
    found.keep(rows=rows_over_pages(backend, timed=not asked.one_gpu))


def speed(backend: Backend, found: Found) -> None:
    """Milliseconds from a prompt on the host to the next token there, and tokens per second of decode after some slots: medians
    of `TIMES` after one."""
    rates: dict[str, float] = {}
    for length in PREFILLS:
        ids, times = prompt_of(length, backend.config), list[float]()
        for _ in range(TIMES + 1):
            sequence = backend.begin()
            began = time.perf_counter()
            backend.prefill(sequence, ids)
            backend.token()
            times.append((time.perf_counter() - began) * 1e3)
        rates[f"prefill_{length}_ms"] = sorted(times[1:])[TIMES // 2]
        found.keep(speed=rates)
    for count in SLOTS:
        rates[f"decode_at_{count}_tok_s"] = _decode_rate(backend, count)
        found.keep(speed=rates)


def _decode_rate(backend: Backend, count: int) -> float:
    sequence = backend.begin()
    backend.prefill(sequence, prompt_of(count - 1, backend.config))
    token, rates = backend.token(), list[float]()
    for _ in range(TIMES + 1):
        sequence.length = count - 1
        began = time.perf_counter()
        made = sum(1 for _ in backend.stream_tokens(sequence, token, COUNTED))
        rates.append(made / (time.perf_counter() - began))
    return sorted(rates[1:])[TIMES // 2]


def compared(backend: Backend, rounds: bool) -> tuple[dict[str, Floats], list[float]]:
    """Logits by the length of the prompt; with `rounds` also what rounding does to them: distances of logits of the same tokens
    as one prompt and as decode steps, which add in other orders."""
    found, apart = dict[str, Floats](), list[float]()
    for length in LENGTHS:
        ids = prompt_of(length + STEPS, backend.config)
        found[f"logits_{length}"] = rows = logits_of(backend, ids, length)
        for more in range(EVERY, STEPS + 1, EVERY) if rounds else ():
            prompt = backend.prompt_logits(backend.begin(), ids[: length + more])
            apart.append(float(distances(prompt[None], rows[more][None])[0]))
    return found, apart


def logits_of(backend: Backend, ids: Sequence[int], length: int) -> Floats:
    """Of the prompt's last token and of each teacher-forced step, (1 + steps, vocab)."""
    sequence = backend.begin()
    rows = [backend.prompt_logits(sequence, list(ids[:length]))]
    return np.stack([*rows, *(backend.decode_logits(sequence, token) for token in ids[length:])])


def distances(found: Floats, expected: Floats) -> Floats:
    """The relative distance of each row."""
    return np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)


def _same(backend: Backend, again: int) -> bool:
    """Whether a prompt and the steps after it have the same bits so many more times."""
    ids = prompt_of(LENGTHS[1] + EVERY, backend.config)
    first = logits_of(backend, ids, LENGTHS[1])
    return all(np.array_equal(logits_of(backend, ids, LENGTHS[1]), first) for _ in range(again))


def rows_over_pages(backend: Backend, *, timed: bool) -> dict[str, Any]:
    """Milliseconds of a step of some rows over pages, the median of `ROW_STEPS`, and whether the logits of a row have the same
    bits alone and among all others. Without times only of the fewest rows."""
    found: dict[str, Any] = {"same": True}
    counts = ROWS if timed else ROWS[:1]
    prompts = [prompt_of(ROW_TOKENS + number, backend.config) for number in range(counts[-1])]
    began = time.perf_counter()
    with PagedBatch(backend, counts[-1], pages=8 + ROW_PAGES * counts[-1]) as batch:
        found["begun_s"] = time.perf_counter() - began
        parking, alone = batch.parking, None
        for rows in (1, *counts):
            for row in range(rows):
                batch.join(row, [parking + ROW_PAGES * row + page for page in range(ROW_PAGES)], 0, prompts[row])
            batch.step(ahead=False)
            logits = batch.step_logits()[0].copy()
            alone = logits if alone is None else alone
            found["same"] = found["same"] and np.array_equal(logits, alone)
            times = list[float]()
            for _ in range(ROW_STEPS if rows > 1 and timed else 0):
                began = time.perf_counter()
                batch.step()
                times.append((time.perf_counter() - began) * 1e3)
            if times:
                found[f"step_of_{rows}_rows_ms"] = sorted(times)[ROW_STEPS // 2]
            for row in range(rows):
                batch.remove(row)
    return found


def repeated(asked: Asked, found: Found) -> None:
    """How many of `REPEATS` decode steps on two GPUs have the bits of the first."""
    backend = on_two(asked)
    ids, equal = prompt_of(LENGTHS[1] + 1, backend.config), 0
    sequence = backend.begin()
    backend.prefill(sequence, ids[:-1])
    backend.token()
    first = None
    for number in range(REPEATS):
        sequence.length = len(ids) - 1
        logits = backend.decode_logits(sequence, ids[-1])
        first = logits if first is None else first
        equal += np.array_equal(logits, first)
        if number % 100 == 99:
            found.keep(repeats=number + 1, equal=equal)
    found.keep(repeats=REPEATS, equal=equal)
    backend.close()


def killed(asked: Asked, found: Found) -> None:
    """Each rank is killed between two tokens, while its GPU and the other one work. SystemExit if nothing comes of it."""
    kills = list[dict[str, Any]]()
    for rank in reversed(range(GPUS)):
        kills.append(_kill(on_two(asked), rank))
        found.keep(kills=kills)


def _kill(backend: GpuRanks, rank: int) -> dict[str, Any]:
    sequence, message, began = backend.begin(), "", 0.0
    backend.prefill(sequence, prompt_of(SLOTS[0], backend.config))
    try:
        for number, _ in enumerate(backend.stream_tokens(sequence, backend.token(), 4000)):
            if number == KILL_AFTER:
                began = time.perf_counter()
                os.kill(backend.pids[rank], signal.SIGKILL)
    except EngineError as error:
        message = str(error)
    if not message:
        raise SystemExit("a rank was killed, and there was no error")
    seconds = time.perf_counter() - began
    while any(Path(f"/proc/{pid}").exists() for pid in backend.pids):
        if time.perf_counter() - began > GONE_SECONDS:
            raise SystemExit(f"processes of ranks are there {GONE_SECONDS:.0f} s after one was killed")
        time.sleep(0.001)
    return {"rank": rank, "seconds": seconds, "gone_seconds": time.perf_counter() - began, "message": message}


def planted(asked: Asked, found: Found) -> None:
    """How far logits of some layers are from those of one GPU, with a rank's own part of the weights and with another's."""
    asked = replace(asked, layers=asked.layers or LAYERS)
    backend = on_one(asked)
    ids, length = prompt_of(LENGTHS[0] + EVERY, backend.config), LENGTHS[0]
    alone = logits_of(backend, ids, length)
    backend.close()
    for name, options in (("right", []), ("mistaken", [MISTAKE])):
        ranks = on_two(asked, options)
        found.keep(**{name: float(distances(logits_of(ranks, ids, length), alone).mean())})
        ranks.close()


PARTS: Final[Mapping[str, Callable[[Asked, Found], None]]] = {
    "one": partial(measured, on_one), "two": partial(measured, on_two), "repeats": repeated, "kill": killed, "planted": planted,
}  # fmt: skip
