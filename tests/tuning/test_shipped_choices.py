"""The choices of the shipped build file, as each architecture has them."""

from __future__ import annotations

from tests.files import ROOT
from tilec.project.read.buildfile import read_build_file

BUILD = read_build_file(ROOT / "build.toml")


def rows(kernel: str, arch: str) -> dict[tuple[int, int], int]:
    """How many tiles run at once by each choice of an architecture."""
    (served,) = [one for one in BUILD.served if one.tuned.kernel == kernel and one.target.name == arch]
    return {(row["BM"], row["BN"]): row["at_once"] for row in served.table["choices"]}


def test_two_blocks_of_a_pair_have_one_tile() -> None:
    """Whether the table is predicted or follows the declared cost, half as many tiles of pairs run at once."""
    found = rows("matmul", "sm_100a")
    alone, pairs = ({count for (height, _), count in found.items() if (height > 128) is pair} for pair in (False, True))
    assert alone == {148} and pairs == {74}


def test_pairs_are_no_choice_where_nothing_multiplies_so() -> None:
    for arch in ("sm_90a", "sm_120a"):
        assert (256, 256) not in rows("matmul", arch)
