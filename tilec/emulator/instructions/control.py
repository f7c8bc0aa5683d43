"""Control flow: bra, brx.idx, ret, exit, trap (PTX ISA, section 9.7.12), griddepcontrol, and instructions without effect here
(nanosleep, pmevent)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.emulator.errors import StopLaunch
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder, control, lanewise
from tilec.emulator.machine.sources import Step
from tilec.emulator.ptx.syntax import Symbol

EXITED = 2


def _target(d: Decoder, item: Any) -> int:
    if not isinstance(item, Symbol) or item.name not in d.machine.launch.function.labels:
        raise d.unsupported("the target is not a label")
    return d.machine.launch.function.labels[item.name]


@control("bra")
def bra(d: Decoder) -> Step:
    uniform = d.flag("uni")
    d.finish(1)
    target, fall, machine = _target(d, d.operands[0]), d.index + 1, d.machine
    guard = d.instruction.guard
    if guard is None:
        return lambda frame: target
    index, negated = guard.index, d.instruction.guard_negated

    def branch(frame: Frame) -> Any:
        taken = frame.get(index)
        poison = frame.poison[index]
        if poison is not None:
            machine.faults.poison("the condition of a branch", d.instruction, frame, poison)
        if negated:
            taken = ~taken
        if taken.all():
            return target
        if not taken.any():
            return fall
        if uniform:
            machine.faults.uniform(d.instruction, frame, taken)
        return frame.branch(taken, target, fall)

    return branch


@control("brx")
def brx(d: Decoder) -> Step:
    d.need("idx")
    uniform = d.flag("uni")
    d.finish(2)
    if d.instruction.guard is not None:
        raise d.unsupported("a guarded indexed branch")
    table = d.operands[1]
    if not isinstance(table, Symbol) or table.name not in d.machine.launch.function.tables:
        raise d.unsupported("the second operand is not a list of targets")
    targets = np.array([d.machine.launch.function.labels[name] for name in d.machine.launch.function.tables[table.name]])
    index, machine = d.source(0, "u32"), d.machine

    def branch(frame: Frame) -> Any:
        value = np.broadcast_to(index.value(frame), frame.n).astype(np.int64)
        poison = index.poison(frame)
        if poison is not None:
            machine.faults.poison("the index of a branch", d.instruction, frame, poison)
        outside = value >= len(targets)
        if outside.any():
            machine.faults.lanes("bounds", f"an index past the {len(targets)} targets", d.instruction, frame, outside)
            raise StopLaunch
        if uniform:
            machine.faults.uniform(d.instruction, frame, targets[value])
        return frame.park(targets[value])

    return branch


@control("ret", "exit")
def leave(d: Decoder) -> Step:
    if d.instruction.opcode == "ret":
        d.flag("uni")
    d.finish(0)
    machine = d.machine

    def step(frame: Frame) -> Any:
        for subsystem in machine.subsystems:
            subsystem.leave(frame)
        return frame.park(d.index, EXITED)

    return step


@control("trap")
def trap(d: Decoder) -> Step:
    d.finish(0)

    def step(frame: Frame) -> Any:
        d.machine.faults.add("trap", "the program stops itself", d.instruction, int(frame.lanes[0]), count=frame.n)
        raise StopLaunch

    return step


@lanewise("nanosleep")
def nanosleep(d: Decoder) -> Step:
    d.need("u32")
    d.finish(1)
    d.source(0, "u32")
    return lambda frame: None


@lanewise("griddepcontrol")
def griddepcontrol(d: Decoder) -> Step:
    """Grid dependency wait, or launch of the dependent grid. Only one launch is emulated. If it may overlap the preceding one
    (`LaunchState.overlaps`), each thread must wait before it accesses global memory; `prior_launches` checks that."""
    form = d.need("wait", "launch_dependents")
    d.finish(0)
    prior_launches = d.machine.ordering.prior_launches

    def step(frame: Frame) -> None:
        if form == "wait":
            prior_launches.wait(frame.active_lanes())

    return step


@lanewise("pmevent")
def no_effect(d: Decoder) -> Step:
    """Profiler counters."""
    d.flag("mask")
    d.finish(1)
    d.source(0, "u32")
    return lambda frame: None
