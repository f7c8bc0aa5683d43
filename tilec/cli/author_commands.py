"""The commands for authors of kernels: `new`, `run`, `test`, `bench`, `estimate`, `tune`, `lsp`, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from tilec.cli.lsp_command import lsp
from tilec.cli.options import ARCH, BENCH_EPILOG, CONSTANTS, EPILOG, JOBS, JSON, PROJECT, TUNE_EPILOG, WATCH, cores

RTOL = click.option(
    "--rtol", type=click.FloatRange(0), metavar="X", help="Relative tolerance. Default: by dtype, as torch has it."
)
ATOL = click.option(
    "--atol", type=click.FloatRange(0), metavar="X", help="Absolute tolerance. Default: by dtype, as torch has it."
)


@click.command("new", epilog=EPILOG)
@click.argument("folder")
@click.option("--name", metavar="KERNEL", help="Name of the kernel. Default: that of the folder.")
@click.option("--shipped", is_flag=True, help="Write the kernels and build.toml that tilec ships, instead of a new kernel.")
def new(folder: str, name: str | None, shipped: bool) -> int:
    """Make a project: a kernel, its reference, a test and a build.toml, which build and pass as they are. FOLDER is not there
    yet, or empty.

    \b
    Examples:
      tilec new softmax && cd softmax && tilec test
      tilec new kernels --shipped && cd kernels && tilec build --arch sm_90
    """
    from tilec.cli.new_command import new_command

    if not folder:
        raise click.UsageError("the name of the folder is empty; write one, or `.` for the current folder")
    return new_command(Path(folder), name, shipped=shipped)


@click.command("run", epilog=EPILOG)
@click.argument("kernel")
@PROJECT
@CONSTANTS
@click.option("--dims", metavar="LIST", help="Launch values, such as N=1000,eps=1e-6. Default: small ones that are allowed.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the random inputs.")
@click.option(
    "--reference",
    metavar="FILE.py[:NAME]",
    help="Reference to compare with. Default: the function of the kernel's name in a reference*.py.",
)
@RTOL
@ATOL
@JSON
@WATCH
def run(
    kernel: str, project: str | None, constants: tuple[str, ...], dims: str | None, seed: int, reference: str | None,
    rtol: float | None, atol: float | None, as_json: bool, watch: bool,
) -> int:  # fmt: skip
    """Run a kernel on the interpreter with random inputs within its contract, and compare with its reference.

    The kernel is proven first. A reference is a function of NumPy arrays, whose parameters are named like the kernel's inputs,
    scalars, dims or constants, and which returns what the kernel writes. It is executed. A function `KERNEL_inputs(rng, dims)`
    next to it chooses inputs instead: it returns a dict of arrays and numbers by name; those that it leaves out are random.

    \b
    Examples:
      tilec run rms_norm --dims T=3,eps=1e-6
      tilec run softmax.py -c E=bf16 -c N=1024 --reference check.py:softmax
    """
    from tilec.cli.run_command import run_command
    from tilec.cli.watch import Reads, run_or_watch

    besides = (Path(reference.partition(":")[0]),) if reference else ()
    return run_or_watch(
        lambda: run_command(project, kernel, constants, dims, seed, reference, (rtol, atol), as_json=as_json),
        Reads(project, (kernel,), besides, references=not reference), as_json=as_json, watch=watch,
    )  # fmt: skip


@click.command("test", epilog=EPILOG)
@click.argument("kernels", nargs=-1)
@PROJECT
@CONSTANTS
@click.option("--launches", type=click.IntRange(1, 1000), default=3, show_default=True, help="Of each specialisation.")
@click.option("--gpu", is_flag=True, help="Launch the same on this machine's GPU, between guard zones.")
@RTOL
@ATOL
@JOBS
@JSON
@WATCH
def test(
    kernels: tuple[str, ...], project: str | None, constants: tuple[str, ...], launches: int, gpu: bool, rtol: float | None,
    atol: float | None, jobs: int | None, as_json: bool, watch: bool,
) -> int:  # fmt: skip
    """Run kernels at several sizes on the interpreter, and compare each with its reference (see `tilec run`).

    Results that are infinite or NaN where the reference is finite are wrong. Random inputs for which the reference itself is
    not finite are unsuitable: write `KERNEL_inputs`. With `--gpu` the same inputs are launched on the GPU of this machine, with
    known bytes around every tensor. Results are compared with the reference and the interpreter's, and a byte that was written
    outside of what the kernel may write is a failure.

    \b
    Examples:
      tilec test
      tilec test rms_norm --launches 10
      tilec test --gpu
    """
    from tilec.cli.run_command import test_command
    from tilec.cli.watch import Reads, run_or_watch

    return run_or_watch(
        lambda: test_command(project, kernels, constants, launches, jobs, (rtol, atol), as_json=as_json, gpu=gpu),
        Reads(project, kernels, references=True), as_json=as_json, watch=watch,
    )  # fmt: skip


@click.command("tune", epilog=TUNE_EPILOG)
@PROJECT
@ARCH
@click.option("--kernel", "-k", "kernels", multiple=True, metavar="NAME", help="Only this kernel; may be repeated.")
@click.option(
    "--budget", type=click.FloatRange(0), default=600.0, show_default=True, metavar="SECONDS",
    help="Begin no shape later; run again for the rest. 0: measure nothing, make the table of what is recorded.",
)  # fmt: skip
@click.option("--again", is_flag=True, help="Measure again what is already recorded.")
@click.option("--build-only", is_flag=True, help="Build the candidates into artifacts/tune/, for a machine with a GPU.")
@click.option("--prebuilt", is_flag=True, help="Take candidates from artifacts/tune/; this needs no compiler.")
@click.option(
    "--predict",
    metavar="GPU",
    help="Measure nothing: write the table that the model of time predicts (h100, h200, b200, rtx5090).",
)
@JOBS
@JSON
def tune(
    project: str | None, arch: str | None, kernels: tuple[str, ...], budget: float, again: bool, build_only: bool,
    prebuilt: bool, predict: str | None, jobs: int | None, as_json: bool,
) -> int:  # fmt: skip
    """Measure the choices of `[[tuning]]` on this machine's GPU, and write what the build chooses by.

    Candidates are built, checked against the kernel's reference and each other, and timed at the `shapes` of the table with
    random data, in a process of their own. Every measurement is a line in tuning/KERNEL-ARCH.jsonl next to the kernels; what is
    there of the same machine code and GPU is not measured again. The few that serve and what each costs go to
    tuning/KERNEL-ARCH.json, which builds read.

    \b
    Examples:
      tilec tune --kernel matmul --budget 120
      tilec tune --build-only --arch sm_90    here, and there:
      tilec tune --prebuilt
      tilec tune --predict b200               where nobody has that GPU
    """
    from tilec.cli.tune_command import tune_command

    if build_only and prebuilt:
        raise click.UsageError("`--build-only` builds and `--prebuilt` does not; leave one out")
    if predict is not None and (build_only or prebuilt or again or arch is not None):
        raise click.UsageError("`--predict` measures nothing, for the architecture of its GPU; leave out the other options")
    return tune_command(
        project, kernels, arch, budget, jobs or cores(), build_only=build_only, prebuilt=prebuilt, again=again, as_json=as_json,
        predict=predict,
    )  # fmt: skip


@click.command("bench", epilog=BENCH_EPILOG)
@click.argument("kernel", metavar="[FILE.py:]KERNEL")
@PROJECT
@ARCH
@CONSTANTS
@click.option("--dims", multiple=True, metavar="LIST", help="Values of a launch, such as T=4096; may be repeated.")
@click.option(
    "--gpu", metavar="NAME", help="Without a GPU, the GPU whose minimum time to print: h200 (the default), h100, b200, rtx5090."
)
@click.option("--plot", metavar="FILE", help="Plot the times into this .svg or .png file.")
@JSON
def bench(
    kernel: str, project: str | None, arch: str | None, constants: tuple[str, ...], dims: tuple[str, ...], gpu: str | None,
    plot: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Time a kernel on this machine's GPU, compared with its baseline and the roofline.

    It is checked against its reference first, then timed with random data, more of it than the L2 cache holds. A baseline is
    a function of the kernel's name, of torch tensors, in a file baseline*.py next to the kernels; its results are compared too.
    The roofline is the bytes of the launch over the rate of a copy in the same run, and products over what the chip can do.
    Values that --dims leaves open are large; without --dims, `shapes` of a `[[tuning]]` are taken where there are some. KERNEL
    may be a built artifact, a .json, which needs no compiler. Without a GPU: resources, bytes, operations, and a floor.

    
    Examples:
      tilec bench softmax --dims T=1024 --dims T=65536 --plot softmax.svg
      tilec bench add.py -c E=bf16 -c BLOCK=2048 --json
      tilec bench artifacts/build/sm_90a/add-E=bf16-BLOCK=2048.json
    """
    from tilec.cli.bench_command import bench_command
    from tilec.cli.watch import Reads, run_or_watch

    return run_or_watch(
        lambda: bench_command(project, kernel, constants, dims, arch, gpu, plot, as_json_=as_json),
        Reads(project, (kernel.partition(":")[0],)), as_json=as_json, watch=False,
    )  # fmt: skip


