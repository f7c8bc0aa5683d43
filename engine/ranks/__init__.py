"""Several ranks that share a model (`tilec.step.ranks`): takes a model and a number of ranks, returns a backend.

What is here: the step of a rank, and the verifier that checks it for all ranks (`step`, `verify`); the part of a checkpoint
that a rank reads (`weights`); ranks as threads on the interpreter (`interpreter`); ranks as processes, one a GPU, that follow
the same orders (`processes`, `worker`, `orders`, `cuda`), and the backend that asks all of them (`gpus`, `asked_buffers`,
`asked_pages`).
"""
