"""Reads the step of a model family: takes its text or syntax tree, returns a `Declaration`, or raises StepError with the
offending line.

The text is parsed as Python and never run; anything outside the language (`tilec/step/__init__.py`) is rejected.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any, Final

from tilec.step import parsing
from tilec.step.caches import CODED_CACHES, is_coded, with_caches
from tilec.step.declaration import (
    DTYPE,
    LENGTHS,
    TOKENS,
    Activations,
    CacheFormat,
    Condition,
    Declaration,
    Declared,
    Items,
    Launch,
    Layers,
    Reference,
    Sharding,
    Statement,
    Sum,
    Variant,
)  # fmt: skip
from tilec.step.expressions import PREVIOUS, Expression, StepError, expression
from tilec.step.formats import CODED_HEAD, Format, grouped, in_format, scaled
from tilec.step.graph import CHUNK, ITEM_BYTES, SERVE, Kind
from tilec.step.layers import FIRST, LAST
from tilec.step.ranks import RANKS, read_shards, read_sums
from tilec.step.syntax import decode, encode

MAX_TEXT: Final = 1 << 17
"""Maximum number of characters of a text; that of Qwen3 has some 10,000."""

MAX_FORMATS: Final = 8
"""Maximum number of formats of weights: the statements of a step are kept once for each."""

MAX_KINDS: Final = 4
"""Maximum number of kinds of layers: launches are looked for in each combination of those of a layer and the one before."""

KINDS: Final = {kind.value: kind for kind in Kind if kind is not Kind.WEIGHT}
FACTS: Final = ("low", "high", "distinct", "distinct_in_rows")
WRITTEN: Final = frozenset({Kind.ACTIVATION, Kind.OUTPUT})
"""Kinds whose contents only kernels of the step write."""
LAYER_FLAGS: Final = frozenset({FIRST, LAST})
FILLED: Final = "filled"
"""The largest number of filled slots that a cache of the step has, this step's token included."""
SERVES: Final = "serve=True"
RESERVED: Final = LENGTHS | LAYER_FLAGS | {
    DTYPE, FILLED, RANKS, CODED_CACHES, CODED_HEAD, "max_seq_len", "head", "mode", "pages",
}  # fmt: skip
"""Names whose values come from the request for a step, or change within it."""
REQUIRED: Final = ("decode", "prefill")
MODES: Final = (*REQUIRED, "batch", CHUNK, SERVE)


def read_declaration(text: str) -> Declaration:
    """The declaration in a text; StepError at the first error."""
    if len(text) > MAX_TEXT:
        raise StepError(f"a step has more than {MAX_TEXT} characters")
    try:
        tree = parsing.module(text)
    except SyntaxError as error:
        found = StepError(f"not the syntax of a step: {error.msg}")
        found.line, found.column, found.end = error.lineno or 0, max(0, (error.offset or 1) - 1), error.offset or 1
        raise found from None
    except (ValueError, RecursionError, MemoryError):  # a NUL character, or nesting that is too deep
        raise StepError("not the syntax of a step: it has a NUL or is nested too deeply") from None
    return _read(tree)


def decode_declaration(syntax: Any) -> Declaration:
    """The declaration with this `syntax`; StepError if it is invalid."""
    return _read(decode(syntax))


def _read(tree: ast.Module) -> Declaration:
    try:
        return _Reader().read(tree)
    except RecursionError:
        raise StepError("a step is nested too deeply") from None


