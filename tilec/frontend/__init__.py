"""Front end: kernel files to tile IR.

In: a kernel file and the values of its constants. Out: an `ir.core.Function` whose operations carry exact source spans, or a
CompileError with every problem found (E01 syntax, E02 types). The file is parsed, never executed.

`module` reads files and imports, `signature` the parameters, `statements` and `expressions` the body. `words` and `memory`
implement the `vocabulary`, `host` the launch expressions, `arithmetic` and `emitter` the typing rules and the operations.
`outline` lists the definitions of a file for editors.
"""

from tilec.frontend.build import KernelSource, load_kernel, read_kernel
from tilec.frontend.interface import Declared, Interface, kernel_file, read_interface
from tilec.frontend.outline import Outline, Symbol, definition, meant_for_compiler, outline, word_doc

__all__ = [
    "Declared", "Interface", "KernelSource", "Outline", "Symbol", "definition", "kernel_file", "load_kernel",
    "meant_for_compiler", "outline", "read_interface", "read_kernel", "word_doc",
]  # fmt: skip
