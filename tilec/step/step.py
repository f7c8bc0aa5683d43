"""A step of a model: takes a declaration and the model's numbers, returns graphs, weights and build requests.

Invariant: graphs and requests come from the same statements and the same values, so a bundle has everything its step needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from tilec.step.caches import CODED_CACHES, cached_declaration
from tilec.step.declaration import DTYPE, TOKENS, Declaration, Declared, Reference
from tilec.step.expressions import Expression, StepError
from tilec.step.form import Form, in_layer, item_count, merged, resolved_ops, shape_at, stacked
from tilec.step.formats import CODED_HEAD, SIXTEEN_BIT, coded_head, misfit, stored_declaration
from tilec.step.graph import CHUNK, SERVE, StepGraph
from tilec.step.layers import Flags, LayerKinds, layer_count
from tilec.step.ranks import RANKS, among_ranks, shared_numbers
from tilec.step.reader import FILLED

OutputMode = Literal["argmax", "sample", "logits", "none"]
"""Output mode of a step: the most likely token, a sampled token, the logits, or none (only the cache is filled)."""

OUTPUT_MODES: Final[tuple[OutputMode, ...]] = ("argmax", "sample", "logits", "none")
Variants = frozenset[str]
"""The variants of its launches that a step uses, by their names in the text."""

NO_VARIANT: Final[Variants] = frozenset()

Mode = Literal["decode", "prefill", "batch", "chunk", "serve"]
"""Input of a step: the next token of a sequence, tokens of a prompt, or the next token of each of several sequences. The last
two have caches in pages: tokens of a prompt, and the next token of each of several rows."""

BATCHES: Final = (2, 4, 8)
"""Supported batch sizes; they divide the N = 8 columns of an `mma` instruction."""

BUCKETS: Final = (8, 16, 32, 64, 128, 256)
"""Numbers of rows for which a step that serves is prepared; fewer rows take the next bucket."""

DTYPES: Final = ("bf16", "f16")
"""Dtypes that a model can run in."""

CHUNK_TOKENS: Final = 2048
"""Maximum number of tokens of a prefill step whose family measured no `chunk_tokens`: enough for matrix products to be
compute-bound, few enough for small activations."""

ALL_KINDS: Final = 3
"""Number of layers with one first, one last and one inner layer."""

ALL_PAIRS: Final = 4
"""Number of layers with every kind of adjacent pair: first and inner, two inner, inner and last."""

MAX_CHUNK_TOKENS: Final = 1 << 16
MAX_WEIGHTS: Final = 1 << 18
"""Maximum number of weights of all layers and items together, and of the checkpoint tensors in them."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor on the device and the checkpoint tensors that are its rows, in order; all by full names. A part of a
    weight's format has its name with the part's suffix after it (`tilec.step.formats`), and so have its rows. They are
    concatenated along `axis`; of a stacked weight, those of each of its `items`, as many of each, and then the items along an
    axis in front."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]
    axis: int = 0
    items: int = 0


