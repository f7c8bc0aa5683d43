"""Processors' time that the server's process takes for streams over HTTP, without a model.

Requests that begin together get a token each at fixed times (`paced_engine`), and a process of its own reads their streams.
Two lengths of generations separate what a token costs from what a request costs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from ci.bench.engine.http_job import Job
from ci.bench.engine.http_load import client, processor_seconds, serving
from ci.bench.engine.load_traffic import Lengths
from engine.tools.tiny import write_tiny_model

HERE: Final = Path(__file__).resolve().parent
ENGINE: Final = "ci.bench.engine.paced_engine"
"""The module that the server runs as its engine."""
LONGEST: Final = 256
PROMPTS: Final = (16, 16)
TOKENS: Final = (5, 100)
"""Of a prompt: the first that it may have, and the first that it may not."""
FEW: Final = 8


def of_http(rows: int, tokens: int) -> dict[str, float]:
    """Microseconds of the server's process for a token and for a request of `rows` streams, each of `tokens` tokens more than a
    few, and how many events of streams brought a token."""
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "tiny"
        write_tiny_model(model)
        options = {"backend": "interpreter", "rows": rows, "max-seq-len": LONGEST}
        with serving(model, options, [str(HERE / f"{ENGINE.rpartition('.')[2]}.py")]) as (process, ready):

            def spent(most: int) -> tuple[float, int]:
                """The process's seconds for a generation of `most` tokens in every row, and the events of their streams."""
                job = Job(ready["port"], 0, "", 0.0, rows, 0, 1, Lengths(PROMPTS, (most, most), TOKENS))
                before = processor_seconds(process)
                found = client(job.line())
                return processor_seconds(process) - before, found["events"]

            spent(FEW)
            (few, few_events), (many, events) = spent(FEW), spent(FEW + tokens)
    each = (many - few) / (rows * tokens)
    return {
        "token": round(1e6 * each, 1), "request": round(1e6 * (few / rows - each * FEW), 1),
        "events_of_a_token": round((events - few_events) / (rows * tokens), 3),
    }  # fmt: skip
