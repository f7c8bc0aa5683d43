"""The chips that tilec builds for, families of matrix instructions, and schedules (how threads run a kernel), all as values."""
