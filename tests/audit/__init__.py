"""Tests of the independent checker of bundles."""
