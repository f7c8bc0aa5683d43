"""The soak program, short: a server under requests of all kinds, one kill of its engine, and what the program would find."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import pytest

from ci.bench.engine import serving_soak
from ci.bench.engine.serving_soak import Soak, arguments, measure
from ci.bench.engine.soak_traffic import KINDS, Generation, Response, generation

ASKED = generation(1, 0, 256)


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments(parser)
    return parser.parse_args(given)


def test_a_short_run() -> None:
    found = measure(
        options("--requests", "40", "--clients", "6", "--kills", "1", "--distinct", "5", "--rows", "2", "--pages", "8")
    )
    assert found.status == 0, found.data
    assert found.data["requests"] == 40 and found.data["kills"] == 1
    assert {"whole", "stream", "bad"} <= found.data["responses"].keys()
    assert "| requests | 40 |" in found.pages["serving_soak.md"].replace("  ", "")


@pytest.mark.parametrize(
    ("kind", "response", "wrong"),
    [
        ("whole", Response(200, "right", True), False),
        ("whole", Response(200, "wrong", True), True),
        ("stream", Response(200, "righ", False), True),
        ("stream", Response(200, "", False, "engine_error"), True),
        ("whole", Response(503, error="queue_full"), False),
        ("whole", Response(503, error="engine_restarting"), True),
        ("whole", Response(500, error="engine_error"), True),
        ("whole", Response(-1, error="TimeoutError()"), True),
        ("leaves", Response(0), False),
        ("bad", Response(400, error="invalid_value"), False),
        ("bad", Response(200, "right", True), True),
        ("bad", Response(500, error="internal_error"), True),
    ],
)
def test_what_is_wrong_with_a_response(kind: str, response: Response, wrong: bool) -> None:
    soak = Soak(Path(), {ASKED: "right"}, options())
    soak._check(0, kind, ASKED, response, disturbed=False)  # pyright: ignore[reportPrivateUsage]
    assert bool(soak.wrong) == wrong


def test_memory_that_grows_is_found() -> None:
    soak = Soak(Path(), {}, options("--kills", "0", "--requests", "0"))
    soak.memory = {"server": [50.0, 50.0, 51.0], "engine": [100.0, 100.0 + 2 * serving_soak.GROWTH_MB]}
    record = soak._record(1.0)  # pyright: ignore[reportPrivateUsage]
    assert not record["ok"] and len(record["wrong"]) == 1 and "the engine's memory grew" in record["wrong"][0]


def test_requests_are_the_same_in_every_run() -> None:
    found = [generation(1, number, 256) for number in range(50)]
    assert found == [generation(1, number, 256) for number in range(50)] and len(set(found)) > 40
    assert all(isinstance(one, Generation) and 1 <= len(one.ids) <= 256 - one.max_tokens for one in found)
    assert {random.Random(number).choices(KINDS)[0] for number in range(99)} == set(KINDS)
