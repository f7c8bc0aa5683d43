"""A second opinion on a bundle: what the compiler claims goes in, what can be confirmed without it comes out.

`prove` derives every obligation of a kernel anew from its tile IR text and proves it with z3 (`smt`), and `matching` holds the
result against the record in the manifest. `emulation` runs the PTX of every CUBIN in the emulator on the launches that
`launches` finds at the edges of its contract. `maps` holds arguments and tensor maps against the tile IR and the PTX (`flow`).
`cubins` compares each CUBIN with the one that an assembler makes of its PTX, where one is installed. `report` joins all to one
document with a digest of everything it rests on.

A verdict does not depend on how busy the machine is: what it may take is counted in z3's resource units for an obligation
(`smt.STEPS`, `smt.WHOLE`) and in steps of the emulator for a launch (`emulation.INSTRUCTIONS`), and no clock is looked at.
What hangs all the same is ended after an hour of CPU time (`tasks.CPU_SECONDS`) and called not judged. `--time-limit` is there
for who has no more time: it ends the audit, names as unknown what is not judged by then, and keeps the rest (status 3).

Verdicts are kept in the user's store by the digest of all that they depend on: the texts, the parts of the manifest that are
looked at, and the sources and versions of what judges (`sources`, `verdicts`). They are trusted as the store is, and
`--no-cache` leaves them out.

What is trusted: the reader of the tile IR (`tilec.ir`), z3, the emulator and its reader of PTX, the assembler, the launcher
(that every launch check, value check, grid limit and aliasing rule of the manifest is enforced; `tilec.runtime.contract`), and
that tensors fit into the address space. Nothing of `tilec.passes`, `tilec.frontend` or the lowering is used.
`tilec.interpreter` gives values to compare with the emulator's; it is an opinion on results and no part of a proof.

What it cannot see: whether the tile IR is what the kernel's author meant; what a GPU does otherwise than the emulator; the
CUBIN itself, where no assembler of the version that made it is installed (then it is not checked, which is status 3, or 0 with
`--no-rebuild`); which of two tensor maps is meant where tensors have tiles of one shape; launches that it did not run.
"""
