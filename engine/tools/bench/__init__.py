"""`python -m engine.bench`: tokens per second of a model on this GPU, next to the rooflines of the GPU's memory.

`policy` defines what is measured and `measure` runs it; `engine.tools.head_read` measures the GPU's bandwidth in the same run.
`result` has the samples and their JSON; `table` and `plot` show them, with or without a GPU.
"""
