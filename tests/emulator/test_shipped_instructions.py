"""The emulator knows every opcode with its modifiers that occurs in the PTX of a shipped kernel, tested with one instruction
each.

`shipped_instructions.txt` lists them; labels are called END, parameters p.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.shipped_run import compiled
from tilec.emulator import Memory, parse, run

LISTED = (Path(__file__).parent / "shipped_instructions.txt").read_text(encoding="utf-8").splitlines()
KINDS = {"p": "pred", "rs": "b16", "r": "b32", "rd": "b64"}


def key(instruction: str) -> str:
    """Opcode and modifiers."""
    tokens = instruction.split()
    return (tokens[1] if tokens[0].startswith("@") else tokens[0]).rstrip(";")


@pytest.mark.parametrize("instruction", LISTED, ids=[key(line) for line in LISTED])
def test_a_step_is_made_of_it(instruction: str) -> None:
    registers = "".join(
        f".reg .{KINDS[name]} %{name}{number};" for name, number in set(re.findall(r"%(p|rs|rd|r)(\d+)", instruction))
    )
    text = f""".version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 dynamic_shared[];
.visible .entry k(.param .u64 p) {{ {registers}
ret;
{instruction};
END: ret;
}}"""
    memory = Memory()
    allocation = memory.allocate("p", np.zeros(4, np.uint32))
    report = run(parse(text), "k", (1,), (128,), [allocation], memory, dynamic_shared_bytes=64)
    assert report.faults == []


def test_each_is_listed_once() -> None:
    assert len({key(line) for line in LISTED}) == len(LISTED) > 100


@pytest.mark.parametrize(
    ("name", "number", "arch"),
    [("rms_norm", 1, "sm_100a"), ("matmul", 1, "sm_90a"), ("matvec_argmax", 1, "sm_120a"), ("sample_token", 0, "sm_90a")],
)
def test_the_list_has_what_kernels_use(name: str, number: int, arch: str) -> None:
    function = parse(compiled(name, number, arch).ptx)
    used = {".".join((i.opcode, *i.modifiers)) for f in function.functions.values() for i in f.instructions}
    assert used <= {key(line) for line in LISTED}, "add one instruction of each kind to shipped_instructions.txt"
