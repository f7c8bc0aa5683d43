"""A second opinion on a bundle: what the compiler claims goes in, what can be confirmed without it comes out.

Two parts. `prove` derives every obligation of a kernel anew from its tile IR text and proves it with z3 (`smt`), and `matching`
holds the result against the record in the manifest. `emulation` runs the PTX of every CUBIN in the emulator on the launches
that `launches` finds at the edges of its contract. `report` joins both to one document with a digest of everything it rests on.

What is trusted: the reader of the tile IR (`tilec.ir`), z3, the emulator, the launcher (that every launch check, value check,
grid limit and aliasing rule of the manifest is enforced; `tilec.runtime.contract`), and that tensors fit into the address
space. Nothing of `tilec.passes`, `tilec.frontend` or the lowering is used. `tilec.interpreter` gives values to compare with the
emulator's; it is an opinion on results and no part of a proof.

What it cannot see: whether the tile IR is what the kernel's author meant; what a GPU does otherwise than the emulator; the
CUBIN itself, unless `--rebuild` assembles the PTX again and compares the bytes; launches that it did not run.
"""
