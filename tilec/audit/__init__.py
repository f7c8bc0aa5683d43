"""An independent checker of bundles: the compiler's claims go in, the claims that can be confirmed without the compiler come
out.

`prove` derives every obligation of a kernel from its tile IR text and proves it with z3 (`smt`); `matching` compares the
result with the record in the manifest. `emulation` runs the PTX of every CUBIN in the emulator, on the launches that
`launches` finds at the edges of the contract. `maps` checks arguments and tensor maps against the tile IR and the PTX (`flow`,
along the paths of `graph`), `descriptors` the layouts that products read, `clusters` the blocks that are launched together, and
`pairs` which half of a tile each of two blocks copies.
`cubins` compares each CUBIN with the assembler's output for its PTX, if an assembler is installed. `report` combines the
results in one document with a digest of all inputs.

A verdict does not depend on the load of the machine. Budgets are counted in z3's resource units per obligation (`smt.STEPS`,
`smt.OBLIGATION_STEPS`) and in emulator steps per launch (`emulation.INSTRUCTIONS`); no verdict depends on time. A task that
hangs is ended after an hour of CPU time (`tasks.CPU_SECONDS`) and reported as not checked. `--time-limit` ends the audit early,
reports the remaining verdicts as unknown, and keeps the finished ones (status 3).

Verdicts are cached in the user's store under the digest of everything they depend on: the texts, the relevant parts of the
manifest, and the sources and versions of the checkers (`sources`, `verdicts`). They are trusted as far as the store is;
`--no-cache` ignores them.

Trusted: the reader of the tile IR (`tilec.ir`), z3, the emulator and its PTX parser, the assembler, the launcher (which must
enforce every launch check, value check, grid limit and aliasing rule of the manifest; `tilec.runtime.contract`), and that
tensors fit into the address space. Nothing of `tilec.passes`, `tilec.frontend` or the lowering is used. `tilec.interpreter`
computes reference values for the emulator's results and is not part of a proof.

Not checked: whether the tile IR matches the intent of the kernel's author; differences between a GPU and the emulator; the
CUBIN itself, if no assembler of the version that made it is installed (status 3, or 0 with `--no-rebuild`); which of two
tensor maps is meant if tensors have tiles of one shape; launches that were not run. Only the emulator sees which tile a block
computes, where in shared memory a copy or a product has it, how often a tile is stored, who arrives at an mbarrier or waits
for it, and which block of a pair starts products.
"""
