"""Clusters that a manifest launches are those that its PTX states, with and without tensor maps."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tilec.artifact.records import Manifest
from tilec.audit.clusters import agree
from tilec.audit.copies import Differs, Unclear

emulator: Any = pytest.importorskip("tilec.emulator")


class Launched:
    """The one field of a manifest that is compared."""

    def __init__(self, cluster: int) -> None:
        self.cluster = cluster


def compared(cluster: int, directives: str, entry: str = "k") -> None:
    text = f".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{directives}\n{{\n\tret;\n}}\n"
    agree(cast("Manifest", Launched(cluster)), emulator.parse(text).functions.get(entry))


@pytest.mark.parametrize(
    ("cluster", "directives"),
    [
        (1, ""),
        (1, ".reqnctapercluster 1"),
        (1, ".explicitcluster\n.reqnctapercluster 1, 1, 1"),
        (2, ".reqnctapercluster 2"),
        (2, ".explicitcluster\n.reqnctapercluster 2, 1, 1"),
        (2, ".reqnctapercluster 2, 1, 1\n.maxclusterrank 2"),
    ],
)
def test_the_same_clusters_agree(cluster: int, directives: str) -> None:
    compared(cluster, directives)


@pytest.mark.parametrize(
    ("cluster", "directives", "reason"),
    [
        (2, "", "launches clusters of 2 blocks, and the PTX states none"),
        (1, ".reqnctapercluster 2", "states clusters of 2 blocks"),
        (2, ".reqnctapercluster 1", "states clusters of 1 blocks"),
        (2, ".reqnctapercluster 4", "states clusters of 4 blocks"),
        (2, ".reqnctapercluster 1, 2, 1", "states clusters of 1 x 2 x 1 blocks"),
        (4, ".reqnctapercluster 2, 2, 1", "states clusters of 2 x 2 x 1 blocks"),
        (1, ".explicitcluster", "states no shape"),
        (2, ".explicitcluster", "states no shape"),
        (2, ".reqnctapercluster 2\n.maxclusterrank 1", "allows clusters of 1 blocks"),
    ],
)
def test_other_clusters_are_refuted(cluster: int, directives: str, reason: str) -> None:
    with pytest.raises(Differs, match=reason):
        compared(cluster, directives)


def test_a_grid_that_counts_clusters_is_left_open() -> None:
    with pytest.raises(Unclear, match="blocksareclusters"):
        compared(2, ".reqnctapercluster 2\n.reqntid 32\n.blocksareclusters")


def test_an_entry_that_is_missing_states_no_cluster() -> None:
    compared(1, ".reqnctapercluster 2", "other")
    with pytest.raises(Differs, match="the PTX states none"):
        compared(2, ".reqnctapercluster 2", "other")
