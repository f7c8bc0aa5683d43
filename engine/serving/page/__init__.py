"""The page at `/`, on which a person talks with the model: three files as they are, without a build step and without anything
of other hosts. It asks the same endpoints as other clients, and needs the same key for them; the files need none.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FILES: Final = {
    "/": ("index.html", "text/html"), "/page.css": ("page.css", "text/css"), "/page.js": ("page.js", "text/javascript"),
}  # fmt: skip
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: nothing but these files runs, and they speak with this server alone."""
HEADERS: Final = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}  # fmt: skip


def page_routes() -> list[Route]:
    """The routes of the page's files, which are read now."""
    folder = resources.files(__name__)
    return [_route(path, folder.joinpath(name).read_bytes(), kind) for path, (name, kind) in FILES.items()]


def _route(path: str, content: bytes, kind: str) -> Route:
    async def endpoint(_: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return Route(path, endpoint, methods=["GET"])
