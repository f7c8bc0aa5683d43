"""Prepares the entries of many artifacts in processes of their own. In: subjects. Out: entries, in the order of their names."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path

from tilec.qualify.prepare import Subject, prepared
from tilec.qualify.side_file import Entry


def entries(
    subjects: Sequence[Subject], jobs: int, show: Callable[[str], None] | None = None, references: Path | None = None
) -> list[Entry]:  # fmt: skip
    """The entry of each subject; the same ones with any number of `jobs`. `references` as in `prepared`."""
    found: list[Entry] = []
    work = functools.partial(prepared, references=references)
    if jobs == 1 or len(subjects) < 2:
        for subject in subjects:
            found.append(work(subject))
            if show is not None:
                show(subject.name)
        return found
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(subjects))) as pool:
        for entry in pool.imap(work, subjects):
            found.append(entry)
            if show is not None:
                show(entry.name)
    return found
