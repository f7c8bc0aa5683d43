"""The machine that executes PTX: registers, lanes, memory with poison, checked accesses, and the scheduler of warps."""
