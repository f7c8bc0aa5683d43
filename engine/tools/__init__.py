"""Tools built on the engine: bench, profile, drawings of steps, models of random weights."""
