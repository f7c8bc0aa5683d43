"""Makes what a plan asks for: from the local store, a shared cache, or worker processes; and reports it."""
