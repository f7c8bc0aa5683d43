"""The program that measures guesses of next tokens, on the interpreter and a tiny model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ci.bench.engine.speculation import Counting, compared, of_engine, report, texts
from engine.serving.protocol import Load, Report
from engine.tools.tiny import write_tiny_model

VOCABULARY = 40


def test_prompts_repeat_a_passage_or_nothing() -> None:
    found = texts(3, VOCABULARY, seed=1, prompt=24, passage=8)
    assert all(ids == ids[:8] * 3 for ids in found["repeats"]) and not any(ids == ids[:8] * 3 for ids in found["random"])
    assert found == texts(3, VOCABULARY, seed=1, prompt=24, passage=8) != texts(3, VOCABULARY, seed=2, prompt=24, passage=8)


def test_an_engine_that_guesses_gives_the_same_tokens(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    load = Load(model=str(tmp_path), backend="interpreter", rows=6, max_seq_len=256, chunk_tokens=64)
    prompts = {many: texts(many, VOCABULARY, seed=1, prompt=24, passage=8) for many in (1, 2)}
    found = [asyncio.run(of_engine(load, guesses, prompts, tokens=12, runs=2)) for guesses in (0, 3)]
    record = compared(*found)
    assert not [fault for fault in record["faults"] if "differ" in fault]
    assert list(record["texts"]) == ["1 repeats", "1 random", "2 repeats", "2 random"]
    assert all(len(ids) == 12 for one in found for kind in one.values() for ids in kind["tokens"])
    assert not any(kind["guesses"] for kind in found[0].values()) and any(kind["guesses"] for kind in found[1].values())
    assert len(report(record | {"guesses": 3})) == 10


def test_tokens_that_differ_and_guesses_never_right_are_faults() -> None:
    plain: dict[str, Any] = {"tokens": [[1, 2]], "tok_s": 10.0, "same": True, "guesses": 0, "right": 0}
    right = plain | {"guesses": 8, "right": 6, "tok_s": 15.0}
    assert compared({"1 repeats": plain}, {"1 repeats": right}) == {
        "texts": {"1 repeats": {"tok_s": 10.0, "guessing_tok_s": 15.0, "ratio": 1.5, "guesses": 8, "right": 6}}, "faults": [],
    }  # fmt: skip
    assert compared({"1 repeats": plain}, {"1 repeats": right | {"tokens": [[1, 3]]}})["faults"] == ["1 repeats: tokens differ"]
    assert compared({"1 repeats": plain}, {"1 repeats": right | {"same": False}})["faults"] == ["1 repeats: tokens differ"]
    assert compared({"1 repeats": plain}, {"1 repeats": plain})["faults"] == ["1 repeats: no guess was right"]
    assert not compared({"1 random": plain}, {"1 random": plain})["faults"]


def test_guesses_are_counted() -> None:
    counting = Counting()
    counting.reported(Report({1: 5}, {}, [], 0, 1, 0, 1, guessed=[1, 4, 1, 1, 0, 0]))
    counting.reported(Report({1: 5}, {}, [], 0, 1, 0, 1))
    assert (counting.made, counting.right) == (4, 2)
