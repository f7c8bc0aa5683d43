"""Draws the index dataflow graph of a proven kernel as one self-contained SVG."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Final

import networkx as nx

from tilec.graph.layering import Size, arrange

SANS: Final = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
MONO: Final = "'JetBrains Mono', 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
CHAR: Final = 7.0  # width of one 11.5 px monospace character
LINE: Final = 16.0
MARGIN: Final = 32.0
HEADER: Final = 64.0
FOOTER: Final = 56.0

KIND_STYLE: Final[dict[str, tuple[str, str, str]]] = {  # fill, border, caption
    "dim": ("#eef2ff", "#a5b4fc", "launch value"),
    "block": ("#ecfeff", "#67e8f9", "block id"),
    "loop": ("#f0fdf4", "#86efac", "loop"),
    "branch": ("#fefce8", "#fde047", "condition"),
    "constant": ("#f8fafc", "#cbd5e1", "constant"),
    "loaded": ("#fdf2f8", "#f9a8d4", "loaded value"),
    "value": ("#ffffff", "#cbd5e1", ""),
    "load": ("#f8fafc", "#475569", "load"),
    "store": ("#fff7ed", "#c2410c", "store"),
    "atomic": ("#fff7ed", "#c2410c", "atomic"),
    "input": ("#e2e8f0", "#475569", ""),
    "tensor": ("#1e293b", "#1e293b", ""),
}
RUNG_COLOR: Final[dict[str, str]] = {
    "static": "#0f766e",
    "interval": "#15803d",
    "set": "#1d4ed8",
    "launch": "#a16207",
    "value": "#9333ea",
    "unsafe": "#b91c1c",
}
RUNG_TEXT: Final[dict[str, str]] = {
    "static": "static fold",
    "interval": "interval facts",
    "set": "integer sets",
    "launch": "launch precondition",
    "value": "value checked at the boundary",
    "unsafe": "unsafe: taken on trust",
}


@dataclass(frozen=True, slots=True)
class Badge:
    """One obligation on an access: what is claimed, the rung that discharged it, and the tooltip text."""

    text: str
    rung: str
    detail: str


@dataclass(frozen=True, slots=True)
class Node:
    """One box: `kind` is a key of `KIND_STYLE`, `caption` the small line above the label."""

    key: str
    kind: str
    label: str
    caption: str = ""
    detail: str = ""
    badges: tuple[Badge, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """The content of a drawing: boxes, edges between their keys, and two title lines."""

    title: str
    subtitle: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = field(default=())


def svg(picture: Picture) -> str:
    """The drawing as SVG text; deterministic."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(node.key for node in picture.nodes)
    graph.add_edges_from(picture.edges)
    by_key = {node.key: node for node in picture.nodes}
    sizes = {node.key: _size(node) for node in picture.nodes}
    tensors = frozenset(node.key for node in picture.nodes if node.kind == "tensor")
    placement = arrange(graph, sizes, tensors, gap_x=72.0, gap_y=18.0)
    width = max(placement.width + 2 * MARGIN, 760.0)
    height = placement.height + HEADER + FOOTER + 2 * MARGIN
    left = (width - placement.width) / 2
    corners = {key: (x + left, y + HEADER + MARGIN) for key, (x, y) in placement.corners.items()}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{SANS}">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0.8 L7 4 L0 7.2 z" fill="#94a3b8"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fbfcfe"/>',
        f'<text x="{MARGIN}" y="40" font-size="22" font-weight="650" fill="#0f172a">{escape(picture.title)}</text>',
        f'<text x="{MARGIN}" y="62" font-size="12.5" fill="#475569">{escape(picture.subtitle)}</text>',
    ]
    for source, target in picture.edges:
        parts.append(_edge(corners[source], sizes[source], corners[target], sizes[target], by_key[target].kind == "tensor"))
    parts.extend(_box(node, corners[node.key], sizes[node.key]) for node in picture.nodes)
    parts.extend(_legend(picture, height))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _badge_width(badge: Badge) -> float:
    return 6.3 * len(badge.text) + 16


def _lines(node: Node) -> list[str]:
    return node.label.split("\n")


