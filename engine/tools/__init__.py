"""What is built on the engine and not part of it: bench, profile, drawings of steps, models of random weights."""
