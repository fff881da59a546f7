"""A homeserver that lies: what a client hears of rooms and devices, changed on its way."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.world.proxy import Action, Answer, Proxy, Request

Json = dict[str, Any]
Change = Callable[[str, Json], Json]
"""Of a room, "" for what comes to the device, and an event: what is shown instead."""


def unchanged(room: str, event: Json) -> Json:
    """No lie."""
    return event


class Forger:
    """Lies in every answer to /sync and in the pages of a room, once it is `at` a proxy."""

    def __init__(self) -> None:
        self.change: Change = unchanged
        self.seen: list[Json] = []
        """The events of rooms as they would have been shown, each once."""
        self._added: list[tuple[str, Json]] = []

    @classmethod
    def at(cls, proxy: Proxy) -> "Forger":
        """One that is asked by a proxy."""
        forger = cls()
        proxy.after = forger
        return forger

    def add(self, room: str, event: Json, event_id: str) -> str:
        """Show an event in a room with the next answer to /sync, before what is new there."""
        self._added.append((room, {**event, "event_id": event_id}))
        return event_id

    @property
    def all_shown(self) -> bool:
        """Whether nothing waits to be added."""
        return not self._added

    def __call__(self, request: Request, status: int, body: bytes) -> Action:
        if status != 200 or not request.path.endswith(("/sync", "/messages")):
            return None
        answer = json.loads(body)
        for room, events in timelines(request, answer):
            self.seen += [event for event in events if event not in self.seen]
            events[:] = [self.change(room, event) for event in events]
        if request.path.endswith("/sync"):
            to_device = answer.get("to_device", {}).get("events", [])
            to_device[:] = [self.change("", event) for event in to_device]
            self._add(answer)
        return Answer(status, answer)

    def _add(self, answer: Json) -> None:
        joined = answer.setdefault("rooms", {}).setdefault("join", {})
        added, self._added = self._added, []
        for room, event in reversed(added):
            timeline = joined.setdefault(room, {}).setdefault("timeline", {})
            timeline.setdefault("events", []).insert(0, event)


def timelines(request: Request, answer: Json) -> Iterator[tuple[str, list[Json]]]:
    """The rooms in an answer, each with its events."""
    if request.path.endswith("/messages"):
        yield request.path.split("/rooms/")[1].split("/")[0], answer.get("chunk", [])
    for room, told in answer.get("rooms", {}).get("join", {}).items():
        yield room, told.get("timeline", {}).get("events", [])
