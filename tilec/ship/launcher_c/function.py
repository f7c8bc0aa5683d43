"""Generates the C function that launches one kernel, from its manifest: a declaration for the header, and a definition.

The caller passes addresses, extents, strides and scalars. The function checks every clause of the launch contract before it
launches, with one exception: it cannot check that a tensor really has the given extents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilec.artifact.records import Manifest, TensorSpec, ValueCheck
from tilec.ir.expr import Expr
from tilec.ir.types import DTYPES
from tilec.ship.launcher_c.text import comment, expression, literal, parameter_names


@dataclass(frozen=True, slots=True)
class Function:
    """The generated C text. A comment in `declaration` describes the parameters; both end with a newline."""

    declaration: str
    definition: str


def unsupported_reason(manifest: Manifest) -> str:
    """Why a kernel cannot have a C function, as the end of a sentence; empty if it can."""
    if manifest.tensor_maps:
        return "takes tensor maps"
    return "is launched in clusters" if manifest.cluster != 1 else ""


def function_of(manifest: Manifest, name: str, kernels: str, number_of: int) -> Function:
    """Generate the function `name`. `kernels` is the C type of the loaded kernels, `number_of` the kernel's index in it.
    ValueError if the contract has a number beyond 64 bits, or a name that is not a parameter."""
    integers = {spec.name for spec in manifest.scalars}
    strides = [slot.name for slot in manifest.abi if slot.kind == "stride"]
    dims = [one for one in dict.fromkeys(_symbols(manifest)) if one not in integers and one not in strides]
    trusted = list(dict.fromkeys(f"trust_{check.tensor}" for check in manifest.value_checks))
    tensors = [spec.name for spec in manifest.tensors]
    names = parameter_names([*tensors, *dims, *strides, *(spec.name for spec in manifest.scalars), *trusted])
    typed = [("tilec_pointer", one) for one in tensors] + [("int64_t", one) for one in (*dims, *strides)]
    typed += [(str(DTYPES[spec.dtype].c), spec.name) for spec in manifest.scalars] + [("int", one) for one in trusted]
    if len({one for _, one in typed}) != len(typed):
        raise ValueError("has two parameters of one name")
    parameters = ", ".join(["tilec_stream stream", *(f"{kind} {names[one]}" for kind, one in typed)])
    head = f"int {name}(\n    const {kernels} *kernels, {parameters})"
    lines = [
        f"{head} {{", f"    static const char tilec_name[] = {literal(manifest.kernel)};", "    tilec_fault tilec_at = {0, 0};",
    ]  # fmt: skip
    for one in (*dims, *strides):
        lines += _checked(f"tilec_check_extent(tilec_name, {literal(one)}, {names[one]})")
    lines += [f"    {names[spec.name]} = {names[spec.name]} != 0;" for spec in manifest.scalars if spec.dtype == "bool"]
    try:
        lines += _tensors(manifest, names)
        lines += _launch_checks(manifest, names)
        grid = [expression(expr, names) for expr in manifest.grid] + ["1"] * (3 - len(manifest.grid))
    except KeyError as missing:
        raise ValueError(f"has a contract that names `{missing.args[0]}`, which is not a parameter") from None
    lines.append(f"    const int64_t tilec_grid[3] = {{{', '.join(grid)}}};")
    lines += _checked('tilec_faulty(tilec_at, tilec_name, "the grid")')
    for axis in range(len(manifest.grid)):
        lines += _checked(f"tilec_check_grid(tilec_name, {axis}, tilec_grid[{axis}])")
    lines += _overlap_checks(manifest)
    lines += _value_checks(manifest, names)
    lines += _launch(manifest, names, number_of)
    lines.append("}")
    return Function(_documented(manifest, head), "\n".join(lines) + "\n")


def _symbols(manifest: Manifest) -> Iterator[str]:
    """Every symbol that a clause uses; the dims of the ABI come first."""
    yield from (slot.name for slot in manifest.abi if slot.kind == "dim")
    for spec in manifest.tensors:
        for expr in (*spec.dims, *(spec.strides or ())):
            yield from expr.symbols()
    for expr in (*manifest.grid, *(check.condition for check in manifest.launch_checks)):
        yield from expr.symbols()


def _checked(call: str) -> list[str]:
    return [f"    TILEC_TRY({call});"]


def _value_checks(manifest: Manifest, names: dict[str, str]) -> Iterator[str]:
    for check in manifest.value_checks:
        text = literal(f"{check.tensor}`: nothing is known of its values; required {_values(check)}")
        yield f"    if ({names[f'trust_{check.tensor}']} != TILEC_TRUSTED)"
        yield f'        return tilec_refuse(913, tilec_name, "argument `%s", {text});'


def _values(check: ValueCheck) -> str:
    return f"{check.low} <= value < {check.high}{check.words}"


def _tensors(manifest: Manifest, names: dict[str, str]) -> Iterator[str]:
    for index, spec in enumerate(manifest.tensors):
        yield f"    const int64_t tilec_extents_{index}[] = {{{_list(spec.dims, names)}}};"
        if spec.strides is not None:
            yield f"    const int64_t tilec_strides_{index}[] = {{{_list(spec.strides, names)}}};"
    yield from _checked('tilec_faulty(tilec_at, tilec_name, "an extent or stride")')
    for index, spec in enumerate(manifest.tensors):
        strides = "NULL" if spec.strides is None else f"tilec_strides_{index}"
        numbers = f"{len(spec.dims)}, {DTYPES[spec.dtype].bytes}, {spec.align}, {int(spec.access != 'in')}"
        yield f"    tilec_tensor tilec_tensor_{index} = {{"
        yield f"        {literal(spec.name)}, {names[spec.name]}, {numbers}, tilec_extents_{index}, {strides}, 0, 0}};"
        yield from _checked(f"tilec_check_extents(tilec_name, &tilec_tensor_{index})")
    for index in range(len(manifest.tensors)):
        yield from _checked(f"tilec_check_layout(tilec_name, &tilec_tensor_{index})")


def _overlap_checks(manifest: Manifest) -> Iterator[str]:
    position = {spec.name: index for index, spec in enumerate(manifest.tensors)}
    for index in position.values():
        yield from _checked(f"tilec_check_place(tilec_name, &tilec_tensor_{index})")
    for left, right in manifest.no_alias:
        yield from _checked(f"tilec_check_apart(tilec_name, &tilec_tensor_{position[left]}, &tilec_tensor_{position[right]})")


def _list(items: tuple[Expr, ...], names: dict[str, str]) -> str:
    return ", ".join(expression(item, names) for item in items) or "1"


def _launch_checks(manifest: Manifest, names: dict[str, str]) -> Iterator[str]:
    for index, check in enumerate(manifest.launch_checks):
        text = literal(check.text)
        yield f"    const int tilec_holds_{index} = {expression(check.condition, names)} != 0;"
        yield from _checked('tilec_faulty(tilec_at, tilec_name, "a precondition")')
        yield f"    if (!tilec_holds_{index})"
        yield f'        return tilec_refuse(910, tilec_name, "a precondition does not hold; required `%s`", {text});'


def _launch(manifest: Manifest, names: dict[str, str], number_of: int) -> Iterator[str]:
    argument_pointers: list[str] = []
    for index, slot in enumerate(manifest.abi):
        if slot.kind == "dim":
            yield f"    int32_t tilec_argument_{index} = (int32_t){names[slot.name]};"
            argument_pointers.append(f"&tilec_argument_{index}")
        else:
            argument_pointers.append(f"&{names[slot.name]}")
    yield f"    void *tilec_arguments[] = {{{', '.join(argument_pointers) or 'NULL'}}};"
    first = "(unsigned)tilec_grid[0]"
    if manifest.schedule.get("persistent"):  # persistent blocks: at most as many as the device runs at once
        yield f"    const int64_t tilec_at_once = (int64_t)kernels->multiprocessors * {manifest.schedule['blocks'] or 1};"
        first = "(unsigned)tilec_min(&tilec_at, tilec_grid[0], tilec_at_once)"
    grid = f"{first}, (unsigned)tilec_grid[1], (unsigned)tilec_grid[2]"
    shared = manifest.resources.dynamic_shared_bytes
    yield f"    int tilec_code = kernels->driver.launch(kernels->functions[{number_of}], {grid},"
    yield f"                                            {manifest.block}, 1, 1, {shared}, stream, tilec_arguments, NULL);"
    yield '    return tilec_code == 0 ? 0 : tilec_failed(&kernels->driver, tilec_name, "cuLaunchKernel", tilec_code);'


def _documented(manifest: Manifest, head: str) -> str:
    constants = ", ".join(f"{name} = {value}" for name, value in manifest.constants.items())
    lines = [f" * {comment(manifest.kernel)}: {comment(constants)}"]
    lines += [f" *   {comment(_tensor(spec))}" for spec in manifest.tensors]
    for spec in manifest.scalars:
        note = ", by its bits" if DTYPES[spec.dtype].is_float and DTYPES[spec.dtype].bits < 32 else ""
        lines.append(f" *   {comment(spec.name)}: {spec.dtype}{note}")
    lines += [f" *   requires {comment(check.text)}" for check in manifest.launch_checks]
    for check in manifest.value_checks:
        lines.append(f" *   trust_{comment(check.tensor)}: TILEC_TRUSTED, {comment(_values(check))}")
    return "\n".join(["/*", *lines, " */", f"{head};"]) + "\n"


def _tensor(spec: TensorSpec) -> str:
    strides = "" if spec.strides is None else f", strides {', '.join(map(str, spec.strides))}"
    return f"{spec.name}: {spec.access} {spec.dtype}[{', '.join(map(str, spec.dims))}]{strides}, aligned to {spec.align} bytes"
