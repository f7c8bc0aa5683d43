"""`python -m engine.bench`: tokens per second of a model on this GPU, beside what the GPU's memory allows.

`policy` says what is measured, `measure` runs it, `bandwidth` takes the GPU's own speed in the same run, `result` holds what
was found and its JSON; `table` and `plot` show it, with or without a GPU.
"""
