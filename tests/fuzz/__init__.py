"""Fuzzers: each is a library with a test that runs for seconds and a driver in `ci/bench` that runs for hours."""
