"""Reading and writing files that others may have made or may change meanwhile: bounded, strict, and never through a link.

Readers take bytes of unknown origin and return bounded plain data or raise one clear error. `output` is the one writer.
"""
