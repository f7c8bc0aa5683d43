"""The model of time: how long a launch takes on a card, from the kernel's own schedule, without running it.

In: a function after all scheduling passes, its schedule, the values of a launch, and a card. Out: `Estimate`: microseconds,
what each resource takes of them, and which of them bounds the launch.

`scalars`, `demand` and `work` derive the work from the scheduled tile IR: multiply-adds, bytes through shared memory, copies,
lane operations, for every tile of every block. `tiles` and `traffic` reduce it to classes of tiles, and to bytes between L2 and
memory. `cards` has a row for each card, `calibration` the constants that measurements gave. `cycles` turns work into cycles of
a multiprocessor, `estimate` into time: the clock follows from the power limit.

How far to trust it: `ci/bench/results/time_model.md` compares every measured product and attention with its prediction. Not
modelled: bank conflicts, spilled registers, loops whose range depends on data (`UnknownWork`), data that a launch finds in the
L2 cache, and the temperature of the card.
"""
