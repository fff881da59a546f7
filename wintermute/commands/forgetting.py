"""`/forget` for people: it lists all that has the words, and erases it for good after one yes (M-084)."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from wintermute.commands.tasks import brief
from wintermute.db import Transaction
from wintermute.db.text_match import AllWordsMatcher
from wintermute.forgetting.forget_jobs import enqueue_forgetting
from wintermute.forgetting.forget_words import FoundByWords, find_words
from wintermute.forgetting.forgetting import how_to_change
from wintermute.mailbox.inbox import InboxRow
from wintermute.mailbox.outbox import is_matrix
from wintermute.messages import ROOM
from wintermute.stores import Stores
from wintermute.tasks.due import relative_time
from wintermute.text import counted, plain

YES = "yes"
CONFIRMS = re.compile(r"yes(?: \d+)?", re.IGNORECASE)
UNCOUNTED = 50
"""From this many things on, the yes must name their number."""
EXAMPLES = 3

FORGET_WHAT = "`/forget WORDS` lists everything with these words and asks you once."
UNVOUCHED = "Only the owner can use `/forget` here, from a verified session."
NO_MEMORY = "I know no memory `{}` here."
FORGOTTEN_SINCE = "There is nothing to confirm: I forgot what you confirmed {}."
NOT_ASKED = (
    "There is nothing to confirm. Write `/forget WORDS` first, then the words that I ask for."
)
INTERRUPTED = "I erased nothing, because something came in between. Write `/forget {}` again."
TOO_EARLY = "I erased nothing, because you had not seen my list yet. Write `/forget {}` again."
CHANGED_SINCE = "That list has changed. Write `/forget WORDS` again to see the new one."
FORGETTING = (
    "I forget it for good, with the messages it came from and all copies of them."
    " `/status all` shows when I am done."
)
FORGETTING_HERE = (
    "I forget it for good, with your messages about it and all copies of them. Messages of"
    " others stay; only they can delete them. `/status all` shows when I am done."
)
CONFIRM = "I would erase this for good, with all copies:\n{}\n\n{}`/forget {}` erases all of it."
ONE_OF_THEM = " `/forget {}` erases only the first memory."
IN_THE_ROOM = "Your messages stay in the room until you delete them there. "
OF_OTHERS = "{} of others in this room with these words would stay: only they can delete them. "
FOR_YOU = "These contain the words too, and only you can change them: {}. "
NOTHING_HERE = "I found nothing with these words that I can erase here. {}"
NOTHING_LIKE_IT = "I remember nothing with these words."


async def offered(stores: Stores, tx: Transaction, row: InboxRow) -> tuple[InboxRow, str] | None:
    """Return the question that this line says yes to, and our answer to it; None: it confirms nothing.

    Our answer to the last command of the same person must offer exactly this line, nothing may have
    been said since, and the answer must have been sent before the line.
    """
    line = " ".join(row.body.lower().split())
    before = await stores.inbox.command_before(tx, row)
    if before is None or before.first_word != row.first_word:
        return None
    said = await stores.inbox.last_before(tx, row.conversation_id, row.seq)
    shown = await stores.outbox.answer_to(tx, before.event_id, by=row.sent_at)
    if (said is not None and said.seq > before.seq) or f"`{line}`" not in shown:
        return None
    return before, shown


class ForgetCommand:
    """Answers `/forget`. A yes erases exactly what was shown."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._shown: dict[
            tuple[str, str], tuple[str, FoundByWords]
        ] = {}  # by conversation and sender
        self._agreed: dict[str, tuple[str, FoundByWords]] = {}  # by the event of the yes

    async def asked(self, row: InboxRow, scope: str, said: str) -> str | None:
        """Answer the words after `/forget`; None: an id or a yes, which `answer` carries out.

        Only texts with all of the words are listed; `/memory WORDS` finds memories with a similar
        meaning.
        """
        if not AllWordsMatcher(said).words:
            return FORGET_WHAT
        if self._stores.owner.is_unverified(row.origin, scope):
            return UNVOUCHED
        if CONFIRMS.fullmatch(said):
            return await self._confirmed(row, scope)
        if await self._stores.facts.get(named_in(row.body), scope):
            return None
        if " " not in said and named_in(row.body).startswith("fact_"):
            return NO_MEMORY.format(plain(named_in(row.body)[:60]))
        await self._stores.memories.text(scope)  # takes in edits by hand first
        found = await find_words(self._stores, row, scope, said, row.seq)
        count, left = found.count(), _left_to_people(found)
        if count:
            self._shown[row.conversation_id, row.sender] = row.event_id, found
            lines = "\n".join(_lines(found))
            number = f"{YES} {count}" if count > UNCOUNTED else YES
            here = IN_THE_ROOM if found.messages and is_matrix(row.room_id) else ""
            several = ONE_OF_THEM.format(found.facts[0].id) if len(found.facts) > 1 else ""
            return CONFIRM.format(lines, here + left, number) + several
        if left:
            return NOTHING_HERE.format(left).strip()
        return NOTHING_LIKE_IT

    async def _confirmed(self, row: InboxRow, scope: str) -> str | None:
        """Search again, before the transaction that answers; None: the list is still the same."""
        async with self._stores.database.transaction() as tx:
            question = await offered(self._stores, tx, row)
            last = await self._stores.inbox.command_before(tx, row)
            said = await self._stores.outbox.answer_to(tx, last.event_id) if last else ""
            busy = await self._stores.jobs.is_forgetting(tx, scope)
            missing = await self._missing(tx, row)
        if question is None:  # a repeated yes gets the same answer until all is erased
            if last is None or said not in (FORGETTING, FORGETTING_HERE):
                return missing
            when = relative_time(last.sent_at, row.sent_at, self._stores.tasks.zone)
            return said if busy else FORGOTTEN_SINCE.format(when)
        before, shown = question
        said = after_word(before.body)
        found = await find_words(self._stores, row, scope, said, before.seq)
        event_id, listed = self._shown.pop((row.conversation_id, row.sender), ("", None))
        if listed is not None and event_id == before.event_id and found.has_all_of(listed):
            found = replace(found, facts=listed.facts, older=listed.older)  # new ones stay
        elif not {*_lines(found, answers=False)} <= {*shown.split("\n")}:
            return CHANGED_SINCE
        self._agreed[row.event_id] = said, found
        return None

    async def _missing(self, tx: Transaction, row: InboxRow) -> str:
        """Return why a yes confirms nothing, and which command to repeat."""
        outbox, line = self._stores.outbox, " ".join(row.body.lower().split())
        asked = await self._stores.inbox.command_before(tx, row, f"{row.first_word} ")
        shown = await outbox.answer_to(tx, asked.event_id) if asked else ""
        if asked is None or asked.direct != row.direct or f"`{line}`" not in shown:
            return NOT_ASKED  # if others have joined, the words must not be repeated
        why = INTERRUPTED if await outbox.answer_to(tx, asked.event_id, row.sent_at) else TOO_EARLY
        return why.format(brief(after_word(asked.body)).replace("`", ""))

    async def answer(self, tx: Transaction, row: InboxRow, scope: str) -> str:
        """Enqueue the forgetting, within the transaction that stores the answer."""
        by = row.sender if scope.startswith(ROOM) else None
        whose = by, None if by else row.conversation_id
        said, found = self._agreed.pop(row.event_id, ("", None))
        if found is not None:
            facts = [fact.id for fact in (*found.facts, *found.older)]
            rest = found.events, found.texts, facts, *whose
            await enqueue_forgetting(self._stores, tx, *rest, words=said, scope=scope)
        elif fact := await self._stores.facts.get(named_in(row.body), scope):
            await enqueue_forgetting(self._stores, tx, (), (), [fact.id], *whose)
        else:
            return NOT_ASKED
        return FORGETTING_HERE if by else FORGETTING


