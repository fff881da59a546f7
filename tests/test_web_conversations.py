"""Conversations of the wiki in the browser: the same files and answers as `wintermute wiki` has."""

import asyncio
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.async_api import expect

from tests.world.browser import accessible, browsing, overflow
from tests.world.clock import WITHIN
from tests.world.consolidated import open_talk, said_in
from tests.world.files import texts_in
from tests.world.homeserver import free_port
from tests.world.model import Calls, Drip, Fail, ModelServer, Text, Use
from tests.world.pages import FilePages
from tests.world.terminal import Terminal, beside
from tests.world.web import NewDoor, Served, serving_daemon
from tests.world.web import door as door
from wintermute.errors import StoreBusy
from wintermute.web import conversations
from wintermute.wiki.conversations import ConversationFolder

API = "/api/conversations"


@pytest.fixture
def talk(terminal: Terminal, model: ModelServer) -> Path:
    return open_talk(terminal, model)


async def wiki_door(door: NewDoor) -> Served:
    """The door of a house with a wiki."""
    web = await door()
    FilePages(web.house.stores.wiki.root)
    return web


async def request(web: Served, method: str, path: str, **more: Any) -> httpx2.Response:
    head = {"Content-Type": "application/json"}
    return await web.client.request(method, web.base + API + path, headers=head, **more)


async def make(web: Served) -> tuple[str, Path]:
    """A new conversation; its id and its folder."""
    made = await request(web, "POST", "")
    assert made.status_code == 201, made.text
    name = str(made.json()["id"])
    return name, web.house.stores.wiki.root / "conversations" / name


async def add(web: Served, name: str, text: str) -> httpx2.Response:
    return await request(web, "POST", f"/{name}/message", json={"message": text})


