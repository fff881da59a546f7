"""The values that doors, stores and the loop exchange."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Origin = Literal["owner", "other", "timer", "system"]
Size = Literal["full", "small"]
"""The size of a model. It decides which of the two sets of prompt texts is used."""
InboxKind = Literal["message", "command", "event", "context"]
Json = dict[str, Any]
CUT = "cut"
"""The finish reason of an answer that its server, which usually marks the end, did not mark as whole (F-045)."""
BROKEN_OFF = ("length", "content_filter", "refusal", CUT)
"""Finish reasons of answers that may be incomplete: none of their calls is executed (F-019, F-071)."""
ENDLESS = "eof"
"""The finish reason for a server that never marks the end of an answer (F-018)."""
SILENT = "silent"
"""The finish reason of an answer that stopped arriving halfway (F-063)."""
REFUSED = ("content_refused", "context_refused", "given_up")
"""Reasons of ended casts whose message is never sent to a provider again. SQL uses this list as well."""
UNREADABLE = "unreadable_call"
"""The tool name of a call that could not be read. No tool has this name (F-044)."""
OPENED, CLOSED = "<context>\n", "\n</context>"
"""The marks around the context that is added to a message."""
PERSON = "person:"
"""The prefix of a person's scope, before their Matrix id."""
ROOM = "room:"
"""The prefix of a room's scope, before the id of its first room; a successor room keeps the scope."""
FOLDER = "wiki:"
"""The prefix of the room of a conversation that is a folder of files, before its path."""


def mapping(value: object) -> Json:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def json_in(text: str | bytes, otherwise: Any = None) -> Any:
    """Parse JSON; return `otherwise` if the text is none, or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


@dataclass(frozen=True, slots=True)
class Incoming:
    """An event that reached a door and concerns one room.

    `context` was said in a group without addressing the bot: it is shown, never answered. `edits`
    is the event whose text this one replaces, `replies_to` the one it answers.
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

    `sender`: "" for the bot. `sent_at`: None if it comes from our own record.
    """

    sender: str
    sender_name: str
    body: str
    sent_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an answer. `arguments` is JSON text as the model wrote it.

    `via`: `tag` if it was written as markup in the text (F-020).
    """

    id: str
    name: str
    arguments: str
    via: Literal["call", "tag"] = "call"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the backend reported them, or our estimate."""

    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a model: chat-completions messages and tool definitions.

    `must_call`: an answer without a call is useless (F-022). `small`: the question for a small
    model; None: the same. `tainted`: it contains text from outside.
    """

    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()
    must_call: bool = False
    small: "Request | None" = None
    tainted: bool = False

    def of(self, size: Size) -> "Request":
        """Return the question for a model of this size."""
        return self.small if self.small is not None and size == "small" else self


@dataclass(frozen=True, slots=True)
class Reply:
    """One usable answer of a model: text, calls, or both; perhaps neither, if it was broken off.

    `finish_reason` is `stop`, `tool_calls`, one of `BROKEN_OFF`, or a server's own word.
    `waited_ms`: the part of `ms` before the first tokens of its attempts (F-017). `kept`: fields of
    an answer with calls that only its `sender` gets back, see `llm.provider_fields`.
    """

    text: str
    calls: tuple[Call, ...]
    finish_reason: str
    usage: Usage
    backend: str
    model: str
    ms: int
    """The time of the whole question in milliseconds, retries included."""
    waited_ms: int = 0
    sender: str = ""
    kept: str = ""

    @property
    def is_whole(self) -> bool:
        """True if the model marked the answer as finished; any other changes no store (A-11)."""
        return self.finish_reason not in (*BROKEN_OFF, ENDLESS)
