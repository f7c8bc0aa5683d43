"""Typed construction of MLIR text of the `llvm`, `nvvm` and `scf` dialects. All MLIR is made here.

`types` has the types and the typed SSA value, `builder` the operations of a kernel, `module` the module around them. In:
typed values. Out: text, one operation a line. An operand of the wrong type raises VerifyError where the operation is built.
`tilec.lowering.total` checks the text independently: which operations and flags a kernel may have.
"""
