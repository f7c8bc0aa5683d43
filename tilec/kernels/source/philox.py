"""The counter-based generator Philox-4x32-10 (Salmon and others, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011)."""

import tilec as tl

ROUNDS = 10
MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85


@tl.function
def philox(
    counter: tl.Tile, offset_low: tl.u32, offset_high: tl.u32, seed_low: tl.u32, seed_high: tl.u32
) -> tuple[tl.Tile, tl.Tile, tl.Tile, tl.Tile]:
    """Four tiles of u32, the words at counters `(counter, 0, offset_low, offset_high)` with the key `(seed_low, seed_high)`."""
    zero = counter ^ counter
    c0, c1, c2, c3 = counter, zero, zero + offset_low, zero + offset_high
    k0, k1 = seed_low, seed_high
    for _ in range(ROUNDS):
        c0, c1, c2, c3 = (
            tl.mulhi(c2, MULTIPLIER_1) ^ c1 ^ k0,
            c2 * MULTIPLIER_1,
            tl.mulhi(c0, MULTIPLIER_0) ^ c3 ^ k1,
            c0 * MULTIPLIER_0,
        )
        k0, k1 = k0 + WEYL_0, k1 + WEYL_1
    return c0, c1, c2, c3
