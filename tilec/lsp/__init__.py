"""The language server: takes the text of an editor, returns the diagnostics of `tilec check`, by the Language Server Protocol.

`server` speaks the protocol (pygls), `checker` runs checks in one thread, most recently changed file first, `reports` converts
verdicts to diagnostics of the protocol, `hover` describes a source location, `positions` counts columns as the editor does. The
check itself is `tilec.project.build.live`, and `tilec.frontend.outline` lists the definitions in a text. Specification:
https://microsoft.github.io/language-server-protocol/specifications/lsp/3.17/specification/
"""
