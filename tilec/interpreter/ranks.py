"""Runs a launch in several ranks at once, each in a thread.

A kernel that meets is in two parts: what a block does before the meet, and what it does after. Each rank runs the first part of
all its blocks, waits for the other ranks, and runs the second. Nothing in a kernel writes what other ranks read
(`tilec.ir.ops.rank_ops`), so that a rank waits for more than its own block's counterparts makes no difference.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tilec.interpreter.dtypes import Array
from tilec.interpreter.errors import InterpreterError
from tilec.interpreter.launch import Launch, bind
from tilec.interpreter.run import BlockRun, fixed_values
from tilec.ir.core import Block, Function
from tilec.ir.ops import Meet

Order = Sequence[tuple[int, ...]]


def run_ranks(
    function: Function,
    arrays: Sequence[Mapping[str, Array]],
    scalars: Sequence[Mapping[str, int | float]],
    *,
    block_order: Callable[[int, Order], Order] | None = None,
) -> None:
    """Runs a kernel in each rank on its own `arrays` and `scalars`, as `tilec.interpreter.run` does in one. Tensors that ranks
    share are the same array in all of them. `block_order` gives the order in which a rank runs its blocks, from its number and
    all blocks in row-major order. InterpreterError as by `run`, of the first rank that has one, or if a rank does not meet."""
    met = next((position for position, op in enumerate(function.body.ops) if isinstance(op, Meet)), None)
    if met is None:
        raise InterpreterError("the kernel does not meet other ranks", kernel=function.name)
    ops = function.body.ops
    before, after = (Block(function.body.arguments, part) for part in (ops[:met], ops[met + 1 :]))
    barrier, meet = threading.Barrier(len(arrays)), ops[met]
    assert isinstance(meet, Meet)

    def of_rank(rank: int) -> None:
        try:
            launch = bind(function, arrays[rank], scalars[rank], {})
            every: Order = list(itertools.product(*map(range, launch.grid)))
            order = every if block_order is None else block_order(rank, every)
            with np.errstate(all="ignore"):
                fixed = fixed_values(function, launch)
                blocks = [BlockRun(function, launch, block, None, fixed, {}) for block in order]
                for block in blocks:
                    block.execute(before)
                    _count(function, launch, meet, block)
                barrier.wait()
                for block in blocks:
                    block.unmet.clear()
                    block.execute(after)
        except threading.BrokenBarrierError:
            raise
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(arrays), thread_name_prefix="rank") as threads:
        found = [future.exception() for future in [threads.submit(of_rank, rank) for rank in range(len(arrays))]]
    errors = [error for error in found if error is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])


def _count(function: Function, launch: Launch, meet: Meet, block: BlockRun) -> None:
    """Leave in all signals what a block's meet leaves there."""
    signals = [launch.arrays[function.parameter_of(signal).name] for signal in meet.signals]
    rank = int(block.value(meet.rank))
    signals[rank][block.number, 1] += 1
    for other, of_other in enumerate(signals):
        of_other[block.number, 0, rank] = signals[rank][block.number, 1, other]
