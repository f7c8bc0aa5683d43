"""Launches prebuilt CUBINs: artifacts and device tensors go in, checked launches come out.

`load` reads an artifact and refuses one built for another architecture. `Kernel.plan` checks every clause of the launch
contract once, on the host, and raises a `LaunchError` that names the argument at fault; `Plan.launch` then only enqueues.
`open_bundle` verifies a file of many artifacts, made for one model and one architecture, and loads its kernels the same way.
Nothing here needs a compiler or a tensor framework: any object with `__cuda_array_interface__` or `__dlpack__` is a tensor.
"""

from __future__ import annotations

from tilec.runtime.bundle import Bundle, open_bundle
from tilec.runtime.bundle_manifest import BundledKernel
from tilec.runtime.contract import Launch, check_launch
from tilec.runtime.device import Device, DeviceArray
from tilec.runtime.driver import CudaDriver, Driver, DriverError
from tilec.runtime.errors import BundleError, LaunchError
from tilec.runtime.kernel import Kernel, Plan, load, load_artifact
from tilec.runtime.tensors import TensorView, view_tensor
from tilec.runtime.values import TRUSTED, ValueBounds

__all__ = [
    "TRUSTED",
    "Bundle",
    "BundleError",
    "BundledKernel",
    "CudaDriver",
    "Device",
    "DeviceArray",
    "Driver",
    "DriverError",
    "Kernel",
    "Launch",
    "LaunchError",
    "Plan",
    "TensorView",
    "ValueBounds",
    "check_launch",
    "load",
    "load_artifact",
    "open_bundle",
    "view_tensor",
]
