"""Products on a cool and on a hot chip: what is run, how often, after which pause, and the table of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ci.bench.kernels.candidates import CUBLAS, OVERLAPPED
from ci.bench.kernels.products import regime_lines
from ci.bench.kernels.regimes import COOL, HOT, IDLE_SECONDS, LONG_ROUNDS, SHORT_RUNS, regimes

RUNS: dict[str, Sequence[Callable[[], object]]] = {CUBLAS: [int], "a": [int], f"a{OVERLAPPED}": [int]}


class Chip:
    """A clock on a chip that gets slower by a microsecond with each round and is cool after a pause."""

    def __init__(self) -> None:
        self.heat, self.pauses = 0, list[float]()
        self.firsts, self.rounds = list[str](), list[int]()

    def idle(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.heat = 0

    def measure(self, runs: Mapping[str, Any], expected_us: float, *, rounds: int) -> dict[str, Any]:
        assert expected_us == 7.0
        self.firsts.append(next(iter(runs)))
        self.rounds.append(rounds)
        self.heat += rounds
        return {name: SimpleNamespace(median=100.0 + self.heat + (name != CUBLAS)) for name in runs}


def test_short_runs_begin_cool_with_another_alternative_each_and_a_long_one_is_hot() -> None:
    chip = Chip()
    found = regimes(chip.measure, RUNS, 7.0, chip.idle)
    assert found[COOL] == {CUBLAS: 101.0, "a": 102.0, f"a{OVERLAPPED}": 102.0}
    assert found[HOT] == {name: us + LONG_ROUNDS for name, us in found[COOL].items()}
    assert chip.pauses == [IDLE_SECONDS] * SHORT_RUNS and chip.rounds == [1] * SHORT_RUNS + [LONG_ROUNDS]
    assert chip.firsts[:SHORT_RUNS] == [list(RUNS)[number % 3] for number in range(SHORT_RUNS)]


def test_a_table_has_both_regimes_of_the_shapes_that_were_timed_so() -> None:
    timed = {COOL: {CUBLAS: 2.0, "a": 1.0, f"b{OVERLAPPED}": 4.0}, HOT: {CUBLAS: 4.0, "a": 5.0, f"b{OVERLAPPED}": 4.0}}
    rows = [{"shape": (128, 256, 64), "flops": 8e6, "regimes": timed}, {"shape": (1, 1, 1), "flops": 1.0}]
    *_, cool, hot = regime_lines(rows)
    assert cool == "| 128 x 256 x 64 | cool | 4 | 2.000 | a | 0.500 | b |"
    assert hot == "| 128 x 256 x 64 | hot | 2 | 0.800 | a | 1.000 | b |"
    assert regime_lines(rows[1:]) == []
