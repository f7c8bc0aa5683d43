"""Draw the picture of docs/editors.md: Neovim with the language server, on a refused kernel and on a proven one.

    python ci/editor_view.py [OUT.svg]

Needs `nvim` and `tmux`. In: the refused kernel of docs/proofs.md. Out: `artifacts/gallery/editor.svg`, three screens captured
from a real editor: errors with their counterexamples, the facts about a proven access, and those about a value.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 122, 27
WAIT: Final = 120.0
BUILD: Final = (
    '[build]\nkernels = "."\narch = ["sm_90"]\n\n[[kernel]]\nname = "head_permute"\nconstants = { HEADS = 32, D = 128 }\n'
)
INIT: Final = """
vim.o.termguicolors, vim.o.swapfile, vim.o.laststatus, vim.o.ruler, vim.o.showmode = true, false, 0, false, false
vim.o.number, vim.o.signcolumn, vim.o.background = true, "yes", "dark"
vim.cmd("syntax on")
for name, colour in pairs({
    Normal = "guifg=#d4d4d4", NormalFloat = "guibg=#252526 guifg=#d4d4d4", FloatBorder = "guifg=#808080",
    LineNr = "guifg=#6e7681", SignColumn = "guibg=NONE", NonText = "guifg=#3a3a3a", Comment = "guifg=#6a9955",
    String = "guifg=#ce9178", Constant = "guifg=#b5cea8", Statement = "guifg=#c586c0 gui=none", PreProc = "guifg=#c586c0",
    Identifier = "guifg=#dcdcaa gui=none", Function = "guifg=#dcdcaa gui=none", Special = "guifg=#4ec9b0",
    DiagnosticError = "guifg=#f48771" }) do vim.cmd("highlight " .. name .. " " .. colour) end
vim.api.nvim_create_autocmd("FileType", { pattern = "python", callback = function(args)
  vim.lsp.buf_attach_client(args.buf, vim.lsp.start_client({ name = "tilec", cmd = COMMAND, root_dir = vim.fn.getcwd() }))
end })
local with_code = function(item) return item.code .. " " .. item.message end
vim.diagnostic.config({ virtual_text = false, float = { border = "rounded", header = "", format = with_code } })
vim.lsp.handlers["textDocument/hover"] = vim.lsp.with(vim.lsp.handlers.hover, { border = "rounded", max_width = 100 })
"""


class Screen:
    """A terminal in which an editor runs."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "tmux")
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(folder), "bash --norc")
        self.tmux("set", "-g", "default-terminal", "tmux-256color")

    def tmux(self, *arguments: str) -> str:
        """Run a tmux command; returns its output."""
        return subprocess.run(["tmux", "-S", self.socket, *arguments], check=True, capture_output=True, text=True).stdout

    def keys(self, *arguments: str) -> None:
        """Send keys."""
        self.tmux("send-keys", *arguments)

    def until(self, pattern: str) -> str:
        """The screen, once it matches a pattern."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if re.search(pattern, self.tmux("capture-pane", "-p")):
                return self.tmux("capture-pane", "-p", "-e")
            time.sleep(0.2)
        raise SystemExit(f"error: the screen never showed {pattern!r}:\n{self.tmux('capture-pane', '-p')}")


def kernel() -> str:
    """The refused kernel of docs/proofs.md."""
    text = (ROOT / "docs/proofs.md").read_text(encoding="utf-8")
    found = re.search(r'```python title="head_permute.py"\n(.*?)```', text, re.DOTALL)
    assert found is not None
    return found[1]


def screens(folder: Path) -> list[str]:
    """The three screens."""
    project = folder / "project"
    project.mkdir()
    (project / "head_permute.py").write_text(kernel(), encoding="utf-8")
    (project / "build.toml").write_text(BUILD, encoding="utf-8")
    command = f'{{ "{Path(sys.executable).with_name("tilec")}", "lsp" }}'
    (folder / "init.lua").write_text(INIT.replace("COMMAND", command), encoding="utf-8")
    lines = list(enumerate(kernel().splitlines(), 1))
    line = next(number for number, text in lines if "store(out" in text)
    top = next(number for number, text in lines if text.startswith("def "))
    screen = Screen(folder)
    try:
        start = f"cd project && TERM=tmux-256color TILEC_CACHE_DIR={shlex.quote(str(folder / 'store'))} nvim -u ../init.lua"
        screen.keys(f"{start} head_permute.py", "Enter")
        screen.until(rf"E +{line} ")
        screen.keys(f"{line}Gzt{line - top}kw", f"{line}G", "w", ":lua vim.diagnostic.open_float()", "Enter")
        refused = screen.until("written by no block")
        screen.keys("Escape", ":%s/m . M + h/h * M + m/", "Enter", ":echo", "Enter")
        screen.until(rf"(?m)^ +{line} +store.out, .h . M")
        screen.keys(f"{line}G^", ":lua vim.lsp.buf.hover()", "Enter")
        proven = screen.until("Proven")
        screen.keys("Escape", "f*", ":lua vim.lsp.buf.hover()", "Enter")
        ranges = screen.until("<= v <=")
        return [refused, proven, ranges]
    finally:
        screen.tmux("kill-server")


def drawn(found: list[str]) -> str:
    """The screens as one SVG, without the editor's empty lines."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w", encoding="utf-8"), force_terminal=True)  # noqa: SIM115
    for index, text in enumerate(found):
        plain = re.sub(r"\x1b\[(?:58[;:][\d;:]*|59)m", "", text)  # colours of underlines, which rich does not support
        lines = plain.rstrip().split("\n")[:-1]
        while lines and re.fullmatch(r"(?:\x1b\[[\d;]*m|~|\s)*", lines[-1]):
            lines.pop()
        if index:
            console.print(Text("\u2500" * COLUMNS, style="#6e7681"))
        for line in lines:
            console.print(Text.from_ansi(line), no_wrap=True, crop=True, overflow="crop")
    picture = console.export_svg(title="nvim head_permute.py", unique_id="editor")
    return re.sub(r"@font-face \{.*?\}\n", "", picture, flags=re.DOTALL)  # an embedded picture must not load fonts


def main() -> int:
    """Write the picture."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "artifacts/gallery/editor.svg"
    with tempfile.TemporaryDirectory() as folder:
        picture = drawn(screens(Path(folder)))
    out.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