class Step:
    """The step of one model. `numbers` are the model's numbers and the measured ones. `weight_format` is that of the linear
    weights, `cache_format` that of the caches; StepError if the text does not declare one, or if the model's sizes do not fit
    it. `pages`: the pages of the pool of modes whose caches are in pages. `ranks`: how many share it; the step is then that of
    one of them (`tilec.step.ranks`), with its part of the numbers, or with all of them if it is `undivided`, for a verifier to
    compare."""

    def __init__(
        self, declaration: Declaration, numbers: Mapping[str, Any], *, tied: bool, dtype: str, max_seq_len: int,
        weight_format: str = SIXTEEN_BIT, cache_format: str = SIXTEEN_BIT, pages: int = 0, ranks: int = 1,
        undivided: bool = False,
    ) -> None:  # fmt: skip
        self.ranks, self._undivided, self._numbers, self._stored_declaration = ranks, undivided, numbers, declaration
        if ranks > 1:
            numbers = numbers if undivided else shared_numbers(declaration, numbers, ranks)
            declaration = among_ranks(declaration)
        stored = declaration if weight_format == SIXTEEN_BIT else stored_declaration(declaration, weight_format)
        self.declaration, self.cache_format = cached_declaration(stored, cache_format), cache_format
        self.dtype, self.tied, self.weight_format = dtype, tied, weight_format
        self._values: dict[str, Any] = {
            **numbers, "dtype": dtype, "max_seq_len": max_seq_len, "pages": pages, RANKS: ranks,
            CODED_CACHES: cache_format != SIXTEEN_BIT, CODED_HEAD: coded_head(declaration, weight_format) is not None,
        }  # fmt: skip
        for name, number in declaration.numbers:
            self._values[name] = number.value(self._values)
        self._serves_codes = False
        if weight_format != SIXTEEN_BIT:
            self._refuse_misfit(declaration, weight_format)
            activations = declaration.formats[weight_format][0].activations
            self._serves_codes = activations is not None and activations.serve
        self._forms: dict[tuple[Mode, OutputMode, int | None, Variants], Form] = {}

    def _refuse_misfit(self, declaration: Declaration, weight_format: str) -> None:
        """StepError unless every linear weight of some layer and the head have whole blocks in a format."""
        form, _ = declaration.formats[weight_format]
        head, of_head = form.head or ("", form)
        for weight in declaration.weights.values():
            own = of_head if weight.name == head else form if weight.linear and self.has(weight) else None
            reason = None if own is None else misfit(weight, own, self._values)
            if reason is not None:
                raise StepError(reason, next(iter(weight.rows.values()))[0].node)

    def with_pages(self, pages: int) -> Step:
        """The same step with a pool of `pages` pages."""
        return Step(
            self._stored_declaration, self._numbers, tied=self.tied, dtype=self.dtype, max_seq_len=self._values["max_seq_len"],
            weight_format=self.weight_format, cache_format=self.cache_format, pages=pages, ranks=self.ranks,
            undivided=self._undivided,
        )  # fmt: skip

    @property
    def layers(self) -> int:
        """The number of layers; StepError if the model does not define it."""
        return layer_count(self._values)

    def layer_kinds(self, count: int | None = None) -> LayerKinds:
        """The kinds of all layers, or of a step of `count` of them."""
        return LayerKinds(self.declaration, self._values, count)

    def few_layers(self, count: int) -> int:
        """The number of layers of a step that stands for one of all: at most `count`, such as `ALL_KINDS`. All layers if they
        are of several kinds, so that none is left out."""
        return self.layers if self.layer_kinds().several else min(self.layers, count)

    def has(self, declared: Declared) -> bool:
        """Whether the model has a weight in some layer, or outside of layers."""
        return declared.only is None or self.layer_kinds().in_some(declared)

    @property
    def chunk_tokens(self) -> int:
        """Maximum number of tokens of a prefill step: the measured number of that name, or `CHUNK_TOKENS`. StepError if it is
        not a number."""
        value = self._values.get("chunk_tokens", CHUNK_TOKENS)
        if type(value) is not int or not 1 <= value <= MAX_CHUNK_TOKENS:
            raise StepError(f"`chunk_tokens` is not a number from 1 to {MAX_CHUNK_TOKENS}")
        return value

    def bound(self, variant: str) -> int:
        """The largest quantity for which a variant is used; 0 if it was not measured. Every variant is correct for any
        quantity. StepError if it is not a number."""
        name = self.declaration.variants[variant].bound
        value = self._values.get(name, 0)
        if type(value) is not int or value < 0:
            raise StepError(f"`{name}` is not a number from 0")
        return value

    def bounds(self, quantity: str) -> tuple[int, ...]:
        """The bounds of all variants for up to some of `quantity` (`TOKENS` or `FILLED`) that were measured, ascending."""
        declared = self.declaration.variants.items()
        return tuple(sorted({self.bound(name) for name, variant in declared if variant.quantity == quantity} - {0}))

    def variants(self, quantity: str, amount: int) -> Variants:
        """The variants that a step with this amount of `quantity` uses."""
        declared = self.declaration.variants.items()
        return frozenset(name for name, variant in declared if variant.quantity == quantity and amount <= self.bound(name))

    def used_variants(self, mode: Mode, tokens: int, variants: Variants = NO_VARIANT) -> Variants:
        """The variants that a step of a mode uses: those that `variants` gives of a decode step, and those of a prefill's
        tokens. A row of a step over pages must have the same launches whatever the number of its tokens: a chunk uses no
        variant for few of them, and a step that serves uses all, or none if its format says so (`Activations.serve`)."""
        if mode == SERVE and not self._serves_codes:
            return frozenset(name for name, variant in self.declaration.variants.items() if variant.quantity == TOKENS)
        return NO_VARIANT if mode in (CHUNK, SERVE) else self.variants(TOKENS, tokens) if mode == "prefill" else variants

    def decode_variants(self, filled: int) -> Variants:
        """The variants that a decode step uses if its caches have at most `filled` filled slots."""
        return self.variants(FILLED, filled)

    def all_decode_variants(self) -> tuple[Variants, ...]:
        """Every combination of variants that a decode step can use, from empty caches to full ones."""
        return tuple(self.decode_variants(filled) for filled in (1, *(bound + 1 for bound in self.bounds(FILLED))))

    def prefills(self, max_tokens: int) -> tuple[int, ...]:
        """The largest number of tokens of each form of a prefill with at most `max_tokens` tokens, ascending: each form covers
        the lengths above the previous form's."""
        return (*(bound for bound in self.bounds(TOKENS) if bound < max_tokens), max_tokens)

    def graph(
        self,
        mode: Mode,
        head: OutputMode = "argmax",
        *,
        tokens: int = 1,
        past: int = 0,
        layers: int | None = None,
        variants: Variants = NO_VARIANT,
    ) -> StepGraph:
        """The step with `tokens` input tokens; in a batch, one per sequence. `past` is the number of tokens in the cache before
        a prefill. `layers` reduces the number of layers (`few_layers`): the first, some inner ones, and the last remain.
        `variants` are those of a decode step; a prefill's follow from its tokens. StepError if the text does not define such a
        step."""
        return self.form(mode, head, tokens=tokens, layers=layers, variants=variants).at(tokens, past)

    def form(
        self, mode: Mode, head: OutputMode = "argmax", *, tokens: int = 1, layers: int | None = None,
        variants: Variants = NO_VARIANT,
    ) -> Form:  # fmt: skip
        """The form shared by the graphs of all lengths that have the form of `tokens` (`prefills`); see `graph`."""
        used = self.used_variants(mode, tokens, variants)
        key = mode, head, layers, used
        if key not in self._forms:
            if mode not in self.declaration.modes:
                raise StepError(f"there is no `def {mode}()`")
            values = self.condition_values(mode, head, used)
            kinds = cache(lambda: self.layer_kinds(layers))
            ops = resolved_ops(self.declaration.modes[mode], dict(values), kinds, self.name_of)
            self._forms[key] = Form(mode, ops, values, self.name_of)
        return self._forms[key]

    def condition_values(self, mode: str, head: OutputMode, variants: Variants) -> dict[str, Any]:
        """All values of a step of a mode with an output mode and variants, except those that a layer and a length have."""
        outside: Flags = self.layer_kinds().outside() if self.declaration.kinds else {}
        return self.values(mode=mode, head=head, **{name: name in variants for name in self.declaration.variants}, **outside)

    def values(self, **given: Any) -> dict[str, Any]:
        """All values of a step, with overrides."""
        return self._values | given

    def layer_flags(self) -> list[Flags]:
        """What conditions may ask in some layer, each once."""
        return [*self.layer_kinds().different()]

    def weights(self) -> Iterator[Weight]:
        """The weights that a model needs on the device, in the order of the text; those of a layer are consecutive. StepError
        if there are more than MAX_WEIGHTS."""
        number = tensors = 0
        for weight in self._weights():
            number, tensors = number + 1, tensors + len(weight.rows)
            if max(number, tensors) > MAX_WEIGHTS:
                raise StepError(f"a step has more than {MAX_WEIGHTS} weights")
            yield weight

    def _weights(self) -> Iterator[Weight]:
        pending: list[Declared] = []
        for declared in [*self.declaration.weights.values(), None]:
            if declared is not None and declared.per_layer:
                pending.append(declared)
                continue
            kinds = self.layer_kinds() if pending else None
            for layer in range(self.layers if kinds is not None else 0):
                own = [weight for weight in pending if kinds is not None and kinds.has(weight, layer)]
                yield from (self._weight(weight, layer, item) for weight in own for item in range(self._items(weight)))
            pending = []
            if declared is not None and not (self.tied and declared.name in self.declaration.tied):
                yield self._weight(declared, 0, 0)

    def _items(self, declared: Declared) -> int:
        """How many items of a loop in a layer have a weight each; 1 outside of such loops."""
        count = self.declaration.counts.get(declared.name)
        return 1 if count is None else item_count(count, self._values)

    def name_of(self, declared: Declared) -> str:
        """The name of the weight that stores a declaration: the other weight's if the two are tied."""
        return self.declaration.tied.get(declared.name, declared.name) if self.tied else declared.name

    def _weight(self, declared: Declared, layer: int, item: int) -> Weight:
        shapes = [(in_layer(name, layer, item), shape_at(shape, self._values)) for name, shape in declared.rows.items()]
        shape = stacked(declared, merged(tuple(shapes), declared.axis), self._values)
        rows, items = tuple(shapes), 0
        if declared.items:
            items, one_layer = shape[0], [name.replace("*", str(layer), 1) for name in declared.rows]
            rows = tuple(
                (name.replace("*", str(number)), size)
                for number in range(items)
                for name, (_, size) in zip(one_layer, shapes, strict=True)
            )
        dtype = self.dtype if declared.dtype == DTYPE else declared.dtype
        return Weight(in_layer(declared.name, layer, item), dtype, shape, rows, declared.axis, items)

    def axes(self, reference: Reference) -> tuple[Expression, ...]:
        """The extents of an argument other than a merged weight."""
        return reference.shape or reference.declared.shape
