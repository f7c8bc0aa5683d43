"""`setmaxnreg`: registers move between the warpgroups of a block, and never more than there are."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.tiny import Array, kinds, launch, program
from tilec.emulator import UnsupportedPtx, parse
from tilec.emulator.instructions.register_pool import registers_at_launch

BODY = """
shr.u32 %r0, %t, 7; setp.eq.u32 %p0, %r0, 0; @%p0 bra P;
{consumers}
bra E;
P: {producer}
E: bar.sync 0; {then} mad.wide.u32 %d0, %t, 4, %a0; st.global.u32 [%d0], %t;
"""
INC, DEC = "setmaxnreg.inc.sync.aligned.u32 {};", "setmaxnreg.dec.sync.aligned.u32 {};"
ONE = "setp.eq.u32 %p1, %t, {}; @%p1 "
RIGHT = {"consumers": INC.format(232), "producer": DEC.format(40), "then": ""}


def moved(**changed: str) -> set[str]:
    """Kinds of fault over three schedules of a producer and two consumer warpgroups, which start with 168 registers each."""
    found = set[str]()
    for seed in range(3):
        arrays: dict[str, Array] = {"out": np.zeros(384, np.uint32)}
        text = program(BODY.format(**RIGHT | changed), ["out"], threads=384)
        found |= kinds(launch(text, arrays, threads=384, out=("out",), seed=seed))
    return found - {"unwritten"}


RIGHT_MOVES: dict[str, dict[str, str]] = {
    "producer to consumers": {},
    "nothing": {"consumers": INC.format(168), "producer": DEC.format(168)},
    "there and back": {
        "consumers": INC.format(232) + "bar.sync 1, 256; " + DEC.format(168),
        "then": "@%p0 " + INC.format(168),
    },
    "one after the other": {
        "consumers": "setp.lt.u32 %p2, %t, 256; @%p2 bra A;" + INC.format(232) + "bra E; A:" + INC.format(232),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT_MOVES)
def test_right(name: str) -> None:
    assert not moved(**RIGHT_MOVES[name])


WRONG_MOVES: dict[str, tuple[dict[str, str], str]] = {
    "more than there are": ({"consumers": INC.format(240)}, "deadlock"),
    "no dec": ({"producer": ""}, "deadlock"),
    "inc everywhere": ({"producer": INC.format(232)}, "deadlock"),
    "too little given up": ({"producer": DEC.format(48)}, "deadlock"),
    "dec by one thread": ({"producer": ONE.format(0) + DEC.format(40)}, "divergent"),
    "dec by one warp": ({"producer": "setp.lt.u32 %p1, %t, 32; @%p1 " + DEC.format(40)}, "divergent"),
    "inc by all threads but one": ({"consumers": "setp.ne.u32 %p1, %t, 130; @%p1 " + INC.format(232)}, "divergent"),
    "another instruction in one warp": (
        {"producer": "setp.lt.u32 %p1, %t, 32; @%p1 bra A;" + DEC.format(40) + "bra E; A:" + DEC.format(40)}, "divergent"),
    "past the end": ({"consumers": INC.format(999)}, "registers"),
    "one unit past the end": ({"consumers": INC.format(264)}, "registers"),
    "too few": ({"producer": DEC.format(16)}, "registers"),
    "no multiple of 8": ({"producer": DEC.format(36)}, "registers"),
    "dec to more": ({"producer": DEC.format(176)}, "registers"),
    "inc to fewer": ({"consumers": INC.format(160)}, "registers"),
    "dec to more than after a dec": ({"producer": DEC.format(40) + DEC.format(48)}, "registers"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_MOVES)
def test_wrong(name: str) -> None:
    changed, wanted = WRONG_MOVES[name]
    assert wanted in moved(**changed)


@pytest.mark.parametrize(
    ("directives", "threads", "registers"),
    [
        ("", 384, 168),
        (".minnctapersm 2", 384, 80),
        (".maxnreg 100", 384, 104),
        (".maxnreg 232", 384, 168),
        (".maxnreg 128 .minnctapersm 1", 384, 128),
        ("", 128, 256),
        ("", 1024, 64),
    ],
)
def test_registers_of_a_new_block(directives: str, threads: int, registers: int) -> None:
    text = program("", [], threads=threads).replace(f".reqntid {threads}", f".reqntid {threads} {directives}")
    assert registers_at_launch(parse(text).functions["k"], threads) == registers


def test_a_count_is_a_constant() -> None:
    with pytest.raises(UnsupportedPtx, match="no constant"):
        moved(producer="setmaxnreg.dec.sync.aligned.u32 %r0;")
