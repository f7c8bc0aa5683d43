"""`python -m engine graph`: draws the steps of a model from its config.json alone."""

from __future__ import annotations

import click

from engine.errors import UsageError
from engine.graph.draw import draw
from engine.models.families import read_config
from engine.models.steps import step
from engine.options import WEIGHT_FORMATS
from tilec.step.expressions import StepError
from tilec.step.formats import SIXTEEN_BIT


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", required=True, metavar="FOLDER", help="Model folder; config.json is enough.")
@click.option(
    "--tokens", default=1, show_default=True, help="Tokens the step takes in: 1 is a decode step, more a prefill chunk."
)
@click.option("--past", default=0, show_default=True, help="Tokens the cache holds before a prefill chunk.")
@click.option("--max-seq-len", default=4096, show_default=True, help="Tokens the cache has room for.")
@click.option(
    "--weights", "weight_format", type=click.Choice(WEIGHT_FORMATS), default=SIXTEEN_BIT, show_default=True,
    help="Format of the linear layers' weights.",
)  # fmt: skip
def graph_command(model: str, tokens: int, past: int, max_seq_len: int, weight_format: str) -> None:
    """Draw a step: its operations in order of launch, the buffers they touch, and the arena offsets of activations."""
    config = read_config(model)
    if not 1 <= max_seq_len <= config.max_position_embeddings:
        raise UsageError(f"max-seq-len {max_seq_len} is not from 1 to {config.max_position_embeddings}")
    if tokens < 1 or past < 0 or tokens + past > max_seq_len:
        described = f"{past} tokens in the cache and {tokens} more are" if past else f"{tokens} tokens are"
        what = f"{described} no step with max-seq-len {max_seq_len}"
        raise UsageError(what, fix="give --tokens of 1 or more that fit after --past")
    try:
        click.echo(draw(step(config, tokens, max_seq_len, past=past, weight_format=weight_format)))
    except StepError as error:
        raise UsageError(str(error), fix=f"leave out --weights, or give {SIXTEEN_BIT}") from None
