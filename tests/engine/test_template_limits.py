"""Hostile chat templates: each ends within its limits in one error, and the next template still renders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import EngineError, ModelError
from engine.text.chat_template import ChatTemplate
from engine.text.template_process import SHARED

MESSAGES = [{"role": "user", "content": "hello"}]

SLOW = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in 'ab' %}{% endfor %}{% endfor %}{% endfor %}",
    "power": "{% set n = messages | length + 9 %}{{ n ** (n ** 9) }}",
    "power while parsing": "{{ 10 ** (10 ** 9) }}",
}
LARGE = {
    "product": "{% set n = messages | length %}{{ 'a' * (n * 10 ** 10) }}",
    "product while parsing": "{{ 'a' * 10 ** 10 }}",
    "doubling": "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "center": "{{ 'a' | center(10 ** 10) }}",
    "ljust": "{{ 'a'.ljust(10 ** 10) }}",
    "format": "{{ '%10000000000d' % 1 }}",
    "format method": "{{ '{:>10000000000}'.format('x') }}",
    "indent": "{{ messages | tojson(indent=10 ** 10) }}",
    "replace": "{% set a = 'a' * 100000 %}{{ a.replace('a', a) }}",
    "list": "{{ (range(99999) | list) * 99999 }}",
}
LONG = {
    "many pieces": "{% for a in range(99999) %}{% for b in range(99) %}aaaaaaaaaa{% endfor %}{% endfor %}",
    "one piece": "{{ 'a' * (2 ** 24 + 1) }}",
}
BROKEN = {
    "nested loops": "{% for a in 'a' %}" * 30 + "{% endfor %}" * 30,
    "nested parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested lists": "{{ " + "[" * 90000 + "]" * 90000 + " }}",
    "nested calls": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "a long sum": "{{ " + "1+" * 90000 + "1 }}",
    "digits": "{{ " + "9" * 90000 + " }}",
    "half a character": "{{ '\\ud800' + messages[0].missing.missing }}",
    "import": "{% import 'x' as y %}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends '/etc/passwd' %}",
}
ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "format attribute": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "format map": "{{ '{x.__class__}'.format_map({'x': messages}) }}",
    "attr filter": "{{ messages | attr('__class__') | attr('__mro__') | list }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "globals of a lambda": "{{ strftime_now.__globals__['__builtins__'].open('PLACE', 'w') }}",
    "cycler": "{{ cycler.__init__.__globals__.os.system('touch PLACE') }}",
    "joiner": "{{ joiner.__init__.__globals__['sys'].modules['os'].system('touch PLACE') }}",
    "self": "{{ self._TemplateReference__context.environment.globals['x'] }}",
    "map attribute": "{{ [messages] | map(attribute='__class__.__base__') | list }}",
    "change": "{{ messages.append(1) }}",
    "generator frame": "{% set g = (messages | map('upper')) %}{{ g.gi_frame.f_builtins.open('PLACE', 'w') }}",
}


def render_error(source: str) -> str:
    """The error of a template, from parsing or rendering."""
    with pytest.raises(EngineError) as caught:
        ChatTemplate(source, "here").render(MESSAGES)
    message = str(caught.value)
    assert message.startswith("here: the chat template ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("source", SLOW.values(), ids=SLOW)
def test_a_template_that_does_not_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SHARED, "cpu_seconds", 0.4)
    assert "took over 0.4 seconds" in render_error(source)
    assert ChatTemplate("{{ messages[0].content }}", "there").render(MESSAGES) == "hello"


@pytest.mark.parametrize("source", LARGE.values(), ids=LARGE)
def test_a_template_that_takes_all_memory(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SHARED, "cpu_seconds", 60)  # so that a slow machine reaches the memory limit first
    message = render_error(source)
    assert "takes over 1024 MiB of memory" in message or "cannot render" in message or "does not parse" in message, message


@pytest.mark.parametrize("source", LONG.values(), ids=LONG)
def test_a_template_that_writes_too_much(source: str) -> None:
    assert "writes over 4456448 characters" in render_error(source)


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN)
def test_a_template_that_is_broken(source: str) -> None:
    render_error(source)


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES)
def test_a_template_that_tries_to_escape(source: str, tmp_path: Path) -> None:
    file = tmp_path / "written"
    try:
        text = ChatTemplate(source.replace("PLACE", str(file)), "here").render(MESSAGES)
    except EngineError:
        text = ""
    assert "class" not in text
    assert not file.exists()


def test_a_long_template_is_refused() -> None:
    with pytest.raises(ModelError, match="over 1048576"):
        ChatTemplate("x" * (1 << 21), "here")


def test_the_process_has_neither_folder_nor_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jinja2.py").write_text("raise SystemExit(3)")
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SECRET", "1")
    SHARED.close()
    assert ChatTemplate("{{ messages[0].content }}", "here").render(MESSAGES) == "hello"
    process = SHARED._process
    assert process is not None
    assert os.readlink(f"/proc/{process.pid}/cwd") == "/"
    assert b"SECRET" not in Path(f"/proc/{process.pid}/environ").read_bytes()


def test_a_process_that_was_ended_is_started_again() -> None:
    template = ChatTemplate("{{ messages[0].content }}", "here")
    process = SHARED._process
    assert process is not None
    process.kill()
    process.wait()
    assert template.render(MESSAGES) == "hello"
    SHARED.close()
    SHARED.close()
    assert template.render(MESSAGES) == "hello"


def test_the_process_ends_with_its_parent() -> None:
    SHARED.close()
    SHARED.start()
    process = SHARED._process
    assert process is not None and process.stdin is not None
    process.stdin.close()  # as the OS does when the parent is killed
    assert process.wait(600) == 0
    SHARED._process = None
