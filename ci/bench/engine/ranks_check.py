"""Checks and times models that two GPUs share, compared with one GPU, and the all-reduce with NCCL's.

    python3 ci/bench/engine.py ranks_check artifacts/bundles [--models qwen3-4b,qwen3-32b,qwen3-30b-a3b]

Needs a machine with two GPUs, torch for NCCL, and for each model the bundle of one GPU and the one of `--gpus 2`. Weights are
random.

- The all-reduce of 16 KB to 8 MB, in CUDA graphs: the kernel of prompts and that of decode steps, and NCCL's without NVLink
  multicast. 1000 sums with delays at random have the same bits, in both ranks, as the sum in f32 in the order of ranks.
- Each model on one GPU and on two: tokens per second of decode, milliseconds of a prompt, and logits of a prompt's last token
  and of teacher-forced decode steps, compared between one and two GPUs. What rounding does is measured on one GPU: logits of
  the same tokens as one prompt and as decode steps, which add in other orders. Twenty prompts have the same bits.
- Rows over pages, on one GPU and on two: milliseconds of a step, and whether a row has the same bits alone and among others.
- A rank that is killed while it generates: seconds until there is an error, and until the other process is gone.

Every part is a process of its own, and ends by itself, with the place where it is, if it takes too long (`PART_SECONDS`); then
the others still run. Exit status 1 if a part failed, bits differ, logits are further apart than `MOST_APART` times what
rounding does, or a kill takes longer than a second.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.engine.all_reduce import SECONDS as ALL_REDUCE_SECONDS
from ci.bench.engine.weights import config_of, prompt_of
from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.backends.backend import Backend
from engine.backends.load import load_on_gpu
from engine.errors import EngineError
from engine.models.families import read_config
from engine.paged_batch import PagedBatch
from engine.ranks.gpus import GpuRanks
from engine.ranks.load import load_ranks
from engine.tools.dummy_weights import dummy_weights

GPUS: Final = 2
ARCHITECTURES: Final = {"qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "llama": "LlamaForCausalLM"}
SLOTS: Final = (18, 512, 4096)
PREFILLS: Final = (18, 512, 2048, 8192)
CAPACITY: Final = 8192 + 256
LENGTHS: Final = (17, 512, 3000)
STEPS: Final = 16
COUNTED: Final = 128
"""Tokens that a rate is the mean of."""
AGAIN: Final = 20
MOST_APART: Final = 2.0
"""The largest distance of many rows of logits between one GPU and two, over that of three rows in two orders of sums on one
GPU."""
MOST_SECONDS: Final = 1.0
ROWS: Final = (16, 128)
ROW_TOKENS: Final = 100
ROW_STEPS: Final = 20
PART_SECONDS: Final = 200
"""How long a part may take."""
MORE_SECONDS: Final = 20
"""How much longer is waited for a part, or a rank, before it is killed."""
GONE_SECONDS: Final = 10.0
"""How long processes of a killed rank are looked for."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", help="folder of the bundles", type=Path)
    parser.add_argument("--models", default="qwen3-4b,qwen3-32b")
    parser.add_argument("--skip-all-reduce", action="store_true", help="no torch")
    parser.add_argument("--child", nargs=3, metavar=("PART", "MODEL", "FILE"), help=argparse.SUPPRESS)


def measure(options: argparse.Namespace) -> Iterable[Outcome] | int:
    """All parts, or one of them in a process of its own."""
    if options.child is None:
        return _parts(options)
    part, model, file = options.child
    faulthandler.dump_traceback_later(PART_SECONDS, exit=True)  # a wait for a GPU has no end of its own
    found = PARTS[part](options.bundles, model)
    arrays = {name: found.pop(name) for name in [name for name in found if isinstance(found[name], np.ndarray)]}
    np.savez(f"{file}.npz", **arrays)
    Path(file).write_text(json.dumps(found), encoding="utf-8")
    return 0


