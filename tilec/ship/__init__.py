"""How artifacts reach other machines: bundles, registries, signatures, launchers in C, and the search for a model's bundle."""
