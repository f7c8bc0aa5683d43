"""The reference semantics of the tile IR, in NumPy. Nothing is here yet."""
