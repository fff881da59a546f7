"""The web door as the composition root builds it. The framework behind it loads when it serves (A-8)."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from wintermute.clock import CheckedClock
from wintermute.config.schema import Config
from wintermute.config.secrets import Redaction
from wintermute.conversation.rooms import Rooms
from wintermute.conversation.state import Watch
from wintermute.ids import NewId
from wintermute.stores import Stores
from wintermute.web.speaker import WebSpeaker
from wintermute.wiki.conversations import ConversationFolder

FolderAnswer = Callable[[ConversationFolder, Watch], Awaitable[str]]
"""Answers the last message of a folder; its watcher sees the answer being made."""


@dataclass(frozen=True, slots=True)
class WebParts:
    """Everything that pages read, and through which they act. `rooms` None: a wiki store alone.

    `ending` is set before the server ends: streams watch it and leave by themselves (V-004).
    """

    config: Config
    stores: Stores
    clock: CheckedClock
    new_id: NewId
    redact: Redaction
    speaker: WebSpeaker
    rooms: Rooms | None
    answer_folder: FolderAnswer
    ending: asyncio.Event = field(default_factory=asyncio.Event)


class Served(Protocol):
    """A server at work on an open socket."""

    async def __call__(self, parts: WebParts, listener: socket.socket) -> None: ...


class WebDoor:
    """Serves the pages until it is cancelled."""

    def __init__(self, parts: WebParts) -> None:
        self._parts = parts

    async def run(self, listener: socket.socket) -> None:
        """Load the framework in a thread, then answer requests. Ends the streams when cancelled."""
        serve = await asyncio.to_thread(_server)
        await serve(self._parts, listener)


def _server() -> Served:
    from wintermute.web.server import serve  # noqa: PLC0415  the framework loads with the door

    return serve