def _lines(found: FoundByWords, *, answers: bool = True) -> Iterator[str]:
    """Yield a line for each kind of thing that would be erased, with some examples."""
    facts = [f"{plain(brief(fact.text))} (`{fact.id}`)" for fact in found.facts]
    kinds: tuple[tuple[int, str, str, list[str]], ...] = (
        (len(facts), "memory", "", facts),
        (len(found.messages), "message", " of yours", _quotes(found.messages.values())),
        (found.summaries, "summary", "", []),
        (len(found.core), "line", " of what I always keep in mind", _quotes(found.core)),
        (len(found.lines), "line", " of pages and their index", _quotes(found.lines)),
        (found.answers if answers else 0, "answer", " of mine with these words", []),
    )
    for count, noun, which, examples in kinds:
        shown = "; ".join(examples[:EXAMPLES]) + ("; …" if len(examples) > EXAMPLES else "")
        if count:
            yield f"- {counted(count, noun)}{which}" + (f": {shown}" if shown else "")


def _quotes(texts: Iterable[str]) -> list[str]:
    return [f"“{plain(brief(text))}”" for text in [*texts][: EXAMPLES + 1]]


def _left_to_people(found: FoundByWords) -> str:
    """Name the things with these words that people have to change or delete themselves."""
    others = OF_OTHERS.format(counted(found.others, "message")) if found.others else ""
    return others + (
        FOR_YOU.format(", ".join(map(how_to_change, found.stays))) if found.stays else ""
    )


def after_word(body: str) -> str:
    """Return the text after the name of a command."""
    return "".join(body.split(maxsplit=1)[1:])


def named_in(body: str) -> str:
    """Return the id or name after a command, without the marks that people copy with it."""
    return after_word(body).strip().strip("`").removeprefix("#")
