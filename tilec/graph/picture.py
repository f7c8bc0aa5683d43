"""Converts a kernel's proofs to a picture: boxes, edges, and a badge per obligation."""

from __future__ import annotations

from typing import Any, Protocol

import networkx as nx

from tilec.artifact.records import Obligation
from tilec.diagnostics.diagnostic import Span
from tilec.graph.svg import Badge, Node, Picture
from tilec.ir.core import Function

OWNERSHIP = {
    "in": "shared, read only",
    "out": "exclusive, written once",
    "inout": "exclusive, read and written",
    "scratch": "exclusive, scratch",
    "atomic": "shared, atomic updates",
}
ACCESS_KINDS = ("load", "store", "gather", "scatter", "atomic")


class Proven(Protocol):
    """The part of a prover's result that is drawn: its obligations and its graph (node attributes kind, text, span, range,
    obligations and ownership; edges from producer to user, with a role)."""

    @property
    def obligations(self) -> tuple[Obligation, ...]: ...

    def graph(self) -> nx.DiGraph[str]: ...


def picture(proofs: Proven, function: Function) -> Picture:
    """The picture of one kernel: launch values and block indices left, accesses with their proofs, written tensors right."""
    graph = proofs.graph()
    data: dict[str, dict[str, Any]] = {name: dict(attributes) for name, attributes in graph.nodes(data=True)}
    roles: list[tuple[str, str, str]] = list(graph.edges(data="role"))
    written = {target for _, target, role in roles if role == "memory" and _is_tensor(data, target)}
    edges: list[tuple[str, str]] = []
    for source, target in graph.edges:
        # A written tensor is drawn at the right; its reads point at it too, which keeps the graph acyclic.
        edges.append((target, source) if source in written and _is_tensor(data, source) else (source, target))
    connected = {name for edge in edges for name in edge}
    nodes = tuple(
        _node(name, attributes, written) for name, attributes in data.items() if name in connected or attributes["obligations"]
    )
    constants = ", ".join(f"{name} = {value}" for name, value in function.constants.items())
    grid = ", ".join(map(str, function.grid))
    rungs: dict[str, int] = {}
    for obligation in proofs.obligations:
        rungs[obligation.rung] = rungs.get(obligation.rung, 0) + 1
    counts = ", ".join(f"{count} {rung}" for rung, count in rungs.items())
    subtitle = f"grid ({grid})   ·   {constants or 'no constants'}   ·   {len(proofs.obligations)} obligations: {counts}"
    return Picture(function.name, subtitle, nodes, tuple(dict.fromkeys(edges)))


def _is_tensor(data: dict[str, dict[str, Any]], name: str) -> bool:
    return data[name]["kind"] == "tensor"


def _node(name: str, attributes: dict[str, Any], written: set[str]) -> Node:
    kind: str = attributes["kind"]
    text: str = attributes["text"]
    span: Span | None = attributes["span"]
    detail = [text] + ([f"at {span.line}:{span.column + 1}"] if span else [])
    if attributes["range"] is not None:
        low, high = attributes["range"]
        detail.append(f"from {low} to {high}")
    badges = tuple(_badge(obligation) for obligation in attributes["obligations"])
    caption = ""
    node_kind = {"parameter": "dim", "grid": "block", "scalar": "value"}.get(kind, kind)
    if kind == "tensor":
        caption = OWNERSHIP[attributes["ownership"]]
        detail.append(caption)
        text = text.replace("tensor<", "").rsplit(", align", 1)[0]
        node_kind = "tensor" if name in written else "input"
        badges = ()  # a tensor's obligations are already shown at its accesses
    elif kind == "access":
        node_kind = next((access_kind for access_kind in ACCESS_KINDS if text.startswith(access_kind)), "load")
        node_kind = {"gather": "load", "scatter": "store"}.get(node_kind, node_kind)
        caption = f"line {span.line}" if span else ""
    elif kind == "loop":
        caption = "loop"
    return Node(name, node_kind, text, caption, "\n".join(detail), _merged(badges))


def _badge(obligation: Obligation) -> Badge:
    lines = [f"{obligation.property}: {obligation.subject}", f"discharged by: {obligation.rung}"]
    lines += [f"uses {fact}" for fact in obligation.facts]
    lines += [text if len(text) < 400 else text[:400] + " ..." for text in obligation.sets]
    return Badge(obligation.property, obligation.rung, "\n".join(lines))


def _merged(badges: tuple[Badge, ...]) -> tuple[Badge, ...]:
    """One badge per claim and rung, with a count; many accesses have a dozen obligations of the same kind."""
    groups: dict[tuple[str, str], list[str]] = {}
    for badge in badges:
        groups.setdefault((badge.text, badge.rung), []).append(badge.detail)
    return tuple(
        Badge(text if len(details) == 1 else f"{text} ×{len(details)}", rung, "\n\n".join(details))
        for (text, rung), details in groups.items()
    )
