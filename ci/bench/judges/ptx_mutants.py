"""Plants mistakes in PTX texts: variants with one mistake each, by class.

A mutant changes one instruction. Classes are named after typical mistakes of a code generator; `sites` lists every location of
a class in order, so that a selection by number is deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Mutant:
    """One planted mistake: the class, the line (from 1) of the text, and that line before and after."""

    kind: str
    line: int
    before: str
    after: str
    text: str


_INSTRUCTION: Final = r"(?:(?<=[\s;{])|^)"
Edit = Callable[[re.Match[str]], str | None]


def _drop(_: re.Match[str]) -> str:
    return ""


def _count_up(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2]) + 1};"


def _offset(bytes_: int) -> Edit:
    def edit(match: re.Match[str]) -> str:
        found = re.fullmatch(r"(%\w+)\s*(?:\+\s*(-?\d+))?", match["address"].strip())
        if found is None:
            return match[0]
        shifted = f"{found[1]}+{int(found[2] or 0) + bytes_}"
        return match[0].replace(f"[{match['address']}]", f"[{shifted}]", 1)

    return edit


def _access_offset(match: re.Match[str]) -> str | None:
    """Offset by the width of one access, so that it stays aligned."""
    width = int(match["width"]) // 8 * int((match["vector"] or "v1")[-1:])
    return _offset(width)(match)


def _negate(match: re.Match[str]) -> str:
    return match[0].replace(match["guard"], ("@" if match["guard"].startswith("@!") else "@!") + match["guard"].lstrip("@!"), 1)


def _unguard(match: re.Match[str]) -> str:
    return match[0].replace(match["guard"], "", 1)


def _looser(match: re.Match[str]) -> str:
    return match[0].replace(match["test"], {"lt": "le", "ge": "gt", "gt": "ge", "le": "lt"}[match["test"]], 1)


def _swap_registers(match: re.Match[str]) -> str | None:
    items = [item.strip() for item in match["items"].split(",")]
    if len(items) < 2 or items[0] == items[1]:
        return None
    items[0], items[1] = items[1], items[0]
    return match[0].replace(match["items"], ", ".join(items), 1)


def _other_lane(match: re.Match[str]) -> str:
    return match[0].replace(f" {match['offset']},", f" {int(match['offset']) // 2 or 2},", 1)


def _parity(match: re.Match[str]) -> str:
    return f"{match[1]}{'1' if match['parity'].strip() == '0' else '0'};"


def _fewer_bytes(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match['count']) + 16};"


_GUARD: Final = r"(?P<guard>@!?%p\w+)"
CLASSES: Final[dict[str, tuple[str, Edit]]] = {
    "barrier dropped": (r"\bbar\.sync\s+\d+\s*;", _drop),
    "cp.async wait dropped": (r"\bcp\.async\.(?:bulk\.)?wait_(?:group|all)[^;]*;", _drop),
    "cp.async wait count one too high": (r"(\bcp\.async\.wait_group\s+)(\d+)\s*;", _count_up),
    "cp.async commit dropped": (r"\bcp\.async\.(?:bulk\.)?commit_group\s*;", _drop),
    "wgmma wait dropped": (r"\bwgmma\.wait_group[^;]*;", _drop),
    "wgmma wait count one too high": (r"(\bwgmma\.wait_group\.sync\.aligned\s+)(\d+)\s*;", _count_up),
    "wgmma fence dropped": (r"\bwgmma\.fence[^;]*;", _drop),
    "wgmma commit dropped": (r"\bwgmma\.commit_group[^;]*;", _drop),
    "proxy fence dropped": (r"\bfence\.proxy\.async[^;]*;", _drop),
    "mbarrier wait dropped": (r"\bmbarrier\.try_wait[^;]*;", lambda m: "setp.eq.b32 complete, 0, 0;"),
    "mbarrier phase wrong": (r"(\bmbarrier\.try_wait\.parity[^;]*\],\s*)(?P<parity>[%\w]+)\s*;", _parity),
    "expected bytes wrong": (r"(\bmbarrier\.arrive\.expect_tx[^;]*,\s*)(?P<count>\d+)\s*;", _fewer_bytes),
    "mbarrier init dropped": (r"@?!?[%\w]*\s*mbarrier\.init[^;]*;", _drop),
    "mbarrier count wrong": (r"(\bmbarrier\.init[^;]*,\s*)(\d+)\s*;", _count_up),
    "mbarrier arrival dropped": (r"(?:@!?%p\w+\s+)?\bmbarrier\.arrive\.shared[^;]*;", _drop),
    "absent bytes not counted": (r"(?:@!?%\w+\s+)?\bmbarrier\.complete_tx\.shared[^;]*;", _drop),
    "barrier of some threads dropped": (r"\bbar(?:rier)?\.(?:sync|arrive)(?:\.aligned)?\s+[%\w]+,\s*\d+\s*;", _drop),
    "tensor copy dropped": (r"(?:@!?%p\w+\s+)?\bcp\.async\.bulk\.tensor[^;]*;", _drop),
    "coordinates exchanged": (r"\bcp\.async\.bulk\.tensor[^;]*\{(?P<items>[^}]*)\}[^;]*;", _swap_registers),
    "tensor copy shifted": (
        r"\bcp\.async\.bulk\.tensor\.\dd\.shared[^;\[]*\[(?P<address>[^\]]*)\][^;]*;", _offset(128)),
    "matrix descriptor stepped wrong": (r"\badd\.s64 (?:a\d|b), (?:a\d|b), (?P<step>\d+);",
                                        lambda m: m[0].replace(f", {m['step']};", f", {int(m['step']) * 2};")),
    "read-only path where it is written": (
        r"\bld\.global(?=\.(?:L\w+::|v[248]|[bfus]\d))[^;]*;", lambda m: m[0].replace("ld.global", "ld.global.nc", 1)),
    "dependency wait dropped": (r"\bgriddepcontrol\.wait\s*;", _drop),
    "global pointer shifted": (
        r"\b(?:ld|st)\.global(?:\.nc)?(?:\.L\w+::\w+|\.\w+::\w+)*(?:\.(?P<vector>v[248]))?\.[bfus](?P<width>\d+)[^;\[]*"
        r"\[(?P<address>[^\]]*)\][^;]*;", _access_offset,
    ),
    "shared pointer shifted": (
        r"\b(?:ld|st)\.shared(?:\.(?P<vector>v[24]))?\.[bfus](?P<width>\d+)[^;\[]*"
        r"\[(?P<address>[^\]]*)\][^;]*;", _access_offset,
    ),
    "matrix pointer shifted": (r"\b(?:ldmatrix|stmatrix)[^;\[]*\[(?P<address>[^\]]*)\][^;]*;", _offset(16)),
    "copy pointer shifted": (r"\bcp\.async\.c[ag]\.shared\.global\s*\[(?P<address>[^\]]*)\][^;]*;", _offset(16)),
    "guard negated": (_GUARD + r"\s+(?:ld|st|cp|mov|red|atom)\b[^;]*;", _negate),
    "guard dropped": (_GUARD + r"\s+(?:ld|st|cp)\b[^;]*;", _unguard),
    "bound off by one": (r"\bsetp\.(?P<test>lt|le|gt|ge)\.[us](?:32|64)[^;]*;", _looser),
    "branch negated": (_GUARD + r"\s+bra\b[^;]*;", _negate),
    "sign dropped": (r"\b(?:setp\.(?:lt|le|gt|ge)\.(?P<sign>s32)|shr\.(?P<sign2>s32))[^;]*;",
                     lambda m: m[0].replace("s32", "u32", 1)),
    "sign extension dropped": (r"\bcvt\.s64\.s32[^;]*;", lambda m: m[0].replace("cvt.s64.s32", "cvt.u64.u32")),
    "fragment registers swapped": (r"\bmma\.sync[^;{]*\{[^}]*\},\s*\{(?P<items>[^}]*)\}[^;]*;", _swap_registers),
    "matrix transposition changed": (r"\bldmatrix[^;]*;",
                                     lambda m: m[0].replace(".trans", "") if ".trans" in m[0]
                                     else m[0].replace(".shared", ".trans.shared", 1)),
    "shuffle lane wrong": (r"\bshfl\.sync\.bfly\.b32[^;]*,\s(?P<offset>\d+), -?\d+, -?\d+\s*;", _other_lane),
    "operands exchanged": (r"\b(?P<op>sub\.[fs]32|div\.(?:rn|full)\.f32)\s+(?P<d>[%\w]+), (?P<a>[%\w]+), (?P<b>[%\w]+)\s*;",
                           lambda m: f"{m['op']} {m['d']}, {m['b']}, {m['a']};"),
    "sum turned to difference": (r"\badd(?:\.rn)?\.f32\b[^;]*;", lambda m: m[0].replace("add", "sub", 1)),
    "store dropped": (r"(?:@!?%p\w+\s+)?\bst\.(?:global|shared)[^;]*;", _drop),
}  # fmt: skip
"""Pattern of an instruction and its replacement, by class."""


def sites(text: str, kind: str) -> list[re.Match[str]]:
    """Every location of a class in a text, outside comments."""
    pattern, _ = CLASSES[kind]
    found = list(re.finditer(pattern, text))
    return [match for match in found if "//" not in text[text.rfind("\n", 0, match.start()) + 1 : match.start()]]


def plant(text: str, kind: str, match: re.Match[str]) -> Mutant | None:
    """The text with the mistake at one location; None if that changes nothing."""
    changed = CLASSES[kind][1](match)
    if changed is None or changed == match[0]:
        return None
    return Mutant(
        kind, text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), " ".join(changed.split()),
        text[: match.start()] + changed + text[match.end() :],
    )  # fmt: skip


def mutants(text: str, kind: str) -> Iterator[Mutant]:
    """Every mutant of a class."""
    for match in sites(text, kind):
        mutant = plant(text, kind, match)
        if mutant is not None:
            yield mutant