def _parts(options: argparse.Namespace) -> Iterable[Outcome]:
    """What was found so far, after each part."""
    found: dict[str, Any] = {"models": {}, "failed": []}

    def part(*given: Any) -> Any:
        """What a part found; None if it failed, which is recorded."""
        try:
            return _all_reduce(*given) if len(given) == 3 else _part(*given)
        except Failed as error:
            found["failed"].append(str(error))
            return None

    with tempfile.TemporaryDirectory() as name:
        folder, models = Path(name), names(options.models)
        if not options.skip_all_reduce:
            found["all_reduce"] = part(options.bundles, models[0], folder)
            yield _outcome(found)
        found["kill"] = (part("kill", models[0], options.bundles, folder) or (None,))[0]
        yield _outcome(found)
        for model in models:
            pair = [part(which, model, options.bundles, folder) for which in ("one", "two")]
            if None in pair:
                yield _outcome(found)
                continue
            (one, alone), (two, shared) = pair
            apart = [relative(shared[key], alone[key]) for key in sorted(alone)]
            found["models"][model] = {"one": one, "two": two, "apart": max(apart), "each": apart}
            yield _outcome(found)


def _outcome(found: Mapping[str, Any]) -> Outcome:
    lines = report(found)
    print(*lines, sep="\n", flush=True)
    return Outcome(found, {"ranks_check.md": page(lines)}, int(not _right(found)))


def _right(found: Mapping[str, Any]) -> bool:
    sums, kill = found.get("all_reduce"), found.get("kill")
    models = all(
        one["apart"] <= MOST_APART * one["one"]["rounding"] and one["two"]["same"] and one["two"]["rows"]["same"]
        for one in found["models"].values()
    )
    killed = kill is None or (max(kill["seconds"], kill["gone_seconds"]) <= MOST_SECONDS and "SIGKILL" in kill["message"])
    return not found["failed"] and (sums is None or sums["same"]) and models and killed


