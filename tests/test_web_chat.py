"""Talking in the browser: by the door's own addresses, with a scripted model behind the rooms."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2
import pytest

from tests.world.clock import WITHIN
from tests.world.house import ANN, Gate
from tests.world.model import Calls, Cut, Drip, Hang, ModelServer, Reads, Text, Use
from tests.world.pages import FilePages
from tests.world.web import CHAT, NewDoor, Served, chat_texts, drop, post_message, text_words
from tests.world.web import door as door
from wintermute.mailbox.outbox import TERMINAL
from wintermute.markdown import html
from wintermute.messages import Json
from wintermute.web.messages import IN_THREAD, Renderings

DIRECT = "!direct:test"


@dataclass
class Listening:
    """A page that listens: its messages and the draft, as its script shows them."""

    stream: httpx2.Response
    version: str = ""
    messages: dict[str, str] = field(default_factory=dict)
    answers: str | None = None
    blocks: list[str] = field(default_factory=list)
    draft: Json = field(default_factory=dict)
    title: str = ""
    erased: int = 0
    rows: int = 0
    """Messages that the stream brought."""

    async def until(self, true: Callable[["Listening"], bool]) -> None:
        """Take events until something is so."""
        async with asyncio.timeout(WITHIN):
            while not true(self):
                assert await self.next(), self

    async def next(self) -> bool:
        """Take an event; False: the stream has ended."""
        name = ""
        async for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                self._take(name, json.loads(line.removeprefix("data: ")))
                return True
        return False

    def __post_init__(self) -> None:
        self._lines = self.stream.aiter_lines()

    def _take(self, name: str, value: Json) -> None:
        if name == "messages":
            self.rows += len(value["rows"])
            known = self.messages | {row["id"]: row["html"] for row in value["rows"]}
            self.messages = {each: known[each] for each in value["ids"]}
            self.version, self.title, self.erased = (
                value[each] for each in ("version", "title", "erased")
            )
        else:
            same = self.blocks[: value["from"]] if value["answers"] == self.answers else []
            self.answers, self.draft = value["answers"], value
            self.blocks = [*same, *value["blocks"]] if self.answers else []

    @property
    def texts(self) -> list[str]:
        """The words that the page shows."""
        return [text_words(html) for html in self.messages.values()]

    @property
    def grown(self) -> str:
        """The draft as far as it is."""
        return "".join(self.blocks)


@asynccontextmanager
async def listening(
    web: Served, chat: str = CHAT, like: Listening | None = None
) -> AsyncIterator[Listening]:
    """A page that listens to a conversation, and shows what another one does at first."""
    version, shown = (like.version, dict(like.messages)) if like else ("", {})
    address = f"{web.base}/api/chats/{chat}/stream?has={version}"
    async with web.client.stream("GET", address) as stream:
        assert stream.status_code == 200, await stream.aread()
        yield Listening(stream, version, shown)


async def test_an_answer_grows_on_a_page_and_stays_there(door: NewDoor, model: ModelServer) -> None:
    """V-013, V-014, V-015: two pages, one of them opened in the middle, show the same in the end."""
    drops = asyncio.Semaphore(0)
    model.script(Drip("**one** two\n\nthree four\n\nfive six seven", drops, interval=0))
    web = await door()
    assert (await post_message(web, "hello <b>")).status_code == 202
    async with listening(web) as page:
        await page.until(lambda p: p.answers is not None)
        assert page.texts == ["hello &lt;b&gt;"]
        drop(drops, 2)
        await page.until(lambda p: "two" in p.grown)
        assert "<strong>one</strong>" in page.blocks[0]
        async with listening(web) as late:
            await late.until(lambda p: "two" in p.grown)
            assert late.texts == page.texts
            drop(drops, 2)
            for each in (page, late):
                await each.until(lambda p: "four" in p.grown)
                assert "<strong>one</strong> two" in each.blocks[0]
            drop(drops, 20)
            for each in (page, late):
                await each.until(lambda p: len(p.texts) == 2 and p.answers is None)
                assert each.texts == ["hello &lt;b&gt;", "one two\nthree four\nfive six seven"]
    assert await chat_texts(web) == page.texts
    shown = (await web.get(f"/chat/{CHAT}")).text
    assert all(html in shown for html in page.messages.values())
    assert f'data-version="{page.version}"' in shown
    async with listening(web, like=page) as again:
        await post_message(web, "/help", "k2")
        await again.until(lambda p: "/compact" in p.texts[-1])
        assert [*again.messages.items()][:2] == [*page.messages.items()]
        assert again.rows <= 3  # the command, once or twice, and its answer: nothing it had
    newest = (await web.get("/")).text
    assert CHAT in newest
    assert "hello &lt;b&gt;" in newest
    (row,) = await web.house.rows(
        "SELECT kind, scope FROM conversations WHERE room_id = ?", f"web:{CHAT}"
    )
    assert (row["kind"], row["scope"]) == ("terminal", f"person:{ANN}")


MESSAGES = (
    (CHAT, "k", " \n\u200b", 400, "message required"),
    (CHAT, "k", "é" * 32_001, 413, "longer than 64 kB"),
    (CHAT, "", "hello", 400, "key"),
    (CHAT, "k/1", "hello", 400, "key"),
    (CHAT, "k", "a\0b", 400, "characters that cannot be stored"),
    ("a b", "k", "hello", 400, "chat_id"),
    ("conv_0123456789abcdef", "k", "hello", 404, "no such conversation"),
    (CHAT, "k", "é" * 32_000, 202, ""),
    (CHAT, "k2", "a\x07b", 202, ""),
)


async def test_a_key_is_one_message_of_its_conversation_and_some_are_none(door: NewDoor) -> None:
    """V-013, V-015: what is sent again because its 202 was lost is asked once; others are told why."""
    web, taken = await door(is_idle=True), 0
    for chat, key, message, status, error in MESSAGES:
        got = await post_message(web, message, key, chat)
        assert (got.status_code, error in got.json().get("error", "")) == (status, True), error
        taken += status == 202
        assert len(await web.house.rows("SELECT * FROM inbox")) == taken
    first, again = [await post_message(web, "hello", chat="chat_1") for _ in range(2)]
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    assert (await post_message(web, "other words", chat="chat_1")).status_code == 409
    assert (await post_message(web, "other words", chat="chat_2")).status_code == 202
    assert await chat_texts(web, "chat_1") == ["hello"]
    assert await chat_texts(web, "chat_2") == ["other words"]
    async with web.house.database.transaction() as tx:
        await web.house.inbox.erase_events(tx, [first.json()["id"]])
    assert (
        await post_message(web, "hello", chat="chat_1")
    ).status_code == 202  # it stays taken back
    assert await chat_texts(web, "chat_1") == []


async def test_what_is_pushed_out_while_others_are_rendered_is_shown_all_the_same() -> None:
    """V-015, V-029."""
    kept, long = Renderings(most=40), "x" * IN_THREAD
    await kept.html(["**a**"])
    async with asyncio.TaskGroup() as group:
        both = group.create_task(kept.html(["**a**", long]))
        group.create_task(kept.html(["**b**", "**c**"]))
    assert both.result() == {text: html(text) for text in ("**a**", long)}


@pytest.mark.slow  # for it waits as long as a page does
async def test_a_page_says_what_is_at_work_and_awaited(door: NewDoor, model: ModelServer) -> None:
    """V-014: tools by their names, the wait as at the terminal, and an attempt in vain is taken back."""
    opened, reads = asyncio.Event(), asyncio.Semaphore(0)

    async def held(*_: object) -> str:
        await opened.wait()
        return "done"

    model.script(
        Calls((Use("slow\u202etool"),), "I look."),
        Cut("in vain in vain in vain in vain", 1),
        Reads(((10, 4000), (2000, 4000)), reads, Text("**done**")),
    )
    web = await door(gates=[Gate("slow\u202etool", held)], retries=1)
    await post_message(web, "use it")
    async with listening(web) as page:
        await page.until(lambda p: p.draft.get("waiting", "").startswith("slowtool, "))
        assert (page.draft["tools"], "I look." in page.grown) == (["slowtool"], True)
        opened.set()
        drop(reads, 2)
        await page.until(lambda p: "2,000 of 4,000 tokens read" in p.draft.get("waiting", ""))
        assert ("in vain" in page.grown, page.draft["tools"]) == (False, ["slowtool"])
        assert "attempt 2 of 2" in page.draft["waiting"]
        reads.release()
        await page.until(lambda p: len(p.texts) == 2)
        assert page.texts[-1] == "done"


async def test_stop_ends_an_answer_and_odd_texts_stay(door: NewDoor, model: ModelServer) -> None:
    """V-013, V-014, V-015: by `/stop`, which does not wait in the queue; an indent and an empty answer stay."""
    model.script(Hang())
    web = await door()
    await post_message(web, "\n    hello\n")
    async with listening(web) as page:
        await page.until(lambda p: p.answers is not None)
        await post_message(web, "/stop", "k2")
        await page.until(lambda p: p.answers is None and len(p.texts) == 3)
        assert page.texts == ["hello", "/stop", "Stopped."]
    assert 'dir="auto">    hello<' in (await web.get(f"/chat/{CHAT}")).text
    async with web.house.database.transaction() as tx:
        await tx.execute("UPDATE outbox SET body = ' '")
    assert await chat_texts(web) == await chat_texts(web) == ["hello", "/stop", ""]


async def test_conversations_of_other_doors_can_be_read(door: NewDoor, model: ModelServer) -> None:
    """V-016, V-030: with a link into Matrix, and nothing that was said before others."""
    web = await door()
    await web.house.say("of another before <secret>", room=DIRECT, sender="@eve:test")
    await web.house.incoming("in a group <secret>", room=DIRECT, scope=f"room:{DIRECT}")
    await web.house.incoming("of another person", room="!other:test", sender="@eve:test")
    await web.house.say("at the keyboard", room=TERMINAL)
    await post_message(web, "in the browser")
    await web.house.settled()
    drops = asyncio.Semaphore(0)
    model.script(Drip("slow words are words", drops, interval=0))
    await web.house.incoming("in Matrix", room=DIRECT)
    rows = (await web.get("/api/chats")).json()["chats"]
    titles = [row["title"] for row in rows]
    assert titles == ["Matrix: in Matrix", "in the browser", "Terminal: at the keyboard"]
    direct = next(row for row in rows if row["matrix"])
    assert direct["matrix"] == "https://matrix.to/#/%21direct%3Atest"
    assert not direct["is_open"]
    async with listening(web, direct["id"]) as page:
        await page.until(lambda p: p.answers is not None)
        drop(drops, 2)
        await page.until(lambda p: "slow" in p.grown)
        assert page.texts == ["in Matrix"]
        shown = (await web.get(f"/chat/{direct['id']}")).text
        assert "Open it in Matrix" in shown
        assert "<form" not in shown
        assert (await post_message(web, "here?", chat=direct["id"])).status_code == 403
        drop(drops, 9)
        await page.until(lambda p: len(p.texts) == 2)
        async with web.house.database.transaction() as tx:
            await web.house.conversations.rescope(tx, DIRECT, f"room:{DIRECT}")
        await web.house.incoming("and <secret>", room=DIRECT, scope=f"room:{DIRECT}")
        async with asyncio.timeout(WITHIN):
            while await page.next():
                assert page.texts == ["in Matrix", "slow words are words"]
    for path in ("/", "/api/chats", f"/chat/{direct['id']}", f"/api/chats/{direct['id']}"):
        everything = (await web.get(path)).text
        assert not any(word in everything for word in ("secret", "another", "slow")), path


async def test_earlier_messages_come_by_key(door: NewDoor) -> None:
    """V-015, V-029: pages of fifty that neither overlap nor leave anything out, also by links."""
    web = await door()
    for n in range(60):
        await post_message(web, f"/nothing {n}", f"k{n}")
        if n % 7 == 0:
            await web.house.settled()
    await web.house.settled()
    everything, key, pages = list[str](), "", 0
    while key is not None:
        found = (await web.get(f"/api/chats/{CHAT}/messages?before={key}")).json()
        everything = [text_words(row["html"]) for row in found["messages"]] + everything
        key, pages = found["earlier"], pages + 1
    assert pages == 3
    assert [each for each in everything if each[0] == "/"] == [f"/nothing {n}" for n in range(60)]
    assert len(everything) == 120
    link = re.search(r'href="(/chat/[^"]*before=[^"]*)"', (await web.get("/")).text)
    assert link
    assert everything[69] in text_words((await web.get(link[1])).text.rpartition("<li")[2])
    for bad in ("x", "1-", "-1-2", "9" * 40 + "-1"):
        assert (await web.get(f"/api/chats/{CHAT}/messages?before={bad}")).status_code == 400


async def test_a_recalled_page_is_a_badge_that_opens_it(door: NewDoor, model: ModelServer) -> None:
    """V-019, W-075, V-027: after a reload too."""
    titles = ("Pond", 'A "b" <i>', "Nowhere")
    model.script(Calls(tuple(Use("recall", {"title": title}) for title in titles)), Text("carp"))
    web = await door(owner=ANN)
    FilePages(web.house.stores.wiki.root).write('semantic/A "b" <i>.md', "# x\n\nHello.")
    await post_message(web, "what lives there?")
    async with listening(web) as page:
        await page.until(lambda p: len(p.texts) == 2)
        answer = [*page.messages.values()][-1]
    badges = re.findall(r'<a class="badge"[^>]* href="([^"]*)">([^<]*)</a>', answer)
    assert [shown for _, shown in badges] == ["Pond", "A &#34;b&#34; &lt;i&gt;"]
    assert answer in (await web.get(f"/chat/{CHAT}")).text
    for address, _ in badges:
        assert (await web.get(f"{address}?part=1")).status_code == 200


@pytest.mark.slow  # for it waits as long as a page does
async def test_what_is_taken_back_goes_from_pages_that_show_it(door: NewDoor) -> None:
    """V-015: also where nobody rings a bell; from the title; and pages hear of what went elsewhere."""
    web = await door()
    event = (await post_message(web, "my canary")).json()["id"]
    other = (await post_message(web, "/nothing", chat="chat_other")).json()["id"]
    async with listening(web) as page:
        await page.until(lambda p: len(p.texts) == 2)
        await post_message(web, "my finch", "k2")
        await page.until(lambda p: len(p.texts) == 4)
        assert page.title == "my canary"
        chats = (await web.get("/api/chats")).json()["chats"]
        assert {each["title"] for each in chats} == {"my canary", "Commands only"}
        before = page.erased
        async with web.house.database.transaction() as tx:
            await web.house.inbox.erase_events(tx, [event])
        await page.until(lambda p: len(p.texts) == 3)
        assert (page.texts[0], page.title) == ("echo: my canary", "my finch")
        async with web.house.database.transaction() as tx:
            await web.house.inbox.erase_events(tx, [other])
        await page.until(lambda p: p.erased == before + 2)
