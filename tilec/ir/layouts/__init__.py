"""Layouts of tiles: which register of which thread holds an element, and how much shared memory conversions take."""
