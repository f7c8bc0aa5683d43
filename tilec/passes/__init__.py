"""What is known of a kernel, what is proven of it, and how threads run it: analyses and rewrites of the tile IR.

| folder | what it does | who may use it |
|---|---|---|
| `analysis` | facts about values: ranges, divisibility, what a value depends on | `prover`, `schedule` |
| `prover` | `prove` shows a kernel safe or refuses it with a counterexample | nobody here |
| `schedule` | `prepare` decides how threads run a proven kernel, and where they wait for each other | nobody here |

`prover` and `schedule` do not import each other: an edit of one makes no product of the other again.
"""
