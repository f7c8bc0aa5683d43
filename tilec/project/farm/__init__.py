"""Builds on a farm of machines: a Dask scheduler in place of the local one, and what is believed of its workers."""
