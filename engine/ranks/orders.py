"""What the process of the engine asks each rank to do with its GPU. All ranks get the same orders, so all launch the same.

| order      | with                                        | reply                                                       |
|------------|---------------------------------------------|-------------------------------------------------------------|
| `allocate` | `steps`, `sequences`                        | nothing, once all ranks have mapped what they share         |
| `prepare`  | `steps`, `graph`: its place among the steps |                                                             |
| `run`      | `steps`, `graph`                            |                                                             |
| `send`     | `steps`, `kind`, `values`                   |                                                             |
| `copy`     | `steps`, `target`, `slot`, `source`, ...    |                                                             |
| `write`    | `steps`, `name`, `first`, `values`          |                                                             |
| `fetch`    | `steps`, `number`, `also`                   |                                                             |
| `fetched`  | `steps`, `number`                           | `tokens`                                                    |
| `output`   | `steps`, `number`, `name`                   | `values`, of rank 0                                         |
| `latest`   | `steps`                                     | `tokens`                                                    |
| `floats`   | `steps`, `name`                             | `values`, of rank 0                                         |
| `chunk`    | `inputs`, `tokens`, `past`, `mode`          |                                                             |
| `forget`   | `steps`                                     |                                                             |
| `close`    | `steps`                                     |                                                             |
| `wait`     |                                             | nothing, once all launches of the rank are complete         |

`steps` is a number: 0 are those of the backend's own sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.backends.cuda import CapturedStep
from engine.backends.decode_steps import DecodeSteps, PreparedStep
from engine.ranks.cuda import RankCuda
from engine.ranks.messages import decoded, decoded_values, encoded
from tilec.step.graph import Kind

Order = Mapping[str, Any]
OWN: Final = 0


class Orders:
    """Follows orders on a rank's backend."""

    def __init__(self, backend: RankCuda) -> None:
        self._backend = backend
        self._steps: dict[int, DecodeSteps] = {OWN: backend.own}

    def follow(self, order: Order) -> dict[str, Any] | None:
        """Do what an order says; returns the reply, or None if there is none. An EngineError if it fails."""
        return getattr(self, f"_{order['do']}")(order)

    def _of(self, order: Order) -> DecodeSteps:
        return self._steps[order["steps"]]

    def _allocate(self, order: Order) -> dict[str, Any]:
        self._steps[order["steps"]] = self._backend.decode_steps(order["sequences"])
        return {}

    def _prepare(self, order: Order) -> None:
        self._step(order)

    def _run(self, order: Order) -> None:
        step = self._step(order)
        assert isinstance(step, CapturedStep)  # the backend made it
        self._backend.enqueue(step)

    def _step(self, order: Order) -> PreparedStep:
        steps, index = self._of(order), int(order["graph"])
        return steps.prepared(*steps.forms[index])

    def _send(self, order: Order) -> None:
        self._of(order).buffers.send(Kind(order["kind"]), decoded_values(order["values"]))

    def _copy(self, order: Order) -> None:
        source = self._steps[order["source"]].buffers
        self._of(order).buffers.copy(
            order["target"], order["slot"], source, order["name"], order["source_slot"], order["elements"]
        )  # fmt: skip

    def _write(self, order: Order) -> None:
        self._of(order).buffers.write(order["name"], order["first"], decoded(order["values"]))

    def _fetch(self, order: Order) -> None:
        self._of(order).buffers.fetch(order["number"], order["also"])

    def _fetched(self, order: Order) -> dict[str, Any]:
        return {"tokens": self._of(order).buffers.fetched(order["number"]).tolist()}

    def _output(self, order: Order) -> dict[str, Any]:
        return self._values(self._of(order).buffers.fetched_output(order["number"], order["name"]))

    def _latest(self, order: Order) -> dict[str, Any]:
        return {"tokens": self._of(order).buffers.latest().tolist()}

    def _floats(self, order: Order) -> dict[str, Any]:
        return self._values(self._of(order).buffers.floats(order["name"]))

    def _values(self, values: Any) -> dict[str, Any]:
        """Values of which those of rank 0 are read."""
        return {"values": encoded(values)} if self._backend.rank == 0 else {}

    def _chunk(self, order: Order) -> None:
        self._backend.run_chunk(decoded_values(order["inputs"]), order["tokens"], order["past"], order["mode"])

    def _forget(self, order: Order) -> None:
        self._backend.wait()
        self._of(order).forget()

    def _close(self, order: Order) -> None:
        self._steps.pop(order["steps"]).close()

    def _wait(self, order: Order) -> dict[str, Any]:
        self._backend.wait()
        return {}
