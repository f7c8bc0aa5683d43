"""The launch contract as a kernel's source states it, checked where no compiled kernel is needed: for fake tensors, and for
tensors without elements.

In: the kernel's file, constants, and shapes. Out: whether there is anything to launch, or the LaunchError that a launch would
raise. The source states dtypes, dims, strides, `requires`, `values` and the grid. What the compiler derives from these (that
strides step over inner axes, that extents fit 64 bits) is in the manifest alone, and the launcher checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tilec.artifact.records import AbiSlot, LaunchCheck, Manifest, Resources, parameter_specs, value_check
from tilec.frontend import Interface, load_kernel
from tilec.ir.types import MAX_DIM
from tilec.ops.declaration import Value
from tilec.runtime import LaunchError, TensorView
from tilec.runtime.contract import check_shapes, check_type
from tilec.runtime.values import Evidence, check_evidence


class SourceContract:
    """The contracts of a kernel file's specialisations, read when they are first used."""

    def __init__(self, interface: Interface, path: Path) -> None:
        self._interface, self._path = interface, path
        self._manifests: dict[tuple[tuple[str, type, Value], ...], Manifest] = {}

    def get(self, constants: Mapping[str, Value]) -> Manifest:
        """The manifest of a specialisation, without code. CompileError if the source is refused for these constants."""
        key = tuple((name, type(value), value) for name, value in constants.items())
        manifest = self._manifests.get(key)
        if manifest is None:
            manifest = self._manifests[key] = read_contract(self._path, constants)
        return manifest

    def launch_values(
        self, constants: Mapping[str, Value], views: Mapping[str, TensorView], numbers: Mapping[str, int | float]
    ) -> dict[str, int] | None:
        """Check every clause that depends neither on addresses nor on stored values; returns dims, strides and integers by
        name, or None if a launch would have no blocks, and every `Out` tensor no elements. `views` are all tensors, `numbers`
        the scalars. LaunchError if a clause is broken. An extent of 0 breaks one (E0906) unless the launch is empty."""
        self._refuse_empty_constants(constants)
        manifest = self.get(constants)
        for spec in manifest.tensors:
            check_type(spec, views[spec.name], manifest.kernel)
        if any(0 in view.shape for view in views.values()):
            grid = check_shapes(manifest, views, numbers, {}, least=0).grid
            if 0 in grid and all(0 in views[spec.name].shape for spec in manifest.tensors if spec.access == "out"):
                return None
        return check_shapes(manifest, views, numbers, {}).env

    def check_values(
        self, constants: Mapping[str, Value], views: Mapping[str, TensorView], env: Mapping[str, int],
        evidence: Mapping[str, Evidence],
    ) -> None:  # fmt: skip
        """Check the evidence of stored integers; `env` is of `launch_values`. LaunchError E0913, E0903."""
        manifest = self.get(constants)
        checks = {check.tensor: check for check in manifest.value_checks}
        for name in evidence:
            if name not in checks:
                raise LaunchError("E0903", "has no value obligation", kernel=manifest.kernel, argument=name)
        for name, check in checks.items():
            check_evidence(check, env, views[name], evidence.get(name), kernel=manifest.kernel, read_back=None)

    def _refuse_empty_constants(self, constants: Mapping[str, Value]) -> None:
        """E0906 for a dim of 0 that is a constant: no kernel has one."""
        for parameter in self._interface.parameters:
            for name in (name for dim in parameter.dims for name in dim.symbols()):
                if constants.get(name) == 0:
                    raise LaunchError(
                        "E0906", f"`{name}` is out of range", kernel=self._interface.kernel, argument=parameter.name, given="0",
                        required=f"1 to {MAX_DIM}: `{name}` is a constant of the kernel",
                    )  # fmt: skip


def read_contract(path: Path, constants: Mapping[str, Value]) -> Manifest:
    """The contract of one specialisation, as a manifest without code. CompileError if the source is refused."""
    function = load_kernel(path, constants)
    tensors, scalars = parameter_specs(function)
    sizes = (AbiSlot("stride" if name in function.strides else "dim", name) for name in function.dims)
    requires = tuple(LaunchCheck(one.condition, f"requires({one.condition})") for one in function.requires)
    return Manifest(
        function.name, entry="", arch="", constants=function.constants, tensors=tensors, scalars=scalars, abi=tuple(sizes),
        grid=function.grid, block=0, cluster=1, dependent_launch=False, launch_checks=requires,
        value_checks=tuple(map(value_check, function.values)), no_alias=(), resources=Resources(0, 0, 0, 0, 0), obligations=(),
        unsafe=(), digests={}, toolchain={},
    )  # fmt: skip
