"""Search for everything of a scope that has all of some words (M-084)."""

from collections.abc import Sequence
from dataclasses import dataclass

from wintermute.db import Row
from wintermute.db.text_match import AllWordsMatcher
from wintermute.db.text_search import TextQuery
from wintermute.forgetting.forget_pages import lines_in_pages
from wintermute.forgetting.forgetting import tasks_and_skills
from wintermute.loom import casts
from wintermute.loom.conversations import EDITS
from wintermute.mailbox.inbox import WRITTEN, InboxRow
from wintermute.memory.core import bullets
from wintermute.memory.fact import Fact
from wintermute.memory.facts import FACTS
from wintermute.messages import PERSON
from wintermute.stores import Stores

PLACES = (FACTS, WRITTEN, EDITS, casts.FOLDS, casts.TURNS, casts.OBSERVATIONS)

QUESTIONS = ("/forget", "/memory")
"""Commands that only mention the words: these messages are erased, but not listed."""


@dataclass(frozen=True, slots=True)
class FoundByWords:
    """Everything that has the words. `facts` are remembered, `older` ones not; `messages` are the asker's."""

    facts: tuple[Fact, ...]
    older: tuple[Fact, ...]
    messages: dict[str, str]
    events: tuple[str, ...]
    texts: tuple[str, ...]
    summaries: int
    answers: int
    """Our answers to other messages."""
    core: tuple[str, ...]
    lines: tuple[str, ...]
    others: int
    """Messages of other people, which are theirs to delete."""
    stays: tuple[str, ...]
    """Tasks and skills, which a person changes with other commands."""

    def count(self) -> int:
        """Count the things that would be erased."""
        kinds = self.facts, self.messages, self.core, self.lines
        return sum(map(len, kinds)) + self.summaries + self.answers

    def has_all_of(self, listed: "FoundByWords") -> bool:
        """Check whether everything listed before is still there; new facts do not matter."""
        known = {fact.id: fact.text for fact in self.facts}
        return (
            all(known.get(fact.id) == fact.text for fact in listed.facts)
            and self.messages == listed.messages
            and {*listed.core} <= {*self.core}
            and {*listed.lines} <= {*self.lines}
            and listed.summaries <= self.summaries
        )


async def find_words(
    stores: Stores, row: InboxRow, scope: str, said: str, before: int
) -> FoundByWords:
    """Find everything with all of these words for the sender of `row`; messages up to row `before`."""
    words = AllWordsMatcher(said)
    scopes = await stores.conversations.scopes_of(stores.database, (), [scope])
    async with stores.database.text_search() as search:
        found = await search.seek([TextQuery(PLACES, (), scopes, every=said)])
    rows = [*await stores.inbox.find_containing((), found), *await stores.edits.matching(found)]
    rows = [each for each in rows if each["seq"] <= before and _is_here(each, scope)]
    asked = {each["event_id"] for each in rows if each["body"].lower().startswith(QUESTIONS)}
    mine = [each for each in rows if each["sender"] == row.sender]
    listed = [each for each in mine if each["event_id"] not in asked]
    messages = {each["message"]: str(each["body"]) for each in listed}
    others = {each["message"] for each in rows if each["event_id"] not in asked} - messages.keys()
    events = [str(each["event_id"]) for each in mine]
    facts = await stores.facts.saying(found)
    return FoundByWords(
        *_in_use(facts, forgetting=await stores.jobs.is_forgetting(stores.database)),
        messages,
        tuple(events),
        tuple(str(each["body"]) for each in listed),
        len(found.rows.get(casts.FOLDS.name, ())),
        await stores.casts.count_matching(found, events),
        tuple(filter(words.are_in, bullets(await stores.core.text(scope)))),
        tuple(await lines_in_pages(stores, words=said if stores.owner.owns(scope) else "")),
        len(others),
        tuple(await tasks_and_skills(stores, scopes, words.are_in)),
    )


def _is_here(message: Row, scope: str) -> bool:
    """Check whether it was said in this scope: a chat with one person may have become a room."""
    if scope.startswith(PERSON):
        return bool(message["direct"]) and scope == f"{PERSON}{message['sender']}"
    return not message["direct"]


def _in_use(
    facts: Sequence[Fact], *, forgetting: bool
) -> tuple[tuple[Fact, ...], tuple[Fact, ...]]:
    """Split facts into remembered and retired ones; a running job may be erasing the latter."""
    used = tuple(fact for fact in facts if fact.retired_at is None)
    older = tuple(fact for fact in facts if fact.retired_at is not None and not forgetting)
    return (used, older) if used else (older, ())
