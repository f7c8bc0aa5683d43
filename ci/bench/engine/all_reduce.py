"""`python -m ci.bench.engine.all_reduce BUNDLE FILE RANK RANKS SECONDS`: a rank of the sums of `ranks_check`, next to NCCL.

Both are timed by CUDA events around CUDA graphs of `COPIES` launches, after all ranks met. Kernels are those of the bundle, on
memory that ranks map as the engine does. Rank 0 writes the file, after each size.

A rank that takes longer than `SECONDS` prints where it is, and ends: its GPU may wait for one that is gone, and no wait of
CUDA's has an end. Who started the ranks ends the others.
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.graph.plan import ALIGNMENT
from engine.ranks.launches import PEER, RANK, SIGNAL, SIGNAL_BYTES
from engine.ranks.memory import SharedMemory
from engine.ranks.peers import DriverCalls, open_rank
from tilec.runtime import Bundle, Device, Plan, TensorView, open_bundle
from tilec.runtime.tensors import contiguous_strides
from tilec.runtime.trust_location import NO_POLICY

COLUMNS: Final = 4096
SIZES: Final = tuple(1 << bits for bits in range(14, 24))
"""Bytes of a sum, 16 KB to 8 MB."""
COPIES: Final = 50
REPEATS: Final = 30
SUMS: Final = 1000
MOST_DELAY: Final = 20000
"""Clock cycles of a delay at random."""
HOST_SECONDS: Final = 60
"""How long ranks may wait for each other on the host."""


class Rank:
    """A rank with its GPU, its memory and its kernels."""

    def __init__(self, path: str, store: str, rank: int, ranks: int) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.ours: Any = importlib.import_module("torch.distributed")
        self.rank, self.ranks = rank, ranks
        calls = DriverCalls()
        open_rank(rank, ranks, calls)
        self.torch.cuda.set_device(rank)
        self.gpu: Any = self.torch.device("cuda", rank)  # named for each tensor: other libraries change the current one
        self.ours.init_process_group(
            "nccl", init_method=f"file://{store}", rank=rank, world_size=ranks, device_id=self.gpu,
            timeout=timedelta(seconds=HOST_SECONDS),
        )  # fmt: skip
        open_rank(rank, ranks, calls)  # other libraries change the current GPU
        self.device = Device()
        assert self.device.ordinal == rank
        self.driver = self.device.driver
        self.stream = self.driver.create_stream()
        self.bundle: Bundle = open_bundle(path, trust=NO_POLICY)
        self.shared = SharedMemory(calls, rank, self.exchange)
        region = self.shared.allocate(max(SIZES) + ALIGNMENT * 16)
        self.x = region.pointers
        self.signals = tuple(pointer + max(SIZES) for pointer in region.pointers)
        self.meet = self.plan("rank_meet", 1, None)

    def exchange(self, data: bytes) -> Sequence[bytes]:
        """What each rank gives, in order."""
        found: list[Any] = [None] * self.ranks
        self.ours.all_gather_object(found, data)
        return found

    def plan(self, kernel: str, rows: int, out: Any) -> Plan:
        """A launch of a kernel on the first rows of `x`, and of `out` of torch."""
        constants: dict[str, Any] = {"RANKS": self.ranks} if kernel == "rank_meet" else {"E": "bf16", "RANKS": self.ranks}
        loaded = self.bundle.load(self.bundle.find(kernel, **constants), self.device)
        shape = (rows, COLUMNS)
        arguments: dict[str, Any] = {RANK: self.rank}
        peers, signals = iter(self.x), iter(self.signals)
        for spec in loaded.manifest.tensors:
            if spec.access == PEER:
                arguments[spec.name] = TensorView(next(peers), "bf16", shape, contiguous_strides(shape))
            elif spec.access == SIGNAL:
                dims = tuple(dim.evaluate({}) for dim in spec.dims)
                assert np.prod(dims) * SIGNAL_BYTES <= ALIGNMENT * 16
                arguments[spec.name] = TensorView(next(signals), spec.dtype, dims, contiguous_strides(dims))
            else:
                arguments[spec.name] = TensorView(out.data_ptr(), "bf16", shape, contiguous_strides(shape))
        return loaded.plan(arguments)

    def put(self, values: Any) -> None:
        """Set the first elements of this rank's `x`, when no rank reads them."""
        self.synchronize()  # the values are made on another stream
        self.driver.copy_on_device(self.x[self.rank], values.data_ptr(), values.numel() * 2, self.stream)
        self.driver.synchronize(self.stream)
        self.ours.barrier()

    def synchronize(self) -> None:
        """Wait for all of this rank's GPU, whichever is current."""
        self.torch.cuda.synchronize(self.gpu)

    def timed(self, launch: Callable[[], None]) -> float:
        """Microseconds of one of the launches in a graph, the median of `REPEATS`."""
        start, end = (self.driver.create_event(timing=True) for _ in range(2))
        times = list[float]()
        for _ in range(REPEATS + 3):
            self.ours.barrier()
            self.synchronize()
            self.meet.launch(self.stream)  # so that all ranks begin together
            self.driver.record_event(start, self.stream)
            launch()
            self.driver.record_event(end, self.stream)
            self.driver.synchronize(self.stream)
            times.append(self.driver.elapsed(start, end) * 1e3 / COPIES)
        return sorted(times[3:])[REPEATS // 2]

    def ours_us(self, plan: Plan) -> float:
        """Of a kernel of the bundle, each launch overlapping the one before it, as in a step."""
        self.driver.begin_capture(self.stream)
        for number in range(COPIES):
            plan.launch(self.stream, overlap=number > 0)
        graph = self.driver.end_capture(self.stream)
        found = self.timed(lambda: self.driver.launch_graph(graph, self.stream))
        self.driver.destroy_graph(graph)
        return found

    def nccl_us(self, rows: int) -> float:
        """Of NCCL's, in place."""
        torch = self.torch
        values = torch.zeros((rows, COLUMNS), dtype=torch.bfloat16, device=self.gpu)
        stream = torch.cuda.ExternalStream(self.stream, self.gpu)
        with torch.cuda.device(self.gpu):
            self.ours.all_reduce(values)
            self.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(COPIES):
                    self.ours.all_reduce(values)

        def launch() -> None:
            with torch.cuda.stream(stream):
                graph.replay()

        return self.timed(launch)


def same_bits(rank: Rank) -> bool:
    """Whether `SUMS` sums, with delays at random in each rank, are those in f32 in the order of ranks, rounded once."""
    torch, rows = rank.torch, 64
    parts: list[Any] = [
        torch.randn((rows, COLUMNS), generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16).to(rank.gpu)
        for seed in range(rank.ranks)
    ]
    total = parts[0].float()
    for part in parts[1:]:
        total += part.float()
    expected = total.to(torch.bfloat16)
    out = torch.empty_like(expected)
    rank.put(parts[rank.rank])
    plan, stream = rank.plan("all_reduce", rows, out), torch.cuda.ExternalStream(rank.stream, rank.gpu)
    delays = np.random.default_rng(rank.rank).integers(0, MOST_DELAY, SUMS)
    wrong = torch.zeros((), dtype=torch.int64, device=rank.gpu)
    rank.synchronize()
    with torch.cuda.stream(stream):
        for delay in delays:
            out.zero_()
            torch.cuda._sleep(int(delay))
            plan.launch(rank.stream)
            wrong += (out.view(torch.int16) != expected.view(torch.int16)).sum()
    rank.synchronize()
    digest = hashlib.sha256(out.view(torch.int16).cpu().numpy().tobytes()).hexdigest()
    return int(wrong) == 0 and len(set(rank.exchange(digest.encode()))) == 1


def announce(rank: Rank, what: str) -> None:
    """Say what comes next, so that who waits knows where ranks are."""
    print(f"rank {rank.rank}: {what}", file=sys.stderr, flush=True)


def main(path: str, file: str, rank_text: str, ranks_text: str, seconds: str) -> int:
    """Compare and time; returns the exit status. 1 after so many seconds."""
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    rank = Rank(path, f"{file}.store", int(rank_text), int(ranks_text))
    torch = rank.torch
    announce(rank, f"{SUMS} sums")
    found: dict[str, Any] = {"sizes": [], "same": same_bits(rank), "repeats": SUMS, "meet_us": rank.ours_us(rank.meet)}
    out = torch.zeros((max(SIZES) // 2 // COLUMNS, COLUMNS), dtype=torch.bfloat16, device=rank.gpu)
    rank.put(torch.zeros_like(out))
    for size in SIZES:
        announce(rank, f"{size} bytes")
        found["sizes"].append(sums_of(rank, size, out))
        if rank.rank == 0:
            Path(file).write_text(json.dumps(found), encoding="utf-8")
    rank.ours.barrier()
    rank.ours.destroy_process_group()
    return 0


def sums_of(rank: Rank, size: int, out: Any) -> dict[str, float]:
    """Microseconds of sums of `size` bytes: of both kernels, and of NCCL's; and GB/s of the faster of ours."""
    rows = size // 2 // COLUMNS
    found = {f"{kernel}_us": rank.ours_us(rank.plan(kernel, rows, out)) for kernel in ("all_reduce", "all_reduce_add")}
    best = min(found.values())
    return {"bytes": size, **found, "nccl_us": rank.nccl_us(rows), "GB_s": size / best / 1e3}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
