"""What goes wrong, as data and as text: diagnostics with source spans in, lines for a terminal or an editor out.

Every stage reports through `diagnostic`; `explain/` has a page for each error code; `visible` escapes what others wrote.
"""
