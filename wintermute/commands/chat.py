"""The commands of a chat. None of them needs a model."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from typing import Protocol
from zoneinfo import ZoneInfo

from wintermute.changes.change_sets import ChangeSet, ItemKind
from wintermute.changes.undo import FORGETTING, Undone
from wintermute.clock import Clock
from wintermute.commands.forgetting import YES, ForgetCommand, after_word, named_in, offered
from wintermute.commands.memories import MemoryCommands
from wintermute.commands.models import ModelCommands
from wintermute.commands.night import NightCommands
from wintermute.commands.tasks import RemindCommand, TaskCommands, bounded, describe_undo
from wintermute.config.schema import BudgetSettings
from wintermute.conversation.dispatcher import Branching
from wintermute.conversation.model_requests import Folding
from wintermute.conversation.replies import FIRST_REVERTED, FIRST_STAYS, REWORDED
from wintermute.db import Transaction
from wintermute.health.health import WELL, only_problems, status_lines
from wintermute.loom.sub_sessions import SubSession
from wintermute.mailbox.inbox import InboxRow
from wintermute.mailbox.outbox import is_matrix
from wintermute.memory.status import with_memory
from wintermute.messages import ROOM
from wintermute.owner import is_owner
from wintermute.prompt.file_checks import unusable_files
from wintermute.stores import Stores
from wintermute.text import EMPTY_LISTS, one_line, plain
from wintermute.verbs.undo import undo
from wintermute.wiki.wiki_status import wiki_status

OBJECTIVE_CHARACTERS = 100
HELP = {
    "/new": "start a new conversation: I no longer see the earlier messages",
    "/compact": "replace earlier messages with a summary, to make room for more",
    "/stop": "stop what I am doing in this room | /stop sub_1a2b3c4d",
    "/sessions": "list work that I started in the background here; `/stop ID` ends one",
    "/memory": "list what I remember here, or search it; `/memory core` shows what I always keep in mind | /memory Anna birthday | /memory core",
    "/forget": "list everything with these words, then erase it if you say yes | /forget old address | /forget yes",
    "/why": "show which memories I used for my last answer, or for the answer you reply to",
    "/tasks": "list the tasks and reminders here, or change one of them | /tasks done call Anna | /tasks tomorrow call Anna",
    "/remind": "remind you at a time; `/remind` alone shows examples | /remind tomorrow at 9 call Anna | /remind every friday at 18:00 buy flowers",
    "/undo": "undo your last change of a memory or task here; I ask first if it is old or large | /undo | /undo yes",
    "/night": "show what I tidied at night; answer my questions, or undo changes | /night yes 2 | /night no 3 | /night undo",
    "/dream": "tidy my memories now instead of at night",
    "/verify": "verify me by comparing emojis",
    "/status": "show problems and what to do about them; `/status all` shows every part | /status all",
    "/model": "list the models; the owner can choose one for this chat | /model local | /model reset",
    "/usage": "show the tokens and cost of this chat; the owner also sees those of all chats",
    "/help": "show this list, or explain one command | /help remind",
}
"""The help of each command: what it does, then lines to type."""
NAMES = {name: text.split(" | ")[0] for name, text in HELP.items()}
TO_SAY = (
    "Remind me tomorrow at 9 to call Anna.",
    "Remember that my sister Mia is allergic to nuts.",
    "What do you know about Mia?",
)
WELCOME = "Write to me as you would to a person, for example:\n{}\n\nOr type a command:\n{}"
UNKNOWN = "I do not know `{}`.{} `/help` lists all commands."
ALIKE = 0.7
"""The least similarity, from 0 to 1, of an unknown word to the command that it may mean."""

WHY_ALONE = (
    "`/why` explains an answer: write it alone for my last one, or in reply to another."
    " `/memory WORDS` finds memories."
)
UNDONE_HERE: tuple[ItemKind, ...] = ("fact", "task")
UNDO_CONFIRM = (
    "I ask first, because this change is old, large or not yours. `/undo yes` would do this:\n{}"
)
NOTHING_TO_CONFIRM = "There is nothing to confirm: write `/undo` first."
NO_CHANGE = "I know no change `{}` in this chat from the last 30 days."
ALL = "all"
NO_DETAILS = "I show you details only in a direct chat: ask me there."


def sub_session_line(node: SubSession, needs: Sequence[SubSession], zone: ZoneInfo) -> str:
    """Describe a sub-session: its objective and its progress."""
    named = f"{plain(node.name)}: " if node.name else ""
    objective = plain(one_line(node.objective)[:OBJECTIVE_CHARACTERS])
    return f"`{node.id}` {named}{objective} ({_how_far(node, needs, zone)})"


def _how_far(node: SubSession, needs: Sequence[SubSession], zone: ZoneInfo) -> str:
    if node.state == "collecting":
        return "waits for work that it started"
    if node.state == "running":
        return "running"
    missing = [plain(each.label) for each in needs if each.state != "done"]
    if missing:
        return f"waits for {', '.join(missing)}"
    if node.not_before is None:
        return "waits for its turn"
    return f"not before {node.not_before.astimezone(zone):%Y-%m-%d %H:%M}"


class Verifier(Protocol):
    """Verifies the bot's device with a person."""

    async def ask(self, tx: Transaction, row: InboxRow) -> str:
        """Begin with the sender of the command, once the transaction is done. Return the text for them."""
        ...


