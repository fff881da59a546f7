"""What people's clients showed, room by room: as text for somebody to read aloud, and what is wrong in it."""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.world.homeserver import Login
from tests.world.user import MatrixUser, Message

TOLD_SECONDS = 5.0
"""In which a person hears that the model cannot be reached (F-036)."""
KNOWN_SECONDS = 2.0
"""In which the bot knows of a deletion: as long as a busy homeserver takes to tell it."""
LONGEST = 400
"""Characters of a message in the transcript."""
SHOWN = frozenset({"m.room.message", "m.room.encrypted", "m.room.redaction", "m.room.member"})
"""Which of the `m.room` events a client shows in a timeline, beside all others."""
UNASKED = re.compile(r"The model |I get no answer |`/\w+` waits until I |⏰|data/|Hello, ")
"""How lines begin that answer nothing: they promise an answer, or nobody asked for them."""


class Onlooker(MatrixUser):
    """A person whose client notes when it showed what."""

    def __init__(self, url: str, login: Login, store: Path, began: float) -> None:
        super().__init__(url, login, store)
        self._began = began
        self._moments: dict[str, float] = {}

    def moment(self, event_id: str) -> float:
        """When an event was shown, in seconds since `began`."""
        return self._moments.get(event_id, 0.0)

    def heard(self, sender: str) -> list[str]:
        """The texts of a sender, in all rooms."""
        return [m.body for room in self._events for m in self.messages(room, sender)]

    def _note(self, room: str, event: Any) -> None:
        now = time.monotonic() - self._began
        self._moments.setdefault(str(event.source.get("event_id")), now)
        super()._note(room, event)


@dataclass(frozen=True, slots=True)
class Request:
    """What a model was asked, and when."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Deletion:
    """A text that its author took back, and when the homeserver had been told."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Told:
    """How long somebody waited to hear that the model is away."""

    where: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Ring:
    """How often a client was notified of a reminder with its signs."""

    reminder: str
    times: int


# What is wrong ---------------------------------------------------------------------------


def unanswered(events: Sequence[Message], person: str, bot: str) -> list[str]:
    """What a person said in a direct chat and heard nothing of: neither answer nor line, nor deleted.

    An answer repeats the last line of what it answers, as last edited; any other line of the bot
    answers one message before it, that of `/stop` the one it stopped. Kinds that are not read are
    told once each (F-024).
    """
    texts = {event.event_id: event.body for event in events} | dict(_edits(events))
    gone = {
        str(event.content.get("redacts")) for event in events if event.type.endswith("redaction")
    }
    answers = [
        (n, event.body)
        for n, event in enumerate(events)
        if event.sender == bot and event.type == "m.room.message"
    ]
    free = [each for each in answers if not (each[1].startswith("ok: ") or UNASKED.match(each[1]))]
    found, kinds = [], set()
    for n, event in enumerate(events):
        kind = str(event.content.get("msgtype", event.type))
        if event.sender != person or event.event_id in gone or not _is_said(event, kind):
            continue
        last = (texts[event.event_id].splitlines() or [""])[-1]
        if kind in kinds or any(
            m > n and body.startswith("ok: ") and last and last in body for m, body in answers
        ):
            continue
        if kind not in ("m.text", "m.emote"):
            kinds.add(kind)
        if line := next((each for each in free if each[0] > n), None):
            free.remove(line)
        else:
            found.append(f"no answer to {kind} {last!r}")
    return found


def _is_said(event: Message, kind: str) -> bool:
    """Whether it is a message and nothing about one; a verification is answered by its own kind."""
    is_about = "rel_type" in event.content.get("m.relates_to", {}) or event.body == "/stop"
    if is_about or kind.startswith("m.key."):
        return False
    return event.type == "m.room.message" or event.type == "m.sticker" or "poll" in event.type


def _edits(events: Iterable[Message]) -> Iterator[tuple[str, str]]:
    for event in events:
        if event.content.get("m.relates_to", {}).get("rel_type") == "m.replace":
            new = event.content.get("m.new_content", {}).get("body", "")
            yield event.content["m.relates_to"]["event_id"], new


def asked_again(requests: Iterable[Request], deletions: Iterable[Deletion]) -> list[str]:
    """Deleted texts that a model was asked with after their deletion (F-027)."""
    return [
        f"{gone.text!r}, deleted at {gone.at:.1f}, is in the request of {request.at:.1f}"
        for gone in deletions
        for request in requests
        if request.at > gone.at + KNOWN_SECONDS and gone.text in request.text
    ]


