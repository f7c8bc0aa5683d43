"""Mistakes in the source text of a kernel of several ranks: in its meet, in what it reads of which rank, and when.

A mistake may be harmless: enumeration decides. The frontend may refuse the text.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator

from tests.rank_soundness.drafts import with_imports
from tests.soundness.source_edits import kernel_node, mutate_source

Mistake = Callable[[random.Random, ast.Module], bool]
"""Makes a mistake, if the kernel has a place for it."""
MISTAKES: dict[str, Mistake] = {}
OWN = ("In", "Out", "InOut", "Scratch")
HEADS = (
    "if rank == 0:", "if b < 1:", "if True:", "for q in range(rank):", "for q in range(1):", "for q in range(2):",
    "for q in static_range(1):", "for q in static_range(2):", "if num_blocks(0) > 1:", "if 1 > 2:",
)  # fmt: skip
"""What the meet may be put into; the frontend folds some, as it should."""
NUMBERS = ("rank // 2", "rank * 1", "rank + 0", "rank % 2", "rank - 1", "b", "max(rank, 0)", "min(rank, 1)", "other", "turned")
"""What the meet may be given as the number of the rank; `other` is another parameter, `turned` a name given anew."""


def _mistake(make: Mistake) -> Mistake:
    MISTAKES[make.__name__] = make
    return make


def with_mistake(r: random.Random, text: str) -> tuple[str, str]:
    """The text with one mistake, and its name: of those below in two of three cases, else of any in what a kernel says."""
    if r.random() < 1 / 3:
        return with_imports(mutate_source(r, text)), "edit"
    for name in r.sample(sorted(MISTAKES), len(MISTAKES)):
        changed = made(name, r, text)
        if changed is not None:
            return changed, name
    return text, "none"


def made(name: str, r: random.Random, text: str) -> str | None:
    """The text with the mistake of a name, or None if it has no place for it."""
    tree = ast.parse(text)
    if not MISTAKES[name](r, tree):
        return None
    return with_imports(ast.unparse(ast.fix_missing_locations(tree)) + "\n")


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _statements(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _is_call(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _meet(tree: ast.Module) -> tuple[list[ast.stmt], int, ast.Call] | None:
    """The body of the kernel, the place of its meet there, and the call."""
    body = kernel_node(tree).body
    for index, statement in enumerate(body):
        if isinstance(statement, ast.Expr) and _is_call(statement.value, "meet"):
            assert isinstance(statement.value, ast.Call)
            return body, index, statement.value
    return None


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for inner in ast.walk(node):
        for name in ("body", "orelse"):
            body = getattr(inner, name, None)
            if isinstance(body, list) and body and not isinstance(inner, ast.Module | ast.ClassDef):
                yield body


def _parts(tree: ast.Module) -> list[tuple[str, int]]:
    """The tensors of several ranks, with how many."""
    found: list[tuple[str, int]] = []
    for argument in kernel_node(tree).args.args:
        note = argument.annotation
        if isinstance(note, ast.Subscript) and isinstance(note.value, ast.Name) and note.value.id == "Peer":
            assert isinstance(note.slice, ast.Tuple)
            of_ranks = note.slice.elts[1]
            found.append((argument.arg, of_ranks.value if isinstance(of_ranks, ast.Constant) else 2))  # pyright: ignore[reportArgumentType]
    return found


def _ranks(tree: ast.Module) -> int:
    for argument in kernel_node(tree).args.args:
        if argument.arg == "signals" and isinstance(note := argument.annotation, ast.Subscript):
            number = note.slice.elts[0] if isinstance(note.slice, ast.Tuple) else None
            return int(str(number.value)) if isinstance(number, ast.Constant) else 2
    return 2


@_mistake
def later_meet(r: random.Random, tree: ast.Module) -> bool:
    """The meet moves within the kernel's body."""
    if (found := _meet(tree)) is None:
        return False
    body, index, _ = found
    statement = body.pop(index)
    body.insert(r.randrange(1, len(body) + 1), statement)
    return True


@_mistake
def no_meet(r: random.Random, tree: ast.Module) -> bool:
    if (found := _meet(tree)) is None or len(found[0]) < 2:
        return False
    found[0].pop(found[1])
    return True


@_mistake
def another_meet(r: random.Random, tree: ast.Module) -> bool:
    if (found := _meet(tree)) is None:
        return False
    body = r.choice(list(_bodies(kernel_node(tree))))
    body.insert(r.randrange(len(body) + 1), copy.deepcopy(found[0][found[1]]))
    return True


