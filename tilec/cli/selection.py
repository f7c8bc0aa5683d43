"""What `tilec build` is asked for, by names of kernels or by models and dtypes, and the artifacts that answer it.

In: the build file and the values of `--model`, `--weights`, `--cache`, `--gpus`, `--dtype` and `--all`. Out: entries with the
specialisations to build (`Selected`), or a UsageError with what to write instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tilec.cli.pack_command import chosen_models, needed_entries
from tilec.cli.project import UsageError, chosen_caches, chosen_entries, chosen_gpus, chosen_weights
from tilec.diagnostics.diagnostic import Diagnostic
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.closed_world import Use, enumerate_world
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant
from tilec.step.step import DTYPES
from tilec.target.targets import Target

DEFAULT_DTYPES: Final = ("bf16",)
"""The dtype that models are published in."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The options of a build, as they were given. `everything` is `--all`."""

    kernels: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    weights: str | None = None
    caches: str | None = None
    gpus: str | None = None
    dtypes: tuple[str, ...] = ()
    everything: bool = False

    def check(self, *, plan: bool) -> None:
        """UsageError for options that exclude each other. A plan of one kernel can be of several formats, a build cannot."""
        formats = {"--weights": self.weights, "--cache": self.caches, "--gpus": self.gpus}
        of_formats = [name for name, given in formats.items() if given is not None]
        others = [name for name, given in {"--model": self.models, "--dtype": self.dtypes}.items() if given]
        if self.everything:
            given = [*(["the names of kernels"] if self.kernels else []), *(f"`{name}`" for name in (*others, *of_formats))]
            if given:
                raise UsageError(f"`--all` is everything in the build file; leave it out, or {' and '.join(given)}")
        option = next(iter([*others, *([] if plan else of_formats)]), None)
        if self.kernels and option is not None:
            raise UsageError(f"a kernel that is named is built at every specialisation; leave out `{option}`")


@dataclass(frozen=True, slots=True)
class Selected:
    """The entries to build and the uses that ask for them; `problems` of the closed world, which is checked in every dtype.
    `whole`: artifacts of earlier builds that are not among these are removed. `aligned`: with aligned versions. `left`: how
    many more specialisations there are in every dtype."""

    entries: tuple[KernelEntry, ...]
    uses: tuple[Use, ...]
    problems: tuple[Diagnostic, ...]
    whole: bool
    aligned: bool
    left: int


def select(build: BuildFile, targets: tuple[Target, ...] | None, asked: Selection, *, plan: bool = False) -> Selected:
    """What `asked` stands for. The closed world of named kernels is only enumerated for a plan. UsageError for a model, format,
    dtype or kernel that the build file does not have."""
    asked.check(plan=plan)
    text = "all" if asked.everything else None
    formats = (
        chosen_weights(build, text or asked.weights),
        chosen_caches(build, text or asked.caches),
        chosen_gpus(build, text or asked.gpus),
    )
    dtypes = DTYPES if asked.everything or asked.kernels else chosen_dtypes(build, asked.dtypes)
    if asked.kernels and not plan:
        return Selected(chosen_entries(build, asked.kernels), (), (), whole=False, aligned=True, left=0)
    models = chosen_models(build, asked.models, *formats) if asked.models else ()
    world = enumerate_world(build, targets, models, *formats)
    if asked.models:
        uses = tuple(use for use in world.uses if in_dtypes(use.constants, dtypes))
        left = {use.artifact for use in world.uses} - {use.artifact for use in uses}
        entries = needed_entries(replace(world, uses=uses))
        return Selected(entries, uses, world.problems, whole=False, aligned=False, left=len(left))
    whole = build.entries if asked.everything else chosen_entries(build, asked.kernels, world)
    entries = narrowed_to(whole, dtypes) if build.models else whole
    names = {entry.name for entry in entries}
    uses = tuple(use for use in world.uses if use.kernel in names and in_dtypes(use.constants, dtypes))
    counts = (sum(len(one.specialisations()) for one in some if one.among(targets)) for some in (whole, entries))
    return Selected(entries, uses, world.problems, whole=not asked.kernels, aligned=True, left=next(counts) - next(counts))


def chosen_dtypes(build: BuildFile, texts: Iterable[str]) -> tuple[str, ...]:
    """The dtypes of steps in lists, or `all` (default: bf16). UsageError for one that no step has."""
    given = tuple(texts)
    if not given:
        return DEFAULT_DTYPES
    if not build.models:
        raise UsageError(f"`{build.path.name}` has no `[[model]]`, so all dtypes of its kernels are built; leave out `--dtype`")
    wanted = [name for text in given for name in text.split(",") if name]
    formats = {each for model in build.models for each in (*model.weights, *model.caches)}
    for name in wanted:
        if name not in (*DTYPES, "all"):
            of_weights = f"; `{name}` is a format of weights or caches (`--weights`, `--cache`)" if name in formats else ""
            raise UsageError(f"no step runs in the dtype `{name:.60}`; the dtypes are {', '.join(DTYPES)}{of_weights}")
    if not wanted:
        raise UsageError("`--dtype` names no dtype; write it as `--dtype f16`")
    return DTYPES if "all" in wanted else tuple(dict.fromkeys(wanted))


def in_dtypes(constants: Mapping[str, Constant], dtypes: Collection[str]) -> bool:
    """Whether a specialisation is for steps in `dtypes`: a constant names one of them, or none names a dtype of steps."""
    named = {value for value in constants.values() if value in DTYPES}
    return not named or not named.isdisjoint(dtypes)


def narrowed_to(entries: Sequence[KernelEntry], dtypes: Collection[str]) -> tuple[KernelEntry, ...]:
    """The entries without specialisations that are not `in_dtypes`, in the same order."""
    found: list[KernelEntry] = []
    for entry in entries:
        named = {name: values for name, values in entry.constants.items() if not set(values).isdisjoint(DTYPES)}
        choices = [dict(zip(named, values, strict=True)) for values in itertools.product(*named.values())]
        kept = [choice for choice in choices if in_dtypes(choice, dtypes)]
        if len(kept) == len(choices):
            found.append(entry)
            continue
        for choice in kept:
            single = {name: (value,) for name, value in choice.items()}
            found.append(replace(entry, constants={**entry.constants, **single}))
    return tuple(found)
