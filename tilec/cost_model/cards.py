"""The cards that the model of time and the rooflines know, a row each: no other table has their rates.

A row has what differs between cards: how many multiprocessors, their clock, what one of them does in a cycle, memory and cache.
What the model takes from measurements instead is in `tilec.cost_model.calibration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Card:
    """A card. `clock`: the highest of its multiprocessors, in Hz; `memory`: bytes per second, and `products`: MMA
    operations of dense bf16 per second, a multiply-add as two, both as `datasheet` has them; `cache`: bytes of L2; `watts`:
    power limit; `shared`: bytes of shared memory of a multiprocessor; `warps`, `blocks`: most that are resident there.

    Per multiprocessor and cycle: `tensor` multiply-adds of bf16 with operands in shared memory, `mma` the same with operands in
    registers (`mma.sync`), `lanes` operations on floats, `half_lanes` on integers and conversions, `special` of the special
    function unit. `speeds`: multiples of the rate of bf16 at which products of other dtypes are made, by unit of
    `tilec.cost_model.demand`. `energy`: of an operation, over that of Hopper. `measured`: whether the model was compared with
    measurements on it."""

    name: str
    arch: str
    multiprocessors: int
    clock: float
    memory: float
    products: float
    cache: float
    watts: float
    shared: int
    warps: int
    blocks: int
    tensor: float
    mma: float
    lanes: float
    half_lanes: float
    special: float
    speeds: Mapping[str, float]
    energy: float
    measured: bool
    datasheet: str
    source: str

    def speed(self, unit: str) -> float:
        """The rate of a unit's products, as a multiple of that of bf16."""
        return self.speeds.get(unit, 1.0)


_HOPPER_MMA: Final = 0.62 * 2048
"""`mma.sync` reaches 62 % of the dense rate on Hopper (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture via Microbenchmarking", arXiv 2402.13499, table of tensor core throughput)."""
_TWICE: Final[Mapping[str, float]] = MappingProxyType(
    {"tensor_f8": 2.0, "tensor_i8": 2.0, "mma_i8": 2.0, "mma_f8": 1.0, "mma_tf32": 0.5}
)
"""Rates of the datasheets of Hopper and B200, dense: FP8 and INT8 at twice that of bf16, TF32 at half. `mma.sync` of 8-bit
floats multiplies f16 there (`Target.multiplies_f8`)."""
_CONSUMER: Final[Mapping[str, float]] = MappingProxyType({"mma_f8": 2.0, "mma_i8": 4.0, "mma_tf32": 0.5})
"""The RTX Blackwell whitepaper's, dense: 419 TFLOP/s of FP8 with f32 sums, 838 of INT8, 104.8 of TF32, 209.5 of bf16."""
_GUIDE: Final = "CUDA programming guide, arithmetic instructions and technical specifications by compute capability"

CARDS: Final = {
    "h200": Card(
        "H200 SXM", "sm_90a", 132, 1.98e9, 4.8e12, 989e12, 60e6, 700.0, 233472, 64, 32, 2048, _HOPPER_MMA, 128, 64, 16,
        _TWICE, 1.0, True, "NVIDIA H200 datasheet",
        f"H200 datasheet (memory, power); 1.98 GHz and 60 MB of L2 as read on the card, 2026-11; {_GUIDE}",
    ),
    "h100": Card(
        "H100 SXM", "sm_90a", 132, 1.98e9, 3.35e12, 989e12, 50e6, 700.0, 233472, 64, 32, 2048, _HOPPER_MMA, 128, 64, 16,
        _TWICE, 1.0, True, "NVIDIA H100 datasheet",
        f"H100 datasheet (SXM5 80 GB: memory, power, 989 TFLOP/s dense bf16); {_GUIDE}",
    ),
    "b200": Card(
        "B200", "sm_100a", 148, 1.85e9, 8.0e12, 2250e12, 126e6, 1000.0, 233472, 64, 32, 4096, 1024, 128, 64, 16,
        _TWICE, 0.63, False, "NVIDIA DGX B200 datasheet",
        "HGX B200 datasheet (148 multiprocessors, 2.25 PFLOP/s dense bf16, 8 TB/s, 1000 W); assumed: 126 MB of L2; `mma.sync` "
        f"at the rate of sm_80, a quarter of tcgen05; energy by watts per FLOP/s of the datasheets; {_GUIDE}",
    ),
    "rtx5090": Card(
        "RTX 5090", "sm_120a", 170, 2.41e9, 1.792e12, 209.5e12, 96e6, 575.0, 102400, 48, 24, 256, 0.89 * 256, 128, 64, 16,
        _CONSUMER, 1.0, False, "NVIDIA RTX Blackwell whitepaper",
        f"NVIDIA RTX Blackwell architecture whitepaper (170 multiprocessors, 209.5 TFLOP/s dense bf16 with f32 sums, 96 MB of "
        f"L2, 1.792 TB/s, 575 W); assumed: 89 % of that rate is reached, as on Hopper; energy of Hopper; {_GUIDE}",
    ),
}  # fmt: skip
"""By the names that options such as `--gpu` accept; of an architecture, its first row is the default."""