async def generated(
    client: httpx2.AsyncClient, address: str, seen: Callable[[str, Any], None] = lambda *_: None
) -> tuple[str, Any]:
    """Have the last message answered, and listen to the end: the last event. `seen` gets each."""
    last: tuple[str, Any] = ("", None)
    async with (
        asyncio.timeout(WITHIN),
        client.stream("POST", f"{address}/generate", json={}) as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in stream.aiter_lines():
            kind, _, value = line.partition(": ")
            name = value if kind == "event" else name
            if kind == "data":
                last = name, json.loads(value)
                seen(*last)
    return last


async def test_a_conversation_is_made_and_unlisted(door: NewDoor, model: ModelServer) -> None:
    """W-072, V-020, W-075: the answer grows, is added once, and shows what it recalled."""
    words = asyncio.Semaphore(0)
    recall = Calls((Use("recall", {"title": "Garden"}),))
    model.script(recall, Drip("**Roses** by the pond", words))
    web = await wiki_door(door)
    (name, folder), events = await make(web), []
    assert (await add(web, name, "what do I\r\ngrow?  \n")).status_code == 201

    def seen(kind: str, value: Any) -> None:
        events.append((kind, value))
        if kind == "draft" and value["blocks"]:
            words.release()

    words.release()
    at = f"{web.base}{API}/{name}"
    kind, last = await generated(web.client, at, seen)
    assert (kind, last["id"]) == ("message", "0002-assistant.md")
    assert "<strong>Roses</strong> by the pond" in last["html"]
    assert 'href="/wiki/semantic/Garden"' in last["html"]
    drafts = [value for kind, value in events if kind == "draft"]
    assert drafts[-1]["tools"] == ["recall"]
    assert len([draft for draft in drafts if draft["blocks"]]) > 2
    assert texts_in(folder)["0001-user.md"] == "what do I\ngrow?\n"
    assert texts_in(folder)["0002-assistant.md"] == "**Roses** by the pond \n"
    rows = (await web.get(f"{API}/{name}")).json()["messages"]
    assert [(row["id"], row["role"]) for row in rows] == [
        ("0000-system.md", "system"),
        ("0001-user.md", "user"),
        ("0002-assistant.md", "assistant"),
    ]
    page = (await web.get(f"/conversations/{name}")).text
    assert last["html"] in page
    for path in ("/chat", "/conversations"):
        assert f'href="/conversations/{name}"' in (await web.get(path)).text
    listed = (await web.get(API)).json()["conversations"]
    assert listed == [{"id": name, "title": "what do I grow?", "missing": False}]
    assert (await request(web, "DELETE", f"/{name}")).status_code == 204
    assert (await web.get(API)).json()["conversations"] == []
    assert (await web.get(f"/conversations/{name}")).status_code == 404
    assert len(texts_in(folder)) == 3


async def test_each_wrong_request_is_told_what_is_wrong(door: NewDoor, model: ModelServer) -> None:
    """W-072: also a folder that is gone, a path instead of an id, a list that another program wrote."""
    web = await wiki_door(door)
    (name, _), (gone, folder) = await make(web), await make(web)
    raw, wiki = "episodic-raw:20261101:mail", web.house.stores.wiki.root
    outside = wiki.parent / "outside"
    folder.rmdir()
    for folder in (outside, wiki / raw.replace(":", "/")):
        folder.mkdir(parents=True)
        (folder / "0001-user.md").write_text("secret\n")
    listed = json.loads((wiki / "meta/conversations.json").read_text())
    listed += ["../outside", str(outside), "conversations/../../outside", "\ud800"]
    listed.append(raw.replace(":", "/"))
    (wiki / "meta/conversations.json").write_text(json.dumps(listed))
    missing = "conversation not found"
    for other in (gone, "none", "..:outside", str(outside).replace("/", ":"), "..%2Foutside"):
        assert (await web.get(f"/conversations/{other}")).status_code == 404
        asked = [("GET", ""), ("POST", "/generate")]
        for method, path in asked if other == gone else [*asked, ("DELETE", "")]:
            answer = await request(web, method, f"/{other}{path}")
            found = answer.json()["error"] in {missing, "There is nothing at this address."}
            assert (answer.status_code, found) == (404, True), other
        assert (await add(web, other, "hello")).status_code == 404
    long = "é" * 32_001
    table: tuple[tuple[dict[str, object], int, str | None], ...] = (
        ({"message": " \n\u200b"}, 400, "message required"),
        ({}, 400, "message required"),
        ({"message": 1}, 400, None),
        ({"message": long}, 413, None),
    )
    for body, status, error in table:
        answer = await request(web, "POST", f"/{name}/message", json=body)
        assert answer.status_code == status, body
        assert answer.json()["error"] == (error or answer.json()["error"])
    assert (await web.get(f"{API}/{name}")).json() == {"messages": [], "earlier": None}
    assert (await request(web, "POST", f"/{name}/generate")).status_code == 409
    assert (await request(web, "POST", f"/{raw}/generate")).status_code == 409
    assert (await add(web, raw, "more")).status_code == 409
    assert "secret" in (await web.get(f"/conversations/{raw}")).text
    rows = (await web.get(API)).json()["conversations"]
    assert [(row["id"], row["missing"]) for row in rows] == [
        (raw, False),
        (gone, True),
        (name, False),
    ]
    assert (await request(web, "DELETE", f"/{gone}")).status_code == 204
    assert gone not in (await web.get("/conversations")).text
    assert model.requests == []


def at_first(work: Callable[[], None]) -> Callable[[str, Any], None]:
    """Do something at the first event, and nothing at those after it."""
    left = [work]
    return lambda *_: left.pop()() if left else None


async def test_an_answer_is_made_whoever_leaves(door: NewDoor, model: ModelServer) -> None:
    """W-072: one answer for all who ask; a failed one can be asked for again."""
    words = asyncio.Semaphore(0)
    model.script(Fail(400, "no"), Drip("one two", words))
    web = await wiki_door(door)
    name, folder = await make(web)
    at = f"{web.base}{API}/{name}"
    await add(web, name, "hello")
    kind, told = await generated(web.client, at)
    assert (kind, set(told)) == ("error", {"error", "what_to_do"})
    async with asyncio.timeout(WITHIN), web.client.stream("POST", f"{at}/generate", json={}):
        await model.request_arrived(2)
    refused = await add(web, name, "and more")
    assert refused.status_code == 409
    assert "wait for the answer" in refused.json()["what_to_do"].lower()
    assert 'data-making="yes"' in (await web.get(f"/conversations/{name}")).text
    async with asyncio.TaskGroup() as group:
        joined = [at_first(words.release) for _ in range(2)]
        both = [group.create_task(generated(web.client, at, each)) for each in joined]
    first, second = [each.result() for each in both]
    assert (first, first[0]) == (second, "message")
    assert [*texts_in(folder)] == ["0000-system.md", "0001-user.md", "0002-assistant.md"]
    assert len(model.requests) == 2


async def test_a_held_folder_is_waited_for_and_long_lists_come_in_parts(door: NewDoor) -> None:
    """W-007, W-072, V-029: a lock holds up nothing but what is written there; lists go on by keys."""
    web = await wiki_door(door)
    name, folder = await make(web)
    opened = os.open(folder, os.O_RDONLY)
    fcntl.flock(opened, fcntl.LOCK_EX)
    with pytest.raises(StoreBusy), ConversationFolder(folder).held(0):
        pass
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(add(web, name, "hello"))
        for _ in range(3):
            assert (await web.get(f"{API}/{name}")).json()["messages"] == []
        assert not waiting.done()
        os.close(opened)
    assert waiting.result().json()["id"] == "0001-user.md"
    made = [await make(web) for _ in range(conversations.LISTED_MOST)]
    names = [name, *(each for each, _ in made)]
    for n in range(60):
        (made[0][1] / f"{n + 1:04}-user.md").write_text(f"message {n}")
    first = (await web.get(API)).json()
    rest = (await web.get(API, params={"after": first["next"]})).json()
    shown = [each["id"] for each in first["conversations"] + rest["conversations"]]
    assert (shown, rest["next"]) == (names[::-1], None)
    assert f"?after={first['next']}" in (await web.get("/conversations")).text
    newest = (await web.get(f"{API}/{made[0][0]}")).json()
    assert newest["earlier"] == newest["messages"][0]["id"] == "0011-user.md"
    page = (await web.get(f"/conversations/{made[0][0]}?before=0011-user.md")).text
    assert page.count("<li id=") == 10


async def test_both_doors_answer_alike(terminal: Terminal, model: ModelServer, talk: Path) -> None:
    """W-075, V-020: the model is asked the same by `wiki chat` and by `wiki web --store`."""
    first = (Calls((Use("recall", {"title": "Garden"}),)), Text("Roses."))
    model.script(*first, *first, Text("By the pond."), Text("By the pond."))
    store, port = shutil.copytree(talk.parent.parent, terminal.folder / "other"), free_port()
    served = ("wiki", "web", "--store", str(store), "--port", str(port))
    base = f"http://127.0.0.1:{port}"
    async with (
        serving_daemon(terminal.python, terminal.folder / "config.yaml", *served),
        httpx2.AsyncClient(base_url=base, timeout=WITHIN) as client,
    ):
        token = (terminal.data / "web.token").read_text().strip()
        client.headers["Authorization"] = f"Bearer {token}"
        assert (await client.get("/")).headers["location"] == "/conversations"
        for text in ("what do I grow?", "where?"):
            told = ("wiki", "chat", "--conversation", str(talk))
            done = await beside(terminal, *told, given=text.encode())
            at = f"{API}/{talk.name}"
            assert (await client.post(f"{at}/message", json={"message": text})).status_code == 201
            kind, last = await generated(client, at)
            assert kind == "message"
            assert f"<p>{done.stdout.decode().strip()}</p>" in last["html"]
    assert texts_in(talk) == texts_in(store / "conversations" / talk.name)
    asked = [said_in(each) for each in model.requests]
    assert (asked[:2], asked[4]) == (asked[2:4], asked[5])


@pytest.mark.slow
async def test_a_browser_asks_a_wiki(door: NewDoor, model: ModelServer, chromium: str) -> None:
    """V-020, W-075: made, answered, reloaded in the middle, refused and asked again, unlisted."""
    words = asyncio.Semaphore(0)
    recall = Calls((Use("recall", {"title": "Garden"}),))
    model.script(recall, Drip("**one** two", words), Fail(400, "no"), Text("<img onerror=x>"))
    web = await wiki_door(door)
    async with browsing(web, chromium) as browser:
        page = await browser.open("/")
        await page.get_by_role("link", name="All conversations of the wiki").click()
        await page.get_by_role("button", name="New conversation").click()
        await page.get_by_label("Message", exact=True).fill("<b>hello</b>")
        await page.keyboard.press("Enter")
        await expect(page.locator("#messages .own .text")).to_have_text("<b>hello</b>")
        words.release()
        await expect(page.locator("#draft strong")).to_have_text("one")
        await expect(page.locator("#draft .tools li")).to_have_text("recall")
        await page.reload()
        await expect(page.locator("#draft strong")).to_have_text("one")
        words.release()
        answer = page.locator("#messages > li").last
        await expect(answer.locator("strong")).to_have_text("one")
        await expect(answer.get_by_role("link", name="Garden")).to_be_visible()
        await expect(page.locator("#draft")).to_be_hidden()
        await page.get_by_label("Message", exact=True).fill("again")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status")).to_contain_text("refuses the request")
        await page.get_by_role("button", name="Answer the last message").click()
        await expect(answer.locator(".text")).to_have_text("<img onerror=x>")
        assert await overflow(page) + await accessible(page) == []
        page.once("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Remove from the list").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Conversations of the wiki")
        await expect(page.locator(".chats li")).to_have_count(0)
