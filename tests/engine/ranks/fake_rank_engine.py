"""`python -m fake_rank_engine DESCRIPTOR`: the engine's process of a server, whose ranks are processes without GPUs."""

from __future__ import annotations

import sys

from fake_gpus import RUN, WORKER

from engine.ranks import load
from engine.serving import worker

original = load.load_gpus


def with_fake_gpus(*given: object, **named: object) -> object:
    """`engine.ranks.load.load_gpus` with other processes."""
    command = [sys.executable, "-c", f"{WORKER}\n{RUN}"]
    return original(*given, **named, command=lambda _, descriptor: [*command, str(descriptor)])  # pyright: ignore


if __name__ == "__main__":
    load.load_gpus = with_fake_gpus  # pyright: ignore[reportAttributeAccessIssue]
    sys.exit(worker.main(int(sys.argv[1])))
