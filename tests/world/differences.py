"""Homeservers that are not Synapse, in what a bot meets of them: a table played by a proxy (F-059).

Each line was read in a server's source or met by others, as of 2026-11-27; it is named with it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.world.proxy import Action, Answer, Proxy, Request

Json = dict[str, Any]
NO_TYPE = Answer(404, {"errcode": "M_FORBIDDEN", "error": "data not found"})
IN_BACKGROUND = Answer(
    202, {"errcode": "M_UNKNOWN", "error": "The room join will continue in the background."}
)
NO_ROUTE = Answer(404, {"errcode": "M_UNRECOGNIZED", "error": "Unrecognized request"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One of them. `asked` answers in the homeserver's place, `told` changes what it says."""

    name: str
    source: str
    asked: Callable[[Request], Answer | None] = lambda _request: None
    told: Callable[[Request, int, Json], Answer | None] = lambda _request, _status, _answer: None


def unreadable(request: Request) -> Answer | None:
    """POST and PUT want a JSON object, whatever the route."""
    if request.method not in ("POST", "PUT") or "/media/" in request.path:
        return None
    if not request.body:
        error = "deserialization failed: EOF while parsing a value at line 1 column 0"
        return Answer(400, {"errcode": "M_BAD_JSON", "error": error})
    try:
        readable = isinstance(request.json, dict)
    except ValueError:
        readable = False
    return None if readable else Answer(400, {"errcode": "M_NOT_JSON", "error": "not valid JSON"})


def without_login(request: Request) -> Answer | None:
    """Answer as a homeserver without passwords may: it has no such route."""
    return NO_ROUTE if request.path.endswith("/login") else None


def joins_later(request: Request, status: int, _answer: Json) -> Answer | None:
    """The room comes by a later sync."""
    is_join = request.method == "POST" and request.path.endswith("/join")
    return IN_BACKGROUND if is_join and status == 200 else None


def missing_is_forbidden(request: Request, status: int, _answer: Json) -> Answer | None:
    """No account data of that type."""
    asked = request.method == "GET" and "/account_data/" in request.path
    return NO_TYPE if asked and status == 404 else None


def repeats_the_code(_request: Request, status: int, answer: Json) -> Answer | None:
    """The text of an error begins with its code."""
    if status < 400 or "errcode" not in answer:
        return None
    return Answer(status, answer | {"error": f"{answer['errcode']}: {answer.get('error')}"})


def overlaps(request: Request, _status: int, answer: Json) -> Answer | None:
    """`state` reaches to the end of the timeline: its state events stand in both, newest first."""
    if not request.path.endswith("/sync"):
        return None
    for room in answer.get("rooms", {}).get("join", {}).values():
        timeline = room.get("timeline", {}).get("events", [])
        again = [event for event in timeline if "state_key" in event]
        room.setdefault("state", {}).setdefault("events", []).extend(again)
    return Answer(200, answer)


def begins_limited(request: Request, _status: int, answer: Json) -> Answer | None:
    """The first sync of a room is limited, though nothing is missing."""
    if not request.path.endswith("/sync"):
        return None
    for room in answer.get("rooms", {}).get("join", {}).values():
        events = room.get("state", {}).get("events", []) + room["timeline"]["events"]
        if any(event["type"] == "m.room.create" for event in events):
            room["timeline"]["limited"] = True
    return Answer(200, answer)


DIFFERENCES = (
    Difference(
        "a JSON object is wanted on every POST and PUT",
        "Continuwuity: HKUDS/nanobot#5247; Tuwunel: src/api/router/args.rs@3fcb222d",
        asked=unreadable,
    ),
    Difference("there is no /login", "homeservers with tokens of an OAuth server", without_login),
    Difference(
        "a join answers 202 with M_UNKNOWN",
        "Dendrite: clientapi/routing/joinroom.go@85aef8fc",
        told=joins_later,
    ),
    Difference(
        "missing account data are 404 with M_FORBIDDEN",
        "Dendrite: clientapi/routing/account_data.go@1ac07070",
        told=missing_is_forbidden,
    ),
    Difference(
        "the text of an error repeats its code", "Tuwunel: issue 218", told=repeats_the_code
    ),
    Difference(
        "state and timeline of a sync overlap", "Conduit: x86pup/conduwuit#361, #107", told=overlaps
    ),
    Difference(
        "the first sync of a room is limited",
        "Continuwuity: src/api/client/sync/v3/joined.rs@05d69223",
        told=begins_limited,
    ),
)


class Other:
    """Another homeserver at a proxy. `met` has the differences that came to pass, `refused` what they refused."""

    def __init__(self, proxy: Proxy) -> None:
        self.met: set[str] = set()
        self.refused: list[Request] = []
        proxy.before, proxy.after = self._asked, self._told

    def _asked(self, request: Request) -> Action:
        for each in DIFFERENCES:
            if (answer := each.asked(request)) is not None:
                self.met.add(each.name)
                self.refused.append(request)
                return answer
        return None

    def _told(self, request: Request, status: int, body: bytes) -> Action:
        try:
            answer = json.loads(body)
        except ValueError:
            return None
        for each in DIFFERENCES:
            before = json.dumps(answer)
            if (changed := each.told(request, status, answer)) is not None:
                status, answer = changed.status, changed.body
                if json.dumps(answer) != before:
                    self.met.add(each.name)
        return Answer(status, answer)
