"""The state of a launch: typed subsystems that know each other, but neither `Machine` nor what decodes and runs a program."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import pytest

from tests.emulator.tiny import program
from tilec import emulator
from tilec.emulator import Memory, parse
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.subsystem import Subsystem

ABOVE = ("machine", "registry", "program", "execution", "specials", "deadlock", "finish")
"""Modules of `machine/` that see the whole state."""


def machine() -> Machine:
    module = parse(program("", []))
    return Machine(LaunchState(module, module.functions["k"], (1, 1, 1), (32, 1, 1)), Memory())


def test_the_hooks_of_every_subsystem_are_called() -> None:
    made = machine()
    assert {id(value) for value in vars(made).values() if isinstance(value, Subsystem)} == set(map(id, made.subsystems))


@pytest.mark.parametrize("name", sorted(vars(machine())))
def test_a_part_of_the_state_does_not_know_the_machine(name: str) -> None:
    kind = type(vars(machine())[name])
    if not kind.__module__.startswith(emulator.__name__):
        return
    source = inspect.getsource(sys.modules[kind.__module__])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
            assert not [one for one in imported if one.startswith(tuple(f"{emulator.__name__}.machine.{m}." for m in ABOVE))]


def test_no_state_is_reached_by_a_string() -> None:
    for path in Path(emulator.__path__[0]).rglob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Name)}
        assert not names & {"getattr", "setattr", "hasattr"}, path
