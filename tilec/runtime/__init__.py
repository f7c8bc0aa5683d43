"""Launches prebuilt CUBINs, given artifacts and device tensors.

`load` reads an artifact and refuses one built for another architecture. `Kernel.plan` checks every clause of the launch
contract once, on the host, and raises a `LaunchError` that names the offending argument; `Plan.launch` only enqueues.
`open_bundle` verifies a file of many artifacts, built for one architecture and a model or some kernels, and loads its kernels
the same way. The package needs neither a compiler nor a tensor framework: a tensor is any object with
`__cuda_array_interface__` or `__dlpack__`.
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
