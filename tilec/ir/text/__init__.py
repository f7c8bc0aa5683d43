"""The text form of the tile IR: printed, read back, and the lines and spans that belong to it."""
