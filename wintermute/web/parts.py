"""The parts that the pages read from and act through."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

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
    """The parts that the pages read from and act through. `rooms` None: a wiki store alone.

    `notice` is shown on every page.
    """

    config: Config
    stores: Stores
    clock: CheckedClock
    new_id: NewId
    redact: Redaction
    speaker: WebSpeaker
    rooms: Rooms | None
    answer_folder: FolderAnswer
    notice: str = ""
