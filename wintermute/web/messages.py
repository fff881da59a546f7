"""Messages of a conversation as HTML, for a page and for the stream of its states."""

import asyncio
import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated
from weakref import WeakValueDictionary

from wintermute import markdown
from wintermute.clock import Clock
from wintermute.loom.reader import LoomReader
from wintermute.mailbox.history import NEWEST, MailboxReader, MessageKey, OwnedConversation
from wintermute.mailbox.outbox import TERMINAL, WEB
from wintermute.text import clean, display_name, is_blank, one_line
from wintermute.web.views import Refusal, Views, of_application

NEWEST_MOST = 50
"""The messages of a page, and those that a stream keeps up to date."""
IN_THREAD = 300
"""Characters of Markdown that can take 20 ms; more are rendered in a thread."""
MESSAGE_MOST = 64_000
"""The largest message, in bytes."""
DRAWS = 0.1
"""Seconds between two states of a draft."""
SHARE = 10
"""Rendering a draft may take one nth of the time."""
KEPT_MOST = 2_000_000
"""Characters of rendered messages in the cache."""


def written(given: str) -> str:
    """Return a person's message without harmful characters. Raises: Refusal for a blank or a long one."""
    if len(given.encode(errors="replace")) > MESSAGE_MOST:
        raise Refusal(413, "The message is longer than 64 kB.", "Send it in parts.")
    if is_blank(text := clean(given).rstrip()):
        raise Refusal(400, "message required", "Write a message first.")
    return text


class Renderings:
    """A cache of rendered messages by the hash of their text; an id would outlive a forgotten text."""

    def __init__(self, most: int = KEPT_MOST) -> None:
        self._most = most
        self._kept: dict[bytes, str] = {}
        self._size = 0

    async def html(self, texts: Collection[str]) -> dict[str, str]:
        """Render these texts, as far as they are not at hand."""
        hashes = {text: hashlib.sha256(text.encode()).digest() for text in texts}
        found = {text: self._kept[key] for text, key in hashes.items() if key in self._kept}
        new = [text for text in hashes if text not in found]
        if sum(map(len, new)) < IN_THREAD:
            made = [*map(markdown.html, new)]
        else:
            made = await asyncio.to_thread(lambda: [*map(markdown.html, new)])
        found |= zip(new, made, strict=True)
        for text, html in found.items():  # the newest last
            self._size += len(html) - len(self._kept.pop(hashes[text], ""))
            self._kept[hashes[text]] = html
        while self._size > self._most:
            self._size -= len(self._kept.pop(next(iter(self._kept))))
        return found


class DraftDesk:
    """Renders the draft of one conversation, once for all watching pages. `until`: not again before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self.text = ""
        self.blocks: tuple[str, ...] = ()
        self.until = 0.0

    async def draw(self, text: str) -> None:
        """Draw a text, unless it is drawn, or that would take too much time now."""
        async with self._lock:
            begun = self._clock.monotonic()
            if text == self.text or (text and begun < self.until):
                return
            is_long = len(text) >= IN_THREAD
            drawn = (
                await asyncio.to_thread(markdown.blocks, text) if is_long else markdown.blocks(text)
            )
            now = self._clock.monotonic()
            self.text, self.blocks = text, drawn
            self.until = now + max(DRAWS, SHARE * (now - begun)) if text else 0.0


@dataclass(frozen=True, slots=True)
class RenderedMessage:
    """A message as a list item. `answers`: the message that it answers."""

    id: str
    html: str
    answers: str | None


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """Messages, oldest first, and the cursor of those before them. `version` names this state.

    `erased`: a number that changes whenever messages are erased anywhere.
    """

    messages: tuple[RenderedMessage, ...] = ()
    earlier: str | None = None
    version: str = ""
    erased: int = 0


def title_of(held: OwnedConversation) -> str:
    """Name a conversation: by its door unless it is this one, and by its first message."""
    words = display_name(one_line(held.words), 60)
    words = "Commands only" if words.startswith("/") else words
    is_open, is_here = held.room_id.startswith(WEB), held.room_id == TERMINAL
    door = "Matrix thread" if held.is_thread else "Matrix"
    where = "" if is_open else "Terminal" if is_here else door
    return ": ".join(filter(None, (where, words))) or "Empty conversation"


class MessageViews:
    """Reads the messages of the owner's conversations, and renders them."""

    def __init__(self, views: Views) -> None:
        stores = views.parts.stores
        self.views = views
        self._renderings = Renderings()
        self._desks: WeakValueDictionary[str, DraftDesk] = WeakValueDictionary()
        self._loom = LoomReader(stores.database)
        self.reader = MailboxReader(stores.database, stores.owner)

    async def opened(self, chat_id: str) -> OwnedConversation | None:
        """Find a conversation by the end of its address."""
        return await self.reader.conversation(chat_id, f"{WEB}{chat_id}")

    def desk(self, conversation_id: str) -> DraftDesk:
        """Return the desk of a conversation; it lives while a page uses it."""
        return self._desks.setdefault(conversation_id, DraftDesk(self.views.parts.clock))

    async def page(self, conversation_id: str, before: MessageKey = NEWEST) -> RenderedPage:
        """Render the newest messages before a place."""
        erased = await self.reader.erased()  # read first: a client with an old number asks again
        messages, earlier = await self.reader.page(conversation_id, NEWEST_MOST, before)
        htmls = await self._renderings.html({m.body for m in messages if m.ours})
        recalled = await self._loom.recalled({m.cast_id for m in messages if m.cast_id})
        made = list[RenderedMessage]()
        for each in messages:
            shown = {"html": htmls.get(each.body), "badges": recalled.get(each.cast_id or "", ())}
            html = self.views.fragment("message.html", message=each, **shown)
            made.append(RenderedMessage(each.id, html, each.answers))
        state = f"{erased} {''.join(each.html for each in made)}"
        version = hashlib.sha256(state.encode()).hexdigest()[:16]
        return RenderedPage(tuple(made), str(earlier) if earlier else None, version, erased)


Messages = Annotated[MessageViews, of_application("messages")]
