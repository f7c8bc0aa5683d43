"""Matrix and bulk-copy instructions as functions on NumPy arrays: bits and addresses in, bits and addresses out.

`formats` converts element bits, `fragments` maps matrix elements to registers and lanes, `descriptors` computes the shared
memory addresses of a `wgmma` operand, `tensor_maps` the bytes that a bulk tensor copy moves. Nothing here depends on threads,
checked memory or time; the instruction families do.
"""
