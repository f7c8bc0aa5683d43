"""`quant_method: compressed-tensors`, as llm-compressor writes it: groups of modules, each with a scheme for its weights.

| format | weights | a scale for each | tensors of a module |
|---|---|---|---|
| `pack-quantized` | int 4 or 8 | group, row | `integers.PackedIntegers` |
| `int-quantized` | int 8 | group, row, tensor | `integers.IntQuantized` |
| `float-quantized` | e4m3 | block of 128 x 128, row, tensor | `floats.FloatQuantized` |
| `nvfp4-pack-quantized` | e2m1 | 16 columns of a row, tensor | `nvfp4.COMPRESSED_TENSORS` |

Quantised activations and caches are not implemented: they stay in 16 bits. Layouts are those of the library's compressors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from engine.formats.fields import Fields
from engine.formats.floats import FloatQuantized
from engine.formats.integers import IntQuantized, PackedIntegers
from engine.formats.nvfp4 import COMPRESSED_TENSORS, GROUP
from engine.formats.quantization import LINEAR, Group, Quantization, Scheme, check_expressions

FORMATS: Final = ("pack-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized")

INERT_ARGUMENTS: Final = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
"""Keys of weights' arguments that say how scales were found, or repeat dtypes that the tensors have."""


def read(fields: Fields) -> Quantization:
    """What a config says; ModelError names the key that is not supported."""
    fields.one_of("quant_method", "compressed-tensors")
    fields.one_of("quantization_status", "compressed", default="compressed")
    sparsity = fields.object("sparsity_config")
    if sparsity is not None:
        sparsity.one_of("format", "dense", default="dense")
    found = fields.object("config_groups")
    names = found.names() if found is not None else ()
    if found is None or not names:
        fields.refuse("config_groups", "an object of groups")
    groups = tuple(_group(found, name, fields) for name in names)
    fields.ignore("kv_cache_scheme", "global_compression_ratio", "version")
    skipped = fields.strings("ignore")
    check_expressions(fields, "ignore", skipped)
    fields.finish()
    return Quantization("compressed-tensors", groups, skipped)


def _group(found: Fields, name: str, config: Fields) -> Group:
    """One of the config's groups; ModelError names the key that is not supported."""
    group = found.object(name)
    if group is None:
        found.refuse(name, "an object")
    targets = group.strings("targets")
    if not targets:
        group.refuse("targets", f'a list of names of modules, or of "{LINEAR}"')
    check_expressions(group, "targets", targets)
    own = group.get("format") is not None
    kind = (group if own else config).one_of("format", *FORMATS)
    if own:
        config.one_of("format", *FORMATS, "mixed-precision", default="mixed-precision")
    if group.get("output_activations") is not None:
        group.refuse("output_activations", "absent: quantised outputs are not supported")
    group.ignore("input_activations")
    weights = group.object("weights")
    if weights is None:
        group.refuse("weights", "an object")
    scheme = _scheme(kind, weights)
    group.finish()
    return Group(targets, scheme)


def _scheme(kind: str, weights: Fields) -> Scheme:
    weights.flag("dynamic", False)
    if weights.get("dynamic"):
        weights.refuse("dynamic", "false: scales of weights are in the file")
    weights.ignore(*INERT_ARGUMENTS)
    scheme = _SCHEMES[kind](weights)
    weights.finish()
    return scheme


def _packed_integers(weights: Fields) -> Scheme:
    weights.one_of("type", "int")
    bits = weights.one_of("num_bits", 4, 8)
    weights.one_of("actorder", "weight", "static", "group", "dynamic", default="static")
    return PackedIntegers(bits, _group_size(weights, "group", "channel"), weights.flag("symmetric", True))


def _int_quantized(weights: Fields) -> Scheme:
    weights.one_of("type", "int")
    weights.one_of("num_bits", 8)
    weights.one_of("actorder", "weight", "static", default="static")
    strategy = _strategy(weights, "channel", "group", "tensor")
    group = _size(weights) if strategy == "group" else -1
    return IntQuantized(group, strategy == "tensor", weights.flag("symmetric", True))


def _float_quantized(weights: Fields) -> Scheme:
    weights.one_of("type", "float")
    weights.one_of("num_bits", 8)
    weights.one_of("symmetric", True, default=True)
    weights.ignore("group_size", "actorder")
    strategy = _strategy(weights, "tensor", "channel", "block")
    block = weights.get("block_structure")
    if strategy == "block" and block not in ([128, 128], "128x128"):
        weights.refuse("block_structure", "[128, 128]")
    return FloatQuantized(strategy)


def _nvfp4(weights: Fields) -> Scheme:
    weights.one_of("type", "float")
    weights.one_of("num_bits", 4)
    weights.one_of("symmetric", True, default=True)
    _strategy(weights, "tensor_group")
    weights.one_of("group_size", GROUP)
    weights.ignore("actorder")
    return COMPRESSED_TENSORS


_SCHEMES: Final[Mapping[str, Callable[[Fields], Scheme]]] = dict(
    zip(FORMATS, (_packed_integers, _int_quantized, _float_quantized, _nvfp4), strict=True)
)


def _strategy(weights: Fields, *supported: str) -> str:
    return weights.one_of("strategy", *supported)


def _group_size(weights: Fields, *supported: str) -> int:
    """Columns of a group, -1 for a row. The strategy may be left out: a size then means groups, as in the library."""
    if weights.get("strategy") is None and weights.get("group_size") is not None:
        return _size(weights)
    if _strategy(weights, *supported) == "group":
        return _size(weights)
    weights.one_of("group_size", -1, default=-1)
    return -1


def _size(weights: Fields) -> int:
    return weights.group_size("group_size")
