"""The page at `/`: its files, and in a headless Chromium what it shows and what it asks the server for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Page, browsing
from in_process import says, server
from on_loopback import SENTENCE, THOUGHT, listening

from engine.serving.protocol import Cancel, Submit

HANG_SECONDS = 60
REPLY = "main article:last-child"


def test_the_files_need_no_key_and_nothing_of_other_hosts(talker: Path) -> None:
    one = server(talker, says(talker, "x"), keys=["a key"])

    async def run() -> None:
        index = await one.ask("/")
        assert index.status == 200 and index.headers["content-type"] == "text/html; charset=utf-8"
        page = b"".join(index.pieces).decode()
        used = re.findall(r'(?:href|src)="([^"]*)"', page)
        assert sorted(used) == ["data:,", "page.css", "page.js"]
        texts = [page]
        for name, kind in (("page.css", "text/css"), ("page.js", "text/javascript")):
            found = await one.ask(f"/{name}")
            assert found.status == 200 and found.headers["content-type"] == f"{kind}; charset=utf-8"
            policy = found.headers["content-security-policy"]
            assert policy == index.headers["content-security-policy"] and "unsafe" not in policy
            assert policy.startswith("default-src 'none'; script-src 'self'") and "frame-ancestors 'none'" in policy
            texts.append(b"".join(found.pieces).decode())
        assert not [text for text in texts if re.search(r"https?:|@import|url\(|innerHTML|eval\(|<style|style=| on\w+=", text)]
        assert (await one.ask("/page.html")).status == 401
        assert (await one.ask("/v1/models")).status == 401

    asyncio.run(asyncio.wait_for(run(), HANG_SECONDS))


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browsing() as one:
        yield one


def say(page: Page, message: str) -> None:
    page.type("#text", message)
    page.press("Enter")


def is_over(page: Page) -> None:
    page.wait("!document.getElementById('send').hidden")


def test_a_conversation(talker: Path, page: Page) -> None:
    page.requests.clear()
    with listening(talker) as one:
        page.open(one.url)
        page.wait("document.title === 'talker'")
        say(page, "Why?")
        is_over(page)
        assert page.text(f"{REPLY} .text") == SENTENCE
        assert page.value(f"document.querySelector('{REPLY} .thought p').textContent") == THOUGHT
        assert page.value(f"document.querySelector('{REPLY} .thought').open") is False
        assert re.fullmatch(r"\d+ tokens of the conversation, \d+ of the reply", page.text(f"{REPLY} .note"))
        page.value("document.getElementById('settings').open = true")
        page.type("#system", "be brief")
        page.type("#temperature", "0.5")
        page.type("#max-tokens", "100")
        page.click("#thinking")
        page.type("#text", "two")
        page.press("Enter", shift=True)
        assert page.value("document.getElementById('text').value") == "two\n"
        page.value("document.getElementById('text').setRangeText('lines', 4, 4, 'end')")
        page.click("#send")
        is_over(page)
        assert page.text(f"{REPLY} .text") == SENTENCE and page.text(f"{REPLY} .thought") == ""
        assert page.text("main article.user:nth-last-child(2)") == "two\nlines"
        first, second = [asked.fields for asked in one.asked if asked.method == "POST"]
        assert first == {
            "messages": [{"role": "user", "content": "Why?"}], "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        assert second == first | {
            "messages": [
                {"role": "system", "content": "be brief"}, {"role": "user", "content": "Why?"},
                {"role": "assistant", "content": SENTENCE}, {"role": "user", "content": "two\nlines"},
            ],
            "temperature": 0.5, "max_tokens": 100, "chat_template_kwargs": {"enable_thinking": False},
        }  # fmt: skip
        page.click("#reset")
        assert page.text("main") == ""
        say(page, "again")
        is_over(page)
        messages: Any = [asked.fields for asked in one.asked if asked.method == "POST"][-1]["messages"]
        assert [message["content"] for message in messages] == ["be brief", "again"]
        assert {request for request in page.requests if not request.startswith((one.url, "data:"))} == set()
    assert page.complaints == []


def test_stopping(talker: Path, page: Page) -> None:
    """A stopped reply frees its row; what was said of it stays, a message that got nothing goes back into the field."""
    submitted: list[Submit] = []
    with listening(talker, tokens=submitted.append) as one:
        page.open(one.url)
        say(page, "Why?")
        page.wait("!document.getElementById('stop').hidden")
        while len(submitted) < 1:
            page.value("0")
        page.click("#stop")
        is_over(page)
        while Cancel(0) not in one.client.sent:
            page.value("0")
        assert page.text(f"{REPLY} .note") == "stopped" and page.value("document.getElementById('text').value") == "Why?"
        page.press("Enter")
        while len(submitted) < 2:
            page.value("0")
        assert [message["content"] for message in one.asked[-1].fields["messages"]] == ["Why?"]
        for token in ServedText(talker)("Because the sky"):
            one.report({1: token})
        page.wait(f"document.querySelector('{REPLY} .text')?.textContent.includes('Because')")
        page.click("#stop")
        is_over(page)
        reply = page.text(f"{REPLY} .text")
        say(page, "and?")
        while len(submitted) < 3:
            page.value("0")
        page.click("#reset")  # while a reply is made
        while Cancel(2) not in one.client.sent:
            page.value("0")
        assert page.text("main") == ""
    contents = [[message["content"] for message in asked.fields["messages"]] for asked in one.asked if asked.method == "POST"]
    assert contents == [["Why?"], ["Why?"], ["Why?", reply, "and?"]] and reply.startswith("Because")
    assert page.complaints == []


class ServedText:
    """Token ids of a text in a model's vocabulary."""

    def __init__(self, folder: Path) -> None:
        self._text = server(folder, lambda _: None).model.text

    def __call__(self, text: str) -> list[int]:
        return self._text.encode(text)


