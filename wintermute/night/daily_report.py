"""Daily report: one message in the morning after a night, and an event for the model with the next message.

The report is stored in the transaction that marks its nights as reported, so a kill neither loses nor doubles
it. It needs no model.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, time, timedelta

from wintermute.changes.decisions import Decision
from wintermute.changes.nights import Night, Nights
from wintermute.clock import Clock
from wintermute.config.schema import Dreaming
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.jobs import Job
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import InboxRow
from wintermute.mailbox.outbox import is_matrix
from wintermute.messages import ROOM
from wintermute.night.phases import USES
from wintermute.night.report import (
    WAITS,
    NightMessage,
    failed_phases,
    message,
    nights_label,
    report_event,
    unfinished_phases,
)
from wintermute.stores import Stores
from wintermute.tasks.due import instant
from wintermute.work.jobs import JobDone
from wintermute.work.routing import TargetRooms

MORNING = "morning"
YES_NO_REACTIONS = ("\N{WHITE HEAVY CHECK MARK}", "\N{CROSS MARK}")
"""Reactions for yes and no, under a message that asks one question."""
DAY = timedelta(days=1)


class DailyReport:
    """Enqueues the daily report and sends it."""

    def __init__(self, stores: Stores, dreaming: Dreaming, speaker: Speaker, clock: Clock) -> None:
        self._stores = stores
        self._reports = dreaming.report
        self._night_time = time(dreaming.hour, dreaming.minute)
        self._report_time = time.fromisoformat(dreaming.report_at)
        self._speaker = speaker
        self._clock = clock

    def due(self, night: Night) -> datetime:
        """Return the time of a night's report: the morning after it began, or its end if that is later.

        A night started at the command line is reported the next morning, since it may be the middle of the night now.
        """
        zone, ended = self._stores.tasks.zone, night.ended_at or self._clock.now()
        if night.why in ("schedule", "late"):
            begun = instant(datetime.combine(night.date, self._night_time), zone)
            due = max(self._morning_after(begun), ended)
            # Early if the night was caught up during the next one.
            early = due.astimezone(zone).time() < self._report_time
            return self._morning_after(due) if early else due
        return self._morning_after(ended)

    def _morning_after(self, moment: datetime) -> datetime:
        zone = self._stores.tasks.zone
        day = moment.astimezone(zone).date() - DAY
        while (found := instant(datetime.combine(day, self._report_time), zone)) <= moment:
            day += DAY
        return found

    async def enqueue_due(self, tx: Transaction) -> datetime | None:
        """Enqueue due reports for people who can be reached; return the time of the next look.

        A person without a room is reported to when there is one, for a week.
        """
        untold = await self._stores.nights.unreported(tx)
        now, later, over = self._clock.now(), list[datetime](), list[str]()
        target_rooms = (
            await TargetRooms.current(tx, self._stores, self._speaker) if untold else None
        )
        for night in untold:
            about = await self._to_report(tx, night)
            if not about or target_rooms is None:
                over.append(night.id)
            elif (due := self.due(night)) > now:
                later.append(due)
            elif any([await self._target_room(tx, target_rooms, scope) for scope in about]):
                await self._stores.jobs.enqueue_due(tx, MORNING)
        if over:
            await self._stores.nights.mark_reported(tx, over)
        return min(later, default=None)

    async def _to_report(self, tx: Transaction, night: Night) -> dict[str, list[Decision]]:
        """Return a night's decisions to report, by scope; a group gets only its questions."""
        by_scope = dict[str, list[Decision]]()
        for item in await self._stores.nights.unreported_items(tx, night) if self._reports else ():
            by_scope.setdefault(item.scope, []).append(item)
        return {
            scope: items
            for scope, items in by_scope.items()
            if not scope.startswith(ROOM) or any(item.state == "open" for item in items)
        }

    async def _target_room(
        self, tx: Transaction, targets: TargetRooms, scope: str
    ) -> Conversation | None:
        """Return the target room of a scope. A report meant for a Matrix room never goes to a terminal."""
        room = await targets.target_room(tx, scope, None)
        if room is None or is_matrix(room.room_id):
            return room
        known = await self._stores.conversations.target_conversations(tx, scope)
        return None if any(is_matrix(each.room_id) for each in known) else room

    async def run_job(self, _: Job) -> JobDone:
        """Send the reports in the transaction that ends the job."""
        return JobDone(self._send_all)

    async def _send_all(self, tx: Transaction) -> Collection[str]:
        """Send each person with a room one message about all due nights."""
        now, reports = self._clock.now(), dict[str, list[tuple[Night, list[Decision]]]]()
        for night in await self._stores.nights.unreported(tx):
            if self.due(night) <= now:
                for scope, items in (await self._to_report(tx, night)).items():
                    reports.setdefault(scope, []).append((night, items))
        target_rooms = await TargetRooms.current(tx, self._stores, self._speaker)
        news = set[str]()
        for scope in sorted(reports):
            room = await self._target_room(tx, target_rooms, scope)
            if room is not None:
                await self._send_report(tx, room, scope, reports[scope])
                news.add(room.id)
        return news

    async def _send_report(
        self,
        tx: Transaction,
        room: Conversation,
        scope: str,
        reports: Sequence[tuple[Night, Sequence[Decision]]],
    ) -> None:
        nights = [night for night, _ in reports]
        failures = (
            sum(len(failed_phases(night)) for night in nights)
            if self._stores.owner.owns(scope)
            else 0
        )
        known = self._report_scopes(scope)
        waits = any(unfinished_phases(night, known) for night in nights)
        today = self._clock.now().astimezone(self._stores.tasks.zone).date()
        items = [item for _, of_night in reports for item in of_night]
        report = message(nights_label(nights, today), items, failures, left=waits)
        await self._send(tx, room, scope, report, [night.id for night in nights], unasked=True)

    async def _send(
        self,
        tx: Transaction,
        room: Conversation,
        scope: str,
        said: NightMessage,
        nights: Sequence[str],
        *,
        unasked: bool = False,
    ) -> None:
        """Send a message and mark its nights as reported; a message with one question gets reactions."""
        signs, asks = (YES_NO_REACTIONS, said.asks) if said.asks else ((), None)
        outbox_id = await self._stores.outbox.enqueue(
            *(tx, room.id, said.text), kind="notice", meant_for=scope, signs=signs, unasked=unasked
        )
        for night in nights:
            of_it = asks.n if asks and asks.night == night else None
            await self._stores.nights.record_report(tx, night, scope, outbox_id, of_it)

    def _report_scopes(self, scope: str) -> tuple[str, ...]:
        """Return the scopes of the report there; phases without a scope are reported to the owner."""
        return ("", scope) if self._stores.owner.owns(scope) else (scope,)

    async def report_to(
        self, tx: Transaction, night: Night, conversation_id: str
    ) -> Collection[str]:
        """Report a night to the conversation that asked for it."""
        chat = await self._stores.conversations.get(conversation_id)
        everything = await self._stores.decisions.listed(tx, night.id, states=("done", "open"))
        items = [item for item in everything if item.scope == chat.scope]
        known = self._report_scopes(chat.scope)
        failures = [tally for tally in failed_phases(night) if tally.scope in known]
        left = unfinished_phases(night, known)
        report = message("Done", items, len(failures), left=bool(left))
        here = " here. Other chats get their own report" if everything else ""
        notes = [tally.note for tally in night.phases if tally.scope in known and tally.note]
        nothing = (
            "Done, and nothing was changed" if notes else f"Done: there was nothing to tidy{here}"
        )
        lines = [report.text or f"{nothing}{f': {WAITS}' if left else ''}."]
        lines += [f"Why: {'; '.join(dict.fromkeys(tally.note for tally in left))}."] if left else []
        if steps := dict.fromkeys(USES.get(each.name, "finish all") for each in failures):
            lines.append(f"I couldn't {', '.join(steps)}. I'll try again next night.")
        await self._send(
            tx, chat, chat.scope, NightMessage("\n".join(lines), report.asks), [night.id]
        )
        return (chat.id,)


class NightReports:
    """Tells the model once what nights did, with the next message of the person concerned."""

    def __init__(self, nights: Nights) -> None:
        self._nights = nights

    async def events_before(self, tx: Transaction, row: InboxRow, scope: str) -> str:
        """Return the event before a message; a message that is answered again gets the same event."""
        events = [name for name in (row.event_id, row.edits) if name]
        items = await self._nights.to_report(tx, scope, events)
        if items:
            await self._nights.mark_seen(tx, scope, {item.night for item in items}, row.event_id)
        return report_event(items)
