"""What the host sends to steps over pages: planted mistakes are refused, and what is accepted keeps sequences apart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.graph.integers import GraphError
from engine.graph.pages import PageTables, Part

PAGE = 4


def tables(rows: int = 4, pages: int = 40, table_pages: int = 6) -> PageTables:
    return PageTables(rows, pages, PAGE, table_pages)


def joined(found: PageTables, row: int, pages: list[int], length: int, first: int = 0) -> None:
    found.chunk([Part(pages, first, length - first)])
    found.join(row, pages, length)


def test_a_chunk_has_its_slots_and_a_step_the_next_ones() -> None:
    found = tables()
    packed = found.chunk([Part([5, 3, 9], 0, 6)])
    assert packed.table.tolist() == [5, 3, 0, 0, 0, 0]
    assert packed.slots.tolist() == [20, 21, 22, 23, 12, 13]
    found.join(1, [5, 3, 9], 6)
    found.table()
    sent = found.next_slots([1])
    assert {name: value.tolist() for name, value in sent.items()} == {
        "positions": [0, 6, 0, 0], "slots": [0, 14, 2, 3], "lengths": [1, 7, 1, 1],
    }  # fmt: skip
    assert found.next_slots([1])["slots"].tolist() == [0, 15, 2, 3]
    assert found.next_slots([1])["slots"].tolist() == [0, 36, 2, 3]
    assert found.next_slots([])["slots"].tolist() == [0, 1, 2, 3]


def test_the_first_chunk_of_a_server_imports_nothing() -> None:
    """`np.unique`, for one, would import `numpy.ma`."""
    lines = (
        "import sys", "from engine.graph.pages import PageTables, Part", "tables = PageTables(4, 40, 4, 6)",
        "before = set(sys.modules)", "tables.chunk([Part([5, 3, 9], 0, 6)])", "tables.join(1, [5, 3, 9], 6)",
        "print(sorted(set(sys.modules) - before))",
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_guesses_have_the_slots_after_the_last_token_and_are_dropped() -> None:
    found = tables()
    joined(found, 0, [1], 2)
    joined(found, 1, [5, 3, 9], 6)
    assert found.lend(3, 1) and found.lend(2, 1) and not found.lend(2, 1)
    sent = found.table()
    assert sent[2].tolist() == sent[3].tolist() == sent[1].tolist() == [5, 3, 9, 0, 0, 0]
    found_slots = found.next_slots([0, 1], [(3, 1), (2, 1)])
    assert {name: value.tolist() for name, value in found_slots.items()} == {
        "positions": [2, 6, 8, 7], "slots": [6, 14, 36, 15], "lengths": [3, 7, 9, 8],
    }  # fmt: skip
    found.rewind(1, 7)
    assert found.next_slots([1])["slots"].tolist() == [0, 15, 2, 3]  # rows that are lent, and have no guess, are parked
    found.remove(1)
    assert found.table()[2:].tolist() == [[0] * 6, [0] * 6]
    joined(found, 2, [5, 3], 5)
    assert found.table()[2].tolist() == [5, 3, 0, 0, 0, 0]


def twice_in_a_table(found: PageTables) -> None:
    found.chunk([Part([5, 5], 0, 6)])


def in_parking(found: PageTables) -> None:
    found.chunk([Part([0], 0, 1)])


def outside(found: PageTables) -> None:
    found.chunk([Part([40], 0, 1)])


def too_many(found: PageTables) -> None:
    found.chunk([Part(list(range(1, 8)), 0, 1)])


def past_the_pages(found: PageTables) -> None:
    found.chunk([Part([1], 2, 3)])


def own_page_of_a_row(found: PageTables) -> None:
    joined(found, 0, [1, 2], 6)
    found.chunk([Part([3, 2], 0, 6)])


def reserved_page_of_a_row(found: PageTables) -> None:
    joined(found, 0, [1, 2, 7], 3)
    found.chunk([Part([7], 0, 1)])


def write_to_a_shared_page(found: PageTables) -> None:
    joined(found, 0, [1, 2], 6)
    found.chunk([Part([1, 3], 2, 4)])


def shared_at_another_index(found: PageTables) -> None:
    joined(found, 0, [1, 2, 3], 9)
    found.chunk([Part([2, 5], 4, 1)])


def shared_before_it_is_full(found: PageTables) -> None:
    joined(found, 0, [1, 2], 6)
    found.chunk([Part([1, 2, 3], 8, 1)])


def another_index_than_it_was_written_at(found: PageTables) -> None:
    found.chunk([Part([1, 2], 0, 8)])
    found.chunk([Part([2, 3], 4, 1)])


def tokens_that_nobody_wrote(found: PageTables) -> None:
    found.chunk([Part([1, 2], 4, 1)])


def tokens_of_another_sequence(found: PageTables) -> None:
    found.chunk([Part([1, 2], 0, 6)])
    found.chunk([Part([2], 0, 1)])  # the first sequence was given up, as far as its pages say
    found.chunk([Part([1, 2], 6, 1)])


def joined_twice(found: PageTables) -> None:
    joined(found, 0, [1], 2)
    found.join(0, [1], 2)


def joined_with_more_than_it_has(found: PageTables) -> None:
    found.chunk([Part([1, 2], 0, 3)])
    found.join(0, [1, 2], 5)


def stale_table(found: PageTables) -> None:
    joined(found, 0, [1, 2], 3)
    found.table()
    joined(found, 1, [3], 3)
    found.next_slots([0, 1])


def stale_table_of_a_removed_row(found: PageTables) -> None:
    joined(found, 0, [1, 2], 3)
    found.table()
    found.remove(0)
    found.next_slots([])


def never_sent(found: PageTables) -> None:
    joined(found, 0, [1], 2)
    found.next_slots([0])


def row_without_a_sequence(found: PageTables) -> None:
    found.table()
    found.next_slots([3])


def past_the_last_page(found: PageTables) -> None:
    joined(found, 0, [1], 4)
    found.table()
    found.next_slots([0])


def rewound_into_a_shared_page(found: PageTables) -> None:
    joined(found, 0, [1, 2], 6)
    joined(found, 1, [1, 3], 5, first=4)
    found.rewind(0, 3)


def lent_with_a_sequence(found: PageTables) -> None:
    joined(found, 0, [1], 2)
    joined(found, 1, [2], 2)
    found.lend(1, 0)


def lent_to_nobody(found: PageTables) -> None:
    found.lend(1, 0)


def lent(found: PageTables, pages: list[int], length: int) -> None:
    joined(found, 0, pages, length)
    found.lend(2, 0)
    found.table()


def lent_and_not_sent(found: PageTables) -> None:
    joined(found, 0, [1], 2)
    found.table()
    found.lend(2, 0)
    found.next_slots([0], [(2, 0)])


def guess_past_the_last_page(found: PageTables) -> None:
    lent(found, [1], 3)
    found.next_slots([0], [(2, 0)])


def guess_in_a_shared_page(found: PageTables) -> None:
    lent(found, [1, 2], 3)
    found._users[2] = 2  # pyright: ignore[reportPrivateUsage]
    found.next_slots([0], [(2, 0)])


def guess_in_a_row_that_is_not_lent(found: PageTables) -> None:
    lent(found, [1], 2)
    found.next_slots([0], [(3, 0)])


def guess_without_the_token_before(found: PageTables) -> None:
    lent(found, [1], 2)
    found.next_slots([], [(2, 0)])


def two_guesses_in_a_row(found: PageTables) -> None:
    lent(found, [1, 2], 2)
    found.next_slots([0], [(2, 0), (2, 0)])


def lent_by_who_is_gone(found: PageTables) -> None:
    lent(found, [1], 2)
    found.remove(0)
    joined(found, 1, [1], 2)
    found.table()
    found.next_slots([1], [(2, 0)])


MISTAKES: dict[Callable[[PageTables], None], str] = {
    twice_in_a_table: "has a page twice",
    in_parking: "sequences have 1 to 39",
    outside: "sequences have 1 to 39",
    too_many: "takes 1 to 6 pages",
    past_the_pages: "no slots for tokens 2 to 4|lacks tokens",
    own_page_of_a_row: "has page 2, which a row has too",
    reserved_page_of_a_row: "has page 7, which a row has too",
    write_to_a_shared_page: "has page 1, which a row has too|lacks tokens",
    shared_at_another_index: "page 2 has 4, written at index 1",
    shared_before_it_is_full: "lacks tokens of the first 8: page 2 has 2",
    another_index_than_it_was_written_at: "page 2 has 4, written at index 1",
    tokens_that_nobody_wrote: "lacks tokens of the first 4: page 1 has 0",
    tokens_of_another_sequence: "lacks tokens of the first 6: page 2 has 1",
    joined_twice: "row 0, which is none or has a sequence",
    joined_with_more_than_it_has: "lacks tokens of the first 5",
    stale_table: "has changed since it was sent",
    stale_table_of_a_removed_row: "has changed since it was sent",
    never_sent: "has changed since it was sent",
    row_without_a_sequence: "row 3, which has no sequence",
    past_the_last_page: "no slot for token 4",
    rewound_into_a_shared_page: "which other tables have too",
    lent_with_a_sequence: "is lent to row 1",
    lent_to_nobody: "is lent to row 1",
    lent_and_not_sent: "has changed since it was sent",
    guess_past_the_last_page: "no slot for token 4",
    guess_in_a_shared_page: "which another table has too",
    guess_in_a_row_that_is_not_lent: "not lent to row 3",
    guess_without_the_token_before: "not lent to row 2",
    two_guesses_in_a_row: "not lent to row 2, or that row takes another",
    lent_by_who_is_gone: "not lent to row 2",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.__name__)
def test_a_planted_mistake_is_refused(mistake: Callable[[PageTables], None]) -> None:
    with pytest.raises(GraphError, match=MISTAKES[mistake]):
        mistake(tables())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_accepted_no_sequence_writes_what_another_reads(data: st.DataObject) -> None:
    """Each slot remembers who wrote it last, and a sequence's tokens must be what its table says: its own, or those of a
    sequence with the same beginning."""
    found, pages = tables(rows=3, pages=7, table_pages=3), range(1, 7)
    slots: dict[int, tuple[int, int]] = {}  # slot: writer and position
    tokens: dict[int, dict[int, int]] = {}  # row: writers of its tokens by position
    owned: dict[int, list[int]] = {}
    writer = 0
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["join", "step", "guess", "remove"]))
        try:
            if action == "join":
                row = data.draw(st.integers(0, 2))
                mine = data.draw(st.lists(st.sampled_from(pages), min_size=1, max_size=3))
                first = data.draw(st.sampled_from([0, 0, PAGE, 2 * PAGE]))
                count = data.draw(st.integers(1, 6))
                writer += 1
                prefix = {at: slots.get(mine[at // PAGE] * PAGE + at % PAGE) for at in range(first) if at // PAGE < len(mine)}
                written = found.chunk([Part(mine, first, count)]).slots
                slots |= {int(slot): (writer, first + at) for at, slot in enumerate(written)}
                found.join(row, mine, first + count)
                assert all(known is not None and known[1] == at for at, known in prefix.items())
                tokens[row] = {at: known[0] for at, known in prefix.items() if known}
                tokens[row] |= dict.fromkeys(range(first, first + count), writer)
                owned[row] = mine
            elif action == "remove" and owned:
                row = data.draw(st.sampled_from(sorted(owned)))
                found.remove(row)
                del owned[row], tokens[row]
            elif action == "guess" and owned:
                row, other = data.draw(st.sampled_from(sorted(owned))), data.draw(st.integers(0, 2))
                found.lend(other, row)
                found.table()
                before = min(tokens[row].keys() ^ range(1000))
                sent = found.next_slots([row], [(other, row)])
                assert len(set(sent["slots"].tolist())) == 3
                for at in (row, other):
                    slots[int(sent["slots"][at])] = (writer + 1, int(sent["positions"][at]))
                writer += 1
                kept = before + data.draw(st.integers(1, 2))
                found.rewind(row, kept)
                tokens[row] |= dict.fromkeys(range(before, kept), writer)
            elif owned:
                found.table()
                row = data.draw(st.sampled_from(sorted(owned)))
                sent = found.next_slots([row])
                assert len(set(sent["slots"].tolist())) == 3
                at = int(sent["positions"][row])
                tokens[row][at] = writer = writer + 1
                slots[int(sent["slots"][row])] = (writer, at)
        except GraphError:
            pass
        for row, mine in owned.items():
            for at, known in tokens[row].items():
                assert slots[mine[at // PAGE] * PAGE + at % PAGE] == (known, at)
