"""What the process of the engine asks each rank to do with its GPU. All ranks get the same orders, so all launch the same.

| order         | with                                        | reply                                                  |
|---------------|---------------------------------------------|--------------------------------------------------------|
| `allocate`    | `steps`, `sequences`                        | nothing, once all ranks have mapped what they share    |
| `room`        | `rows`                                      | `pages`: of the largest pool of the rank               |
| `pages`       | `steps`, `rows`, `pages`                    | nothing, once all ranks have mapped what they share    |
| `prepare`     | `steps`, `graph`: its place among the steps |                                                        |
| `run`         | `steps`, `graph`                            |                                                        |
| `ready`       | `steps`, `rows`, `mode`                     |                                                        |
| `serve`       | `steps`, `rows`, `mode`                     |                                                        |
| `send`        | `steps`, `kind`, `values`                   |                                                        |
| `copy`        | `steps`, `target`, `slot`, `source`, ...    |                                                        |
| `clear`       | `steps`, `name`, `first`, `elements`        |                                                        |
| `write`       | `steps`, `name`, `first`, `values`          |                                                        |
| `stage`       | `steps`, `name`, `first`, `values`          |                                                        |
| `fetch`       | `steps`, `number`, `also`                   |                                                        |
| `fetched`     | `steps`, `number`                           | `tokens`                                               |
| `output`      | `steps`, `number`, `name`                   | `values`, of rank 0                                    |
| `latest`      | `steps`                                     | `tokens`                                               |
| `floats`      | `steps`, `name`, `first`, `count`           | `values`, of rank 0, from the one after `first` others |
| `chunk`       | `steps`, `inputs`, `tokens`, `past`, `mode` |                                                        |
| `clear_own`   |                                             |                                                        |
| `clear_slots` | `steps`, `slot`, `slots`                    |                                                        |
| `forget`      | `steps`                                     |                                                        |
| `close`       | `steps`                                     |                                                        |
| `wait`        |                                             | nothing, once all launches of the rank are complete    |

`steps` is a number: 0 are those of the backend's own sequence. Steps over pages have two: the next number has the buffers of
their chunks. `ready` and `serve` prepare and run a step of `rows` rows over pages; `clear_slots` zeroes slots of their pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from numpy.typing import NDArray

from engine.backends.cuda import CapturedStep
from engine.backends.decode_steps import DecodeSteps, PreparedStep, StepBuffers
from engine.backends.paged_steps import PagedSteps
from engine.ranks.cuda import RankCuda
from engine.ranks.messages import decoded, decoded_values, encoded
from tilec.step.graph import Kind

Order = Mapping[str, Any]
OWN: Final = 0
PROMPT: Final = 1
"""What the number of the buffers of chunks is above that of their steps."""


class Orders:
    """Follows orders on a rank's backend."""

    def __init__(self, backend: RankCuda) -> None:
        self._backend = backend
        self._steps: dict[int, DecodeSteps] = {OWN: backend.own}
        self._paged: dict[int, PagedSteps] = {}
        self._buffers: dict[int, StepBuffers] = {OWN: backend.own.buffers}

    def follow(self, order: Order) -> dict[str, Any] | None:
        """Do what an order says; returns the reply, or None if there is none. An EngineError if it fails."""
        return getattr(self, f"_{order['do']}")(order)

    def _of(self, order: Order) -> StepBuffers:
        return self._buffers[order["steps"]]

    def _allocate(self, order: Order) -> dict[str, Any]:
        number = order["steps"]
        self._steps[number] = steps = self._backend.decode_steps(order["sequences"])
        self._buffers[number] = steps.buffers
        return {}

    def _room(self, order: Order) -> dict[str, Any]:
        return {"pages": self._backend.pages_that_fit(order["rows"])}

    def _pages(self, order: Order) -> dict[str, Any]:
        number = order["steps"]
        self._paged[number] = paged = self._backend.paged_steps(order["rows"], order["pages"])
        self._buffers |= {number: paged.device.rows, number + PROMPT: paged.device.prompt}
        return {}

    def _ready(self, order: Order) -> None:
        self._paged[order["steps"]].prepared(order["rows"], order["mode"])

    def _serve(self, order: Order) -> None:
        self._paged[order["steps"]].run(order["rows"], order["mode"])

    def _prepare(self, order: Order) -> None:
        self._step(order)

    def _run(self, order: Order) -> None:
        step = self._step(order)
        assert isinstance(step, CapturedStep)  # the backend made it
        self._backend.enqueue(step)

    def _step(self, order: Order) -> PreparedStep:
        steps, index = self._steps[order["steps"]], int(order["graph"])
        return steps.prepared(*steps.forms[index])

    def _send(self, order: Order) -> None:
        self._of(order).send(Kind(order["kind"]), decoded_values(order["values"]))

    def _copy(self, order: Order) -> None:
        source = self._buffers[order["source"]]
        self._of(order).copy(order["target"], order["slot"], source, order["name"], order["source_slot"], order["elements"])

    def _clear(self, order: Order) -> None:
        self._of(order).clear(order["name"], order["first"], order["elements"])

    def _clear_own(self, order: Order) -> None:
        self._backend.clear_own()

    def _clear_slots(self, order: Order) -> None:
        self._paged[order["steps"]].device.clear(order["slot"], order["slots"])

    def _write(self, order: Order) -> None:
        self._of(order).write(order["name"], order["first"], decoded(order["values"]))

    def _stage(self, order: Order) -> None:
        self._of(order).stage(order["name"], order["first"], decoded(order["values"]))

    def _fetch(self, order: Order) -> None:
        self._of(order).fetch(order["number"], order["also"])

    def _fetched(self, order: Order) -> dict[str, Any]:
        return {"tokens": self._of(order).fetched(order["number"]).tolist()}

    def _output(self, order: Order) -> dict[str, Any]:
        return self._values(self._of(order).fetched_output(order["number"], order["name"]))

    def _latest(self, order: Order) -> dict[str, Any]:
        return {"tokens": self._of(order).latest().tolist()}

    def _floats(self, order: Order) -> dict[str, Any]:
        if self._backend.rank:  # nobody reads what it has, so it copies nothing, and only waits as rank 0 does
            self._backend.wait()
            return {}
        return self._values(self._of(order).part(order["name"], order["first"], order["count"]))

    def _values(self, values: NDArray[Any]) -> dict[str, Any]:
        """Values of which those of rank 0 are read."""
        return {"values": encoded(values)} if self._backend.rank == 0 else {}

    def _chunk(self, order: Order) -> None:
        number, inputs = order["steps"], decoded_values(order["inputs"])
        runner = self._backend if number == OWN else self._paged[number - PROMPT].device
        runner.run_chunk(inputs, order["tokens"], order["past"], order["mode"])

    def _forget(self, order: Order) -> None:
        self._backend.wait()
        self._steps[order["steps"]].forget()

    def _close(self, order: Order) -> None:
        number = order["steps"]
        del self._buffers[number]
        if number in self._paged:
            del self._buffers[number + PROMPT]
            self._paged.pop(number).close()
        else:
            self._steps.pop(number).close()

    def _wait(self, order: Order) -> dict[str, Any]:
        self._backend.wait()
        return {}
