"""Measures candidates of a kernel on a GPU, and decides by it which of them serves which shape.

In: the candidates that `[[tuning]]` of build.toml declares, built. `measure` runs them in a process of its own (`child`), which
checks each (`check`) and times them at each shape (`clock`); every answer is a line of the records beside the kernels
(`records`), so that what was measured is not measured again. `fit` makes of them weights of the cost that build.toml declares,
and `table` is what the build reads: a few candidates with their weights, and where they come from. Out: that table.
"""
