"""Calibrates a model layer by layer: the weights of each are rounded by GPTQ for the activations of a text.

Every layer computes with what the layers and modules before it are after rounding, as in GPTQ's own code: a module's inputs are
those it will have. Memory holds the residuals of all tokens, the inputs of one step for them, one layer's weights in f32, and
three K x K matrices. The same files give the same bytes on the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.checkpoint.folder_file import path_exists, read_bytes
from engine.checkpoint.weights import EMBEDDING, WeightPlan
from engine.errors import ModelError, UsageError
from engine.formats.quantised import WEIGHT
from engine.models.config import ModelConfig
from engine.models.families import family_of
from engine.text.control_tokens import ControlTokens
from engine.text.policy import TOKENIZER_FILE
from engine.text.tokenizer_file import ABSENT, read_tokenizer
from engine.tools.quantize.decoder import HEAD_NORMS, NORMS, STEPS, DecoderLayer, Matrix
from engine.tools.quantize.gptq import quantise, root_of_inverse, second_moments
from engine.tools.quantize.integers import IntegerFormat
from engine.tools.quantize.rounding import Arrays, NoWeight, Report

Refuse = Callable[[str, str, str], ModelError]
"""The error for a weight by its name: what is wrong with it, and what to do instead."""

SEQUENCES: Final = 128
"""Sequences that calibrate, at most; of a longer text as many, spread over all of it."""
TOKENS: Final = 256
"""Tokens of a sequence."""
TEXT_BYTES: Final = 1 << 24
"""Maximum bytes of the text: more than is ever used."""
UNDAMAGED: Final = "take an undamaged checkpoint"


def sequences_of(text: Path, source: str | PathLike[str], config: ModelConfig) -> list[list[int]]:
    """The token ids of a text file in UTF-8, in sequences of `TOKENS`, each after the token that texts of the family begin
    with. UsageError for a file that is no text or has fewer tokens than one sequence; ModelError for one that cannot be read,
    and for a tokenizer that is not the model's."""
    data = read_bytes(text, TEXT_BYTES, "name a text file", links=True)
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"is not UTF-8 at byte {error.start}", where=text, fix="name a text file") from None
    path = Path(source) / TOKENIZER_FILE
    if not path_exists(path):
        raise ModelError("the tokenizer is missing", where=path, fix=ABSENT)
    policy = family_of(config.model_type).tokenizer
    tokenizer: Any = read_tokenizer(path, policy)
    begin = [int(tokenizer.token_to_id(policy.begin))] if policy.begin else []
    ids = ControlTokens(tokenizer).encode_text(decoded)
    length = TOKENS - len(begin)
    count = len(ids) // length
    if count == 0:
        what = f"has {len(ids)} tokens, and calibration takes at least {length}"
        raise UsageError(what, where=text, fix=f"give a longer text; up to {SEQUENCES * TOKENS} tokens are used")
    if max(ids) >= config.vocab_size:
        raise ModelError(f"has tokens from {config.vocab_size} on, which the model lacks", where=path, fix=ABSENT)
    chosen = range(count) if count <= SEQUENCES else (number * count // SEQUENCES for number in range(SEQUENCES))
    return [begin + ids[number * length : (number + 1) * length] for number in chosen]


class Calibration:
    """What rounds the weights of a model for a text; each is asked for once, in any order, best in that of the layers.

    `quantised`: the names of the weights that are rounded; others are computed with as they are. `residuals`: what the layers
    so far made of each sequence, (tokens, hidden)."""

    def __init__(
        self, config: ModelConfig, plan: WeightPlan, form: IntegerFormat, quantised: Collection[str],
        sequences: Sequence[Sequence[int]], refuse: Refuse,
    ) -> None:  # fmt: skip
        self._config = config
        self._plan = plan
        self._form = form
        self._quantised = quantised
        self._sequences = sequences
        self._refuse = refuse
        self.residuals: list[Matrix] = []
        self._next = 0
        self._made: dict[str, Arrays] = {}

    def take(self, name: str, report: Report) -> Arrays:
        """The tensors of a quantised weight, by the ends of their names; all layers up to its own are computed first, and each
        weight of them is reported when it is rounded. ModelError for one that holds no number, and for activations that are
        none."""
        while name not in self._made:
            self.layer(report)
        return self._made.pop(name)

    def layer(self, report: Report) -> None:
        """Compute the next layer, and round its weights."""
        if not self.residuals:
            table = self._plan.tensor(EMBEDDING)
            self.residuals = [table[list(ids)].astype(np.float32) for ids in self._sequences]
        prefix = f"model.layers.{self._next}."
        weights = {module: self._weight(f"{prefix}{module}{WEIGHT}") for step in STEPS for module in step}
        there = [one for one in (*NORMS, *HEAD_NORMS) if f"{prefix}{one}{WEIGHT}" in self._plan.tensor_names]
        norms = {one: self._weight(f"{prefix}{one}{WEIGHT}") for one in there}
        layer = DecoderLayer(self._config, weights, norms)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            for number, modules in enumerate(STEPS):
                inputs = [layer.inputs(number, residual) for residual in self.residuals]
                rounded = [one for one in modules if f"{prefix}{one}{WEIGHT}" in self._quantised]
                self._round(prefix, rounded, inputs, weights, report)
                if number % 2:
                    for residual, multiplied in zip(self.residuals, inputs, strict=True):
                        layer.add(number, residual, multiplied)
                del inputs  # before those of the next step are made
        self._next += 1

    def _weight(self, name: str) -> Matrix:
        return self._plan.tensor(name).astype(np.float32)

    def _round(
        self, prefix: str, modules: Sequence[str], inputs: Sequence[Matrix], weights: dict[str, Matrix], report: Report
    ) -> None:
        """Round modules that have the same inputs, and exchange their weights."""
        if not modules:
            return
        moments = second_moments(inputs)
        if not np.isfinite(moments).all():
            raise self._refuse(f"{prefix}{modules[0]}{WEIGHT}", "has inputs that are no numbers, for this text", UNDAMAGED)
        outputs = {one: float(np.vdot(weights[one] @ moments, weights[one])) for one in modules}
        root = root_of_inverse(moments)
        for one in modules:
            name = f"{prefix}{one}{WEIGHT}"
            stored: NDArray[Any] = self._plan.tensor(name)
            try:
                self._made[name], weights[one], errors = quantise(stored, root, self._form)
            except NoWeight as error:
                raise self._refuse(name, f"{error}, which is no weight", UNDAMAGED) from None
            report(name, (stored.shape[0], stored.shape[1]), replace(errors, outputs=outputs[one]))
