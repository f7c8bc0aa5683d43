"""`shards` and `sums` in a step's text: what is not the language is refused at its line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.models.families import FAMILIES
from engine.ranks.step import rank_step
from tilec.step.expressions import StepError
from tilec.step.ranks import among_ranks, shared_numbers
from tilec.step.reader import decode_declaration, read_declaration

TEXT = """
weights = {"layers.*.w": linear([wide, size]), "layers.*.v": [size, wide]}
SHARDS
SUMS
buffers = {
    "x": activation(dtype, [tokens, size]), "layers.*.a": activation(dtype, [tokens, wide]),
    "layers.*.y": activation(dtype, [tokens, size]), "out": output(dtype, [tokens, size]),
}


def decode():
    for layer in layers:
        up = matmul(E=dtype, a=x, b=w, out=a)
        down = matmul(E=dtype, a=a, b=v, out=y)


def prefill():
    pass
"""
SHARDS = 'shards = {"layers.*.w": rows(wide), "layers.*.v": columns(wide)}'
SUM = '{"part": like(out), "product": matmul(E=E, a=a, b=b, out=part), "sum": all_reduce(E=E, x=part, out=out)}'


def text(shards: str = SHARDS, sums: str = f'sums = {{"matmul": {SUM}}}') -> str:
    return TEXT.replace("SHARDS", shards).replace("SUMS", sums)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (text(shards='shards = {"layers.*.u": rows(wide)}'), "`layers.*.u` is not a weight and its `rows(NUMBER)`"),
        (text(shards='shards = {"layers.*.w": halves(wide)}'), "`layers.*.w` is not a weight and its `rows(NUMBER)`"),
        (text(shards='shards = {"layers.*.w": rows()}'), "`layers.*.w` is not a weight and its `rows(NUMBER)`"),
        (text(shards='shards = {"layers.*.w": rows(wide // 2)}'), "`layers.*.w` is not a weight and its `rows(NUMBER)`"),
        (text(sums='sums = {"matmul": all_reduce(x=out)}'), "`matmul` has no table of buffers and launches"),
        (text(sums='sums = {"matmul": {"part": near(out)}}'), "`part` is not a buffer, as `like(out)` or `share_of(parts)`"),
        (
            text(sums='sums = {"matmul": {"part": like(out)}}'),
            "`matmul` becomes whole by one of `all_reduce`, `all_reduce_add`",
        ),
        (text(sums='sums = {"matmul": {"a": all_reduce(x=out), "b": all_reduce(x=out)}}'), "`matmul` becomes whole by one of"),
        (text(sums='sums = {"matmul": part(out, a)}'), "`matmul` has no table of buffers and launches, and is no `part(out)`"),
        (text(sums='sums = {"matmul": part("out")}'), "`matmul` has no table of buffers and launches, and is no `part(out)`"),
        (text(sums="ranks = 2"), "`ranks` is given, and cannot be a number of the step"),
    ],
)
def test_what_is_not_the_language(given: str, message: str) -> None:
    with pytest.raises(StepError) as caught:
        read_declaration(given)
    assert message in str(caught.value)
    assert caught.value.line in (3, 4)


@pytest.mark.parametrize(
    ("sums", "message"),
    [
        ("", "`matmul` sums over the columns of a weight that ranks share, and `sums` has no launches for it"),
        (f'sums = {{"matmul": {SUM.replace("like(out)", "like(parts)")}}}', "`matmul` has no buffer `parts`, as `sums` says"),
        (f'sums = {{"matmul": {SUM.replace("like(out)", "like(b)")}}}', "`matmul` has no buffer `b`, as `sums` says"),
        (f'sums = {{"matmul": {SUM.replace("a=a", "a=c")}}}', "`c` is no tensor of `matmul`, as `matmul` needs"),
        ('sums = {"matmul": part(total)}', "`matmul` has no buffer `total`, as `sums` says"),
        ('sums = {"matmul": part(b)}', "`matmul` has no buffer `b`, as `sums` says"),
    ],
)
def test_launches_that_cannot_be_replaced(sums: str, message: str) -> None:
    with pytest.raises(StepError) as caught:
        among_ranks(read_declaration(text(sums=sums)))
    assert message in str(caught.value)
    assert caught.value.line == 14 if "`sums` has no launches" in message else True


def test_the_launches_of_a_rank() -> None:
    """One launch is replaced, of the weight of which a rank has columns; the step of one GPU stays as the text has it."""
    declaration = read_declaration(text())
    shape = [(launch.name, launch.kernel) for launch in layer_of(declaration)]
    assert shape == [("up", "matmul"), ("down", "matmul")]
    launches = layer_of(among_ranks(declaration))
    assert [(launch.name, launch.kernel) for launch in launches] == [
        ("up", "matmul"), ("down_product", "matmul"), ("down_sum", "all_reduce"),
    ]  # fmt: skip
    product, total = launches[1:]
    assert product.tensors["out"].declared.name == total.tensors["x"].declared.name == "layers.*.down_part"
    assert total.tensors["out"].declared.name == "layers.*.y" and total.constants.keys() == {"E", "RANKS"}


READER = """        down = matmul(E=dtype, a=a, b=v, out=y)
        norm = normed(E=dtype, y=y, out=x, eps=1e-6)