@click.command("estimate", epilog=EPILOG)
@click.argument("kernel")
@PROJECT
@CONSTANTS
@click.option("--dims", metavar="LIST", required=True, help="Values of the launch, such as M=2048,N=6144,K=2560.")
@click.option("--gpu", metavar="NAME", default="h200", show_default=True, help="The card: h200, h100, b200, rtx5090.")
@click.option("--overlapped", is_flag=True, help="The launch may begin while the one before still runs.")
@JSON
def estimate(
    kernel: str, project: str | None, constants: tuple[str, ...], dims: str, gpu: str, overlapped: bool, as_json: bool
) -> int:
    """Predict the time of a launch from the kernel's schedule, and say what bounds it. No GPU is needed.

    The model derives the work of every tile from the scheduled tile IR. The table has the time that each resource alone would
    take; the largest bounds the launch. It was compared with measurements on h100 and h200 only.

    \b
    Examples:
      tilec estimate matmul -c E=bf16 -c BM=128 -c BN=160 --dims M=2048,N=6144,K=2560
      tilec estimate flash_attention.py --dims T=8192,S=8192,HKV=8,G=4,past=0 --gpu b200
    """
    from tilec.cli.estimate_command import estimate_command

    return estimate_command(project, kernel, constants, dims, gpu, overlapped=overlapped, as_json=as_json)


COMMANDS: Final = (new, run, test, bench, estimate, tune, lsp)
