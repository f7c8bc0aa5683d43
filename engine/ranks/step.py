"""The step of a rank, verified for all ranks when a graph of it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.models.families import family_of
from engine.models.steps import Shape, check_cache_format
from engine.ranks.verify import verify_ranks
from tilec.step.declaration import Declaration
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.graph import StepGraph
from tilec.step.ranks import shared_numbers
from tilec.step.step import NO_VARIANT, Mode, OutputMode, Step, Variants


class RankStep(Step):
    """The step of each of `ranks` ranks. `whole` has the same launches and undivided numbers: what differs between its extents
    and a rank's is what ranks share. StepError if they cannot have equal parts."""

    def __init__(self, declaration: Declaration, numbers: dict[str, Any], ranks: int, **formats: Any) -> None:
        shared_numbers(declaration, numbers, ranks)
        super().__init__(declaration, numbers, ranks=ranks, **formats)
        self.whole = Step(declaration, numbers, ranks=ranks, undivided=True, **formats)
        self._given, self._formats = (declaration, numbers, ranks), formats

    def with_pages(self, pages: int) -> RankStep:
        return RankStep(*self._given, **{**self._formats, "pages": pages})

    def graph(
        self, mode: Mode, head: OutputMode = "argmax", *, tokens: int = 1, past: int = 0, layers: int | None = None,
        variants: Variants = NO_VARIANT,
    ) -> StepGraph:  # fmt: skip
        """As `Step.graph`; GraphError if a rank would read what is not whole, or ranks would not meet."""
        own = super().graph(mode, head, tokens=tokens, past=past, layers=layers, variants=variants)
        whole = self.whole.graph(mode, head, tokens=tokens, past=past, layers=layers, variants=variants)
        verify_ranks([own] * self.ranks, whole)
        return own


def rank_step(
    config: Shape, max_seq_len: int, dtype: str, ranks: int, *, weight_format: str = SIXTEEN_BIT,
    cache_format: str = SIXTEEN_BIT, declaration: Declaration | None = None, measured: Mapping[str, Any] | None = None,
) -> RankStep:  # fmt: skip
    """The step of a rank of a model, as `engine.models.steps.model_step`."""
    family = family_of(config.model_type)
    numbers = family.numbers_of(config)
    check_cache_format(numbers, cache_format)
    numbers |= dict(family.unmeasured if measured is None else measured)
    return RankStep(
        family.declaration() if declaration is None else declaration, numbers, ranks, tied=config.tie_word_embeddings,
        dtype=dtype, max_seq_len=max_seq_len, weight_format=weight_format, cache_format=cache_format,
    )  # fmt: skip
