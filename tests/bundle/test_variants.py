"""Variants of a step: up to which number each holds, what prefill and decode steps then launch, and what is built for them."""

from __future__ import annotations

from typing import Any

import pytest

from tilec.step.expressions import StepError
from tilec.step.reader import read_declaration
from tilec.step.requests import _joined, requests  # pyright: ignore[reportPrivateUsage]
from tilec.step.step import BATCHES, CHUNK_TOKENS, Step
from tilec.step.tuning import Tuning

VARIANTS = """
variants = {
    "few": at_most(tokens, few_tokens), "some": at_most(tokens, some_tokens),
    "short": at_most(filled, short_slots), "middle": at_most(filled, middle_slots),
}
"""
DECODE = """
    if short:
        a = decode_short()
    elif middle:
        a = decode_middle()
    else:
        a = decode_long()
"""
TEXT = f"""
{VARIANTS}

def decode():{DECODE}

def batch():{DECODE}

def prefill():
    if few:
        a = prefill_few(N=tokens)
    elif some:
        a = prefill_some(N=tokens)
    else:
        a = prefill_many()
    if not few:
        b = prefill_more(N=tokens)
"""
MEASURED = {"few_tokens": 4, "some_tokens": 9, "short_slots": 3, "middle_slots": 20, "num_hidden_layers": 1}


def model(text: str = TEXT, **measured: Any) -> Step:
    return Step(read_declaration(text), MEASURED | measured, tied=False, dtype="bf16", max_seq_len=64)


def kernels(step: Step, mode: Any, **given: Any) -> list[str]:
    return [op.kernel for op in step.graph(mode, **given).ops]


def test_a_prefill_uses_the_variants_of_its_tokens() -> None:
    step = model()
    assert step.prefills(CHUNK_TOKENS) == (4, 9, CHUNK_TOKENS) and step.prefills(7) == (4, 7)
    assert [kernels(step, "prefill", tokens=tokens)[0] for tokens in (1, 4, 5, 9, 10)] == [
        "prefill_few", "prefill_few", "prefill_some", "prefill_some", "prefill_many",
    ]  # fmt: skip


def test_a_decode_step_uses_the_variants_of_its_filled_slots() -> None:
    step = model()
    for mode, tokens in (("decode", 1), ("batch", 4)):
        launched = [
            kernels(step, mode, tokens=tokens, variants=step.decode_variants(filled)) for filled in (1, 3, 4, 20, 21, 10**6)
        ]
        assert launched == [[f"decode_{name}"] for name in ("short", "short", "middle", "middle", "long", "long")]
    assert step.all_decode_variants() == tuple(step.decode_variants(filled) for filled in (1, 4, 21))


def test_lengths_are_sorted_once_for_launches_of_the_same_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """In decode and batch one variant reaches a launch; in a prefill also two (`not few`), or all three."""
    calls: list[int] = []

    def joined(lengths: Any) -> Any:
        calls.append(len(lengths))
        return _joined(lengths)

    monkeypatch.setattr("tilec.step.requests._joined", joined)
    more = "".join(f"\n    c{number} = prefill_more(N=tokens)" for number in range(20))
    found = [request.kernel for request in requests(model(TEXT + more), Tuning())]
    assert found.count("prefill_more") > CHUNK_TOKENS
    assert sorted(calls) == [1] * 9 + [2, 3]


def test_requests_are_those_of_all_lengths() -> None:
    """By brute force over every length, including lengths of two variants."""
    for measured in ({}, {"few_tokens": 9, "some_tokens": 4}, {"few_tokens": 0}, {"some_tokens": CHUNK_TOKENS}):
        step = model(**measured)
        launched = {
            (op.kernel, op.constants.get("N"))
            for tokens in range(1, CHUNK_TOKENS + 1)
            for op in step.graph("prefill", tokens=tokens).ops
        }
        requested = {(request.kernel, request.constants.get("N")) for request in requests(step, Tuning())}
        assert {entry for entry in requested if entry[0].startswith("prefill")} == launched


def test_a_variant_that_was_not_measured_is_not_built() -> None:
    step = model(short_slots=0)
    assert all(
        kernels(step, "batch", tokens=tokens, variants=step.decode_variants(1)) == ["decode_middle"] for tokens in BATCHES
    )
    assert {request.kernel for request in requests(step, Tuning()) if request.op.startswith("decode")} == {
        "decode_middle", "decode_long",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("at_most(tokens, few_tokens)", "3", "`few` is not `at_most"),
        ("at_most(tokens, few_tokens)", "at_most(past, few_tokens)", "`few` is not `at_most"),
        ("at_most(tokens, few_tokens)", "at_most(tokens, 4)", "`few` is not `at_most"),
        ("at_most(tokens, few_tokens)", "at_most(tokens, past)", "`past` is not a number"),
        ('"few"', '"first_layer"', "`first_layer` is given"),
        ('"few"', '"a few"', "`a few` is given"),
        ("\nvariants", "\nfew = 3\nvariants", "`few` is given or a number"),
        ("\ndef decode", "\nfew = 3\ndef decode", "`few` is there twice"),
        ("\ndef prefill", f"{VARIANTS}\ndef prefill", "`variants` are declared once"),
        ("\nvariants", '\nbuffers = {"x": input(i32, [4])}\nvariants', "`variants` are declared once"),
        ("decode_long()", "decode_long(N=1 if short else 2)", "only a condition may ask for"),
        ("decode_long()", "decode_long(scale=filled)", "only a condition may ask for"),
        ("if short", "if filled > 3", "only by `variants`"),
    ],
)  # fmt: skip
def test_errors_in_variants(old: str, new: str, problem: str) -> None:
    assert old in TEXT
    with pytest.raises(StepError, match=problem):
        read_declaration(TEXT.replace(old, new, 1))


@pytest.mark.parametrize("wrong", [-1, 2.5, True, "4"])
def test_a_bound_is_a_number(wrong: Any) -> None:
    with pytest.raises(StepError, match="few_tokens"):
        model(few_tokens=wrong).prefills(8)


def test_a_number_does_not_depend_on_a_variant() -> None:
    with pytest.raises(StepError, match="there is no number `few`"):
        model(f"{VARIANTS}\nwidth = 1 + few\n{TEXT.replace(VARIANTS, '')}")
