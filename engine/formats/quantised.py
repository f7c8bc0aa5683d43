"""The quantised weights of a model folder: which of the weights that a model needs are quantised, and their forms.

The files decide whether a weight is quantised, and `quantization_config` how: a 16-bit `weight` is read as it is.
Headers of all modules are checked before any data is read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final

from engine.checkpoint.json_file import show
from engine.checkpoint.safetensors_file import SafetensorsFile
from engine.errors import ModelError
from engine.formats.forms import Form
from engine.formats.quantization import Quantization, Scheme
from engine.formats.stored import Stored

COMPANIONS: Final = ("qweight", "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2")
"""Ends of names that only tensors of quantised modules have; each has one of them in every format."""
CODES: Final = ("F8_E4M3", "F8_E5M2", "I8", "U8", "I32", "F4")
"""Dtypes of a `weight` that is quantised."""

WEIGHT: Final = ".weight"


@dataclass(frozen=True, slots=True)
class Quantised:
    """A weight of a quantised module, whose headers have been checked."""

    stored: Stored
    scheme: Scheme

    def form(self) -> Form:
        """The weight in the layout of its kind, read and repacked now; ModelError for data that are no numbers."""
        return self.scheme.form(self.stored)

    @property
    def tensors(self) -> Iterator[str]:
        """The names of the module's tensors in the files."""
        suffixes = (*self.scheme.suffixes, *self.scheme.unused)
        return (f"{self.stored.name}.{suffix}" for suffix in suffixes if self.stored.has(suffix))


def quantised_weights(
    quantization: Quantization, weights: Iterable[tuple[str, tuple[int, ...]]], files: Mapping[str, SafetensorsFile]
) -> dict[str, Quantised]:
    """The quantised ones of a model's weights, given by name (`X.weight`) and shape, and the files that have each tensor.
    ModelError for a module whose tensors do not fit its scheme or its weight, or that the config says is not quantised."""
    found: dict[str, Quantised] = {}
    for name, shape in weights:
        module = name.removesuffix(WEIGHT)
        evidence = _evidence(module, files)
        if len(shape) != 2 or evidence is None:
            continue
        scheme = quantization.scheme_of(module)
        if scheme is None:
            what = f"tensor {show(evidence)} is of a quantised weight, and `quantization_config` leaves that module in 16 bits"
            raise ModelError(what, where=files[evidence].path, fix="take config.json and the weights of one model")
        weight = Quantised(Stored(module, (shape[0], shape[1]), files), scheme)
        scheme.check(weight.stored)
        found[name] = weight
    return found


def _evidence(module: str, files: Mapping[str, SafetensorsFile]) -> str | None:
    """The name of a tensor that shows that a module is quantised."""
    for suffix in COMPANIONS:
        if f"{module}.{suffix}" in files:
            return f"{module}.{suffix}"
    weight = module + WEIGHT
    return weight if weight in files and files[weight].tensors[weight].dtype in CODES else None


def forms(weights: Mapping[str, Quantised], threads: int | None = None) -> Iterator[tuple[str, Form]]:
    """The forms of weights by their names, in order, repacked by `threads` threads (the number of cores). At most twice as many
    forms as threads exist at a time that the caller has not been given; no other copy is kept."""
    workers = threads or os.cpu_count() or 1
    with ThreadPoolExecutor(workers, thread_name_prefix="repack") as pool:
        names = iter(weights)
        pending: deque[tuple[str, Future[Form]]] = deque()
        try:
            for name in islice(names, 2 * workers):
                pending.append((name, pool.submit(weights[name].form)))
            while pending:
                name, future = pending.popleft()
                form = future.result()
                del future  # it would keep the form alive
                yield name, form
                for following in islice(names, 1):
                    pending.append((following, pool.submit(weights[following].form)))
        finally:
            for _, future in pending:
                future.cancel()
