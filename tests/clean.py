"""What the emulator may say of a program that tilec made: nothing."""

from __future__ import annotations

from tilec.emulator.errors import Report


def check_clean(report: Report, *, notes: bool = False) -> None:
    """No faults and, unless `notes`, no notes: a program of tilec keeps to the text of the PTX ISA."""
    assert report.clean, "\n".join(map(str, report.faults))
    assert notes or not report.notes, "\n".join(map(str, report.notes))
