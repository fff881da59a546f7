"""Nights in a chat: starting one, reading what it did here, answering its questions, and undoing it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from zoneinfo import ZoneInfo

from wintermute.changes.decisions import Decision
from wintermute.changes.nights import Night
from wintermute.clock import Clock
from wintermute.commands.tasks import NOTHING_TO_UNDO, bounded, undo_lines
from wintermute.config.schema import Dreaming
from wintermute.db import Transaction
from wintermute.errors import StorageBlocked, WintermuteError
from wintermute.health.health import StatusLine
from wintermute.mailbox.inbox import InboxRow
from wintermute.messages import Origin
from wintermute.night.night_jobs import enqueue_requested_night
from wintermute.night.night_status import night_status
from wintermute.night.night_undo import require_kept, undo_items
from wintermute.night.pipeline import NightPipeline
from wintermute.night.questions import ANSWERS as VERBS
from wintermute.night.questions import (
    LOOKED_THROUGH,
    AmbiguousNumber,
    AnswerResult,
    NoSuchNight,
    Questions,
    is_number,
)
from wintermute.night.report import (
    failed_phases,
    how_to_answer,
    is_forgotten,
    item_in_full,
    item_line,
    item_words,
    quoted,
    without_untrusted_text,
)
from wintermute.owner import is_owner
from wintermute.stores import Stores
from wintermute.text import EMPTY_LISTS, counted, plain

NOT_YOURS = "Only the owner can start a night, from a verified session."
UNVOUCHED = "Only the owner can answer or undo a night here, from a verified session."
BEGUN = "I'm tidying up what I know. I'll tell you when I'm done."
FOLLOWS = "I'm already tidying up. I'll begin again afterwards, and tell you when I'm done."
ALREADY_PLANNED = "Tidying up is already planned. It begins as soon as possible."
NOTHING_HERE = "It changed nothing here and has no questions."
ANSWERS = (
    "`/night yes N` and `/night no N` answer a question. N may also be `all`, `3-7`, or `NIGHT#N` for an older night."
    " `/night N new`, `old`, `both` or `neither` says which of two memories is true."
    " `/night N` shows one in full."
)
SEVERAL = "Several nights have a question with that number, so I did nothing. Write the number as NIGHT#N."
GONE = "I have forgotten what it was about, so I cannot undo it."
NOTHING_OPEN = "I have no open questions here."
USAGE = "`/night [DATE]`, `/night N`, `/night yes N`, `/night no N`, `/night N new|old|both|neither`, `/night undo [ITEM]`; N may be `all`, `3-7` or `NIGHT#N`."
HOW = {"failed": " failed", "left": " goes on in the next night"}
"""Words for a phase that was not finished."""

Mask = Callable[[Decision], Decision]
"""Returns the item as it may be shown to the person or model that asks."""


class NightCommands:
    """Answers `/night` and `/dream`."""

    def __init__(
        self, stores: Stores, tidying: NightPipeline, dreaming: Dreaming, clock: Clock
    ) -> None:
        self._stores = stores
        self._dreaming = dreaming
        self._executors = tidying.executors
        self._questions = Questions(stores)
        self._clock = clock

    async def status_line(self) -> StatusLine:
        """Return the line of a status about nights."""
        stores, zone = self._stores, self._stores.tasks.zone
        return await night_status(
            stores.database, self._clock, self._dreaming, zone, stores.data_dir
        )

    async def start_night(self, tx: Transaction, row: InboxRow, _scope: str) -> str:
        """Enqueue a night now; its report comes when it ends."""
        if not is_owner(row.origin):
            return NOT_YOURS
        running = await self._stores.nights.running(tx)
        if not await enqueue_requested_night(self._stores, tx, row, self._clock.now()):
            return ALREADY_PLANNED
        return FOLLOWS if running else BEGUN

    async def prepared(self, row: InboxRow, scope: str) -> str:
        """Answer `/night` and its words. It opens transactions of its own."""
        return await self.reply(row.body.replace(",", " ").split()[1:], row.origin, scope)

    async def has_news(self, scope: str) -> bool:
        """Return True if a recent night changed or asked something in this scope."""
        return await self._stores.nights.has_news(scope)

    async def reply(
        self, words: Sequence[str], origin: Origin, scope: str, *, by_model: bool = False
    ) -> str:
        """Answer the words after `/night`; a model gets no words from outside."""
        mask: Mask = without_untrusted_text if by_model else replace
        if words[1:] and words[-1].casefold() in VERBS:  # `/night 3 old`
            words = [words[-1], *words[:-1]]
        verb = words[0].casefold() if words else ""
        if verb not in (*VERBS, "undo"):
            return await _or_why_not(self._shown(words, scope, mask))
        if self._stores.owner.is_unverified(origin, scope):
            return UNVOUCHED
        if verb == "undo":
            return await _or_why_not(self._undo(words[1:], scope, by_model=by_model))
        return await _or_why_not(self._answered(words[1:], scope, mask, verb))

    async def show_item(self, item: str, scope: str) -> str:
        """Answer `/night ITEM` to a model, whatever the item is called.

        It changes nothing.
        """
        return await _or_why_not(self._shown([item] if item else [], scope, without_untrusted_text))

    async def _shown(self, words: Sequence[str], scope: str, mask: Mask) -> str:
        if len(words) > 1:
            return USAGE
        if words and ("#" in words[0].strip("`#") or is_number(words[0])):
            item = mask(await self._questions.lookup(words[0], scope))
            answers = ["", f"{how_to_answer(item)} answers."] * (item.state == "open")
            return "\n".join([*item_in_full(item, chat=True), *answers])
        night = await self._night_shown(words, scope)
        waiting = await self._questions.open_in(scope)
        if night is None:
            return EMPTY_LISTS["nights"]
        everything = await self._stores.decisions.listed(self._stores.database, night.id)
        items = [mask(item) for item in everything if item.scope == scope]
        older = [item for item in waiting if item.night != night.id]
        taken = {item.n for item in older}
        lines = [self._head(night, scope)]
        lines += [
            item_line(item, item.id if words or item.n in taken else str(item.n)) for item in items
        ]
        running = await self._stores.nights.running(self._stores.database)
        lines += [
            f"The night `{each.id}` is {_how_far(each, self._stores.tasks.zone)}."
            for each in running
            if each.id != night.id
        ]
        lines += [] if items else ["", NOTHING_HERE]
        if others := len(everything) - len(items):
            lines.append(f"and {counted(others, 'item')} of other chats: `/night` shows them there")
        lines += [f"Still asked: `{item.id}` {item_words(mask(item))}" for item in older]
        return "\n".join([bounded(lines), *([ANSWERS] if waiting else [])])

    async def _night_shown(self, words: Sequence[str], scope: str) -> Night | None:
        """Return the named night; else the newest with changes or questions here; else the newest."""
        if words:
            return await self._questions.night(words[0].strip("`"), scope)
        return await self._questions.newest_of(
            await self._stores.nights.newest(LOOKED_THROUGH), scope
        )

    def _head(self, night: Night, scope: str) -> str:
        """Return the heading of a night, with the notes of its phases here; the owner sees those of all."""
        zone, owns = self._stores.tasks.zone, self._stores.owner.owns(scope)
        said = f"**Night of {night.date}** (`{night.id}`): {_how_far(night, zone)}"
        noted = [
            f"{tally.name}{HOW.get(tally.status, '')}: {plain(tally.note)}"
            for tally in night.phases
            if tally.note and (tally.scope == scope or (owns and not tally.scope))
        ]
        elsewhere = (
            sum(tally.scope not in ("", scope) for tally in failed_phases(night)) if owns else 0
        )
        noted += [f"{counted(elsewhere, 'phase')} of others failed"] if elsewhere else []
        return "\n".join([said, *(f"- {note}" for note in noted)])

    async def _answered(self, words: Sequence[str], scope: str, mask: Mask, verb: str) -> str:
        if not words:
            return USAGE
        ask = self._questions
        try:
            items = await ask.named(words, scope)
        except AmbiguousNumber as several:
            return bounded([SEVERAL, *(item_line(mask(each), each.id) for each in several.items)])
        done = [await ask.apply_answer(item, verb, self._executors) for item in items]
        yes = VERBS[verb] != "both"
        lines = [_answer_line(replace(each, item=mask(each.item)), yes=yes) for each in done]
        return bounded(lines) or NOTHING_OPEN

    async def _undo(self, words: Sequence[str], scope: str, *, by_model: bool) -> str:
        """Undo the newest night that changed something here, a named night, or one item."""
        if len(words) > 1:
            return USAGE
        items, whole = await self._to_undo(words, scope)
        if words and not items:
            return NOTHING_HERE
        if items and all(map(is_forgotten, items)):
            return GONE
        done = await undo_items(self._stores, items, whole=whole)
        lines = [line for each in done.undone for line in undo_lines(each)]
        if by_model and lines and any(item.is_untrusted for item in items):
            back = [item.id for item in done.items]
            held = [i.id for i in items if i.state == "done" and i.id not in back]
            lines = [f"- `{name}` taken back" for name in back]
            lines += [
                f"- `{name}` was changed since, so at least part of it stays" for name in held
            ]
        return bounded(lines) or NOTHING_TO_UNDO

    async def _to_undo(self, words: Sequence[str], scope: str) -> tuple[list[Decision], bool]:
        database = self._stores.database
        if words and not is_number(words[0]):
            night = await self._questions.night(words[0].strip("`").partition("#")[0], scope)
            items = await self._stores.decisions.listed(database, night.id, scope)
            require_kept(night, items, self._clock.now())
            if "#" in words[0]:
                return [await self._questions.item(words[0], scope)], False
            return items, True
        for night in await self._stores.nights.newest(LOOKED_THROUGH):
            items = await self._stores.decisions.listed(database, night.id, scope)
            done = [item for item in items if item.state in ("done", "undone")]
            if words and (one := [i for i in items if i.n == int(words[0].strip("`#"))]):
                return one, False
            if done and not words:
                return items, True
        if words:
            raise NoSuchNight(f"no change of a night has the number {words[0][:20]} here")
        return [], True


async def _or_why_not(answer: Awaitable[str]) -> str:
    """Return an answer, or the reason why there is none, as a sentence."""
    try:
        return await answer
    except StorageBlocked:
        raise
    except WintermuteError as problem:
        said = str(problem).removesuffix(".")
        return f"{said[:1].upper()}{said[1:]}."


def _how_far(night: Night, zone: ZoneInfo) -> str:
    if night.state == "running":
        return f"running since {night.began_at.astimezone(zone):%H:%M}"
    ended = f" {night.ended_at.astimezone(zone):%H:%M}" if night.ended_at else ""
    return f"ended{ended}"


def _answer_line(done: AnswerResult, *, yes: bool) -> str:
    named = f"`{done.item.id}`"
    if done.problem:
        return f"- {named} {plain(done.problem)}"
    if yes:
        return f"- {named} done: {item_words(replace(done.item, state='done'))}"
    return f"- {named} stays as it is: {quoted(done.item.before)}"
