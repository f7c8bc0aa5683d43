"""Errors of the server's interface, in OpenAI's form: `{"error": {"message", "type", "param", "code"}}` and a status of
HTTP."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A request that cannot be received. `param` names the field of the request, `code` is a word for programs. `retry`:
    whether the same request may do later."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        kind: str = "invalid_request_error", retry: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.kind, self.retry = status, message, param, code, kind, retry

    def body(self) -> dict[str, Any]:
        """The error as JSON."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers that tell clients whether to try again; those of OpenAI read both."""
        return {"retry-after": "1"} if self.retry else {"x-should-retry": "false"}


def unsupported(field: str, why: str) -> ApiError:
    """The error for a field, or a value of it, that would be without effect."""
    return ApiError(400, f"`{field}` is not supported: {why}", param=field, code="unsupported_parameter")


def invalid(field: str, what: str) -> ApiError:
    """The error for a value that is wrong."""
    return ApiError(400, f"`{field}`: {what}", param=field, code="invalid_value")


def engine_failed(what: str) -> ApiError:
    """The error for a request that the engine could not finish."""
    return ApiError(500, what, code="engine_error", kind="server_error")
