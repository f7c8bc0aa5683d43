"""`python -m engine.tiny FOLDER`."""

from __future__ import annotations

from engine.tools.tiny import command

if __name__ == "__main__":
    command(prog_name="python -m engine.tiny")
