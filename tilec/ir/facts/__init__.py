"""Facts about operations and values that more than one pass needs: ranges, meanings of integer operations, memory touched."""
