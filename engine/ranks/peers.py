"""The GPUs of ranks: how many there are, whether each reaches the memory of the others, and which one is a rank's own.

`api` is `cuda.bindings.driver`. Peer access is that of the CUDA driver API, section "Peer Context Memory Access".
Nothing here or elsewhere uses NVLink multicast.
"""

from __future__ import annotations

import importlib
from typing import Any

from engine.backends.load import device_errors
from engine.errors import DeviceError
from tilec.runtime import DriverError


def open_rank(rank: int, ranks: int, driver: DriverCalls) -> int:
    """Make the GPU of a rank current; returns its number. DeviceError if there are fewer GPUs, or one cannot reach the memory
    of another."""
    count = int(driver.call("cuDeviceGetCount"))
    if count < ranks:
        what = f"{ranks} GPUs are asked for, and CUDA shows {count} on this machine"
        raise DeviceError(what, fix="ask for as many as there are; CUDA_VISIBLE_DEVICES may hide some")
    devices = [driver.call("cuDeviceGet", number) for number in range(ranks)]
    for number, device in enumerate(devices):
        for other, peer in enumerate(devices):
            if number != other and not int(driver.call("cuDeviceCanAccessPeer", device, peer)):
                what = f"GPU {number} cannot reach the memory of GPU {other}"
                raise DeviceError(what, fix="take GPUs that NVLink or one PCIe root joins, or one GPU")
    driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", devices[rank]))
    return int(devices[rank])


class DriverCalls:
    """Calls of the CUDA driver by name; DeviceError if one fails."""

    def __init__(self, api: Any = None) -> None:
        try:
            self._api: Any = importlib.import_module("cuda.bindings.driver") if api is None else api
            (code,) = self._api.cuInit(0)
        except ImportError:
            raise DeviceError("`cuda-bindings` is not installed", fix="pip install tilec") from None
        except Exception as error:  # the bindings raise their own types if the driver library is absent
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DeviceError(f"no NVIDIA driver on this machine ({reason})", fix="take `--backend interpreter`") from None
        self._success: Any = self._api.CUresult.CUDA_SUCCESS
        self._check("cuInit", code)

    def call(self, name: str, *arguments: Any) -> Any:
        """The result of a call."""
        code, *results = getattr(self._api, name)(*arguments)
        self._check(name, code)
        return results[0] if results else None

    def make(self, name: str) -> Any:
        """An empty structure of the driver's."""
        return getattr(self._api, name)()

    def _check(self, call: str, code: Any) -> None:
        if code == self._success:
            return
        _, name = self._api.cuGetErrorName(code)
        _, text = self._api.cuGetErrorString(code)
        with device_errors():
            raise DriverError(call, name.decode() if name else str(code), text.decode() if text else "")
