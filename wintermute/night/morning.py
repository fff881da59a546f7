"""What people hear of a night: one message in the morning, and what the model is told with the next one.

The message is stored in the transaction that marks its nights as told, so a kill neither loses nor
doubles it. It takes no model.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, time, timedelta

from wintermute.clock import Clock
from wintermute.config.schema import Dreaming
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.jobs import Job
from wintermute.mailbox.inbox import Waiting
from wintermute.messages import ROOM
from wintermute.night.nights import Night, NightItem, Nights
from wintermute.night.report import failed, message, report_event, told_of
from wintermute.stores import Stores
from wintermute.tasks.due import instant
from wintermute.work.deliveries import Deliveries
from wintermute.work.jobs import JobDone

MORNING = "morning"
SIGNS = ("\N{WHITE HEAVY CHECK MARK}", "\N{CROSS MARK}")
"""Yes and no, under a message that asks one question."""
DAY = timedelta(days=1)
MOST_BROKEN = 5
"""Phases that are named with what went wrong."""


class Morning:
    """Owes the message of the morning, and says it."""

    def __init__(
        self, stores: Stores, nights: Nights, dreaming: Dreaming, speaker: Speaker, clock: Clock
    ) -> None:
        self._stores = stores
        self._nights = nights
        self._wanted = dreaming.report
        self._begins = time(dreaming.hour, dreaming.minute)
        self._at = time.fromisoformat(dreaming.report_at)
        self._speaker = speaker
        self._clock = clock

    def due(self, night: Night) -> datetime:
        """When it is told: in the morning after it began, or when it ended, if that was later.

        What somebody ran at the command line waits for a morning: it may be the middle of a night.
        """
        zone, ended = self._stores.tasks.zone, night.ended_at or self._clock.now()
        if night.why in ("schedule", "late"):
            begun = instant(datetime.combine(night.date, self._begins), zone)
            found = max(self._morning_after(begun), ended)
            early = found.astimezone(zone).time() < self._at  # it was caught up in the next night
            return self._morning_after(found) if early else found
        return self._morning_after(ended)

    def _morning_after(self, moment: datetime) -> datetime:
        zone = self._stores.tasks.zone
        day = moment.astimezone(zone).date() - DAY
        while (found := instant(datetime.combine(day, self._at), zone)) <= moment:
            day += DAY
        return found

    async def owe(self, tx: Transaction) -> datetime | None:
        """Owe the message for what is over, if there is one to say; when to look again."""
        untold = await self._nights.untold(tx)
        silent = [night for night in untold if not await self._worth_telling(tx, night)]
        if silent:
            await self._nights.mark_told(tx, [night.id for night in silent])
        now, later = self._clock.now(), list[datetime]()
        for night in untold:
            if night in silent:
                continue
            if (due := self.due(night)) > now:
                later.append(due)
            else:
                await self._stores.jobs.enqueue(tx, MORNING, night.id, "")
        return min(later, default=None)

    async def _worth_telling(self, tx: Transaction, night: Night) -> bool:
        return self._wanted and bool(
            await self._nights.items(tx, night.id, states=("done", "open"))
        )

    async def work(self, _: Job) -> JobDone:
        """Say it with the end of the job."""
        return JobDone(self._tell)

    async def _tell(self, tx: Transaction) -> Collection[str]:
        """Tell everybody of all that is due, in one message each; where something is to be said."""
        now = self._clock.now()
        nights = [night for night in await self._nights.untold(tx) if self.due(night) <= now]
        items = [item for night in nights for item in await self._nights.items(tx, night.id)]
        homes = await Deliveries.now(tx, self._stores, self._speaker)
        news = set[str]()
        for scope in sorted({item.scope for item in items if item.scope}):
            body, asks = self._message(nights, scope, [i for i in items if i.scope == scope])
            home = await homes.home(tx, scope, None) if body else None
            if home is None:
                continue
            outbox_id = await self._stores.outbox.enqueue(
                *(tx, home.id, body),
                kind="notice",
                meant_for=scope,
                signs=SIGNS if asks else (),
            )
            for night in nights:
                of_it = asks.n if asks and asks.night == night.id else None
                await self._nights.tell(tx, night.id, scope, outbox_id, of_it)
            news.add(home.id)
        await self._nights.mark_told(tx, [night.id for night in nights])
        return news

    def _message(
        self, nights: Sequence[Night], scope: str, items: Sequence[NightItem]
    ) -> tuple[str, NightItem | None]:
        """What a scope is told, and the item that this asks about, if it is one alone."""
        owner = self._stores.owner.owns(scope)
        asked_here = {night.id for night in nights if owner and night.why == "asked"}
        items = [item for item in items if item.night not in asked_here]
        questions = [item for item in items if item.state == "open"]
        if scope.startswith(ROOM) and not questions:  # many would be told what is of use to none
            return "", None
        about = [night for night in nights if any(item.night == night.id for item in items)]
        if not about:
            return "", None
        broken = sum(len(failed(night)) for night in about) if owner else 0
        today = self._clock.now().astimezone(self._stores.tasks.zone).date()
        body = message(told_of(about, today), items, broken)
        return body, questions[0] if body and len(questions) == 1 else None

    async def report_to(
        self, tx: Transaction, night: Night, conversation_id: str
    ) -> Collection[str]:
        """Tell whoever asked for a night how it went, there."""
        held = await self._stores.conversations.get(conversation_id)
        items = await self._nights.items(tx, night.id, held.scope)
        known = ("", held.scope) if self._stores.owner.owns(held.scope) else (held.scope,)
        broken = [tally for tally in failed(night) if tally.scope in known]
        body = message("Done", items, len(broken)) or "Done: there was nothing to tidy."
        for tally in broken[:MOST_BROKEN]:
            body += f"\n{tally.name} failed: {tally.note}"
        questions = [item for item in items if item.state == "open"]
        asks = questions[0] if len(questions) == 1 else None
        outbox_id = await self._stores.outbox.enqueue(
            *(tx, held.id, body), kind="notice", meant_for=held.scope, signs=SIGNS if asks else ()
        )
        await self._nights.tell(tx, night.id, held.scope, outbox_id, asks.n if asks else None)
        return (held.id,)


class NightReports:
    """Tells the model once what nights did, with the next message of those who it is about."""

    def __init__(self, nights: Nights) -> None:
        self._nights = nights

    async def told_with(self, tx: Transaction, row: Waiting, scope: str) -> str:
        """The event before a message; the same again where the message is asked again."""
        events = [name for name in (row.event_id, row.edits) if name]
        items = await self._nights.to_report(tx, scope, events)
        if items:
            await self._nights.reported(tx, scope, {item.night for item in items}, row.event_id)
        return report_event(items)
