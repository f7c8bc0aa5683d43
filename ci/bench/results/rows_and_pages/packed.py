"""Bits and times of chunks with tokens of several prompts, Qwen3 4B with random weights.

    PYTHONPATH=. python3 /path/packed.py BUNDLE

Prints a table last; details as JSON under $OUT. Exit status 1 if a bit differs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ci.bench.engine.weights import BlockWeights, config_of, prompt_of
from engine.backends.load import load_on_gpu
from engine.paged_batch import PagedBatch
from engine.paged_prompts import Piece
from engine.sampling import SamplingParams

TOKENS = 2048
LAYERS = (0, 17, 35)
PREDICTED = {1: (26.0, 26.0), 2: (27.2, 26.2), 8: (35.0, 26.4), 16: (60.0, 27.6)}
SAMPLED = SamplingParams(0.8, 40, 0.95, seed=5)


def ids_of(config: Any, number: int, length: int) -> list[int]:
    return [(token + 31 * number) % config.vocab_size for token in prompt_of(length, config)]


def pieces_of(batch: PagedBatch, config: Any, lengths: list[int], sampled: bool = False) -> list[Piece]:
    pieces, page = [], batch.parking
    for number, length in enumerate(lengths):
        count = -(-(length + 64) // batch.page_tokens)
        sampling = SAMPLED if sampled and number % 2 else None
        ids = ids_of(config, number, length)
        pieces.append(Piece(list(range(page, page + count)), 0, ids, number, sampling, ids))
        page += count
    return pieces


def kept(backend: Any, batch: Any, piece: Piece) -> list[bytes]:
    """Keys and values of a prompt in some layers, read from the device."""
    found = []
    allocations = batch._steps._device._memory.allocations
    for layer in LAYERS:
        for name in (f"k_pages.{layer}", f"v_pages.{layer}"):
            pointer, size = allocations[name]
            of_page = size // batch.pages
            raw = np.empty(of_page * len(piece.pages), np.uint8)
            backend.driver.copy_to_host(raw.ctypes.data, pointer + piece.pages[0] * of_page, raw.nbytes, backend.stream)
            backend.driver.synchronize(backend.stream)
            found.append(raw[: len(piece.ids) * of_page // batch.page_tokens].tobytes())
    return found


def bits(backend: Any, config: Any, lengths: list[int], calls: str) -> dict[str, Any]:
    """First tokens, keys and values, and logits after a step, with prompts `alone`, `packed`, or `cut` at odd places."""
    with PagedBatch(backend, 16) as batch:
        pieces = pieces_of(batch, config, lengths, sampled=True)
        tokens: list[Any] = []
        if calls == "packed":
            tokens = batch.compute(pieces)
        else:
            for piece in pieces:
                if calls == "cut" and len(piece.ids) > 70:
                    batch.compute([Piece(piece.pages, 0, piece.ids[:33])])
                    piece = Piece(piece.pages, 33, piece.ids[33:], piece.row, piece.sampling, piece.prompt)
                tokens += batch.compute([piece])
        pages = [kept(backend, batch, piece) for piece in pieces]
        logits = batch.step_logits()
        return {"tokens": tokens, "pages": pages, "logits": [logits[row].tobytes() for row in range(len(pieces))]}


def timed(backend: Any, config: Any, lengths: list[int], packed: bool) -> tuple[float, float]:
    """Milliseconds until all first tokens are there, and of these the host's until the last launch was enqueued; medians."""
    whole, host = [], []
    with PagedBatch(backend, 16) as batch:
        steps: Any = batch._steps  # pyright: ignore[reportPrivateUsage]
        chosen, enqueued = steps.chosen, 0.0

        def noted() -> Any:
            nonlocal enqueued
            enqueued = time.perf_counter()
            return chosen()

        steps.chosen = noted
        pieces = pieces_of(batch, config, lengths)
        for turn in range(9):
            began, of_host = time.perf_counter(), 0.0
            for some in [pieces] if packed else [[piece] for piece in pieces]:
                start = time.perf_counter()
                batch.compute(some)
                of_host += enqueued - start
            if turn > 1:
                whole.append(1e3 * (time.perf_counter() - began))
                host.append(1e3 * of_host)
            for piece in pieces:
                batch.remove(piece.row)
    return sorted(whole)[len(whole) // 2], sorted(host)[len(host) // 2]


def single(backend: Any, config: Any, length: int) -> tuple[float, float]:
    """Milliseconds of one prompt over pages, and in the contiguous cache with `flash_attention`."""
    pages, _ = timed(backend, config, [length], True)
    spent = []
    for _ in range(7):
        began = time.perf_counter()
        backend.prefill(backend.begin(), ids_of(config, 0, length))
        backend.token()
        spent.append(1e3 * (time.perf_counter() - began))
    return pages, sorted(spent)[3]


def main() -> int:
    config = config_of("qwen3-4b")
    backend = load_on_gpu(Path(sys.argv[1]), config, BlockWeights(config, "bf16"), 8448, "bf16")
    record: dict[str, Any] = {"bits": {}, "times": {}, "single": {}}
    odd = [1, 17, 63, 64, 65, 130, 200, 333, 128, 127, 2, 300, 90, 250, 77, 199]
    cases = {"16 odd prompts": odd, "2 of 1024": [1024, 1024], "8 of 256": [256] * 8, "long and short": [1500, 3, 300, 5, 100]}
    for name, lengths in cases.items():
        alone = bits(backend, config, lengths, "alone")
        for calls in ("packed", "cut"):
            other = bits(backend, config, lengths, calls)
            record["bits"][f"{name}, {calls}"] = {key: alone[key] == other[key] for key in alone}
    for count in (1, 2, 8, 16):
        lengths = [TOKENS // count] * count
        record["times"][count] = {"alone": timed(backend, config, lengths, False), "packed": timed(backend, config, lengths, True)}
    for length in (18, 512, 2048, 8192):
        record["single"][length] = single(backend, config, length)
    backend.close()
    out = os.environ.get("OUT")
    if out:
        (Path(out) / "packed.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    for name, equal in record["bits"].items():
        print(f"bits, {name:28}", equal)
    print("one prompt, ms: tokens, over pages (packed_flash_attention), contiguous (flash_attention)")
    for length, (pages, contiguous) in record["single"].items():
        print(f"{length:6} {pages:8.2f} {contiguous:8.2f}")
    print("2048 tokens, ms: prompts, alone (host), predicted, together (host), predicted")
    for count, found in record["times"].items():
        (alone, of_alone), (packed, of_packed) = found["alone"], found["packed"]
        before, after = PREDICTED[count]
        print(f"{count:3} {alone:8.2f} ({of_alone:.2f}) {before:8.1f} {packed:8.2f} ({of_packed:.2f}) {after:8.1f}")
    return int(not all(all(equal.values()) for equal in record["bits"].values()))


if __name__ == "__main__":
    sys.exit(main())