def told_late(tolds: Iterable[Told]) -> list[str]:
    """Where a refused connection was told too late (F-036)."""
    late = [told for told in tolds if told.seconds > TOLD_SECONDS]
    return [f"told in {told.where} after {told.seconds:.1f} s" for told in late]


def rung(rings: Iterable[Ring]) -> list[str]:
    """Reminders with more or fewer notifications than one (F-028)."""
    return [f"{ring.reminder!r} rang {ring.times} times" for ring in rings if ring.times != 1]


def read_by_others(
    private: Mapping[str, Iterable[str]], heard: Mapping[str, Sequence[str]]
) -> list[str]:
    """What people said when alone with the bot, and somebody else heard from it."""
    return [
        f"{text!r} of {owner} was heard by {other}: {body[:LONGEST]!r}"
        for owner, texts in private.items()
        for other, bodies in heard.items()
        if other != owner
        for text in texts
        for body in bodies
        if text in body
    ]


# As text ---------------------------------------------------------------------------------


def transcript(rooms: Mapping[str, str], people: Mapping[str, Onlooker]) -> str:
    """Each room as the first of its people sees it, and how the others' views differ."""
    lines: list[str] = []
    for name, room in rooms.items():
        views = {who: person for who, person in people.items() if person.events(room)}
        (host, first), *others = views.items()
        lines += ["", f"# {name}, as {host} sees it", *_view(first, room)]
        for who, other in others:
            lines += [f"## as {who} sees it", *_differences(first, other, room)]
    return "\n".join(lines)


def _shown(person: MatrixUser, room: str) -> dict[str, Message]:
    return {
        event.event_id: event
        for event in person.events(room)
        if event.type in SHOWN or not event.type.startswith("m.room.")
    }


def _view(person: Onlooker, room: str) -> Iterator[str]:
    known: dict[str, str] = {}
    for n, (event_id, event) in enumerate(_shown(person, room).items(), 1):
        known[event_id] = f"#{n}"
        yield f"[{person.moment(event_id):6.1f}] #{n} {_line(event, known)}"


def _differences(first: Onlooker, other: Onlooker, room: str) -> Iterator[str]:
    seen, others = _shown(first, room), _shown(other, room)
    known = {event_id: f"#{n}" for n, event_id in enumerate(seen, 1)}
    missing = [known[event_id] for event_id in seen if event_id not in others]
    locked = [
        known.get(event_id, "?")
        for event_id, event in others.items()
        if event.type == "m.room.encrypted"
    ]
    if missing:
        yield f"not there: {' '.join(missing)}"
    if locked:
        yield f"cannot be read: {' '.join(locked)}"
    for event_id, event in others.items():
        if event.type != "m.room.encrypted" and event != seen.get(event_id):
            yield f"{known.get(event_id, 'only here')}: {_line(event, known)}"


def _line(event: Message, known: Mapping[str, str]) -> str:
    who = event.sender[1:].partition(":")[0]
    about = event.content.get("m.relates_to") or {}
    target = known.get(about.get("event_id", ""), "?")
    match event.type:
        case "m.room.message":
            body = event.body if len(event.body) <= LONGEST else f"{event.body[:LONGEST]} [...]"
            return f"{who}{_how(event, about, known)}: {body}"
        case "m.reaction":
            return f"{who} reacts {about.get('key')} on {target}"
        case "m.room.encrypted":
            return f"{who}: (cannot be read)"
        case "m.room.redaction":
            return f"{who} deletes {known.get(str(event.content.get('redacts')), '?')}"
        case "m.room.member":
            return (
                f"{who}: {event.content.get('membership')} {event.content.get('displayname', '')}"
            )
    return f"{who} <{event.type}> {json.dumps(event.content)[:120]}"


def _how(event: Message, about: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """What a client shows beside the text of a message."""
    signs = [] if event.content.get("msgtype") == "m.text" else [str(event.content.get("msgtype"))]
    if about.get("rel_type") == "m.replace":
        signs.append(f"edit of {known.get(about.get('event_id', ''), '?')}")
    if reply := about.get("m.in_reply_to"):
        signs.append(f"reply to {known.get(reply.get('event_id', ''), '?')}")
    if not event.encrypted:
        signs.append("in clear")
    return f" ({', '.join(signs)})" if signs else ""
