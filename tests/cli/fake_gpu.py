"""The process of `tilec test --gpu` with a device that runs the tile interpreter: `python -m tests.cli.fake_gpu KERNELS FAULT`.

KERNELS is the folder of the kernels. FAULT is what the device does wrong at every launch, one of `fake_device.FAULTS`,
`not finite`, `once` (an illegal address at the first launch of each kernel file that is not yet named in KERNELS/faulted), or
`none`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.qualify.fake_device import FakeDevice
from tests.runtime.fake_driver import FakeDriver
from tilec.frontend import load_kernel
from tilec.interpreter import run as interpret
from tilec.project.trial import device_child
from tilec.runtime import DriverError


class TrialDevice(FakeDevice):
    """A device whose kernels come from their sources, with the constants of the manifest."""

    def __init__(self, kernels: Path, fault: str) -> None:
        FakeDriver.__init__(self, multiprocessors=4)
        self.kernels, self.fault, self.oracle = kernels, fault, "interpreter"
        self.plans, self.parsed, self.now, self.count, self.broken = {}, {}, 0.0, 0, ""

    def load_module(self, image: bytes) -> Any:
        """Any module will do."""
        if self.fault == "no module":
            raise DriverError("cuModuleLoadData", "CUDA_ERROR_INVALID_IMAGE")
        return "module"

    def launch(
        self, function: Any, grid: tuple[int, int, int], block: int, shared: int, stream: int, parameters: int, overlap: bool
    ) -> None:
        """Run the kernel, then do what is wrong."""
        plan = self.plans[parameters]
        manifest, launch = plan.kernel.manifest, plan.checked
        path = self.kernels / f"{manifest.kernel}.py"
        kernel = load_kernel(path, manifest.constants, root=self.kernels.parent)
        arrays = {name: self._array(view) for name, view in launch.views.items()}
        interpret(kernel, arrays, launch.scalars, dims={name: launch.env[name] for name in kernel.dims})
        faulted = self.kernels / "faulted"
        if self.fault == "once" and not faulted.exists():
            faulted.touch()
            self.broken = "CUDA_ERROR_ILLEGAL_ADDRESS"
        elif self.fault == "not finite":
            written = next(spec.name for spec in manifest.tensors if spec.access == "out")
            arrays[written].reshape(-1)[3:10] = np.inf
        else:
            self._spoil(manifest, plan)


def main(kernels: str, fault: str) -> int:
    """Serve one job on a fake device; without one if FAULT is `no device`."""
    if fault == "no device":

        class Nothing(FakeDriver):
            def open_device(self) -> int:
                raise DriverError("cuInit", "CUDA_ERROR_NO_DEVICE")

        return device_child.serve(Nothing())
    device = TrialDevice(Path(kernels), fault)
    device.capture()
    return device_child.serve(device)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