@_mistake
def meet_within(r: random.Random, tree: ast.Module) -> bool:
    """The meet in a branch or a loop."""
    if (found := _meet(tree)) is None:
        return False
    body, index, _ = found
    head = r.choice(HEADS)
    (outer,) = _statements(f"{head}\n    pass")
    assert isinstance(outer, ast.If | ast.For)
    outer.body = [body[index]]
    body[index] = outer
    return True


@_mistake
def early_return(r: random.Random, tree: ast.Module) -> bool:
    if (found := _meet(tree)) is None:
        return False
    test = r.choice(("rank == 0", "b == 0", "b > num_blocks(0)", "rank > 7"))
    found[0].insert(found[1], *_statements(f"if {test}:\n    return"))
    return True


@_mistake
def other_number(r: random.Random, tree: ast.Module) -> bool:
    """Another number than that of the rank: computed from it, of another parameter, or a dim."""
    if (found := _meet(tree)) is None or len(found[2].args) < 2:
        return False
    ranks, routine = _ranks(tree), kernel_node(tree)
    dims = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    number = r.choice((*NUMBERS, "{ranks} - 1 - rank", "(rank + 1) % {ranks}", *dims)).format(ranks=ranks)
    if number == "other":
        routine.args.args.insert(r.randrange(len(routine.args.args) + 1), ast.arg("other", _expression("i32")))
    if number == "turned":
        found[0].insert(found[1], *_statements(f"rank = {ranks} - 1 - rank"))
        number = "rank"
    found[2].args[1] = _expression(number)
    return True


@_mistake
def other_signals(r: random.Random, tree: ast.Module) -> bool:
    """Signals in another order, some of them, or of two parameters."""
    if (found := _meet(tree)) is None:
        return False
    ranks, routine = _ranks(tree), kernel_node(tree)
    names = [f"signals[{rank}]" for rank in range(ranks)]
    match r.choice(("order", "backwards", "twice", "fewer", "mixed", "same")):
        case "order":
            r.shuffle(names)
        case "backwards":
            names.reverse()
        case "twice":
            names[r.randrange(ranks)] = r.choice(names)
        case "fewer":
            names.pop()
        case "mixed":
            given = next(copy.deepcopy(argument) for argument in routine.args.args if argument.arg == "signals")
            given.arg = "others"
            routine.args.args.append(given)
            names[r.randrange(ranks)] = f"others[{r.randrange(ranks)}]"
        case _:
            pass
    found[2].args[0] = _expression(f"({', '.join(names)},)")
    return True


@_mistake
def two_signals(r: random.Random, tree: ast.Module) -> bool:
    """A second parameter of signals, for a second meet or for none."""
    if (found := _meet(tree)) is None:
        return False
    routine = kernel_node(tree)
    given = next(copy.deepcopy(argument) for argument in routine.args.args if argument.arg == "signals")
    given.arg = "others"
    routine.args.args.append(given)
    if r.random() < 0.5:
        found[0].insert(r.randrange(found[1], len(found[0]) + 1), *_statements("meet(others, rank)"))
    return True


@_mistake
def hoisted_read(r: random.Random, tree: ast.Module) -> bool:
    """A part is read before the meet: by all, by its own rank, by no one, or without proof."""
    if (found := _meet(tree)) is None or not (parts := _parts(tree)):
        return False
    body, index, _ = found
    name, ranks = r.choice(parts)
    k = r.randrange(ranks)
    axes = len(next(a for a in kernel_node(tree).args.args if a.arg == name).annotation.slice.elts) - 2  # pyright: ignore
    read = f"load({name}[{k}], ({', '.join('0' * axes)}{',' if axes == 1 else ''}))"
    head = r.choice(("", "", f"if rank == {k}:", f"if rank != {k}:", "if b < 0:", f"if rank >= {ranks}:", "for q in range(0):",
                     "for q in range(rank):", "if num_blocks(0) < 1:", 'with unsafe("ranks have met elsewhere"):'))  # fmt: skip
    text = f"early = {read}" if not head else f"{head}\n    early = {read}"
    body[index:index] = _statements(text)
    return True


@_mistake
def read_before(r: random.Random, tree: ast.Module) -> bool:
    """What comes after the meet begins before it: the meet goes to the end of a loop or of the kernel."""
    if (found := _meet(tree)) is None:
        return False
    body, index, _ = found
    body.append(body.pop(index))
    return index < len(body) - 1


