"""Generates the call function of an op for plain PyTorch tensors: takes a declaration, returns a Python function with its
parameters.

A call must take only a few microseconds, so the function does not loop over parameters: its text is generated for each op, as
`dataclasses` generates `__init__`. For `rms_norm(x, weight, eps)` it is

    def rms_norm(self, x, weight, eps):
        if compiling(): return overload(x, weight, eps)
        entry = last[0]
        if not (entry.alike(x, weight) and (entry.free or not grad())):
            if type(x) is not Tensor and type(x) is not Parameter or x.is_neg() or x.layout is not strided
                    or ... or dispatched() or tracing() or ...:
                return dispatch(x, weight, eps)
            if grad() and (x.requires_grad or weight.requires_grad): return recorded(x, weight, eps)
            key = (x.dtype, x.shape, x.is_contiguous(), x.get_device(), weight.dtype, ...)
            entry = entries.get(key)
            if entry is None: return first(key, (), (x, weight, eps))
            if entry.alike is None or entry is last[0] and entry.chances: learn(entry, (x, weight))
            last[0] = entry
        if type(eps) is not float or not -3.4e38 <= eps <= 3.4e38: eps = checked("eps", eps)
        if entry.device != device(): return elsewhere(entry, call, (self, x, weight, eps))
        out = empty(*entry.made[0])
        try: entry.launch(stream(entry.device), (x.data_ptr(), weight.data_ptr(), out.data_ptr()), (eps,))
        except Refused as error: recover(error, entry); entry.launch(...)
        return out

`alike` is a single check that all tensors, and the state of PyTorch, match those of the last call; `free` says that none of
them requires a gradient, so that none is recorded in any mode. If it fails, tensors are checked one by one. If they are those
of the same entry after all, as after a change of `requires_grad`, another check is learned, a few times. The key contains
everything about tensors that the launch contract depends on except addresses. If the contract depends on integers, their
values are added to the key; if not, the entry's `integers` are None, and each launch gets them as it gets floats. Every name
except the parameters has a prefix, so that parameters may have any name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tilec.frontend import Declared
from tilec.ir.types import DTYPES
from tilec.ops.declaration import Declaration
from tilec.ops.unsigned import LIMIT, is_unsigned

PREFIX: Final = "_tilec_"
TYPES: Final = {"f": "float", "i": "int", "u": "int", "b": "bool"}


def make_call(declaration: Declaration, helpers: Mapping[str, Any], *, guarded: bool) -> Callable[..., Any]:
    """The call function; `helpers` are the names that the text above uses besides the parameters. With `guarded` it is a method
    that forwards arguments other than plain tensors to `dispatch`, and tracing to `overload`."""
    namespace: dict[str, Any] = {PREFIX + name: value for name, value in helpers.items()}
    exec(compile(call_text(declaration, guarded=guarded), f"<tilec.op {declaration.kernel}>", "exec"), namespace)
    call = namespace[declaration.kernel]
    namespace[f"{PREFIX}call"] = call
    return call


def call_text(declaration: Declaration, *, guarded: bool) -> str:
    """The text of the function; all names in it are identifiers, because the front end parsed them."""
    names = [declared.name for declared in declaration.arguments]
    argument_list = "".join(f"{name}, " for name in names)
    tensors = [declared.name for declared in declaration.arguments if declared.access]
    lines = [f"def {declaration.kernel}({', '.join(['@self', *names] if guarded else names)}):"]
    if guarded:
        with_gradient = " or ".join(f"{name}.requires_grad" for name in tensors)
        lines += [
            f"    if @compiling(): return @overload({''.join(f'{_in_schema(one)}, ' for one in declaration.arguments)})",
            "    @entry = @last[0]",
            f"    if not ({_alike(declaration)}):",
            f"        if {_guard(tensors)}: return @dispatch({argument_list})",
            f"        if @grad() and ({with_gradient}): return @recorded({argument_list})",
            *(f"        {line}" for line in _entry(declaration, argument_list)),
            "        if @entry.alike is None or @entry is @last[0] and @entry.chances: "
            f"@learn(@entry, ({''.join(f'{name}, ' for name in tensors)}))",
            "        @last[0] = @entry",
        ]
    else:
        lines += [f"    {one.name} = @from_schema({one.name})" for one in declaration.arguments if _is_unsigned(one)]
        lines += [f"    {line}" for line in _entry(declaration, argument_list)]
    lines += [
        f"    if {_unusual(declared)}: {declared.name} = @checked({declared.name!r}, {declared.name})"
        for declared in declaration.floats
    ]
    repeated = f"@call, (@self, {argument_list})" if guarded else f"@call, ({argument_list})"
    lines.append(f"    if @entry.device != @device(): return @elsewhere(@entry, {repeated})")
    allocated = {declared.name: f"@new{number}" for number, declared in enumerate((*declaration.outputs, *declaration.scratch))}
    lines += [f"    {name} = @empty(*@entry.made[{number}])" for number, name in enumerate(allocated.values())]
    pointers = "".join(f"{allocated.get(declared.name, declared.name)}.data_ptr(), " for declared in declaration.tensors)
    launch = f"@entry.launch(@stream(@entry.device), ({pointers}), {_scalars(declaration)})"
    lines += [f"    try: {launch}", f"    except @Refused as @error: @recover(@error, @entry); {launch}"]
    lines += [f"    if not {name}.is_inference(): @written(({name},))" for name in tensors if name in declaration.mutated]
    results = [allocated[declared.name] for declared in declaration.outputs]
    lines.append(f"    return {', '.join(results) or 'None'}")
    return "\n".join(lines).replace("@", PREFIX) + "\n"


def _is_unsigned(declared: Declared) -> bool:
    return not declared.access and is_unsigned(declared.dtype)


def _in_schema(declared: Declared) -> str:
    """An argument as PyTorch's schema has it: of u64 by its bits, where it is not the same number."""
    name = declared.name
    return f"({name} if 0 <= {name} < {LIMIT} else @checked_bits({name!r}, {name}))" if _is_unsigned(declared) else name