class ChatCommands:
    """Answers commands. `/stop` is not among them: it does not wait for its turn."""

    def __init__(
        self,
        stores: Stores,
        branching: Branching,
        folding: Folding,
        clock: Clock,
        ceilings: BudgetSettings,
        verifier: Verifier | None,
        nights: NightCommands,
        models: ModelCommands,
    ) -> None:
        self._stores = stores
        self._nights = nights
        self._models = models
        self._branching = branching
        self._folding = folding
        self._clock = clock
        self._ceilings = ceilings
        self._verifier = verifier
        self._remembered = MemoryCommands(stores)
        self._forgetting = ForgetCommand(stores)
        self._agreed: dict[str, str] = {}  # the change set that an `/undo` means, by its event
        self._answers: dict[str, Callable[[Transaction, InboxRow, str], Awaitable[str]]] = {
            "/new": self._new,
            "/sessions": self._sessions,
            "/tasks": TaskCommands(stores, clock).answer,
            "/remind": RemindCommand(stores.tasks, clock).answer,
            "/forget": self._forgetting.answer,
            "/undo": self._undo,
            "/dream": nights.start_night,
            "/verify": self._verify,
            "/status": self._status,
            "/model": models.model,
            "/usage": models.usage,
            "/help": self._help,
        }

    async def prepare(self, row: InboxRow) -> str | None:
        """Answer the commands that open transactions of their own; None: `answer` does it."""
        if row.first_word == "/compact":
            return await self._compact(row)
        if row.first_word == "/memory":
            return await self._remembered.listed(await self._scope(row), after_word(row.body))
        if row.first_word == "/forget":
            return await self._forgetting.asked(row, await self._scope(row), after_word(row.body))
        if row.first_word == "/why" and after_word(row.body):
            return WHY_ALONE
        if row.first_word == "/why":
            return await self._remembered.why(row, await self._scope(row))
        if row.first_word == "/night":
            return await self._nights.prepared(row, await self._scope(row))
        if row.first_word == "/model":
            return await self._models.refused(row)
        if row.first_word == "/undo":
            return await self._undo_files(row, await self._scope(row))
        return None

    async def _compact(self, row: InboxRow) -> str:
        async with self._stores.database.transaction() as tx:
            branch = await self._stores.conversations.current_branch(tx, row.conversation_id)
        past = await self._folding.past(branch)
        before = self._folding.measured(past)
        if not self._folding.has_old(past):
            return f"There is nothing to sum up yet: only {before} in view."
        folded = await self._folding.fold(past, branch, None, "asked")
        if folded is None:
            return "The model gave no usable summary, so I changed nothing. Try again later."
        return f"Summed up: {before} before, {self._folding.measured(folded)} now."

    async def answer(self, tx: Transaction, row: InboxRow) -> str:
        """Carry out a command in the transaction that stores its answer."""
        scope = await self._scope(row)
        if row.edits is not None:
            return await self._reworded(tx, row, scope)
        known = self._answers.get(row.first_word)
        if known is None:
            return _unknown(row.first_word)
        return await known(tx, row, scope)

    async def _reworded(self, tx: Transaction, row: InboxRow, scope: str) -> str:
        """Undo the effect of earlier wordings and carry out the new one; or do neither (F-049)."""
        changes, events = self._stores.changes, await self._stores.inbox.versions(str(row.edits))
        named = await changes.asked_by(tx, {*events} - {row.event_id})
        sets = [one for name in named if (one := await changes.get(name)) and not one.undone]
        refused = self._stores.owner.is_unverified(row.origin, scope)
        refused = refused or await self._stores.jobs.is_forgetting(tx)
        if sets and (refused or any([await self._is_used(tx, change_set) for change_set in sets])):
            return REWORDED

        async def done() -> bool:
            return not sets or bool(await changes.asked_by(tx, [row.event_id]))

        async with tx.rollback_unless(done):
            for change_set in sets:
                await self._stores.undo.within(tx, change_set)
            answer = await self._answers[row.first_word](tx, row, scope)
            said = FIRST_REVERTED if await done() else FIRST_STAYS
        return f"{said}\n\n{answer}" if sets else answer

    async def _is_used(self, tx: Transaction, one: ChangeSet) -> bool:
        """Return True if the effect of a change set was used, or changed again."""
        steps = await self._stores.changes.steps(
            tx, {(each.kind, each.item) for each in one.changes}
        )
        last = await self._stores.occurrences.last([each.item for each in one.changes])
        return any(found[0].set_id != one.id for found in steps.values()) or any(
            each.before is None or last[each.item].due_at > one.created_at
            for each in one.changes
            if each.item in last
        )

    async def _new(self, tx: Transaction, row: InboxRow, _scope: str) -> str:
        await self._branching.begin_anew(tx, row)
        return "A new conversation: I no longer see the earlier messages."

    async def _verify(self, tx: Transaction, row: InboxRow, _scope: str) -> str:
        if self._verifier is None or not is_matrix(row.room_id):  # only Matrix has it
            return "There is nothing to verify here: `/verify` is for Matrix rooms."
        return await self._verifier.ask(tx, row)

    async def _undo(self, tx: Transaction, row: InboxRow, scope: str) -> str:
        if self._stores.owner.is_unverified(row.origin, scope):
            return "Only the owner can undo something here, from a verified session."
        wanted = await self._wanted(tx, row, scope)
        if wanted is None and named_in(row.body).lower() == YES:
            return NOTHING_TO_CONFIRM
        if wanted is None:
            named = plain(named_in(row.body)[:60])
            return NO_CHANGE.format(named) if named else "There is nothing to undo here."
        if await self._stores.jobs.is_forgetting(tx):
            return f"{FORGETTING.capitalize()}."
        undone = await self._stores.undo.within(tx, wanted)
        return describe_undo(undone)

    async def _undo_files(self, row: InboxRow, scope: str) -> str | None:
        """Ask first, or undo a change of files, which no transaction covers (M-091)."""
        if done := await self._stores.changes.by_key(row.event_id):  # a kill came after the undo
            return describe_undo(Undone(done.id, done.changes))
        await self._stores.memories.text(scope)  # takes in edits by hand first
        async with self._stores.database.transaction() as tx:
            wanted = await self._wanted(tx, row, scope)
            _, question = await offered(self._stores, tx, row) or (row, "")
            forgetting = await self._stores.jobs.is_forgetting(tx)
        unvouched = self._stores.owner.is_unverified(row.origin, scope)
        if unvouched or wanted is None:
            return None
        if forgetting:
            return f"{FORGETTING.capitalize()}."
        if (named := named_in(row.body).lower()) in ("", YES):
            by = row.sender if scope.startswith(ROOM) else None
            asked = await self._stores.undo.to_confirm(wanted, by)
            shown = UNDO_CONFIRM.format(describe_undo(asked)) if asked else ""
            if named and question != shown:
                return NOTHING_TO_CONFIRM
            if shown and not named:
                return shown
        if not self._stores.undo.touches_files(wanted):
            if row.edits is None:  # else the earlier wording is undone first
                self._agreed[row.event_id] = wanted.id
            return None
        return describe_undo(await undo(self._stores, wanted, key=row.event_id))

    async def _wanted(self, tx: Transaction, row: InboxRow, scope: str) -> ChangeSet | None:
        """Return the named change set if it is of this scope; else the last one that somebody asked for."""
        changes, named = self._stores.changes, named_in(row.body)
        named = self._agreed.pop(row.event_id, named)  # newer ones may have come since
        if not named or (named.lower() == YES and await offered(self._stores, tx, row)):
            return await changes.newest(UNDONE_HERE, scope, asked=True)
        found = await changes.get(named)
        return found if found and found.scope == scope else None

    async def _sessions(self, tx: Transaction, row: InboxRow, scope: str) -> str:
        store, zone = self._stores.sub_sessions, self._stores.tasks.zone
        lines = [
            f"- {sub_session_line(node, await store.needs(tx, node.id), zone)}"
            for node in await store.open_in(tx, row.conversation_id)
            if node.scope == scope  # people who joined later must not see it (M-010)
        ]
        return bounded(lines) or EMPTY_LISTS["sessions"]

    async def _status(self, _tx: Transaction, row: InboxRow, scope: str) -> str:
        stores, zone = self._stores, self._stores.tasks.zone.key
        lines = await status_lines(stores.database, self._clock, zone, self._ceilings)
        lines = with_memory(lines, await stores.memory_status.finding())
        lines += tuple(await asyncio.to_thread(unusable_files, stores.places, stores.prompts))
        lines += (await asyncio.to_thread(wiki_status, stores.wiki, stores.tasks.zone),)
        lines += (await self._nights.status_line(),)
        by_owner = is_owner(row.origin)
        if named_in(row.body).lower() != ALL:
            lines = only_problems(lines)
        if not lines:
            return WELL.format("`/status all`")
        if not (by_owner and stores.owner.owns(scope)):
            # Details may name rooms of other people.
            brief = "\n".join(f"- **{line.name}**: {line.state}" for line in lines)
            return f"{brief}\n\n{NO_DETAILS}" if by_owner else brief
        return "\n".join(f"- **{line.name}** ({line.state}): {line.text}" for line in lines)

    async def _help(self, _tx: Transaction, row: InboxRow, _scope: str) -> str:
        word = after_word(row.body).strip().strip("`").lower()
        name = f"/{word.removeprefix('/')}"
        if name in HELP:
            line, *examples = HELP[name].split(" | ")
            shown = "\n".join(f"- `{each}`" for each in (examples or [name]))
            return f"`{name}`: {line}. For example:\n{shown}"
        if word and _nearest(name):
            return _unknown(name)
        here = [each for each in NAMES if each != "/verify" or is_matrix(row.room_id)]
        said = "\n".join(f"- *{each}*" for each in TO_SAY)
        return WELCOME.format(said, "\n".join(f"- `{each}`: {NAMES[each]}" for each in here))

    async def _scope(self, row: InboxRow) -> str:
        return (await self._stores.conversations.get(row.conversation_id)).scope


def _nearest(word: str) -> list[str]:
    return get_close_matches(word[:40], NAMES, 1, ALIKE)


def _unknown(word: str) -> str:
    near = "".join(f" Did you mean `{each}`?" for each in _nearest(word))
    return UNKNOWN.format(word[:40].replace("`", ""), near)
