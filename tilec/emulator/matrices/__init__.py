"""Matrix and bulk-copy instructions as functions on NumPy arrays: bits and addresses go in, bits and addresses come out.

`formats` reads and writes element bits, `fragments` says which element of a matrix lies in which register of which lane,
`descriptors` where a `wgmma` operand lies in shared memory, `tensor_maps` which bytes a bulk tensor copy moves. Nothing here
knows of threads that run, of memory that is checked, or of time: the instruction families do.
"""