def test_what_the_model_writes_is_text(talker: Path, page: Page) -> None:
    evil = "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script><b>bold</b>"
    with listening(talker, tokens=says(talker, evil)) as one:
        page.open(one.url)
        page.wait("document.title === 'talker'")  # the page's own title comes with the list of models
        say(page, evil)
        is_over(page)
        assert page.text(f"{REPLY} .text") == evil == page.text("main article.user")
        assert page.value("document.querySelectorAll('main :is(img, script, b)').length") == 0
        assert page.value("document.title") == "talker"
    assert page.complaints == []


def test_a_key_and_refusals(talker: Path, page: Page) -> None:
    with listening(talker, keys=["a key"]) as one:
        page.open(one.url)
        page.wait("document.getElementById('settings').open")
        say(page, "Why?")
        is_over(page)
        assert page.text(f"{REPLY} .wrong") == "the API key is missing or wrong"
        assert page.value("document.getElementById('text').value") == "Why?"
        page.type("#key", "a key")
        page.press("Tab")
        page.value("document.getElementById('key').dispatchEvent(new Event('change'))")
        page.wait("document.title === 'talker'")
        page.type("#max-tokens", "5000")
        say(page, "Why?")
        is_over(page)
        assert "of the context of 4096, not 5000" in page.text(f"{REPLY} .wrong")
        page.type("#max-tokens", "3")
        say(page, "Why?")
        is_over(page)
        assert page.text(f"{REPLY} .note").startswith("the reply reached its most tokens; ")
        sent = [message["content"] for message in one.asked[-1].fields["messages"]]
        assert sent == ["Why?"]  # refused messages are not part of the conversation


def test_an_error_in_the_middle(talker: Path, page: Page) -> None:
    submitted: list[Submit] = []
    with listening(talker, tokens=submitted.append) as one:
        page.open(one.url)
        say(page, "Why?")
        while not submitted:
            page.value("0")
        one.report({}, {0: "error: it broke"})
        is_over(page)
        assert page.text(f"{REPLY} .wrong") == "it broke" and page.value("document.getElementById('text').value") == "Why?"
