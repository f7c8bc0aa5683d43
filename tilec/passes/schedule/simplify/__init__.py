"""Rewrites that make a proven function smaller or cheaper and change no value: folding, hoisting, versions without masks."""
