"""`tilec lsp`: the language server, for one editor, on stdin and stdout."""

from __future__ import annotations

import click

from tilec.cli.options import ENDED, JOBS, cores
from tilec.cli.project import UsageError

LSP_EPILOG = f"Exit status: 0 the editor shut it down, 1 the editor disconnected, 2 wrong usage or environment, {ENDED}."


@click.command("lsp", epilog=LSP_EPILOG)
@JOBS
@click.option(
    "--stdio", is_flag=True, expose_value=False, help="Accepted because some editors pass it; stdio is the only transport."
)
def lsp(jobs: int | None) -> int:
    """Language server for editors, on stdin and stdout: what `tilec check` would say of kernels, as they are typed.

    Diagnostics with counterexamples, ranges and proofs under the cursor, definitions of tile functions, symbols. Unsaved
    texts count. Kernels of a build.toml are checked at its specialisations; other files with the values of
    `constants` in the editor's initialization options. It needs the extra `lsp`: pip install 'tilec[compiler,lsp]'.

    \b
    Example (Neovim):
      vim.lsp.start({ name = "tilec", cmd = { "tilec", "lsp" } })
    """
    try:
        from tilec.lsp.serve import NoClient, serve
    except ModuleNotFoundError as error:
        if error.name not in ("pygls", "lsprotocol"):
            raise
        raise UsageError("the language server needs pygls: pip install 'tilec[compiler,lsp]'") from None
    try:
        return serve(jobs or cores())
    except NoClient:
        raise UsageError("stdin is not a pipe: editors start this command and communicate through stdin and stdout") from None
