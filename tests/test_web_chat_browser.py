"""Stories of the chat in a real browser, with a scripted model behind the rooms."""

import asyncio

import pytest
from playwright.async_api import Locator, Page, expect

from tests.world.browser import MILLISECONDS, DoorAt, browsing
from tests.world.chats import heard_from
from tests.world.homeserver import free_port
from tests.world.model import Calls, Drip, Hang, ModelServer, Text, Use
from tests.world.pages import FilePages
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.web import NewDoor, drop, post_message
from tests.world.web import door as door

pytestmark = pytest.mark.slow
LONG = "**one** two three four\n\n" + "five six seven eight " * 20 + "\n\n- nine\n- ten"


async def write(page: Page, text: str) -> None:
    """Type a message and press Enter."""
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


def shown_texts(page: Page) -> Locator:
    """The messages in the list of a page."""
    return page.locator("#messages .text")


async def hide(page: Page, *, hidden: bool) -> None:
    """Tell a tab that another one is in front of it, or none: here each has a window of its own."""
    await page.evaluate(
        "is => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => is});"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


async def test_an_answer_outlives_reloads(door: NewDoor, model: ModelServer, chromium: str) -> None:
    """V-013, V-014, V-015: eight tabs of a browser, and one of another, show the same in the end."""
    drops = asyncio.Semaphore(0)
    model.script(Drip(LONG, drops, interval=0))
    web = await door()
    async with browsing(web, chromium) as browser:
        mine = await browser.profile()
        page = await browser.open("/", inside=mine)
        await page.get_by_label("Message", exact=True).press_sequentially("hello")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("<b>you</b>")
        await page.keyboard.press("Enter")
        await expect(shown_texts(page)).to_have_text("hello\n<b>you</b>")
        assert "/chat/chat_" in page.url
        drop(drops, 8)
        await expect(page.locator("#draft strong")).to_have_text("one")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await page.reload()
        await expect(page.locator("#draft strong")).to_have_text("one")
        tabs = [page]
        for _ in range(7):
            await hide(tabs[-1], hidden=True)
            tabs.append(await browser.open(page.url.removeprefix(web.base), inside=mine))
            await expect(tabs[-1].locator("#draft strong")).to_have_text("one")
        tabs.append(await browser.open("/"))
        drop(drops, 200)
        for each in tabs:
            await hide(each, hidden=False)
            await expect(shown_texts(each)).to_have_count(2)
            await expect(each.locator("#draft")).to_be_hidden()
            await hide(each, hidden=True)
        assert len({await each.locator("#messages").inner_html() for each in tabs}) == 1


async def test_words_said_offline_stay(door: NewDoor, model: ModelServer, chromium: str) -> None:
    """V-015: the first of a chat, one of a tab that is hidden meanwhile, one beside an answer; asked once."""
    drops = asyncio.Semaphore(0)
    slowly = Drip(LONG, drops, interval=0)
    model.keyed(lambda seen: slowly if seen.last_user == "slowly" else None)
    web = await door()
    async with browsing(web, chromium, ["ERR_"]) as browser:
        mine = await browser.profile()
        page = await browser.open("/chat", inside=mine)
        unsent, state = page.locator("#unsent"), page.locator("#state")
        for text, hidden in (("first", False), ("second", True)):
            await mine.set_offline(True)
            await write(page, text)
            await expect(unsent).to_contain_text("Not sent yet.")
            await expect(state).to_contain_text("Connecting again")
            await hide(page, hidden=hidden)
            await mine.set_offline(False)
            await expect(page.locator("#unsent .unsent")).to_have_count(0)
            await hide(page, hidden=False)
            await expect(page.get_by_text(f"echo: {text}")).to_have_count(1)
        await expect(shown_texts(page)).to_have_count(4)
        await write(page, "slowly")
        drop(drops, 8)
        await expect(page.locator("#draft strong")).to_have_text("one")
        await mine.set_offline(True)
        await write(page, "third")
        await expect(unsent).to_contain_text("Not sent yet.")
        drop(drops, 200)
        await web.house.said(3, room=f"web:{page.url.rpartition('/')[2]}")
        await expect(state).to_contain_text("Connecting again")
        await mine.set_offline(False)
        await expect(shown_texts(page)).to_have_count(8)
        await expect(page.locator("#unsent > li")).to_have_count(0)
        said = await shown_texts(page).all_inner_texts()
        assert [said[n] for n in (4, 6, 7)] == ["slowly", "third", "echo: third"]
        assert " ".join(said[5].split()).endswith("seven eight nine ten")


async def test_an_unsent_message_outlives_its_tab(door: NewDoor, chromium: str) -> None:
    """V-015, V-013: written offline in a new chat, found from another one, sent once by all tabs."""
    web = await door()
    async with browsing(web, chromium, ["ERR_"]) as browser:
        mine = await browser.profile()
        page = await browser.open("/chat", inside=mine)
        await page.get_by_role("button", name="Send").dblclick()
        await mine.set_offline(True)
        await write(page, "do not lose me")
        await expect(page.locator("#unsent")).to_contain_text("Not sent yet.")
        await page.close()
        await mine.set_offline(False)
        other, second = [await browser.open("/chat", inside=mine) for _ in range(2)]
        link = other.get_by_role("link", name="Another conversation")
        await second.goto(web.base + (await link.get_attribute("href") or ""))
        await expect(link).to_have_count(0)
        await other.goto(second.url)
        for each in (other, second):
            await expect(shown_texts(each)).to_have_text(["do not lose me", "echo: do not lose me"])
            await expect(each.locator("#unsent > li")).to_have_count(0)
            listed = each.locator(".chats a[aria-current]").first
            await expect(listed).to_have_text("do not lose me")
        assert len(await web.house.rows("SELECT * FROM inbox")) == 1
        assert await other.evaluate("localStorage.length") == 0


async def test_a_message_that_is_refused_holds_up_no_other(door: NewDoor, chromium: str) -> None:
    """V-015: a bug is told once, and can be tried again; logging out deletes what was not sent."""
    web = await door()
    async with browsing(web, chromium, ["500", "ERR_"]) as browser:
        page = await browser.open("/chat")
        await page.route(
            "**/messages",
            lambda route: (
                route.fulfill(status=500, body="<html>")
                if "bad" in (route.request.post_data or "")
                else route.continue_()
            ),
        )
        await write(page, "bad")
        await expect(page.locator("#unsent")).to_contain_text("cannot be reached")
        await write(page, "good")
        await expect(shown_texts(page)).to_have_text(["good", "echo: good"])
        await page.unroute("**/messages")
        await page.get_by_role("button", name="Send again").click()
        await expect(shown_texts(page)).to_have_text(["good", "echo: good", "bad", "echo: bad"])
        await page.evaluate("() => { Storage.prototype.setItem = () => { throw new Error() } }")
        await page.context.set_offline(True)
        await write(page, "not stored")
        await expect(page.locator("#unsent")).to_contain_text("keep this page open")


async def test_a_killed_daemon_loses_no_word_at_either_door(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, chromium: str
) -> None:
    """V-015, V-016, V-017: killed in an answer, beside a chat in Matrix that the browser can read."""
    drops, port = asyncio.Semaphore(0), free_port()
    model.keyed(lambda seen: Drip(LONG, drops, interval=0) if seen.last_user == "slowly" else None)
    ann = await person("ann")
    daemon = await bot(ann, web={"enabled": True, "port": port})
    chat = await room(ann, daemon)
    web = DoorAt(f"http://127.0.0.1:{port}", daemon)
    async with browsing(web, chromium, ["ERR_"]) as browser:
        page = await browser.open("/")
        await write(page, "slowly")
        drop(drops, 8)
        await expect(page.locator("#draft strong")).to_have_text("one")
        await ann.send(chat, "in Matrix")
        await heard_from(ann, chat, daemon, "echo: in Matrix")
        await daemon.kill()
        await write(page, "written meanwhile")
        await expect(page.locator("#unsent")).to_contain_text("Not sent yet.")
        drop(drops, 400)
        await daemon.start()
        await expect(shown_texts(page)).to_have_count(4, timeout=MILLISECONDS)
        said = [" ".join(text.split()) for text in await shown_texts(page).all_inner_texts()]
        assert sorted(said, key=len)[:3] == [
            "slowly",
            "written meanwhile",
            "echo: written meanwhile",
        ]
        assert sum(text.endswith("seven eight nine ten") for text in said) == 1
        await page.reload()
        await page.get_by_role("link", name="Matrix: in Matrix").click()
        await expect(shown_texts(page)).to_have_text(["in Matrix", "echo: in Matrix"])
        await expect(page.get_by_label("Message", exact=True)).to_have_count(0)
        await ann.send(chat, "more")
        await expect(shown_texts(page)).to_have_count(4, timeout=MILLISECONDS)


async def test_the_past_is_read_too(door: NewDoor, model: ModelServer, chromium: str) -> None:
    """V-015, V-019, V-026: what is shown beside the newest is read anew; without script by links."""
    web = await door()
    FilePages(web.house.stores.wiki.root)
    async with browsing(web, chromium) as browser:
        other = (await post_message(web, "secret plan", "k", "chat_other")).json()["id"]
        old = [(await post_message(web, f"/nothing {n}", f"k{n}")).json()["id"] for n in range(60)]
        await web.house.settled()
        model.script(Calls((Use("recall", {"title": "Pond"}),)), Text("There are carp."))
        await post_message(web, "what lives there?", "k60")
        await web.house.settled()
        page = await browser.open("/")
        await expect(shown_texts(page)).to_have_count(50)
        await page.get_by_role("link", name="Earlier messages").click()
        await expect(shown_texts(page)).to_have_count(100)
        await hide(page, hidden=True)
        async with web.house.database.transaction() as tx:
            await web.house.inbox.erase_events(tx, old[20:21])
        await hide(page, hidden=False)
        await expect(page.locator(f"#{old[20]}")).to_have_count(0)
        await expect(page.locator(f"#{old[21]}")).to_have_count(1)
        await expect(page.get_by_role("link", name="secret plan")).to_have_count(1)
        async with web.house.database.transaction() as tx:
            await web.house.inbox.erase_events(tx, [other, old[22]])
        await expect(page.locator(f"#{old[22]}")).to_have_count(0)
        await expect(page.get_by_role("link", name="secret plan")).to_have_count(0)
        await page.get_by_role("link", name="Pond").click()
        await expect(page.get_by_role("complementary", name="Recalled page")).to_contain_text(
            "Three"
        )
        await page.get_by_role("button", name="Close").click()
        await expect(page.locator("#side")).to_be_hidden()
        still = await browser.open("/", java_script_enabled=False)
        await still.get_by_role("link", name="Earlier messages").click()
        await expect(still.locator(f"#{old[21]}")).to_have_count(1)
        await still.get_by_role("link", name="Newest messages").click()
        await still.get_by_role("link", name="Pond").click()
        await expect(still.get_by_role("heading", name="Pond")).to_have_count(1)


async def test_a_text_is_kept_until_sent(door: NewDoor, model: ModelServer, chromium: str) -> None:
    """V-013, V-014, V-015: a reload keeps what is half typed, in each conversation its own; too long is cut."""
    model.script(Hang())
    web = await door()
    async with browsing(web, chromium, ["413"]) as browser:
        mine = await browser.profile()
        page = await browser.open("/chat", inside=mine)
        field = page.get_by_label("Message", exact=True)
        await field.fill("half a text")
        await page.reload()
        await expect(field).to_have_value("half a text")
        await field.press("Enter")
        await expect(page.locator(".waiting")).to_contain_text("waiting for ")
        await page.get_by_role("button", name="Stop").click()
        await expect(shown_texts(page)).to_have_text(["half a text", "/stop", "Stopped."])
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        await field.fill("more")
        new = await browser.open("/chat", inside=mine)
        await expect(new.get_by_label("Message", exact=True)).to_have_value("")
        await page.reload()
        await expect(field).to_have_value("more")
        await write(page, "long " * 60_000)
        refused = page.locator("#unsent .unsent")
        await expect(refused).to_contain_text("Send it in parts.")
        assert len(await refused.inner_text()) < 2_000
        await field.fill("more")
        await refused.get_by_role("button", name="Edit").click()
        assert await field.input_value() == "long " * 60_000 + "\nmore"
        await expect(refused).to_have_count(0)
        await field.fill("short")
        await page.reload()
        await field.press("Enter")
        await expect(shown_texts(page)).to_have_count(5)
        await page.reload()
        await expect(field).to_have_value("")


async def test_a_page_forgets_with_its_conversation(door: NewDoor, chromium: str) -> None:
    """V-015: its first message and its title, while it stays open."""
    web = await door()
    async with browsing(web, chromium) as browser:
        first = (await post_message(web, "I am Xaverius")).json()["id"]
        await post_message(web, "and who\u202e are you?", "k2")
        page = await browser.open("/")
        await expect(shown_texts(page)).to_have_count(4)
        async with web.house.database.transaction() as tx:
            await web.house.inbox.erase_events(tx, [first])
        await expect(page.get_by_role("heading", level=1)).to_have_text("and who are you?")
        await expect(page.locator(f"#{first}")).to_have_count(0)
        await expect(page).to_have_title("and who are you? · Wintermute")
        typed = page.locator("#messages").get_by_text("and who are you?", exact=True)
        await expect(typed).to_have_count(1)