def _part(part: str, model: str, bundles: Path, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a part found, in a process of its own: data, and arrays. Failed if it ended otherwise, or not in time."""
    file = folder / f"{part}-{model}.json"
    process = subprocess.Popen([*_command(bundles), "--child", part, model, str(file)])
    _waited([process], PART_SECONDS + MORE_SECONDS, f"part `{part}` of {model}")
    with np.load(f"{file}.npz") as arrays:
        return json.loads(file.read_text(encoding="utf-8")), dict(arrays)


class Failed(Exception):
    """A part did not end as it should; the message is a line."""


def _waited(processes: Sequence[subprocess.Popen[bytes]], seconds: float, what: str) -> None:
    """Wait until all processes have ended well. Failed once one ends otherwise or the time is over; then none is left. Ranks
    that a process started end with it."""
    until = time.monotonic() + seconds
    try:
        while True:
            states = [one.poll() for one in processes]  # of all: a rank that failed may be the last
            if None not in states or any(states):
                break
            if time.monotonic() > until:
                raise Failed(f"{what} had not ended after {seconds:.0f} s, and was killed")
            time.sleep(0.1)
        wrong = next((one.returncode for one in processes if one.returncode), 0)
        if wrong:
            raise Failed(f"{what} ended with status {wrong}")
    finally:
        for one in processes:
            if one.poll() is None:
                one.kill()  # it waits for the others on its GPU
            with suppress(subprocess.TimeoutExpired):  # the driver holds it; nothing else can be done
                one.wait(GONE_SECONDS)


def _command(bundles: Path) -> list[str]:
    return [sys.executable, str(Path(__file__).parents[1] / "engine.py"), "ranks_check", str(bundles)]


def _all_reduce(bundles: Path, model: str, folder: Path) -> dict[str, Any]:
    """The sums of all ranks, in a process for each (`ci.bench.engine.all_reduce`)."""
    file = folder / "all_reduce.json"
    bundle = bundles / f"{model}-{GPUS}-gpus-sm_90a.bundle"
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "ci.bench.engine.all_reduce", str(bundle), str(file)]
    ranks = [subprocess.Popen([*command, str(rank), str(GPUS)], env=environment) for rank in range(GPUS)]
    _waited(ranks, ALL_REDUCE_SECONDS + MORE_SECONDS, "the all-reduce")
    return json.loads(file.read_text(encoding="utf-8"))


def relative(found: Any, expected: Any) -> float:
    """The largest relative distance of a row."""
    rows = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return float(rows.max())


def one_gpu(bundles: Path, model: str) -> dict[str, Any]:
    """A model on one GPU."""
    config = config_of(model)
    began = time.perf_counter()
    backend = load_on_gpu(bundles / f"{model}-sm_90a.bundle", config, dummy_weights(config, "bf16"), CAPACITY, "bf16")
    return _measured(backend, time.perf_counter() - began)


def two_gpus(bundles: Path, model: str) -> dict[str, Any]:
    """A model on two."""
    began = time.perf_counter()
    return _measured(_shared(bundles, model), time.perf_counter() - began)


def _shared(bundles: Path, model: str) -> Backend:
    bundle = bundles / f"{model}-{GPUS}-gpus-sm_90a.bundle"
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(model)
        numbers = {field.name: getattr(config, field.name) for field in fields(config)}
        text = json.dumps({"architectures": [ARCHITECTURES[config.model_type]], "model_type": config.model_type, **numbers})
        (Path(folder) / "config.json").write_text(text, encoding="utf-8")
        read = read_config(folder)
        return load_ranks(folder, read, GPUS, "cuda", CAPACITY, dtype="bf16", dummy=0, bundle=bundle)[0]


def _measured(backend: Backend, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {"load_s": seconds, "speed": _speed(backend)}
    apart: list[float] = []
    for length in LENGTHS:
        ids = prompt_of(length + STEPS, backend.config)
        found[f"logits_{length}"] = rows = _logits(backend, ids, length)
        apart.append(relative(backend.prompt_logits(backend.begin(), ids), rows[-1]))
    found["rounding"] = max(apart)
    first = _logits(backend, prompt_of(LENGTHS[1] + STEPS, backend.config), LENGTHS[1])
    found["same"] = all(
        (_logits(backend, prompt_of(LENGTHS[1] + STEPS, backend.config), LENGTHS[1]) == first).all() for _ in range(AGAIN)
    )
    found["rows"] = _rows(backend)
    backend.close()
    return found


def _rows(backend: Backend) -> dict[str, Any]:
    """Milliseconds of a step of some rows over pages, the median of `ROW_STEPS`, and whether the logits of a row have the same
    bits alone and among all others."""
    found: dict[str, Any] = {"same": True}
    prompts = [prompt_of(ROW_TOKENS + number, backend.config) for number in range(ROWS[-1])]
    with PagedBatch(backend, ROWS[-1], pages=8 + 5 * ROWS[-1]) as batch:
        parking, alone = batch.parking, None
        for rows in (1, *ROWS):
            for row in range(rows):
                batch.join(row, [parking + 5 * row + page for page in range(5)], 0, prompts[row])
            batch.step(ahead=False)
            logits = batch.step_logits()[0].copy()
            alone = logits if alone is None else alone
            found["same"] = found["same"] and bool((logits == alone).all())
            times = list[float]()
            for _ in range(ROW_STEPS if rows > 1 else 0):
                began = time.perf_counter()
                batch.step()
                times.append((time.perf_counter() - began) * 1e3)
            if times:
                found[f"step_of_{rows}_rows_ms"] = sorted(times)[ROW_STEPS // 2]
            for row in range(rows):
                batch.remove(row)
    return found


def _speed(backend: Backend) -> dict[str, float]:
    """Tokens per second of decode after some slots, and milliseconds from a prompt on the host to the next token there: the
    median of five after one."""
    found: dict[str, float] = {}
    for count in SLOTS:
        sequence = backend.begin()
        backend.prefill(sequence, prompt_of(count - 1, backend.config))
        token, rates = backend.token(), list[float]()
        for _ in range(6):
            sequence.length = count - 1
            began = time.perf_counter()
            made = sum(1 for _ in backend.stream_tokens(sequence, token, COUNTED))
            rates.append(made / (time.perf_counter() - began))
        found[f"decode_at_{count}_tok_s"] = sorted(rates[1:])[2]
    for length in PREFILLS:
        ids, times = prompt_of(length, backend.config), list[float]()
        for _ in range(6):
            sequence = backend.begin()
            began = time.perf_counter()
            backend.prefill(sequence, ids)
            backend.token()
            times.append((time.perf_counter() - began) * 1e3)
        found[f"prefill_{length}_ms"] = sorted(times[1:])[2]
    return found


def _logits(backend: Backend, ids: list[int], length: int) -> Any:
    """Of the prompt's last token and of each teacher-forced step, (1 + steps, vocab)."""
    sequence = backend.begin()
    rows = [backend.prompt_logits(sequence, ids[:length])]
    return np.stack([*rows, *(backend.decode_logits(sequence, token) for token in ids[length:])])


def killed(bundles: Path, model: str) -> dict[str, Any]:
    """A rank is killed between two tokens, while its GPU and the other one work. SystemExit if nothing comes of it."""
    backend = _shared(bundles, model)
    assert isinstance(backend, GpuRanks)  # of two GPUs
    sequence = backend.begin()
    backend.prefill(sequence, prompt_of(SLOTS[0], backend.config))
    message, began = "", 0.0
    try:
        for number, _ in enumerate(backend.stream_tokens(sequence, backend.token(), 4000)):
            if number == COUNTED:
                began = time.perf_counter()
                os.kill(backend.pids[1], signal.SIGKILL)
    except EngineError as error:
        message = str(error)
    if not message:
        raise SystemExit("a rank was killed, and there was no error")
    seconds = time.perf_counter() - began
    while any(Path(f"/proc/{pid}").exists() for pid in backend.pids):
        if time.perf_counter() - began > GONE_SECONDS:
            raise SystemExit(f"processes of ranks are there {GONE_SECONDS:.0f} s after one was killed")
        time.sleep(0.001)
    return {"seconds": seconds, "gone_seconds": time.perf_counter() - began, "message": message}


PARTS: Final = {"one": one_gpu, "two": two_gpus, "kill": killed}


def report(found: Mapping[str, Any]) -> list[str]:
    """The tables."""
    lines = ["# Two GPUs compared with one, random weights", ""]
    sums = found.get("all_reduce")
    if sums is not None:
        header = ("bytes", "kernel of prompts, us", "kernel of decode, us", "NCCL, us", "GB/s of the faster of ours")
        keys = ("all_reduce_us", "all_reduce_add_us", "nccl_us")
        rows = [[one["bytes"], *(f"{one[key]:.1f}" for key in keys), f"{one['GB_s']:.0f}"] for one in sums["sizes"]]
        lines += ["## All-reduce", "", *grid(header, rows), ""]
        lines += [f"A meet alone: {sums['meet_us']:.1f} us. {sums['repeats']} sums with delays: same bits {sums['same']}.", ""]
    for name, record in found["models"].items():
        one, two = (record[key]["speed"] for key in ("one", "two"))
        rows = [[key, f"{one[key]:.1f}", f"{two[key]:.1f}", f"{_gain(key, one, two):.2f}"] for key in one]
        lines += [f"## {name}", "", *grid(("", "one GPU", "two GPUs", "times as fast"), rows), ""]
        lines += [f"Loaded in {record['one']['load_s']:.1f} s and {record['two']['load_s']:.1f} s."]
        rounding = record["one"]["rounding"]
        lines += [f"Logits are at most {record['apart']:.4f} apart; on one GPU, in two orders of sums, {rounding:.4f}."]
        lines += [f"{AGAIN} prompts have the same bits: {record['two']['same']}.", ""]
        alone, shared = (record[key]["rows"] for key in ("one", "two"))
        keys = [key for key in alone if key != "same"]
        rows = [[key, f"{alone[key]:.2f}", f"{shared[key]:.2f}", f"{_gain(key, alone, shared):.2f}"] for key in keys]
        lines += [*grid(("rows over pages", "one GPU", "two GPUs", "times as fast"), rows), ""]
        lines += [f"A row has the same bits alone and among others: {alone['same']}, {shared['same']}.", ""]
    kill = found.get("kill")
    if kill is not None:
        lines += ["## A rank is killed", "", f"After {kill['seconds']:.3f} s: `{kill['message']}`."]
        lines += [f"All processes are gone after {kill['gone_seconds']:.3f} s.", ""]
    lines += [f"Failed: {one}." for one in found["failed"]]
    return lines


def _gain(key: str, one: Mapping[str, float], two: Mapping[str, float]) -> float:
    return two[key] / one[key] if key.endswith("tok_s") else one[key] / two[key]
