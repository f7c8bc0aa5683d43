"""The server: an OpenAI interface in one process, and in another the engine, whose steps a scheduler fills with requests.

In: a model folder and a bundle, and requests. Out: tokens as they are generated. `memory` and `scheduler` decide, without I/O
and without a clock; `loop` does what they decide on a backend; `worker` is the process of the engine, `protocol` its messages,
`client` the other end. `http` and what it imports speak with OpenAI's clients, `llm` with programs.
"""
