"""The process that parses and renders chat templates, with limits on processor time, memory and output.

    python -I -S template_worker.py FOLDER...

The folders are those of Jinja, its dependencies and this package. `engine.reply_worker` takes the requests. A request has the
template (`source`) and, if it is to be rendered, its `values` and the `tokens` and the `mark` of `template_marks`. A reply has
`words`, or `text` and `marked` (None if the marked rendering failed), or `error` with one of `parse`, `render`, `memory`,
`output`.

A template is a program that came with a model. It runs in Jinja's immutable sandbox, which hides all attributes that could
reach the interpreter, in a process without access to the model's files or the parent's environment. If it does not end in time,
a kernel timer kills the process; the client starts a new one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

CPU_SECONDS: Final = 3.0
"""Default limit of processor time for one request, in seconds."""

MEMORY_BYTES: Final = 1 << 30
"""Limit of the process's address space, mapped files included."""

OUTPUT_LIMIT: Final = (1 << 22) + (1 << 18)
"""Maximum characters that a template may write: a prompt of maximum size, plus room for the template's own text. A tokenizer
may make a token of each; 16 million tokens took 3 GiB."""

CACHED_TEMPLATES: Final = 8
"""Number of cached compiled templates."""


class OutputTooLong(Exception):
    """A template wrote more than `OUTPUT_LIMIT` characters."""


def environment() -> Any:
    """A Jinja environment with the filters, globals and extensions of transformers' `chat_template_utils`."""
    from datetime import datetime

    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def to_json(
        value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        """Plain JSON; Jinja's own filter escapes characters for HTML."""
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def now(form: str) -> str:
        return datetime.now().strftime(form)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    jinja_environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    jinja_environment.filters["tojson"] = to_json
    global_names: Any = jinja_environment.globals
    global_names |= {"raise_exception": refuse, "strftime_now": now}
    return jinja_environment


class Worker:
    """Handles requests; caches the most recently compiled templates."""

    def __init__(self) -> None:
        self._environment = environment()
        self._compiled: dict[tuple[str, ...], Any] = {}

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request."""
        try:
            plain = self._template(request["source"])
            if "values" not in request:
                return {"words": self._template_strings(request["source"])}
        except Exception as error:  # Jinja's errors, and SyntaxError, RecursionError, OverflowError of its generated code
            return self._failed("parse", error)
        try:
            text = _written(plain, request["values"])
        except Exception as error:  # a template is a program and can raise anything
            return self._failed("render", error)
        return {"text": text, "marked": self._marked(request)}

    @staticmethod
    def _failed(stage: str, error: Exception) -> dict[str, Any]:
        if isinstance(error, MemoryError):
            return {"error": "memory"}
        if isinstance(error, OutputTooLong):
            return {"error": "output"}
        return {"error": stage, "message": str(error)[:500] or type(error).__name__}

    def _marked(self, request: dict[str, Any]) -> str | None:
        try:
            tokens, mark = request["tokens"], request["mark"]
            limit = OUTPUT_LIMIT + len(mark) * OUTPUT_LIMIT // 8
            return _written(self._template(request["source"], mark, *tokens), request["values"], limit)
        except Exception:  # the template may inspect marked strings in unforeseen ways
            return None

    def _template_strings(self, source: str) -> list[str]:
        from engine.text.template_marks import template_strings

        return template_strings(self._environment.parse(source))

    def _template(self, source: str, *marks: str) -> Any:
        """The compiled template; `marks` (a mark, then tokens) selects the marked variant."""
        key = (source, *marks)
        if key not in self._compiled:
            tree = self._environment.parse(source)
            if marks:
                from engine.text.template_marks import mark_template

                tree = mark_template(tree, marks[1:], marks[0])
            while len(self._compiled) >= CACHED_TEMPLATES:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[key] = self._environment.from_string(tree)
        return self._compiled[key]


def _written(template: Any, values: dict[str, Any], limit: int = OUTPUT_LIMIT) -> str:
    """The output of a template; OutputTooLong beyond `limit` characters."""

    def pieces() -> Iterator[str]:
        size = 0
        for piece in template.generate(**values):
            size += len(piece)
            if size > limit:
                raise OutputTooLong
            yield piece

    return "".join(pieces())


if __name__ == "__main__":
    sys.path += sys.argv[1:]
    from engine.reply_worker import serve  # late: it lies in one of these folders

    serve(sys.stdin.buffer, sys.stdout.buffer, Worker().reply, cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)
