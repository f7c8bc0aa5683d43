"""The dataflow graph of a kernel as data: values and operations that decide addresses, with obligations.

A `networkx.DiGraph`; edges run from a value's producer to its user. Node attributes: `kind` is one of parameter, tensor,
scalar (an operation on index values), loop, branch, access or grid; `text` a short label in the kernel author's terms;
`span` the source location or None; `range` the (low, high) of an integer value or None; `obligations` the
`artifact.Obligation`s of the node; `ownership` for a tensor its access (in, out, ...), for an access that of its tensor.
Edge attribute `role`: data, index, bound, condition or memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import networkx

from tilec.ir.core import Block, Op, Value
from tilec.ir.ops import BlockId, Compare, Constant, DimValue, For, If, Iota, NumBlocks, Unary
from tilec.passes.prover.accesses import AccessSite
from tilec.passes.prover.findings import Findings

if TYPE_CHECKING:
    Graph = networkx.DiGraph[str]
else:
    Graph = networkx.DiGraph

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "shl": "<<", "shr": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip


def index_graph(findings: Findings, sites: Sequence[AccessSite]) -> Graph:
    """The graph of a proven kernel."""
    graph: Graph = networkx.DiGraph()
    index = findings.index
    function = index.function
    for parameter in function.parameters:
        kind = "tensor" if parameter.access is not None else "parameter"
        text = f"{parameter.name}: {parameter.value.type}"
        own_obligations = tuple(o for o in findings.obligations if o.subject.startswith(f"`{parameter.name}`"))
        owner = parameter.access.value if parameter.access is not None else None
        _node(graph, parameter.name, kind, text, parameter.loc, None, own_obligations, owner)
    names = {op: f"{op.opcode}{position}" for op, position in index.structure.position.items()}
    # Program order, because nodes and edges are drawn in the order in which they are added.
    relevant = sorted(set(index.deciding) | {site.op for site in sites}, key=index.structure.position.__getitem__)
    for op in relevant:
        if isinstance(op, Constant):
            continue
        obligations = tuple(findings.by_op.get(op, ()))
        bounds = None
        if op.results and op.results[0].tile.dtype.is_integer:
            fact = index.ranges[op.results[0]]
            bounds = (fact.low, fact.high)
        site = next((site for site in sites if site.op is op), None)
        owner = site.parameter.access.value if site is not None and site.parameter.access is not None else None
        _node(graph, names[op], _kind(op, site), _text(op, site), op.loc, bounds, obligations, owner)
    for op in relevant:
        if isinstance(op, Constant):
            continue
        site = next((site for site in sites if site.op is op), None)
        for position, value in enumerate(op.operands):
            source = _producer(findings, names, value)
            if source is not None and source in graph:
                graph.add_edge(source, names[op], role=_role(op, site, position))
        if site is not None and site.writes:
            graph.add_edge(names[op], site.name, role="memory")
            if graph.has_edge(site.name, names[op]):
                graph.remove_edge(site.name, names[op])
    return graph


def _node(graph: Graph, name: str, kind: str, text: str, span: Any, bounds: Any, obligations: Any, owner: Any) -> None:
    graph.add_node(name, kind=kind, text=text, span=span, range=bounds, obligations=obligations, ownership=owner)


def _producer(findings: Findings, names: dict[Op, str], value: Value) -> str | None:
    for parameter in findings.index.function.parameters:
        if parameter.value is value:
            return parameter.name
    if isinstance(value.owner, Block):
        loop = findings.index.structure.loops.get(value.owner)
        return names[loop] if loop is not None else None
    return names[value.owner] if value.owner is not None else None


def _kind(op: Op, site: AccessSite | None) -> str:
    if site is not None:
        return "access"
    if isinstance(op, For):
        return "loop"
    if isinstance(op, If):
        return "branch"
    return "grid" if isinstance(op, BlockId | NumBlocks) else "scalar"


def _text(op: Op, site: AccessSite | None) -> str:
    if site is not None:
        return site.subject.replace("`", "")
    match op:
        case BlockId():
            return f"bid({op.axis})"
        case NumBlocks():
            return f"num_blocks({op.axis})"
        case DimValue():
            return op.symbol
        case For():
            return f"for {op.variable or 'i'}"
        case Iota():
            return f"arange({op.result.tile.shape[0]})"
        case Compare() | Unary():
            return _SIGNS.get(op.kind, op.kind)
        case _:
            kind = op.attributes().get("kind")
            return _SIGNS.get(kind, kind) if isinstance(kind, str) else op.opcode


def _role(op: Op, site: AccessSite | None, operand_index: int) -> str:
    if site is not None:
        if op.operands[operand_index] is site.op.tensor:
            return "memory"
        return "data" if site.writes and operand_index == 1 else "index"
    if isinstance(op, For):
        return "bound" if operand_index < 3 else "data"
    return "condition" if isinstance(op, If) else "data"
