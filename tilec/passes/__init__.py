"""Analyses and transformations of the tile IR.

| folder | what it does | which passes may import it |
|---|---|---|
| `analysis` | facts about values: ranges, divisibility, dependences | `prover`, `schedule` |
| `prover` | `prove` shows a kernel safe or refuses it with a counterexample | none |
| `schedule` | `prepare` maps a proven kernel to threads: pipelines, layouts, barriers, roles | none |

`prover` and `schedule` do not import each other, so an edit of one does not invalidate cached results of the other.
"""
