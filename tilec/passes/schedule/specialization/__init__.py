"""Which warps and blocks do which part: persistent blocks, ping-pong consumers, and the roles of producer and consumers."""
