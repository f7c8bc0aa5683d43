"""The chips that tilec builds for, and the schedule: how the threads of a block run a kernel, as a value."""