def _integers(declaration: Declaration) -> list[Declared]:
    """Scalars that are part of the key, unless the contract depends on none of them."""
    return [declared for declared in declaration.arguments if not declared.access and not DTYPES[declared.dtype].is_float]


def _scalars(declaration: Declaration) -> str:
    """The scalars that a launch gets."""
    every = "".join(f"{declared.name}, " for declared in declaration.arguments if not declared.access)
    floats = "".join(f"{declared.name}, " for declared in declaration.floats)
    return f"(({every}) if @entry.integers is None else ({floats}))" if _integers(declaration) else f"({floats})"


def _alike(declaration: Declaration) -> str:
    tensors = ", ".join(declared.name for declared in declaration.arguments if declared.access)
    tests = [f"@entry.alike({tensors})", "(@entry.free or not @grad())"]
    if integers := _integers(declaration):
        tests += [f"not ({_unusual(declared)})" for declared in integers]
        equal = " and ".join(f"{declared.name} == @entry.integers[{number}]" for number, declared in enumerate(integers))
        tests.append(f"(@entry.integers is None or {equal})")
    return " and ".join(tests)


def _entry(declaration: Declaration, argument_list: str) -> list[str]:
    """Looks up the entry of a call, or makes the first call of its kind."""
    lines = [
        f"if {_unusual(declared)}: {declared.name} = @checked({declared.name!r}, {declared.name})"
        for declared in _integers(declaration)
    ]
    integers = "".join(f"{declared.name}, " for declared in _integers(declaration))
    return [
        *lines,
        f"@key = ({''.join(_key(declared) for declared in declaration.arguments if declared.access)})",
        "@entry = @entries.get(@key)",
        *([f"if @entry is None: @entry = @entries.get((*@key, {integers}))"] if integers else []),
        f"if @entry is None: return @first(@key, ({integers}), ({argument_list}))",
    ]


def _guard(tensors: list[str]) -> str:
    plain = [f"@type({name}) is not @Tensor and @type({name}) is not @Parameter or {name}.is_neg()" for name in tensors]
    plain += [f"{name}.layout is not @strided" for name in tensors]
    return " or ".join([*plain, "@dispatched()", "@tracing()", "@transformed() is not None"])


def _unusual(declared: Declared) -> str:
    """The condition under which a scalar must be checked: another type than its own, or a number that may be out of range."""
    dtype = DTYPES[declared.dtype]
    other_type = f"@type({declared.name}) is not @{TYPES[dtype.kind]}"
    if dtype.kind == "b":
        return other_type
    low, high = (-dtype.largest, dtype.largest) if dtype.is_float else dtype.integer_range()
    return f"{other_type} or not {low!r} <= {declared.name} <= {high!r}"


def _key(declared: Declared) -> str:
    layout = "is_contiguous()" if declared.contiguous else "stride()"
    return f"{declared.name}.dtype, {declared.name}.shape, {declared.name}.{layout}, {declared.name}.get_device(), "
