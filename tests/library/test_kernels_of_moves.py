"""The kernels that move data: right at odd and even sizes on the interpreter, and at one size each as PTX on the emulator; no
spills.

The default run assembles the kernels that come nearest to their limit of registers, the campaign the others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.campaign import chosen, first
from tests.library.emulated import check_emulated
from tests.library.prebuilt import check_built, entries, request, specialisations
from tilec.project.trial.trial import trials


def _pool(planes: int, height: int, width: int, window: int, stride: int, padding: int) -> dict[str, float]:
    """Launch values of a pool and of its gradient."""
    sides = {"M": planes, "H": height, "W": width}
    outputs = {f"O{name}": (sides[name] + 2 * padding - window) // stride + 1 for name in "HW"}
    return {**sides, **outputs, "window": window, "stride": stride, "padding": padding}


def _fixed_pool(planes: int, rows: int, width: int, constants: dict[str, Any]) -> dict[str, float]:
    """Launch values of a pool whose windows are constants, of planes of `rows` strides."""
    window, stride, padding = (constants[name] for name in ("WINDOW", "STRIDE", "PADDING"))
    values = _pool(planes, rows * stride, width * stride, window, stride, padding)
    del values["H"]
    return {**values, "HS": rows}


def _turn(down: int, up: int, direction: int, offset: int) -> dict[str, float]:
    """Launch values of a convolution."""
    return {"down": down, "up": up, "direction": direction, "offset": offset}


def _boxed(direction: int, offset: int) -> dict[str, float]:
    """The same of a convolution by boxes."""
    return {"direction": direction, "offset": offset}


TAPS: dict[str, float] = {"R": 3, "S": 2, "height": 3, "width": 2, "padding": 1}
FILTER: dict[str, float] = {"rows": 4, "columns": 5, "stride": 2, "padding": 1, "height": 3, "width": 2}
ODD_AND_EVEN: dict[str, list[dict[str, float]]] = {
    "sort": [{"T": 3, "N": 101, "descending": 1}, {"T": 9, "N": 128, "descending": 0}],
    "sort_tiles": [{"T": 2, "N": 4099, "descending": 0}, {"T": 1, "N": 8192, "descending": 1}],
    "merge_shares": [{"T": 2, "N": 5003, "S": 3, "run": 2048}, {"T": 1, "N": 8192, "S": 4, "run": 4096}],
    "merge_runs": [{"T": 2, "N": 5003, "S": 3, "run": 2048}, {"T": 1, "N": 8192, "S": 4, "run": 4096}],
    "topk": [{"T": 3, "N": 101, "parts": 1, "k": 7}, {"T": 9, "N": 128, "parts": 1, "k": 64}],
    "topk_long": [{"T": 2, "N": 8201, "k": 33}, {"T": 1, "N": 40960, "k": 64}],
    "take_columns": [{"T": 3, "N": 77, "K": 1025}, {"T": 2, "N": 2048, "K": 1024}],
    "expert_counts": [{"N": 517, "X": 11, "P": 3}, {"N": 512, "X": 16, "P": 2}],
    "expert_starts": [{"P": 1027, "X": 13}, {"P": 1024, "X": 512}],
    "expert_slots": [{"N": 517, "X": 70, "P": 3}, {"N": 512, "X": 8, "P": 2}],
    "moe_route": [{"T": 5, "X": 41, "k": 7, "K": 7, "normalize": 1}, {"T": 16, "X": 64, "k": 8, "K": 8, "normalize": 0}],
    "moe_route_backward": [{"T": 5, "X": 41, "K": 7, "normalize": 1}, {"T": 16, "X": 64, "K": 8, "normalize": 0}],
    "expand_rows": [{"T": 3, "K": 3, "N": 9, "H": 1029}, {"T": 4, "K": 2, "N": 8, "H": 2048}],
    "combine_rows": [{"T": 3, "K": 3, "N": 9, "H": 1029}, {"T": 4, "K": 2, "N": 8, "H": 2048}],
    "combine_rows_dots": [{"T": 3, "K": 3, "N": 9, "H": 1029}, {"T": 4, "K": 2, "N": 8, "H": 2048}],
    "part_sums": [{"T": 2, "N": 16387, "S": 2}, {"T": 1, "N": 32768, "S": 2}],
    "cumsum": [{"T": 3, "N": 301, "reverse": 0}, {"T": 17, "N": 128, "reverse": 0}],
    "cumsum_parts": [{"T": 2, "N": 16387, "S": 2, "reverse": 0}, {"T": 1, "N": 32768, "S": 2, "reverse": 0}],
    "bincount": [{"N": 4099, "BINS": 37}, {"N": 8192, "BINS": 64}],
    "histogram": [{"N": 4099, "BINS": 37, "low": -1.5, "high": 2.0}, {"N": 8192, "BINS": 64, "low": -2.0, "high": 2.0}],
    "sum_counts": [{"BINS": 37, "COPIES": 16}, {"BINS": 64, "COPIES": 12}],
    "take_rows": [{"N": 5, "V": 7, "H": 1029}, {"N": 4, "V": 3, "H": 1024}],
    "embedding_bag": [{"N": 23, "B": 5, "V": 7, "H": 1029}, {"N": 16, "B": 4, "V": 3, "H": 1024}],
    "bag_scales": [{"B": 261, "count": 900, "mean": 1}, {"B": 256, "count": 300, "mean": 0}],
    "sort_numbers": [{"T": 1, "N": 4099}, {"T": 1, "N": 8192}],
    "count_below": [{"N": 301, "Q": 259, "count": 259}, {"N": 256, "Q": 256, "count": 256}],
    "table_gradient": [{"N": 43, "V": 5, "B": 11, "H": 517}, {"N": 64, "V": 4, "B": 8, "H": 512}],
    "causal_conv1d": [{"B": 2, "T": 37, "D": 67, "silu": 1}, {"B": 1, "T": 32, "D": 64, "silu": 0}],
    "causal_conv1d_slope": [{"B": 2, "T": 37, "D": 67, "silu": 1}, {"B": 1, "T": 32, "D": 64, "silu": 0}],
    "causal_conv1d_backward": [{"B": 2, "T": 37, "D": 67, "P": 3}, {"B": 1, "T": 96, "D": 64, "P": 4}],
    "selective_scan": [{"B": 2, "T": 19, "D": 27, "N": 11, "P": 3}, {"B": 1, "T": 16, "D": 32, "N": 16, "P": 2}],
    "selective_scan_backward": [
        {"B": 2, "T": 19, "D": 27, "N": 11, "P": 3, "G": 2},
        {"B": 1, "T": 16, "D": 32, "N": 16, "P": 2, "G": 2},
    ],
    "max_pool2d": [_pool(2, 19, 37, 3, 2, 1), _pool(1, 16, 64, 2, 2, 0)],
    "max_pool2d_backward": [_pool(2, 19, 37, 3, 2, 1), _pool(1, 16, 64, 2, 2, 0)],
    "avg_pool2d": [_pool(2, 19, 37, 3, 2, 1), _pool(1, 16, 64, 2, 2, 0)],
    "avg_pool2d_backward": [_pool(2, 19, 37, 3, 2, 1), _pool(1, 16, 64, 2, 2, 0)],
    "max_pool2d_fixed": [],
    "max_pool2d_fixed_backward": [],
    "avg_pool2d_fixed": [],
    "avg_pool2d_fixed_backward": [],
    "fft_roots": [
        {"R": 6, "N": 4, "FIRST": 2, "SECOND": 1},
        {"R": 576, "N": 512, "FIRST": 64, "SECOND": 8},
    ],
    "fft": [{"T": 67, "sign": -1.0, "scale": 1.0}, {"T": 64, "sign": 1.0, "scale": 0.25}],
    "conv2d": [
        {"B": 2, "H": 7, "W": 9, "C": 37, "O": 67, "R": 3, "S": 2, "Q": 40, "rows": 4, "columns": 5, **_turn(2, 1, 1, -1)},
        {"B": 1, "H": 4, "W": 5, "C": 40, "O": 64, "R": 3, "S": 2, "Q": 63, "rows": 7, "columns": 9, **_turn(1, 2, -1, 1)},
    ],
    "conv2d_weights": [
        {"B": 2, "H": 7, "W": 9, "C": 37, "O": 67, "R": 3, "S": 2, "Q": 40, "P": 2, **FILTER},
        {"B": 1, "H": 7, "W": 9, "C": 64, "O": 64, "R": 3, "S": 2, "Q": 20, "P": 1, **FILTER},
    ],
    "conv2d_boxes": [
        {"D": 1, "B": 3, "H": 7, "W": 9, "C": 72, "O": 72, "R": 3, "S": 2, "rows": 7, "columns": 10, **_boxed(-1, 1)},
        {"D": 2, "B": 4, "H": 8, "W": 10, "C": 64, "O": 64, "R": 3, "S": 3, "rows": 4, "columns": 5, **_boxed(1, -1)},
    ],
    "conv2d_slopes": [{"B": 3, "HO": 5, "WO": 9, "O": 72}, {"B": 8, "HO": 8, "WO": 8, "O": 64}],
    "conv2d_weights_boxes": [
        {"D": 1, "B": 3, "H": 7, "W": 9, "HO": 7, "WO": 9, "C": 72, "O": 72, "P": 2, **TAPS},
        {"D": 2, "B": 8, "H": 8, "W": 10, "HO": 4, "WO": 5, "C": 256, "O": 128, "P": 1, **TAPS},
    ],
    "column_sums": [{"T": 201, "N": 67, "P": 3}, {"T": 128, "N": 64, "P": 4}],
    "put_columns": [{"T": 3, "N": 1101, "K": 1025}, {"T": 2, "N": 2048, "K": 1024}],
}
"""Launch values; dims that scalars give are added."""
LONG: dict[str, list[dict[str, float]]] = {
    "topk": [{"T": 2, "N": 6145, "parts": 2, "k": 33}, {"T": 1, "N": 4096, "parts": 1, "k": 64}],
}
"""For specialisations for rows of several tiles."""


def _of_boxes(values: dict[str, float]) -> dict[str, float]:
    """Dims of a plane that is split."""
    stride = values["D"]
    return {**values, "H": values["H"] // stride, "W": values["W"] // stride, "X": stride * values["C"]}


def _of_convolution(values: dict[str, float], constants: dict[str, Any]) -> dict[str, float]:
    return {**_of_boxes(values), "HO": values["rows"], "WO": values["columns"]}


def _boxes(values: dict[str, float], constants: dict[str, Any]) -> dict[str, float]:
    many, single = ("B", "HO") if constants["BB"] > 1 else ("HO", "B")
    across, down = -(-values["WO"] // 8), -(-values[many] // 8)
    return {"across": across, "down": down, "T": across * down * values[single] * 64}


def _of_slopes(values: dict[str, float], constants: dict[str, Any]) -> dict[str, float]:
    return {**values, "T": _boxes(values, constants)["T"]}


def _of_weights(values: dict[str, float], constants: dict[str, Any]) -> dict[str, float]:
    boxes = _boxes(values, constants)
    del values["HO"], values["WO"]
    return {**_of_boxes(values), **boxes, "channels": values["C"]}


BOXED: dict[str, Callable[[dict[str, float], dict[str, Any]], dict[str, float]]] = {
    "conv2d_boxes": _of_convolution, "conv2d_slopes": _of_slopes, "conv2d_weights_boxes": _of_weights,
}  # fmt: skip
VECTORS = [_pool(2, 19, 48, 3, 2, 1), _pool(1, 16, 64, 2, 2, 0)]
"""For pools whose rows begin at whole vectors."""
NEAR_THE_LIMIT = ("selective_scan_backward",)
WIDE = 8
"""The `MULTIPLE` of rows that begin at whole vectors."""
CASES = specialisations(*ODD_AND_EVEN)
EMULATED = [next(case for case in CASES if case[0].name == name) for name in ODD_AND_EVEN]
EMULATED.append(next(case for case in reversed(CASES) if case[0].name == "cumsum" and case[1]["ROWS"] > 1))


def _of_rows(kernel: str, values: dict[str, float], constants: dict[str, Any]) -> dict[str, float]:
    """Rows that share a block of `cumsum` are one tile."""
    if kernel == "cumsum" and constants["ROWS"] > 1 and values["N"] > constants["BLOCK"]:
        return {**values, "N": constants["BLOCK"] - 27}
    return values


def _of_largest(kernel: str, values: dict[str, float], constants: dict[str, Any]) -> dict[str, float]:
    """What the dims of `topk` and `topk_long` follow from."""
    if kernel == "topk":
        return {"S": values["parts"], "K": values["k"]}
    if kernel == "topk_long":
        parts = -(-values["N"] // (constants["TILES"] * constants["BLOCK"]))
        return {"parts": parts, "S": parts, "K": values["k"]}
    return {}


def _id(case: Any) -> str:
    return "-".join(map(str, (case[0].name, *case[1].values()))) if isinstance(case, tuple) else str(case)


def _sizes(kernel: str, constants: dict[str, Any]) -> list[dict[str, float]]:
    """Two launches of a specialisation."""
    if kernel.endswith(("fixed", "fixed_backward")):
        return [_fixed_pool(1, 37, 136, constants), _fixed_pool(3, 7, 24, constants)]
    several = kernel == "topk" and constants["MOST"] < constants["BLOCK"]
    found: list[dict[str, float]] = []
    is_pool_of_vectors = "pool" in kernel and constants["MULTIPLE"] == WIDE
    for given in VECTORS if is_pool_of_vectors else (LONG if several else ODD_AND_EVEN)[kernel]:
        values = _of_rows(kernel, given, constants)
        more = _of_largest(kernel, values, constants)
        if constants.get("MULTIPLE") == WIDE and not is_pool_of_vectors:
            rows = "CO" if "C" in values else next(name for name in "HDN" if name in values)
            more |= {name: values[name] // WIDE * WIDE for name in rows}
        if kernel in BOXED:
            found.append(BOXED[kernel](dict(values), constants))
            continue
        found.append({**values, **more, **({"reverse": constants["REVERSE"]} if "REVERSE" in constants else {})})
    return found


NUMBERED = [
    (kernel, number, constants)
    for kernel in ODD_AND_EVEN
    for number, constants in enumerate(some for entry, some in CASES if entry.name == kernel)
]


@pytest.mark.parametrize(("kernel", "number", "constants"), chosen(NUMBERED, lambda case: case[1] == 0))
def test_results_are_those_of_the_reference(kernel: str, number: int, constants: dict[str, Any]) -> None:
    """Both sizes at the first specialisation, and alternately one at each of the others."""
    sizes = _sizes(kernel, constants)
    for dims in sizes if number == 0 else [sizes[number % 2]]:
        (trial,) = trials(request(kernel, constants, dims, seed=number))
        assert trial.right, (constants, trial)
        assert all(one.error is not None for one in trial.written)


@pytest.mark.parametrize("case", EMULATED, ids=_id)
def test_the_emulator_agrees_with_the_interpreter(case: Any) -> None:
    entry, constants = case
    dims = {"N": constants["N"]} if "N" in constants else {}
    check_emulated(entry, constants, _sizes(entry.name, constants)[0] | dims)


@pytest.mark.parametrize(
    "kernels",
    first(1, [[NEAR_THE_LIMIT], [[name for name in ODD_AND_EVEN if name not in NEAR_THE_LIMIT]]]),
    ids=["near", "others"],
)
def test_one_architecture_is_built_without_spills(kernels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    check_built(kernels, tmp_path)


def test_every_entry_forbids_spills_and_the_set_stays_small() -> None:
    assert all(entry.budget == {"spill_bytes": 0} for entry in entries(*ODD_AND_EVEN))
    assert len(CASES) <= 380
