"""A step is untrusted text: no expression allocates or runs for long, and no text has more launches than a limit."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from tests.bundle.test_models import STEP
from tilec.step.expressions import StepError, parse
from tilec.step.form import MAX_OPERATIONS
from tilec.step.reader import RESERVED, read_declaration
from tilec.step.step import Step

TEXTS = ["'a' * 10000000000", "10000000000 * 'a'", "'%09999999999d' % 5", "'a' + 'b'", "min('a', 'b')", "cdiv('a', 2)",
         "max(1, 'a')", "rsqrt('a')", "(1 == 1) and 'a' * 999999999999"]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_strings_have_no_arithmetic(text: str) -> None:
    expression = parse(text)
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(StepError, match="has no value"):
        expression.value({})
    assert time.process_time() - begin < 1.0
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_numbers_and_comparisons_of_strings_remain() -> None:
    assert parse("min(7, 3) * 2 + True - 9 % 4").value({}) == 6
    assert parse("'a' == head").value({"head": "a"}) is True


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_step_does_not_say_what_it_is_given(name: str) -> None:
    with pytest.raises(StepError, match=f"`{name}` is given"):
        read_declaration(f"{name} = 4\n{STEP}")


def test_launches_of_all_layers_are_limited() -> None:
    launches = "\n".join(f"        n{index} = copy_a(BLOCK=128)" for index in range(20))
    text = STEP.replace("def decode():\n", f"def decode():\n    for layer in layers:\n{launches}\n")
    declaration = read_declaration(text)

    def step(layers: int) -> Step:
        numbers = {"hidden_size": 128, "heads": 2, "num_hidden_layers": layers}
        return Step(declaration, numbers, tied=False, dtype="bf16", max_seq_len=16)

    assert len(step(100).form("decode").resolved_ops) == 2001
    with pytest.raises(StepError, match=f"more than {MAX_OPERATIONS} launches"):
        step(4096).form("decode")