def _size(node: Node) -> Size:
    text = max(len(line) for line in _lines(node)) * CHAR + 26
    caption = len(node.caption) * 5.8 + 26
    badges = sum(_badge_width(badge) + 5 for badge in node.badges) + 19 if node.badges else 0.0
    height = 16 + LINE * len(_lines(node)) + (12 if node.caption else 0) + (24 if node.badges else 0)
    return Size(max(56.0, text, caption, badges), height)


def _edge(a: tuple[float, float], a_size: Size, b: tuple[float, float], b_size: Size, to_tensor: bool) -> str:
    x0, y0 = a[0] + a_size.width, a[1] + a_size.height / 2
    x1, y1 = b[0], b[1] + b_size.height / 2
    bend = max(28.0, (x1 - x0) / 2)
    color, width = ("#64748b", 1.8) if to_tensor else ("#b6c2d1", 1.3)
    return (
        f'<path d="M{x0:.1f} {y0:.1f} C{x0 + bend:.1f} {y0:.1f} {x1 - bend:.1f} {y1:.1f} {x1 - 1:.1f} {y1:.1f}" fill="none" '
        f'stroke="{color}" stroke-width="{width}" marker-end="url(#arrow)"/>'
    )


def _box(node: Node, corner: tuple[float, float], size: Size) -> str:
    x, y = corner
    fill, border, _ = KIND_STYLE[node.kind]
    ink, faint = ("#f8fafc", "#cbd5e1") if node.kind == "tensor" else ("#0f172a", "#64748b")
    parts = ["<g>", f"<title>{escape(node.detail or node.label)}</title>"]
    parts.append(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{size.width:.1f}" height="{size.height:.1f}" rx="8" fill="{fill}" '
        f'stroke="{border}" stroke-width="1.3"/>'
    )
    baseline = y + 20
    if node.caption:
        parts.append(
            f'<text x="{x + 13:.1f}" y="{y + 16:.1f}" font-size="9.5" letter-spacing="0.3" fill="{faint}">'
            f"{escape(node.caption)}</text>"
        )
        baseline += 12
    for line in _lines(node):
        parts.append(
            f'<text x="{x + 13:.1f}" y="{baseline:.1f}" font-size="11.5" font-family="{MONO}" fill="{ink}" '
            f'xml:space="preserve">{escape(line)}</text>'
        )
        baseline += LINE
    badge_x = x + 12
    for badge in node.badges:
        width = _badge_width(badge)
        parts.append(
            f"<g><title>{escape(badge.detail)}</title>"
            f'<rect x="{badge_x:.1f}" y="{baseline - 9:.1f}" width="{width:.1f}" height="17" rx="8.5" '
            f'fill="{RUNG_COLOR[badge.rung]}"/>'
            f'<text x="{badge_x + width / 2:.1f}" y="{baseline + 3:.1f}" font-size="10" font-weight="600" fill="#ffffff" '
            f'text-anchor="middle">{escape(badge.text)}</text></g>'
        )
        badge_x += width + 5
    parts.append("</g>")
    return "".join(parts)


def _legend(picture: Picture, height: float) -> list[str]:
    """The legend of the rungs and kinds of boxes that the picture uses."""
    rungs = {badge.rung for node in picture.nodes for badge in node.badges}
    kinds = {node.kind for node in picture.nodes}
    parts: list[str] = []
    x, y = MARGIN, height - 42
    for rung, text in RUNG_TEXT.items():
        if rung in rungs:
            parts.append(f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="22" height="11" rx="5.5" fill="{RUNG_COLOR[rung]}"/>')
            parts.append(f'<text x="{x + 28:.1f}" y="{y:.1f}" font-size="11" fill="#334155">{text}</text>')
            x += 28 + 6.2 * len(text) + 22
    x, y = MARGIN, height - 20
    for kind, (fill, border, text) in KIND_STYLE.items():
        if kind in kinds and text:
            parts.append(
                f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="16" height="12" rx="3" fill="{fill}" stroke="{border}"/>'
                f'<text x="{x + 22:.1f}" y="{y:.1f}" font-size="11" fill="#334155">{text}</text>'
            )
            x += 22 + 6.2 * len(text) + 20
    return parts
