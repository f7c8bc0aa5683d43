"""What a kernel's proofs assume and promise, as the verifier of steps reads it."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.artifact.records import LaunchCheck, ScalarSpec, TensorSpec, ValueCheck, ValuePromise


@dataclass(frozen=True, slots=True)
class Contract:
    """The contract of an operation's kernel; an artifact's manifest has the same fields."""

    tensors: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...]
    value_checks: tuple[ValueCheck, ...]
    launch_checks: tuple[LaunchCheck, ...] = ()
    promises: tuple[ValuePromise, ...] = ()