@_mistake
def other_part(r: random.Random, tree: ast.Module) -> bool:
    """A part of another rank, one that does not exist, or one by a number of the launch."""
    found = [node for node in ast.walk(kernel_node(tree)) if isinstance(node, ast.Subscript)
              and isinstance(node.value, ast.Name) and node.value.id in dict(_parts(tree))]  # fmt: skip
    if not found:
        return False
    node, ranks = r.choice(found), _ranks(tree)
    index = r.choice((*map(str, range(ranks)), str(ranks), "-1", "rank", "b", "1:", ":1"))
    shown = _expression(f"parts[{index}]")
    assert isinstance(shown, ast.Subscript)
    node.slice = shown.slice
    return True


@_mistake
def write_to_a_part(r: random.Random, tree: ast.Module) -> bool:
    """A store goes to a part of a rank, or to its signals."""
    stores = [node for node in ast.walk(kernel_node(tree)) if isinstance(node, ast.Call)
              and _is_call(node, "store", "scatter", "atomic_add")]  # fmt: skip
    if not stores or not (parts := _parts(tree)):
        return False
    name, ranks = r.choice(parts)
    r.choice(stores).args[0] = _expression(r.choice((f"{name}[{r.randrange(ranks)}]", name, "signals[0]")))
    return True


@_mistake
def rank_for_block(r: random.Random, tree: ast.Module) -> bool:
    """`rank` where the number of the block was meant, or the other way round, or with one added."""
    names = [node for node in ast.walk(kernel_node(tree)) if isinstance(node, ast.Name) and node.id in ("rank", "b", "i")
             and isinstance(node.ctx, ast.Load)]  # fmt: skip
    names = [node for node in names if (found := _meet(tree)) is None or node not in found[2].args]
    if not names:
        return False
    node = r.choice(names)
    replacement = r.choice(("rank", "b", f"{node.id} + 1", f"{node.id} - 1", f"({_ranks(tree)} - 1 - rank)", "0"))
    return _replaced(kernel_node(tree), node, _expression(replacement))


def _replaced(root: ast.AST, old: ast.Name, new: ast.expr) -> bool:
    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return new if node is old else node

    Replace().visit(root)
    return True


@_mistake
def other_grid(r: random.Random, tree: ast.Module) -> bool:
    """A grid of more blocks than signals, of two axes, or of a number that is not constant."""
    for statement in kernel_node(tree).body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and _is_call(statement.value, "grid"):
            number = ast.unparse(statement.value.args[0])
            new = r.choice((f"{number} + 1", f"{number} * 4", f"{number}, 2", "rank + 1", "N", "1", f"{number} - 1"))
            statement.value.args = [_expression(part) for part in new.split(", ")]
            return True
    return False


@_mistake
def no_bounds(r: random.Random, tree: ast.Module) -> bool:
    """A load without `pad`, a store without `mask`, or a `requires` less."""
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and any(k.arg in ("pad", "mask") for k in node.keywords)
    ]
    body = kernel_node(tree).body
    required = [s for s in body if isinstance(s, ast.Expr) and _is_call(s.value, "requires", "values")]
    if calls and (not required or r.random() < 0.6):
        call = r.choice(calls)
        call.keywords = [k for k in call.keywords if k.arg not in ("pad", "mask")]
        return True
    if required:
        body.remove(r.choice(required))
    return bool(required)


@_mistake
def other_ranks(r: random.Random, tree: ast.Module) -> bool:
    """A parameter of another number of ranks, or of other signals."""
    notes = [a.annotation for a in kernel_node(tree).args.args if isinstance(a.annotation, ast.Subscript)
             and isinstance(a.annotation.value, ast.Name) and a.annotation.value.id in ("Peer", "Signal")]  # fmt: skip
    if not notes:
        return False
    note = r.choice(notes)
    numbers = [n for n in ast.walk(note.slice) if isinstance(n, ast.Constant) and type(n.value) is int]
    if not numbers:
        return False
    number = r.choice(numbers)
    assert isinstance(number.value, int)
    number.value = max(0, number.value + r.choice((-1, 1)))
    return True


@_mistake
def as_own(r: random.Random, tree: ast.Module) -> bool:
    """A tensor of the rank is declared as another kind, so that rules of reading, writing or coverage change."""
    notes = [a.annotation for a in kernel_node(tree).args.args if isinstance(a.annotation, ast.Subscript)
             and isinstance(a.annotation.value, ast.Name) and a.annotation.value.id in OWN]  # fmt: skip
    if not notes:
        return False
    word = r.choice(notes).value
    assert isinstance(word, ast.Name)
    word.id = r.choice(OWN)
    return True
