"""The values that travel between doors, stores and the loop."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Origin = Literal["owner", "other", "timer", "system"]
Size = Literal["full", "small"]
"""How much a model can keep in mind: which of the two sets of texts it is asked with."""
InboxKind = Literal["message", "command", "event", "context"]
Json = dict[str, Any]
CUT = "cut"
"""The end of an answer that its server, which else says so, did not call whole (F-045)."""
BROKEN_OFF = ("length", "content_filter", "refusal", CUT)
"""Ends of answers that may have been cut off: none of their calls is carried out (F-019, F-071)."""
ENDLESS = "eof"
"""The end of an answer whose server has never said of one that it is whole (F-018)."""
SILENT = "silent"
"""The end of an answer that came in part, and then no more of it (F-063)."""
REFUSED = ("content_refused", "context_refused", "given_up")
"""Ends of casts whose message goes to no provider again: in SQL as well, where this is a list."""
UNREADABLE = "unreadable_call"
"""The tool that a mark calls which led to no call of any: there is none of that name (F-044)."""
OPENED, CLOSED = "<context>\n", "\n</context>"
"""The beginning and the end of what we tell with a message."""
PERSON = "person:"
"""How the scope of a person begins, followed by their id."""
ROOM = "room:"
"""How the scope of a room begins: it is called after the room in which it began, wherever it lives."""
FOLDER = "wiki:"
"""How the room of a conversation begins that is a folder of files, followed by its path."""


def mapping(value: object) -> Json:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def json_in(text: str | bytes, otherwise: Any = None) -> Any:
    """The value that a text says as JSON; `otherwise` where it says none, or one too deep."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


@dataclass(frozen=True, slots=True)
class Incoming:
    """Something that reached a door and concerns one room.

    `context` is what was said in a group without addressing the bot: shown, never answered.
    `edits` is the event whose text this one replaces, `replies_to` the one it answers.
    """

    event_id: str
    room_id: str
    sender: str
    sender_name: str
    origin: Origin
    kind: InboxKind
    body: str
    sent_at: datetime
    direct: bool
    by_bot: bool = False
    raw: Json = field(default_factory=dict)
    edits: str | None = None
    replies_to: str | None = None


@dataclass(frozen=True, slots=True)
class Quote:
    """An earlier message that another one replies to. Without a `body` it was deleted.

    `sender`: "" for what we said ourselves. `sent_at`: None if it is from our own record.
    """

    sender: str
    sender_name: str
    body: str
    sent_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One gate call of an utterance. `arguments` is JSON text as the model wrote it.

    `via`: `tag` when it stood in the text, as markup (F-020).
    """

    id: str
    name: str
    arguments: str
    via: Literal["call", "tag"] = "call"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the backend reported them, or our estimate where it reported none."""

    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a model: chat-completions messages and tool definitions.

    `must_call`: text alone is no answer to it (F-022). `small`: what a small model is asked instead;
    None: the same. `tainted`: text from outside is among them.
    """

    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()
    must_call: bool = False
    small: "Request | None" = None
    tainted: bool = False

    def of(self, size: Size) -> "Request":
        """The question as a model of this size is asked it."""
        return self.small if self.small is not None and size == "small" else self


@dataclass(frozen=True, slots=True)
class Reply:
    """One usable answer of a model: text, calls, or both; perhaps neither, if it was broken off.

    `finish_reason` is `stop`, `tool_calls`, one of `BROKEN_OFF`, or a server's own word.
    `waited_ms`: how much of `ms` passed before the first tokens of its attempts (F-017).
    `kept`: fields of an answer with calls for its `sender` alone, see `llm.kept`.
    """

    text: str
    calls: tuple[Call, ...]
    finish_reason: str
    usage: Usage
    backend: str
    model: str
    ms: int
    """Wall time of the whole question in milliseconds, retries included."""
    waited_ms: int = 0
    sender: str = ""
    kept: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the model has said by itself that this is all; else it changes no store (A-11)."""
        return self.finish_reason not in (*BROKEN_OFF, ENDLESS)
