"""MLIR text of the `llvm`, `nvvm` and `scf` dialects, built with types: everything that becomes MLIR goes through here.

`types` has the types and the typed SSA value, `builder` the operations a kernel is made of, `module` what stands around them.
In: typed values. Out: text, one operation a line. An operand of a type that the operation does not take is a VerifyError where
the operation is built. Which operations and flags a kernel may hold is for `tilec.lowering.total` to judge, on the text.
"""
