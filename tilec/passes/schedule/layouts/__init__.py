"""Which thread holds which element: layouts of tiles, their propagation, and conversions through shared memory."""
