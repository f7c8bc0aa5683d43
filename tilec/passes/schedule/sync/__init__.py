"""Barriers of a block: inserted before each access to memory that another thread may have touched."""
