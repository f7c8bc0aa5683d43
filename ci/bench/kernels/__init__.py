"""Cases of `python ci/bench/kernels.py`: built kernels on the GPU of this machine, and the libraries they are compared with.

Each case is a module (`ci/bench/front.py` says what it has), which needs no torch before it measures; the other modules are
parts of some of them.
"""

from typing import Final

from ci.bench.front import Case

CASES: Final = {
    "kernels_gpu": Case("every built kernel against float64 and torch", defaults={"budget": 900.0}),
    "rows_gpu": Case("the bits of a row in any batch, of a prompt in any chunks"),
    "sanitize_gpu": Case("every built kernel under compute-sanitizer", defaults={"jobs": 4}),
    "attention": Case("candidates of attention at prefill and torch's"),
    "products": Case("candidates of the matrix product cuBLAS's and Triton's"),
    "unchecked": Case("products and attention and the same without masks and launch checks"),
    "library_gpu": Case("the functions of `tilec.kernels` and PyTorch's operators"),
    "library_interpreted": Case("the functions of `tilec.kernels` in PyTorch, on the interpreter; needs no GPU"),
    "plain_texts": Case("kernels as users first wrote them and PyTorch's operators"),
    "training": Case("a small model trained with the functions of `tilec.kernels` and with PyTorch's"),
    "examples_gpu": Case("the kernels of `examples/kernels` and torch's operators"),
    "extents_gpu": Case("`add` and `rms_norm` at extents that are no powers of two"),
    "torch_ops": Case("`tilec.op` in PyTorch: eager, compiled, captured; the host's time of a call"),
    "qualify": Case("`tilec qualify` on right bundles and on planted faults", "qualify_faults"),
    "older_targets": Case("the PTX of older targets, compiled by the driver, against float64"),
    "c_launcher": Case("a bundle's kernels launched from C"),
}