"""
OF_PART = (
    '"normed": {"of_rank": add_rows(E=E, y=y, out=out), "sum": all_reduce_add(E=E, x=out, residual=out), '
    '"norm": scaled(E=E, x=out, eps=eps)}'
)


def read_by(sums: str) -> Any:
    """The step in which a launch reads what one leaves as a part of a sum."""
    given = text(sums=f'sums = {{"matmul": part(out){sums}}}')
    return read_declaration(given.replace("        down = matmul(E=dtype, a=a, b=v, out=y)\n", READER))


def test_the_launches_that_read_a_part_of_a_sum() -> None:
    """The product stays; what reads its result is replaced, with scalars of its own."""
    launches = layer_of(among_ranks(read_by(f", {OF_PART}")))
    assert [(launch.name, launch.kernel) for launch in launches] == [
        ("up", "matmul"), ("down", "matmul"), ("norm_of_rank", "add_rows"), ("norm_sum", "all_reduce_add"),
        ("norm_norm", "scaled"),
    ]  # fmt: skip
    assert launches[2].tensors["y"].declared.name == launches[1].tensors["out"].declared.name == "layers.*.y"
    assert [launch.scalars.keys() for launch in launches[2:]] == [set(), set(), {"eps"}]
    assert launches[3].constants.keys() == {"E", "RANKS"}


@pytest.mark.parametrize("sums", ["", ', "normed": part(out)'])
def test_a_part_of_a_sum_that_nothing_makes_whole(sums: str) -> None:
    with pytest.raises(StepError, match="`normed` reads a part of a sum, and `sums` has no launches for it") as caught:
        among_ranks(read_by(sums))
    assert caught.value.line == 15


def layer_of(declaration: Any) -> tuple[Any, ...]:
    (layers,) = declaration.modes["decode"]
    return layers.body


@pytest.mark.parametrize(
    ("numbers", "ranks", "message"),
    [
        ({"wide": 9}, 2, "`wide` is 9, which 2 ranks cannot share equally"),
        ({}, 2, "`wide` is None, which 2 ranks cannot share equally"),
        ({"wide": 8}, 1, "1 ranks are asked for, and a step is shared by 2 to 8"),
        ({"wide": 16}, 16, "16 ranks are asked for, and a step is shared by 2 to 8"),
    ],
)
def test_numbers_that_ranks_cannot_share(numbers: dict[str, int], ranks: int, message: str) -> None:
    with pytest.raises(StepError) as caught:
        shared_numbers(read_declaration(text()), numbers, ranks)
    assert message in str(caught.value)
    with pytest.raises(StepError, match="the step has no `shards`, so it runs on one GPU"):
        shared_numbers(read_declaration(text(shards="")), numbers, ranks)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe"])
def test_a_bundle_carries_how_ranks_share_a_step(family: str) -> None:
    declaration = FAMILIES[family].declaration()
    read = decode_declaration(declaration.syntax)
    assert read.shards == declaration.shards
    assert len(read.shards) == (6 if family == "qwen3_moe" else 4)  # those of experts and of dense layers
    assert read.sums.keys() == declaration.sums.keys()
    shape: Any = SimpleNamespace(
        hidden_size=128, intermediate_size=256, num_attention_heads=16, num_key_value_heads=8, head_dim=32, num_hidden_layers=2,
        vocab_size=64, rms_norm_eps=1e-6, tie_word_embeddings=False, model_type=family, moe_intermediate_size=256,
        num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
    )  # fmt: skip
    graphs = [
        rank_step(shape, 128, "bf16", 2).graph("decode"),
        type(rank_step(shape, 128, "bf16", 2))(
            read, vars(shape) | dict(FAMILIES[family].unmeasured), 2, tied=False, dtype="bf16", max_seq_len=128
        ).graph("decode"),
    ]
    assert graphs[0] == graphs[1]
