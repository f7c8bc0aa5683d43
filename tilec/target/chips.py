"""Which chips machine code runs on: takes the name of an architecture, as ptxas spells it, and a compute capability.

An architecture with the suffix `a` runs on its own capability only. One with the suffix `f` runs on the members of its family
(PTX ISA, "PTX Module Directives: .target"). One without a suffix runs on its capability and on later minor ones of the same
major (CUDA programming guide, "Binary Compatibility"), but not across desktop chips and Tegra: the table therefore names the
capabilities of the chips that it is for, and no code of 8.x runs on 8.7. The runtime reads this table too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Capability = tuple[int, int]

RUNS_ON: Final[Mapping[str, tuple[Capability, ...]]] = {
    "sm_90a": ((9, 0),),
    "sm_100a": ((10, 0),),
    "sm_103a": ((10, 3),),
    "sm_120a": ((12, 0),),
    "sm_121a": ((12, 1),),
    "sm_100f": ((10, 0), (10, 3)),
    "sm_120f": ((12, 0), (12, 1)),
    "sm_89": ((8, 9),),
    "sm_86": ((8, 6), (8, 9)),
    "sm_80": ((8, 0), (8, 6), (8, 9)),
}
"""Capabilities by architecture. Of several that run on a chip, the first has the most of its instructions."""
DEPENDENT_LAUNCH_SINCE: Final = (9, 0)
"""The first capability with programmatic dependent launch (PTX ISA, `griddepcontrol`)."""
SUFFIX_SINCE: Final = 9
"""The major capability since which chips have an architecture with the suffix `a`."""


def runs_on(arch: str, capability: Capability) -> bool:
    """Whether machine code for `arch` runs on a chip; False for an unknown architecture."""
    return capability in RUNS_ON.get(arch, ())


def architecture_of(capability: Capability) -> str:
    """The architecture of a chip's own: `sm_90a`, `sm_89`. A chip that no target is for has one of that form too."""
    number = f"sm_{capability[0]}{capability[1]}"
    return number + "a" if capability[0] >= SUFFIX_SINCE else number


def capability_of(arch: str) -> Capability:
    """The capability in the name of an architecture; ValueError if that is no such name."""
    digits = arch.removeprefix("sm_").rstrip("af")
    if not (arch.startswith("sm_") and len(digits) >= 2 and digits.isdecimal() and digits.isascii()):
        raise ValueError(f"`{arch:.20}` is no architecture")
    return int(digits[:-1]), int(digits[-1])


def running_on(architecture: str) -> tuple[str, ...]:
    """The architectures whose code runs on a chip, given by its own one: that first, if there is a target for it. None for a
    chip that no target is for."""
    try:
        capability = capability_of(architecture)
    except ValueError:
        return ()
    return tuple(arch for arch in RUNS_ON if runs_on(arch, capability))


def built_with(architecture: str) -> str:
    """How to build code for a chip, given by its own architecture: a hint of error messages."""
    names = running_on(architecture)
    return f"build it with `tilec build --arch {spelled(names[0])}`" if names else "tilec has no target for this chip"


def shown(capabilities: tuple[Capability, ...]) -> str:
    """Capabilities for a message: `8.0, 8.6 or 8.9`."""
    texts = [f"{major}.{minor}" for major, minor in capabilities]
    return " or ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def spelled(arch: str) -> str:
    """An architecture as `--arch` and build files take it: `sm_90` for `sm_90a`."""
    return arch.removesuffix("a")
