"""Independent checkers of scheduled functions. They share no code with the passes whose results they check.

`verify` runs them all; each file names the property that it checks and the pass whose mistakes it would find.
"""
