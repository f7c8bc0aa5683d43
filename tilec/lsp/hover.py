"""Describes a location in a kernel as Markdown: value, proofs, words of the language, codes.

In: a location, and the verdicts on its text. Out: type, range and divisibility of the value there, the proofs of the access's
obligations, the meaning of the word or name. Specialisations with the same description are listed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tilec.diagnostics.diagnostic import Diagnostic, Span
from tilec.frontend import Outline, Symbol, word_doc
from tilec.lsp.positions import Word, contains, size
from tilec.lsp.reports import explanation, file_of
from tilec.passes.analysis.facts import Fact
from tilec.project.build.live import Specialisation, Verdict

SHOWN: Final = 4
"""Maximum number of different descriptions shown."""
RUNGS: Final = {
    "static": "by constants alone",
    "interval": "by ranges of values",
    "set": "by integer sets",
    "launch": "by a check of the launch",
    "value": "by a check of the values in a tensor",
    "unsafe": "not proven, in an `unsafe` block",
}
"""Description of each rung of the prover's ladder."""


def of_location(verdict: Verdict, file: str, line: int, column: int, word: Word | None) -> str:
    """Description of the smallest expression around a location; empty if nothing is known."""
    descriptions: dict[str, list[Specialisation]] = {}
    analysed = [specialisation for specialisation in verdict.specialisations if specialisation.facts is not None]
    for specialisation in analysed:
        text = _of_specialisation(verdict, specialisation, file, line, column, word)
        if text:
            descriptions.setdefault(text, []).append(specialisation)
    parts: list[str] = []
    for text, specialisations in list(descriptions.items())[:SHOWN]:
        parts.append(
            text if len(descriptions) == 1 else f"With {_constants(specialisations, verdict.specialisations)}:\n\n{text}"
        )
    if len(descriptions) > SHOWN:
        parts.append(f"And {len(descriptions) - SHOWN} more answers of other specialisations.")
    return "\n\n".join(parts)


def of_name(verdict: Verdict, name: str) -> str:
    """Description of a parameter or dim of the kernel; empty if nothing is known."""
    found: dict[str, None] = {}
    for specialisation in verdict.specialisations:
        fact = specialisation.facts.names.get(name) if specialisation.facts is not None else None
        if fact is not None:
            found["  \n".join([f"`{fact.type}`", *_range_lines(fact, name)])] = None
    shown = list(found)[:SHOWN]
    return "\n\n".join([*shown, *(["and others"] if len(found) > SHOWN else [])])


def of_symbol(symbol: Symbol) -> str:
    """The first line of a definition, and its docstring."""
    return f"```python\n{symbol.text.strip()}\n```" + (f"\n\n{symbol.doc}" if symbol.doc else "")


def of_word(found: Outline | None, word: Word) -> str:
    """The documentation of a word of the language; empty if the name is not one."""
    if found is None:
        return ""
    word_name = found.words.get(word.text, "") if not word.package else word.text if word.package in found.packages else ""
    documentation = word_doc(word_name) if word_name else None
    return f"```python\n{documentation[0]}\n```\n\n{documentation[1]}" if documentation is not None else ""


def of_code(code: str) -> str:
    """The page of an error or note code; empty for an unknown code."""
    return explanation(code)


def of_diagnostics(found: Iterable[Diagnostic]) -> str:
    """The title and first paragraph of the page of each code."""
    parts: list[str] = []
    for code in dict.fromkeys(item.code for item in found):
        title, _, rest = explanation(code).partition("\n\n")
        parts.append(f"**{title.removeprefix('# ')}**\n\n{rest.partition(chr(10) * 2)[0]}")
    return "\n\n".join(parts)


def _of_specialisation(
    verdict: Verdict, specialisation: Specialisation, file: str, line: int, column: int, word: Word | None
) -> str:  # fmt: skip
    assert specialisation.facts is not None
    around = [fact for fact in specialisation.facts.by_location if _is_at(fact.span, verdict, file, line, column)]
    smallest = min((size(fact.span) for fact in around if fact.span), default=None)
    facts = [fact for fact in around if fact.span and size(fact.span) == smallest]
    lines = ["  \n".join([f"`{fact.type}`", *_range_lines(fact, _named(fact, word))]) for fact in facts[:SHOWN]]
    if len(facts) > SHOWN:
        lines.append(f"and {len(facts) - SHOWN} more, of other calls")
    access = _access_at(verdict, specialisation, file, line, column)
    if access is not None and (smallest is None or size(access) <= smallest):
        lines += _proofs(specialisation, access)
    return "\n\n".join(lines)


def _is_at(span: Span | None, verdict: Verdict, file: str, line: int, column: int) -> bool:
    return span is not None and contains(span, line, column) and file_of(verdict.root, span) == file


def _access_at(verdict: Verdict, specialisation: Specialisation, file: str, line: int, column: int) -> Span | None:
    """The smallest call around a location that has obligations."""
    assert specialisation.facts is not None
    located = {obligation["location"] for obligation in specialisation.obligations}
    calls = [
        span for span in specialisation.facts.accesses if str(span) in located and _is_at(span, verdict, file, line, column)
    ]
    return min(calls, key=size, default=None)


def _proofs(specialisation: Specialisation, access: Span) -> list[str]:
    """The proof of each obligation of an access, without duplicates."""
    lines: dict[str, None] = {}
    for obligation in specialisation.obligations:
        if obligation["location"] == str(access):
            lines[f"- {_obligation(obligation)}"] = None
    return ["Proven:\n\n" + "\n".join(lines)]


def _obligation(obligation: dict[str, Any]) -> str:
    rung: str = obligation["rung"]
    facts: Sequence[str] = obligation["facts"]
    by = f", from {'; '.join(f'`{fact}`' for fact in facts)}" if facts else ""
    return f"{obligation['property']} of {obligation['subject']}: **{rung}** ({RUNGS.get(rung, rung)}){by}"


def _named(fact: Fact, word: Word | None) -> str:
    """The name under which a value is shown: its own, else `v`."""
    span = fact.span
    is_name = span is not None and word is not None and (span.column, span.end_column) == (word.column, word.end)
    return word.text if is_name and word is not None and not word.text[0].isdigit() else "v"


def _range_lines(fact: Fact, name: str) -> list[str]:
    """Range and divisibility as text."""
    if fact.low is None or fact.high is None:
        return []
    if fact.low == fact.high:
        return [f"always {fact.low}"]
    lines = ["any value of its dtype" if fact.whole else f"`{fact.low} <= {name} <= {fact.high}`"]
    if fact.modulus > 1:
        rest = fact.rest % fact.modulus
        lines.append(f"a multiple of {fact.modulus}" if rest == 0 else f"`{name} % {fact.modulus} == {rest}`")
    return lines


def _constants(reported: Sequence[Specialisation], all_specialisations: Sequence[Specialisation]) -> str:
    """The constants that distinguish these specialisations from the others."""
    differ = [
        name
        for name in reported[0].constants
        if len({repr(specialisation.constants[name]) for specialisation in all_specialisations}) > 1
    ]
    texts = [", ".join(f"`{name}={specialisation.constants[name]}`" for name in differ) for specialisation in reported[:2]]
    return " or ".join(texts) + (f" or {len(reported) - 2} more" if len(reported) > 2 else "")
