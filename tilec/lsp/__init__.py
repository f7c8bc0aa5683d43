"""The language server: an editor's text comes in, what `tilec check` would say of it goes out, by the Language Server Protocol.

`server` speaks the protocol (pygls), `checker` keeps one thread that judges the files last changed first, `told` makes its
verdicts diagnostics of the protocol, `hover` tells what is known of a place, `positions` counts columns as the editor does. The
judging itself is `tilec.project.live`, and what a text defines is `tilec.frontend.outline`. Specification:
https://microsoft.github.io/language-server-protocol/specifications/lsp/3.17/specification/
"""
