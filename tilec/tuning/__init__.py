"""Autotuning: measures candidates of a kernel on a GPU and fits a cost model that selects one of them for each shape.

In: the built candidates of a `[[tuning]]` in build.toml. `measure` runs them in a separate process (`child`), which checks each
(`bench`) and times them at each shape (`clock`). Every result is appended to the records next to the kernels (`records`), so
nothing is measured twice. `fit` fits the weights of the cost that build.toml declares. Out: the table that the build reads
(`table`): a few candidates with their weights and the origin of the measurements.
"""