class _Reader:
    def __init__(self) -> None:
        self.numbers: list[tuple[str, Expression]] = []
        self.weights: dict[str, Declared] = {}
        self.buffers: dict[str, Declared] = {}
        self.tied: dict[str, str] = {}
        self.variants: dict[str, Variant] = {}
        self.kinds: dict[str, str] = {}
        self.formats: dict[str, Format] = {}
        self.caches: dict[str, CacheFormat] = {}
        self.shards: dict[str, Sharding] = {}
        self.sums: dict[str, Sum] = {}
        self.modes: dict[str, tuple[Statement, ...]] = {}
        self.by_short_name: dict[tuple[int, str], Declared] = {}  # keyed by how many loops it is in, and its short name
        self.counts: dict[str, str] = {}
        self.count = ""  # of the loop in a layer that is read

    def read(self, tree: ast.Module) -> Declaration:
        for node in tree.body:
            match node:
                case ast.Expr(value=ast.Constant(value=str())):
                    pass
                case ast.Assign(targets=[ast.Name(id="weights")], value=ast.Dict() as table):
                    for name, value in _items(table):
                        self.declare(self.weights, self.weight(name, value), value)
                case ast.Assign(targets=[ast.Name(id="buffers")], value=ast.Dict() as table):
                    for name, value in _items(table):
                        self.declare(self.buffers, self.buffer(name, value), value)
                case ast.Assign(targets=[ast.Name(id="tied")], value=ast.Dict() as table):
                    self.tied = {name: self.tied_to(name, value) for name, value in _items(table)}
                case ast.Assign(targets=[ast.Name(id="formats")], value=ast.Dict() as table):
                    self.formats = {}
                    for name, value in _items(table):
                        self.formats[name] = self.format(name, value)
                    if len(self.formats) > MAX_FORMATS:
                        raise StepError(f"a step has more than {MAX_FORMATS} formats", node)
                case ast.Assign(targets=[ast.Name(id="caches")], value=ast.Dict() as table):
                    self.caches = {name: self.cache_format(name, value) for name, value in _items(table)}
                    if len(self.caches) > MAX_FORMATS:
                        raise StepError(f"a step has more than {MAX_FORMATS} formats of caches", node)
                case ast.Assign(targets=[ast.Name(id="shards")], value=ast.Dict() as table):
                    self.shards = read_shards(_items(table), self.weights)
                case ast.Assign(targets=[ast.Name(id="sums")], value=ast.Dict() as table):
                    self.sums = read_sums(_items(table), _items)
                case ast.Assign(targets=[ast.Name(id="variants")], value=ast.Dict() as table):
                    if self.weights or self.buffers or self.modes or self.variants:
                        raise StepError("`variants` are declared once, before `weights`, `buffers` and modes", node)
                    self.variants = {name: self.variant(name, value) for name, value in _items(table)}
                case ast.Assign(targets=[ast.Name(id="layer_kinds")], value=ast.Dict() as table):
                    if self.weights or self.buffers or self.modes or self.kinds:
                        raise StepError("`layer_kinds` are declared once, before `weights`, `buffers` and modes", node)
                    self.kinds = {name: self.kind(name, value) for name, value in _items(table)}
                    if len(self.kinds) > MAX_KINDS:
                        raise StepError(f"a step has more than {MAX_KINDS} kinds of layers", node)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=same)) if name in MODES and same in self.modes:
                    if name in self.modes:
                        raise StepError(f"`{name}` is there twice", node)
                    self.modes[name] = self.modes[same]
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    if any(name == other for other, _ in self.numbers) or name in self.variants or name in self.kinds:
                        raise StepError(f"`{name}` is there twice", node)
                    if name in RESERVED:
                        raise StepError(f"`{name}` is given, and cannot be a number of the step", node)
                    self.numbers.append((name, expression(value)))
                case ast.FunctionDef(name=name, args=ast.arguments(args=[]), body=body) if (
                    name in MODES and name not in self.modes
                ):
                    self.modes[name] = self.statements(body, None)
                case _:
                    known = "`weights`, `buffers`, `tied`, `variants`, `layer_kinds`, `formats`, `caches`, `shards`, `sums`"
                    raise StepError(f"not a number, {known}, `def decode()`, `def prefill()` or `def batch()`", node)
        missing = next((mode for mode in REQUIRED if mode not in self.modes), None)
        if missing is not None:
            raise StepError(f"there is no `def {missing}()`")
        unused = next((name for name, one in self.weights.items() if one.loops > 1 and name not in self.counts), None)
        if unused is not None:
            raise StepError(f"`{unused}` has an item of a loop, and no loop uses it")
        declaration = Declaration(
            encode(tree), tuple(self.numbers), self.weights, self.buffers, self.tied, self.variants, self.modes, self.counts,
            kinds=self.kinds,
        )  # fmt: skip
        formats = {name: (form, in_format(declaration, form)) for name, form in self.formats.items()}
        return with_caches(replace(declaration, formats=formats, shards=self.shards, sums=self.sums), self.caches)

    def declare(self, table: dict[str, Declared], declared: Declared, node: ast.expr) -> None:
        in_layer = declared.name.partition("*.")[2] if declared.per_layer and "*." in declared.name else declared.name
        short_name = in_layer.replace("*.", "").removesuffix(".*").removesuffix(".weight")
        if declared.name in self.weights or declared.name in self.buffers or (declared.loops, short_name) in self.by_short_name:
            raise StepError(f"`{declared.name}` is there twice, or `{short_name}` is another's short name", node)
        if any(name.count("*") != declared.loops + bool(declared.items) for name in declared.rows):
            raise StepError(f"the rows of `{declared.name}` are not in the same loops", node)
        table[declared.name] = self.by_short_name[declared.loops, short_name] = declared

    def weight(self, name: str, node: ast.expr) -> Declared:
        match node:
            case ast.Call(func=ast.Name(id="linear"), args=[inner], keywords=[]):
                found = self.weight(name, inner)
                if found.linear or any(len(shape) != 2 for shape in found.rows.values()):
                    raise StepError(f"`{name}` is not a matrix, as the weight of a linear layer is", node)
                return replace(found, linear=True)
            case ast.Call(func=ast.Name(id="only"), args=[test, inner], keywords=[]):
                found, layers = self.weight(name, inner), expression(test)
                if not found.per_layer or found.only is not None or not layers.names or not layers.names <= self.kinds.keys():
                    raise StepError(f"`{name}` is not a weight of layers of some kinds, as `only(dense, [hidden_size])`", node)
                return replace(found, only=layers)
            case ast.Call(func=ast.Name(id="each"), args=[ast.Name(id=count), ast.Dict() as table], keywords=[]):
                found = self.weight(name, table)
                if found.loops != 1 or count in RESERVED or count == "layers":
                    raise StepError(f"`{name}` does not stack the items of a layer, as `each(experts, {{...}})`", node)
                return replace(found, items=count)
            case _:
                pass
        if isinstance(node, ast.Dict):
            rows = {piece: self.shape(value) for piece, value in _items(node)}
            shapes = list(rows.values())
            if not shapes or any(len(shape) != 2 for shape in shapes):
                raise StepError(f"the rows of `{name}` are not matrices", node)
            return Declared(name, Kind.WEIGHT, DTYPE, (), {}, rows)
        shape = self.shape(node)
        return Declared(name, Kind.WEIGHT, DTYPE, shape, {}, {name: shape})

    def tied_to(self, name: str, node: ast.expr) -> str:
        if name not in self.weights or not isinstance(node, ast.Constant) or node.value not in self.weights:
            raise StepError(f"`{name}` is not a weight that is tied to another", node)
        if any(self.weights[one].linear for one in (name, str(node.value))):
            raise StepError(f"`{name}` is tied, and tied weights have 16 bits: neither is `linear`", node)
        return str(node.value)

    def format(self, name: str, node: ast.expr) -> Format:
        match node:
            case ast.Call(
                func=ast.Name(id="scaled"),
                args=[ast.Name(id="f8e4m3" as dtype), ast.List(elts=[ast.Constant(value=rows), ast.Constant(value=columns)])],
                keywords=[],
            ) if name.isidentifier() and type(rows) is int and type(columns) is int and min(rows, columns) > 0:
                return scaled(name, dtype, (rows, columns))
            case ast.Call(
                func=ast.Name(id="grouped"),
                args=[ast.Name(id="u4"), ast.Constant(value=group)],
                keywords=[
                    ast.keyword(arg="scales", value=ast.Name(id="dtype" | "bf16" | "f16" as scales)),
                    ast.keyword(arg="zeros", value=ast.Name(id="u8" as zeros)),
                    ast.keyword(arg="rows", value=ast.Constant(value=rows)),
                ],
            ) if name.isidentifier() and type(group) is int and type(rows) is int and min(group, rows) > 0 and group % 8 == 0:
                return grouped(name, group, scales, zeros, rows)
            case ast.Call(
                func=ast.Name(id="activations"),
                args=[
                    ast.Name(id=weights),
                    ast.Name(id="f8e4m3" as dtype),
                    ast.List(elts=[ast.Constant(value=1), ast.Constant(value=columns)]),
                ],
                keywords=[ast.keyword(arg="above", value=ast.Name(id=above)), *more],
            ) if (
                name.isidentifier() and above not in RESERVED and type(columns) is int and {*map(ast.unparse, more)} <= {SERVES}
            ):
                other = self.formats.get(weights)
                if other is None or other.activations is not None or (other.dtype, other.block[1]) != (dtype, columns):
                    what = f"`{weights}` is no earlier format of weights alone, of {dtype} with scales of {columns} columns"
                    raise StepError(what, node)
                activations = Activations(dtype, (1, columns), above, serve=bool(more))
                return replace(other, name=name, weights=weights, activations=activations)
            case ast.Call(
                func=ast.Name(id="headed"), args=[ast.Name(id=weights), head, ast.Name(id=of_head)], keywords=[]
            ) if name.isidentifier() and (weight := _dotted(head)) is not None:  # fmt: skip
                both = [self.formats.get(one) for one in (weights, of_head)]
                if any(one is None or one.activations is not None or one.head is not None for one in both):
                    raise StepError(f"`{weights}` and `{of_head}` are not earlier formats of weights alone", node)
                base, own = (one for one in both if one is not None)
                return replace(base, name=name, weights=weights, head=(weight, own))
            case _:
                known = (
                    "`scaled(f8e4m3, [128, 128])`, `grouped(u4, 128, scales=dtype, zeros=u8, rows=16)`, "
                    "`activations(FORMAT, f8e4m3, [1, 128], above=NUMBER)`, perhaps with `serve=True`, or "
                    "`headed(FORMAT, lm_head.weight, FORMAT)`"
                )
                raise StepError(f"`{name}` is not a format, as {known}", node)

    def cache_format(self, name: str, node: ast.expr) -> CacheFormat:
        match node:
            case ast.Call(func=ast.Name(id="coded"), args=[ast.Name(id="f8e4m3" as dtype)], keywords=[]) if name.isidentifier():
                return CacheFormat(name, dtype)
            case _:
                raise StepError(f"`{name}` is not a format of caches, as `coded(f8e4m3)`", node)

    def variant(self, name: str, node: ast.expr) -> Variant:
        match node:
            case ast.Call(func=ast.Name(id="at_most"), args=[ast.Name(id=quantity), ast.Name(id=bound)], keywords=[]) if (
                quantity in (TOKENS, FILLED)
            ):
                taken = name in RESERVED or any(name == other for other, _ in self.numbers)
                if taken or not name.isidentifier() or bound in RESERVED:
                    raise StepError(f"`{name}` is given or a number of the step, or `{bound}` is not a number", node)
                return Variant(quantity, bound)
            case _:
                raise StepError(f"`{name}` is not `at_most(tokens, NUMBER)` or `at_most({FILLED}, NUMBER)`", node)

    def kind(self, name: str, node: ast.expr) -> str:
        """The number of the model that lists the layers of a kind."""
        taken = name in RESERVED or name in self.variants or any(name == other for other, _ in self.numbers)
        if taken or not name.isidentifier() or not isinstance(node, ast.Name) or node.id in RESERVED:
            raise StepError(f"`{name}` is given or a number of the step, or is not the name of a list of layers", node)
        return node.id

    def statements(self, nodes: list[ast.stmt], layer: bool | None) -> tuple[Statement, ...]:
        """Statements of a mode. `layer` is True inside the layer loop, False where the loop is not allowed, None where it
        is."""
        parsed: list[Statement] = []
        for node in nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=kernel), args=[]) as call):
                    parsed.append(self.launch(name, kernel, call, node, bool(layer)))
                case ast.If():
                    test = expression(node.test)
                    if test.names & LAYER_FLAGS and not layer:
                        raise StepError("only a layer is the first or the last", node.test)
                    if test.names & self.kinds.keys() and not layer:
                        raise StepError("only a layer is of a kind; the last one's is that of `previous`", node.test)
                    if test.names & (LENGTHS | {FILLED}):
                        raise StepError("a condition may depend on how many tokens there are only by `variants`", node.test)
                    inner_layer = False if layer is None else layer
                    parsed.append(
                        Condition(test, self.statements(node.body, inner_layer), self.statements(node.orelse, inner_layer))
                    )
                case ast.For(target=ast.Name(id="layer"), iter=ast.Name(id="layers"), orelse=[]) if layer is None:
                    parsed.append(Layers(self.statements(node.body, True)))
                case ast.For(target=ast.Name(id=item), iter=ast.Name(id=count), orelse=[]) if (
                    layer and not self.count and item not in ("layer", count)
                    and count not in RESERVED and count != "layers" and count not in self.variants
                ):  # fmt: skip
                    self.count = count
                    parsed.append(Items(item, count, self.statements(node.body, True), node))
                    self.count = ""
                case ast.Pass():
                    pass
                case _:
                    raise StepError(
                        "not a launch `name = kernel(parameter=value)`, an `if`, `for layer in layers`, or a loop in it",
                        node,
                    )
        return tuple(parsed)

    def launch(self, name: str, kernel: str, call: ast.Call, node: ast.stmt, layer: bool) -> Launch:
        constants: dict[str, Expression] = {}
        tensors: dict[str, Reference] = {}
        scalars: dict[str, Expression] = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise StepError("a launch names each parameter", keyword.value)
            if keyword.arg.isupper():
                constants[keyword.arg] = self.chunk_invariant(keyword.value)
            elif (tensor := self.reference(keyword.value, layer)) is not None:
                tensors[keyword.arg] = tensor
            else:
                scalars[keyword.arg] = self.layer_invariant(keyword.value)
        linear = [reference for reference in tensors.values() if reference.declared.linear]
        if any(reference.quantised for reference in tensors.values()) and not (
            linear and all(reference.dequantised for reference in linear)
        ):
            raise StepError("only a product with `dequantised(...)` weights takes `quantised(...)` activations", node)
        return Launch(name, kernel, constants, tensors, scalars, node)

    def reference(self, node: ast.expr, layer: bool) -> Reference | None:
        """The tensor that an argument refers to, or None."""
        match node:
            case ast.Call(func=ast.Name(id="dequantised"), args=[inner], keywords=[]):
                found = self.stored(inner, layer)
                if found is None or not (found.declared.linear or is_coded(found.declared)):
                    raise StepError(f"`{ast.unparse(inner):.60}` is not a weight of a linear layer, nor a cache", node)
                return replace(found, dequantised=True)
            case ast.Call(func=ast.Name(id="quantised"), args=[inner], keywords=[]):
                found = self.stored(inner, layer)
                if (
                    found is None or found.declared.kind is not Kind.ACTIVATION or found.declared.dtype != DTYPE
                    or len(found.shape or found.declared.shape) != 2
                ):  # fmt: skip
                    raise StepError(f"`{ast.unparse(inner):.60}` is not a matrix of activations of 16 bits", node)
                return replace(found, quantised=True)
            case _:
                return self.stored(node, layer)

    def stored(self, node: ast.expr, layer: bool) -> Reference | None:
        """The tensor that an argument names as it is stored, or None."""
        shape: tuple[Expression, ...] | None = None
        if isinstance(node, ast.Subscript):
            axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            shape, node = tuple(map(self.chunk_invariant, axes)), node.value
        name = _dotted(node)
        if name is None:
            return None
        short_name = name.removeprefix(PREVIOUS)
        found = self.by_short_name.get((2, short_name)) if self.count and short_name == name else None
        found = found or (self.by_short_name.get((1, short_name)) if layer or short_name != name else None)
        found = found or (self.by_short_name.get((0, short_name)) if short_name == name else None)
        if found is None and (2, short_name) in self.by_short_name:
            raise StepError(f"`{name}` has an item of a loop in a layer, and is not used in one", node)
        if found is None and (short_name != name or shape is not None or "." in name):
            raise StepError(f"there is no buffer or weight `{name}`", node)
        if found is not None and found.loops > 1 and self.counts.setdefault(found.name, self.count) != self.count:
            raise StepError(f"`{found.name}` has `{self.counts[found.name]}` items in another loop, not `{self.count}`", node)
        return None if found is None else Reference(found, short_name != name, shape)

    def buffer(self, name: str, node: ast.expr) -> Declared:
        match node:
            case ast.Call(func=ast.Name(id=kind), args=[ast.Name(id=dtype), shape], keywords=facts) if (
                kind in KINDS and (dtype in ITEM_BYTES or dtype == DTYPE) and all(fact.arg in FACTS for fact in facts)
            ):
                bounds = {str(fact.arg): self.chunk_invariant(fact.value) for fact in facts}
                declared = Declared(name, KINDS[kind], dtype, self.shape(shape), bounds, {})
                if "distinct_in_rows" in bounds and (declared.kind not in WRITTEN or len(declared.shape) < 2):
                    raise StepError(f"`{name}` has rows that no kernel writes: `distinct_in_rows` is for an activation or an "
                                    "output of two axes or more", node)  # fmt: skip
                return declared
            case _:
                kinds = ", ".join(KINDS)
                raise StepError(f"`{name}` is not one of {kinds}, as `input(i32, [tokens], low=0, high=vocab_size)`", node)

    def shape(self, node: ast.expr) -> tuple[Expression, ...]:
        if not isinstance(node, ast.List) or not 1 <= len(node.elts) <= 8:
            raise StepError("not a shape, as `[tokens, hidden_size]`", node)
        return tuple(map(self.chunk_invariant, node.elts))

    def layer_invariant(self, node: ast.expr) -> Expression:
        """An expression that has the same value in every layer and variant."""
        found = expression(node)
        of_layers = {*self.kinds, *(f"{PREVIOUS}{kind}" for kind in self.kinds)}
        if found.names & {*LAYER_FLAGS, *self.variants, *of_layers, FILLED}:
            raise StepError("only a condition may ask for the first or last layer, a layer's kind, or for a variant", node)
        return found

    def chunk_invariant(self, node: ast.expr) -> Expression:
        """An expression that does not depend on the position of a chunk in its sequence, as required of shapes and
        constants."""
        found = self.layer_invariant(node)
        if "past" in found.names:
            raise StepError("only a scalar may depend on how many tokens came before", node)
        return found


def _items(table: ast.Dict) -> list[tuple[str, ast.expr]]:
    """Names and values of a dict with string keys."""
    found: dict[str, ast.expr] = {}
    for key, value in zip(table.keys, table.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or not 0 < len(key.value) < 200:
            raise StepError("not a name", key or value)
        if key.value in found or key.value.count("*") > 2:
            raise StepError(f"`{key.value}` is there twice, or has more than two `*`", key)
        found[key.value] = value
    return list(found.items())


def _dotted(node: Any) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        prefix = _dotted(node.value)
        return None if prefix is None else f"{prefix}.{node.attr}"
    return None
