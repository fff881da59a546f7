"""Messages of a conversation as HTML, for a page and for the stream of its states."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from wintermute import markdown
from wintermute.loom.reading import LoomReader
from wintermute.mailbox.reading import MailboxReader, MessageKey, ShownMessage
from wintermute.text import display_name, one_line
from wintermute.web.views import Views, address

NEWEST_MOST = 50
"""Messages of a page, and of the part of a conversation that a stream keeps true."""
IN_THREAD = 4_000
"""Characters of Markdown that cost 4 ms: more of them are rendered beside the event loop."""
MESSAGE_MOST = 64_000
"""Bytes of a message that is sent."""
KEPT_MOST = 2_000_000
"""Characters of rendered messages that are kept."""


class Renderings:
    """The HTML of messages by the hash of their text: an id would outlive what is forgotten."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, str] = OrderedDict()
        self._size = 0

    async def html(self, texts: Collection[str]) -> dict[str, str]:
        """Render these texts, as far as they are not at hand."""
        hashes = {text: hashlib.sha256(text.encode()).digest() for text in texts}
        found = {text: self._kept[key] for text, key in hashes.items() if key in self._kept}
        new = [text for text in hashes if text not in found]
        if sum(map(len, new)) < IN_THREAD:
            made = [markdown.html(text) for text in new]
        else:
            made = await asyncio.to_thread(lambda: [markdown.html(text) for text in new])
        for text, html in zip(new, made, strict=True):
            self._keep(hashes[text], html)
        for text in found:
            self._kept.move_to_end(hashes[text])
        return found | dict(zip(new, made, strict=True))

    def _keep(self, key: bytes, html: str) -> None:
        if key not in self._kept:  # else somebody else has rendered it meanwhile
            self._kept[key] = html
            self._size += len(html)
        while self._size > KEPT_MOST:
            _, gone = self._kept.popitem(last=False)
            self._size -= len(gone)


@dataclass(frozen=True, slots=True)
class RenderedMessage:
    """A message as a list item. `version` is another one when it looks different."""

    id: str
    html: str
    answers: str | None
    version: str


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """Messages as list items, oldest first, and the key of those before them."""

    messages: tuple[RenderedMessage, ...]
    earlier: MessageKey | None

    @property
    def version(self) -> str:
        """Name this state: a page that has it needs nothing of it again."""
        return _digest("".join(each.version for each in self.messages))


class MessageViews:
    """Reads the messages of the owner's conversations, and renders them."""

    def __init__(self, views: Views) -> None:
        parts = views.parts
        self._views = views
        self._renderings = Renderings()
        self._loom = LoomReader(parts.stores.database)
        self.reader = MailboxReader(parts.stores.database, parts.stores.owner.scope)

    async def page(self, conversation_id: str, before: MessageKey) -> RenderedPage:
        """Render the newest messages before a place."""
        page = await self.reader.page(conversation_id, NEWEST_MOST, before)
        return RenderedPage(await self._rendered(page.messages), page.earlier)

    async def _rendered(self, messages: Sequence[ShownMessage]) -> tuple[RenderedMessage, ...]:
        htmls = await self._renderings.html({m.body for m in messages if m.ours})
        recalled = await self._loom.recalled({m.cast_id for m in messages if m.cast_id})
        made = list[RenderedMessage]()
        for message in messages:
            badges = badges_of(recalled.get(message.cast_id or "", ()))
            html = self._views.fragment(
                "message.html", message=message, html=htmls.get(message.body, ""), badges=badges
            )
            made.append(RenderedMessage(message.id, html, message.answers, _digest(html)))
        return tuple(made)


def badges_of(recalled: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Give where recalled pages are, and what they are called, by their paths and titles."""
    return [{"href": address(path), "title": display_name(title, 80)} for path, title in recalled]


def first_words(text: str, most: int = 60) -> str:
    """Shorten how a conversation began to a title."""
    return display_name(one_line(text), most)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
