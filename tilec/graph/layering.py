"""Positions for a layered drawing of a directed acyclic graph, left to right.

Sugiyama's method in three steps (Sugiyama, Tagawa, Toda 1981): layers by longest path, order within a layer by barycentre
sweeps, then coordinates that keep the order and pull a node toward the mean of its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

SWEEPS = 12


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height of a node in pixels."""

    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Placement:
    """Top-left corner of each node, and the extent of the whole drawing, in pixels."""

    corners: dict[str, tuple[float, float]]
    width: float
    height: float


def layers_of(graph: nx.DiGraph[str], last: frozenset[str]) -> list[list[str]]:
    """Nodes by layer: sources first, each node in the layer after its latest predecessor, the nodes of `last` alone at the end.

    A source is moved right, next to its first user, so that its edge stays short.
    """
    depth: dict[str, int] = {}
    for node in nx.topological_sort(graph):
        depth[node] = max((depth[p] + 1 for p in graph.predecessors(node)), default=0)
    for node in list(depth):
        users = [depth[s] for s in graph.successors(node)]
        if graph.in_degree(node) == 0 and users:
            depth[node] = min(users) - 1
    final = max((d for n, d in depth.items() if n not in last), default=0) + 1
    for node in last:
        depth[node] = final
    layers: list[list[str]] = [[] for _ in range(final + 1)]
    for node in graph.nodes:
        layers[depth[node]].append(node)
    return [layer for layer in layers if layer]


def order(graph: nx.DiGraph[str], layers: list[list[str]]) -> None:
    """Reorder each layer in place so that few edges cross; ties keep the program order, so the result is deterministic."""
    for sweep in range(SWEEPS):
        rank = {node: i for layer in layers for i, node in enumerate(layer)}
        forward = sweep % 2 == 0
        for layer in layers if forward else reversed(layers):
            keys: dict[str, float] = {}
            for i, node in enumerate(layer):
                neighbours = list(graph.predecessors(node) if forward else graph.successors(node))
                keys[node] = sum(rank[n] for n in neighbours) / len(neighbours) if neighbours else float(i)
            layer.sort(key=lambda node: keys[node])
            rank.update({node: i for i, node in enumerate(layer)})


def arrange(graph: nx.DiGraph[str], sizes: dict[str, Size], last: frozenset[str], gap_x: float, gap_y: float) -> Placement:
    """Coordinates for every node of an acyclic graph; `last` are drawn in the rightmost column."""
    layers = layers_of(graph, last)
    order(graph, layers)
    corners: dict[str, tuple[float, float]] = {}
    x = 0.0
    heights = [sum(sizes[n].height + gap_y for n in layer) - gap_y for layer in layers]
    tallest = max(heights, default=0.0)
    for layer, height in zip(layers, heights, strict=True):
        y = (tallest - height) / 2
        for node in layer:
            corners[node] = (x, y)
            y += sizes[node].height + gap_y
        x += max(sizes[n].width for n in layer) + gap_x
    for _ in range(SWEEPS):
        for layer in layers:
            _relax(graph, layer, sizes, corners, gap_y)
    top = min((y for _, y in corners.values()), default=0.0)
    corners = {node: (cx, cy - top) for node, (cx, cy) in corners.items()}
    bottom = max((y + sizes[n].height for n, (_, y) in corners.items()), default=0.0)
    return Placement(corners, x - gap_x, bottom)


def _relax(
    graph: nx.DiGraph[str], layer: list[str], sizes: dict[str, Size], corners: dict[str, tuple[float, float]], gap: float
) -> None:
    """Move a layer's nodes toward the mean of their neighbours' middles, keeping order and gaps."""
    desired: list[float] = []
    for node in layer:
        neighbours = [*graph.predecessors(node), *graph.successors(node)]
        middles = [corners[n][1] + sizes[n].height / 2 for n in neighbours]
        own = corners[node][1]
        desired.append((own + sum(middles) / len(middles) - sizes[node].height / 2) / 2 if middles else own)
    down: list[float] = []
    for i in range(len(layer)):
        floor = down[-1] + sizes[layer[i - 1]].height + gap if i else float("-inf")
        down.append(max(desired[i], floor))
    # Pushing down alone would drift; averaging with the pass that pushes up keeps a crowded layer centred.
    up: list[float] = [0.0] * len(layer)
    for i in range(len(layer) - 1, -1, -1):
        ceiling = up[i + 1] - sizes[layer[i]].height - gap if i + 1 < len(layer) else float("inf")
        up[i] = min(desired[i], ceiling)
    for i, node in enumerate(layer):
        corners[node] = (corners[node][0], (down[i] + up[i]) / 2)
