"""A step of a model: a declaration and the model's numbers in; graphs, weights and what the build must make out.

What holds: graphs and requests come from the same statements at the same values, so that a bundle has what its step asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tilec.step.expressions import Expression, StepError
from tilec.step.form import Form, in_layer, merged, placed, shape_at
from tilec.step.graph import StepGraph
from tilec.step.reader import Declaration, Declared, Reference

Head = Literal["argmax", "sample", "logits", "none"]
"""How a step ends: with the most likely token, one drawn by chance, the logits, or nothing but the filled cache."""

HEADS: Final[tuple[Head, ...]] = ("argmax", "sample", "logits", "none")
Mode = Literal["decode", "prefill", "batch"]
"""What a step takes in: the next token of a sequence, tokens of a prompt, or the next token of each of several sequences."""

BATCHES: Final = (2, 4, 8)
"""Sequences of a batch: they divide the eight columns that tensor cores multiply by."""

DTYPES: Final = ("bf16", "f16")
"""Dtypes that a model runs in."""

CHUNK_TOKENS: Final = 2048
"""Tokens of a prefill step at most: enough for matrix products to be bound by arithmetic, few enough for small activations."""

ALL_KINDS: Final = 3
"""Layers of which one is the first, one the last and one neither."""

ALL_PAIRS: Final = 4
"""Layers that have every pair of neighbours: the first and a middle one, two middle ones, a middle one and the last."""

MAX_LAYERS: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor on the device and the tensors of the checkpoint that are its rows, in order; all by full names."""

    name: str
    shape: tuple[int, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]


class Step:
    """The step of one model: `numbers` are the model's, and measured ones; `chosen` are dtype and `max_seq_len`."""

    def __init__(
        self, declaration: Declaration, numbers: Mapping[str, Any], *, tied: bool, dtype: str, max_seq_len: int
    ) -> None:
        self.declaration, self.dtype, self.tied = declaration, dtype, tied
        self._values: dict[str, Any] = {**numbers, "dtype": dtype, "max_seq_len": max_seq_len}
        for name, number in declaration.numbers:
            self._values[name] = number.value(self._values)
        self._forms: dict[tuple[Mode, Head, int | None, bool, bool], Form] = {}

    @property
    def layers(self) -> int:
        """How many there are; StepError where the model does not say."""
        found = self._values.get("num_hidden_layers")
        if type(found) is not int or not 1 <= found <= MAX_LAYERS:
            raise StepError("`num_hidden_layers` is not a number of layers")
        return found

    @property
    def short_slots(self) -> int:
        """Filled slots of a cache up to which the short form of a step is the faster one; 0 where nothing was measured. Either
        form is right for any number of slots."""
        return self._measured("short_slots", "slots")

    @property
    def few_tokens(self) -> int:
        """Tokens of a prefill up to which its form for few tokens is taken; 0 where nothing was measured."""
        return self._measured("few_tokens", "tokens")

    def is_short(self, filled: int) -> bool:
        """Whether the short form is the one for caches of which `filled` slots at most are filled."""
        return filled <= self.short_slots

    def prefills(self, most: int) -> tuple[int, ...]:
        """The most tokens of each form of a prefill that takes in at most so many, in ascending order: a form serves what is
        longer than those of the one before."""
        return (self.few_tokens, most) if 0 < self.few_tokens < most else (most,)

    def graph(
        self,
        mode: Mode,
        head: Head = "argmax",
        *,
        tokens: int = 1,
        past: int = 0,
        layers: int | None = None,
        short: bool = False,
    ) -> StepGraph:
        """The step that takes in `tokens` tokens, of a batch one of each sequence; `past` is how many the cache holds before a
        prefill. `layers` makes one of fewer layers: those that remain are the first, some of the middle, and the last. `short`
        makes the form for caches of which `short_slots` at most are filled. StepError where the text has no such step."""
        return self.form(mode, head, tokens=tokens, layers=layers, short=short).at(tokens, past)

    def form(
        self, mode: Mode, head: Head = "argmax", *, tokens: int = 1, layers: int | None = None, short: bool = False
    ) -> Form:  # fmt: skip
        """What the graphs have in common of all lengths that have the form of `tokens` (`prefills`); see `graph`."""
        few = mode == "prefill" and tokens <= self.few_tokens
        key = mode, head, layers, short, few
        if key not in self._forms:
            if mode not in self.declaration.modes:
                raise StepError(f"there is no `def {mode}()`")
            values = self.values(head=head, short=short, few=few)
            count = (lambda: self.layers) if layers is None else (lambda: layers)
            found = placed(self.declaration.modes[mode], dict(values), count, self.name_of)
            self._forms[key] = Form(mode, found, values, self.name_of)
        return self._forms[key]

    def values(self, **given: Any) -> dict[str, Any]:
        """All values of a step, some of them given."""
        return self._values | given

    def has_layer(self, first: bool, last: bool) -> bool:
        """Whether one of the layers is the first and the last as said."""
        return (self.layers == 1) if first and last else self.layers > 1 if first or last else self.layers > 2

    def weights(self) -> Iterator[Weight]:
        """What a model needs on the device, in the order of the text; those of a layer are together."""
        pending: list[Declared] = []
        for declared in [*self.declaration.weights.values(), None]:
            if declared is not None and declared.per_layer:
                pending.append(declared)
                continue
            for layer in range(self.layers if pending else 0):
                yield from (self._weight(one, layer) for one in pending)
            pending = []
            if declared is not None and not (self.tied and declared.name in self.declaration.tied):
                yield self._weight(declared, 0)

    def name_of(self, declared: Declared) -> str:
        """The name of the weight that holds it: another's where the two are tied."""
        return self.declaration.tied.get(declared.name, declared.name) if self.tied else declared.name

    def _measured(self, name: str, of: str) -> int:
        found = self._values.get(name, 0)
        if type(found) is not int or found < 0:
            raise StepError(f"`{name}` is not a number of {of}")
        return found

    def _weight(self, declared: Declared, layer: int) -> Weight:
        rows = tuple((in_layer(name, layer), shape_at(shape, self._values)) for name, shape in declared.rows.items())
        return Weight(in_layer(declared.name, layer), merged(rows), rows)

    def axes(self, reference: Reference) -> tuple[Expression, ...]:
        """The extents of an argument that is no merged weight."""
        return reference.shape or reference.declared.shape
