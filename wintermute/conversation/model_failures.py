"""Notices about a model that does not answer: all from here, in time, never the same one twice.

    an attempt fails ─▶ connection refused: told at once (F-036), and tried again once the server
                         accepts connections
                     ─▶ else, after 8 s: does the model answer other messages?
                            yes: the messages behind it go first (F-060), then it is tried again,
                                 told, and given up after three casts or half an hour (F-021)
                            no, after a minute: an outage, told once (L-034)
    it answers again ─▶ told in the rooms that heard of the outage, if that was longer than a minute

`run` takes care of running casts and of messages that fail alone, a room's worker of waiting ones.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from typing import Literal

from wintermute.clock import Clock
from wintermute.conversation import replies
from wintermute.conversation.cast import Outcome
from wintermute.conversation.state import Speaker, Stop, Watch
from wintermute.conversation.wait_notices import WaitNotices
from wintermute.llm.backend import Wait
from wintermute.llm.models import Models
from wintermute.mailbox.inbox import InboxRow
from wintermute.mailbox.notices import EVER
from wintermute.mailbox.outbox import ANYBODY, is_matrix
from wintermute.messages import BROKEN_OFF
from wintermute.stores import Stores

MINUTE = 60.0
GRACE = 2.0
"""Seconds that a server has for a restart before people are told."""
PROBE_AFTER = 8.0
"""Seconds until the model is probed with another question: known within 20 s, as a probe takes 11 s."""
TELL_AFTER = 30.0
"""Seconds until a person learns that their message fails alone."""
CONNECT_EVERY = 10.0
"""Seconds between connection attempts to a server that refused connections."""
MOST_CASTS = 3
MOST_SECONDS = 1800.0
ROLE = "base"
"""The role of the models that answer in rooms."""
ANSWERED = frozenset({"text", "done", "max_turns", "max_tokens", *BROKEN_OFF})
"""End reasons of casts in which the model answered."""
UNFIT = ("prompt_too_large", "context_too_large")
"""End reasons that the next message would meet as well, so a room is told once (L-090)."""
SILENT = 5.0
"""Seconds without output after which a message counts as waiting for its model (F-035)."""

FailureStep = Literal["unreachable", "knock", "look", "alone", "outage", "give up"]
Since = Literal["nothing", "begun", "answered"]


@dataclass(frozen=True, slots=True)
class FailingMessage:
    """A message with failed attempts; times are those of the monotonic clock.

    `alone`: True if other messages are answered; None if not known yet. `casts`: casts that failed
    although the server was reachable; `hit`: the running cast is one of them. `then`: what has come
    since the newest failure; an answer that has begun is waited for. `connection_tried`, `probed`: when the
    server was last checked for connections and for answers.
    """

    row: InboxRow
    stop: Stop
    since: float
    problem: str
    unreachable: bool
    alone: bool | None = None
    notified: bool = False
    casts: int = 0
    hit: bool = False
    given_up: bool = False
    at_work: bool = True
    then: Since = "nothing"
    connection_tried: float = 0.0
    probed: float = 0.0


DueStep = tuple[float, FailureStep, FailingMessage]


def next_step(failing: FailingMessage) -> tuple[FailureStep, float] | None:
    """Return the next step for a failing message and its time; None for nothing now."""
    since = failing.since
    if failing.then != "nothing":
        return None
    if failing.alone:
        if not failing.notified:
            return "alone", since + TELL_AFTER
        last = since + MOST_SECONDS  # given up then if other messages are still answered
        step: FailureStep = "give up" if failing.probed >= last else "look"
        return None if failing.given_up else (step, last)
    if failing.unreachable:
        if not failing.notified:
            return "unreachable", since + GRACE
        return (
            None
            if failing.at_work
            else ("knock", max(since, failing.connection_tried) + CONNECT_EVERY)
        )
    if failing.alone is None:
        return "look", since + PROBE_AFTER
    return None if failing.notified else ("outage", since + MINUTE)


class ModelFailures:
    """Tracks the messages that fail, and tells their people."""

    def __init__(self, stores: Stores, models: Models, speaker: Speaker, clock: Clock) -> None:
        self._database = stores.database
        self._inbox = stores.inbox
        self._outbox = stores.outbox
        self._notices = stores.notices
        self._conversations = stores.conversations
        self._health = stores.health
        self._models = models
        self._speaker = speaker
        self._clock = clock
        self._readings = WaitNotices(stores, clock)
        self._failing: dict[str, FailingMessage] = {}  # by event
        self._silent: dict[str, float] = {}  # start of the silence, by conversation
        # Conversations whose waiting message is being taken care of.
        self._attended: set[str] = set()
        self._wakes: dict[str, float] = {}  # time of the next wake-up, by conversation
        self._wakeup = asyncio.Event()
        self._was_away = self._was_unfit = True  # perhaps, in an earlier run

    async def chosen(self, row: InboxRow) -> str | None:
        """Return the only model for a message, if one was chosen; tell once if it is gone (X-048).

        Its failures say nothing about the usual models. Not to be called inside a transaction.
        """
        chosen = await self._conversations.backend(row.conversation_id)
        if chosen is None or chosen in self._models.names:
            return chosen
        async with self._database.transaction() as tx:
            await self._conversations.choose(tx, row.conversation_id, None)
            notice = replies.GONE.format(name=chosen)
            await self._outbox.enqueue(tx, row.conversation_id, notice, meant_for=ANYBODY)
        return None

    def watched(self, row: InboxRow, stop: Stop, watch: Watch) -> Watch:
        """Wrap the watch of a cast to see its failures, except of events that nobody waits for."""
        return watch if row.is_unasked else _Watched(self, row, stop, watch)

    def silent(self, row: InboxRow) -> None:
        """Start the silence of a message: it waits for others of its person, or for the model."""
        self._silent[row.conversation_id] = self._clock.monotonic()

    def asked(self, row: InboxRow, stop: Stop) -> None:
        """Note that a model was asked about a message."""
        self.silent(row)
        self._change(row, lambda now: replace(now, stop=stop, at_work=True))

    def awaits(self, row: InboxRow, wait: Wait) -> None:
        """Note that the answer to a message has not begun."""
        if self._readings.goes_on(row, wait):
            self._wakeup.set()

    def works(self, row: InboxRow) -> None:
        """End the silence of a message: no model is waited for, or its cast has ended."""
        self._readings.over(row)
        self._silent.pop(row.conversation_id, None)

    def came(self, row: InboxRow, then: Since) -> None:
        """Note that another attempt has begun to answer, or has answered."""
        self._readings.over(row)
        self._change(row, lambda now: replace(now, then=then))

    def waits_in(self, taken: str | None, conversation_id: str) -> float | None:
        """Return the seconds until the running message counts as waiting for its model.

        0: it waits already (F-035). None: the model is answering, or nothing is running there.
        """
        if conversation_id in self._attended:
            return 0.0
        if taken is None:
            return None
        failing = self._failing.get(taken)
        if failing and failing.then == "nothing":
            return 0.0
        since = self._silent.get(conversation_id)
        return None if since is None else max(0.0, since + SILENT - self._clock.monotonic())

    def failed(self, row: InboxRow, stop: Stop, problem: str, *, unreachable: bool) -> None:
        """Note that an attempt to answer a message failed."""
        now = self._clock.monotonic()
        known = self._failing.get(row.event_id) or FailingMessage(
            row, stop, now, problem, unreachable
        )
        self._failing[row.event_id] = replace(
            known,
            row=row,
            stop=stop,
            since=now if known.then == "answered" else known.since,
            problem=problem,
            unreachable=unreachable,
            at_work=True,
            then="nothing",
            hit=known.hit or not unreachable,
        )
        self._wakeup.set()

    def aside(self, conversation_id: str) -> set[str]:
        """Return the messages of a conversation that fail alone: the others go first (F-060)."""
        alone = [each for each in self._failing.values() if each.alone and not each.given_up]
        return {each.row.event_id for each in alone if each.row.conversation_id == conversation_id}

    def is_last(self, row: InboxRow) -> bool:
        """Return True if this is the last attempt for a message that fails alone (F-021)."""
        failing = self._failing.get(row.event_id)
        return bool(failing and failing.alone and failing.casts == MOST_CASTS - 1)

    def remind(self, conversation_id: str, seconds: float) -> None:
        """Wake a conversation's worker after `seconds`."""
        self._wakes[conversation_id] = self._clock.monotonic() + seconds
        self._wakeup.set()

    async def run(self, wake: Callable[[str], None]) -> None:
        """Take care of running casts until cancelled; `wake` wakes a conversation's worker."""
        async with asyncio.TaskGroup() as probes:
            probe: asyncio.Task[None] | None = None
            while True:
                self._wakeup.clear()
                now = self._clock.monotonic()
                for conversation_id in [key for key, at in self._wakes.items() if at <= now]:
                    del self._wakes[conversation_id]
                    wake(conversation_id)
                # The room's worker may be busy with rows that go before a message that fails alone.
                steps = [each for each in self._steps() if each[2].at_work or each[2].alone]
                if probe is not None and not probe.done():
                    steps = [each for each in steps if each[1] != "look"]
                await self._apply_due(steps, now, wake)
                readings = await self._send_reading_notices()
                to_look_at = [each for each in steps if each[1] == "look"]
                if failing := [each[2] for each in to_look_at if self._is_due(each, now)]:
                    # The other notices are sent meanwhile.
                    probe = probes.create_task(self._probe_running(failing, wake))
                    steps = [each for each in steps if each[1] != "look"]
                due_next = [*self._wakes.values(), *(each[0] for each in steps), *readings]
                with suppress(TimeoutError):
                    # The event loop's clock, as for the deadlines of the model's answer.
                    async with asyncio.timeout(min(due_next) - now if due_next else None):
                        await self._wakeup.wait()

    async def _send_reading_notices(self) -> list[float]:
        """Send due notices about slow reading; return the times of the next ones."""
        now, due = self._clock.monotonic(), self._readings.due()
        for _, reading in [each for each in due if each[0] <= now]:
            fails = reading.row.event_id in self._failing
            if await self._readings.tell(reading, unless=fails):
                self._speaker.speak(reading.row.conversation_id)
        return [at for at, _ in due if at > now]

    def _steps(self) -> list[DueStep]:
        """Return the next step of each failing message, with its time."""
        return [
            (step[1], step[0], failing)
            for failing in self._failing.values()
            if (step := next_step(failing))
        ]

    def _is_due(self, due: DueStep, now: float) -> bool:
        """Return True if a step is due and still the next: earlier steps took their time."""
        at, step, failing = due
        known = self._failing.get(failing.row.event_id)
        return at <= now and known is not None and next_step(known) == (step, at)

    async def _apply_due(
        self, steps: Sequence[DueStep], now: float, wake: Callable[[str], None]
    ) -> None:
        for each in steps:
            _, step, failing = each
            if step != "look" and self._is_due(each, now):
                await self._apply_step(failing, step)
                self._wakeup.set()
                wake(failing.row.conversation_id)

    async def _probe_running(
        self, failing: Sequence[FailingMessage], wake: Callable[[str], None]
    ) -> None:
        """Probe the models for all failing messages that are due for it."""
        by_model = defaultdict[str | None, list[FailingMessage]](list)
        for each in failing:
            by_model[await self.chosen(each.row)].append(each)
        for chosen, some in by_model.items():
            seen = await self._probe(chosen, *some)
            for each in some:
                self._change(each.row, seen)
                wake(each.row.conversation_id)
        self._wakeup.set()

    async def attend(self, conversation_id: str) -> float:
        """Do the due steps for a conversation's waiting messages; return the seconds to the next."""
        while True:
            steps = [
                each
                for each in self._steps()
                if each[2].row.conversation_id == conversation_id and not each[2].at_work
            ]
            if not steps:
                return inf
            due, first, failing = min(steps, key=lambda each: each[0])
            seconds_left = due - self._clock.monotonic()
            if seconds_left > 0:
                return seconds_left
            async with self._database.transaction() as tx:
                waits = await self._inbox.is_waiting(tx, failing.row.event_id)
            if not waits:  # it may have been stopped or retracted
                self._forget(failing.row)
                continue
            self._attended.add(conversation_id)
            try:
                await self._apply_step(failing, first)
            finally:
                self._attended.discard(conversation_id)

    async def _apply_step(self, failing: FailingMessage, step: FailureStep) -> None:
        row = failing.row
        match step:
            case "look":
                self._change(row, await self._probe(await self.chosen(row), failing))
                known = self._failing.get(row.event_id)
                if known and known.alone and not known.at_work:
                    await self._retry_now(row)
            case "knock":
                self._change(
                    row, lambda now: replace(now, connection_tried=self._clock.monotonic())
                )
                chosen = await self.chosen(row)
                if await self._models.accepts_connections(ROLE, chosen):
                    # Reachable again: retry, unless the server failed at each attempt (F-021).
                    now, spent = self._clock.monotonic(), failing.casts >= MOST_CASTS
                    if spent and await self._models.can_answer(ROLE, now, chosen):
                        self._change(row, lambda now: replace(now, given_up=True))
                    await self._retry_now(row)
            case "give up":
                self._change(row, lambda now: replace(now, given_up=True))
                failing.stop.press()
                if not failing.at_work:
                    await self._retry_now(row)
            case "alone":
                await self._tell(failing, f"alone {row.event_id}", replies.ALONE)
            case _:
                if await self.chosen(row) is None:
                    await self._health.note("model", "fail", failing.problem)
                unreachable = step == "unreachable"
                notice = replies.UNREACHABLE if unreachable else replies.OUTAGE
                await self._tell(failing, await self._outage(row), notice)

    async def _probe(
        self, chosen: str | None, *failing: FailingMessage
    ) -> Callable[[FailingMessage], FailingMessage]:
        """Probe the model, and return the change to these failing messages.

        For messages that have failed alone for long, only an answer from now on counts.
        """
        now = self._clock.monotonic()
        since = max(now if each.alone else each.since for each in failing)
        alone = await self._models.can_answer(ROLE, since, chosen)
        if alone or await self._models.accepts_connections(ROLE, chosen):
            return lambda known: replace(known, alone=alone, probed=now)
        # The message may have crashed the server.
        return lambda known: replace(known, alone=None, unreachable=True)

    def given_up(self, row: InboxRow) -> Outcome | None:
        """Return the answer to a message that is given up; None if it is not."""
        failing = self._failing.get(row.event_id)
        if failing is None or not failing.given_up:
            return None
        self._forget(row)
        return _given_up(failing.problem)

    async def _retry_now(self, row: InboxRow) -> None:
        """Let a waiting message be tried at once; `/stop` still knows that it was tried."""
        async with self._database.transaction() as tx:
            stored = await self._inbox.find(tx, row.event_id)
            if stored is not None and stored.state == "waiting":
                await self._inbox.set_state(tx, row.event_id, "waiting", self._clock.monotonic())

    def _change(self, row: InboxRow, change: Callable[[FailingMessage], FailingMessage]) -> None:
        """Update the state of a message, if it still fails."""
        now = self._failing.get(row.event_id)
        if now is not None:
            self._failing[row.event_id] = change(now)

    async def tell_now(self, row: InboxRow) -> None:
        """Tell the person the current state of a waiting message without the usual delay.

        Later findings are told as usual.
        """
        failing = self._failing.get(row.event_id)
        if failing is None or failing.notified:
            return
        if failing.alone:
            await self._tell(failing, f"alone {row.event_id}", replies.ALONE)
        else:
            notice = replies.UNREACHABLE if failing.unreachable else replies.OUTAGE
            await self._tell(failing, await self._outage(failing.row), notice, final=False)

    async def _tell(
        self, failing: FailingMessage, key: str, text: str, *, final: bool = True
    ) -> None:
        notice, room = text.format(problem=failing.problem), failing.row.conversation_id
        if (chosen := await self.chosen(failing.row)) is not None:
            notice = f"{notice}\n\n{replies.CHOSEN.format(name=chosen)}"
        async with self._database.transaction() as tx:
            row = await self._inbox.find(tx, failing.row.event_id) or failing.row
            if row.is_open:
                if not await self._inbox.waits_before(tx, row):  # earlier notices are outdated
                    first = await self._inbox.find(tx, row.edits) if row.edits else None
                    asked_at = (first or row).received_at
                    await self._notices.notice_again(tx, f"{key} {room}", before=asked_at)
                await self._notices.notice_once(tx, f"{key} {room}", EVER, room, notice)
            else:
                self._forget(row)
        self._change(row, lambda now: replace(now, notified=now.notified or final))
        self._speaker.speak(row.conversation_id)

    async def _outage(self, row: InboxRow) -> str:
        """Return the notice key of the outage: one per room, or per message for a chosen model."""
        if await self.chosen(row) is not None:
            return f"chosen {row.event_id}"
        self._was_away = True
        part = await self._health.part("model")
        return f"outage {part.since.isoformat()}" if part else "outage"

    async def ended(self, row: InboxRow, outcome: Outcome, asked: str | None) -> Outcome:
        """Return the final outcome of a cast. `asked`: the model chosen for the message."""
        self.works(row)
        failing = self._failing.get(row.event_id)
        if outcome.reason in ANSWERED:
            await self._answered(row, asked)
        if outcome.reason in UNFIT:
            self._was_unfit = True
            await self._health.note("prompt", "fail", outcome.text)
        if outcome.reason == "model_refused" and await self.chosen(row) is None:
            await self._health.note("model", "fail", outcome.text)
        if failing is None:
            return outcome
        casts = failing.casts + int(failing.hit)
        failing = replace(failing, at_work=False, then="nothing", casts=casts, hit=False)
        if failing.given_up and outcome.reason in ("stopped", "model_unavailable"):
            self._forget(row)
            return _given_up(failing.problem)
        # Stopped to let others go first; `/stop` itself has forgotten it before.
        if failing.alone and outcome.reason == "stopped":
            outcome = Outcome("truncated", "model_unavailable", failing.problem)
        if outcome.reason != "model_unavailable":
            self._forget(row)
            return outcome
        return await self._after_failure(failing, outcome)

    async def _after_failure(self, failing: FailingMessage, outcome: Outcome) -> Outcome:
        """Return the outcome of a cast without an answer: given up if it was the last (F-021)."""
        now, row = self._clock.monotonic(), failing.row
        chosen = await self.chosen(row)
        spent = failing.casts >= MOST_CASTS or now - failing.since >= MOST_SECONDS
        if (
            spent
            and failing.alone is not False
            and await self._models.can_answer(ROLE, now, chosen)
        ):
            self._forget(row)
            return _given_up(outcome.text)
        if spent and failing.alone:  # others are not answered any more
            failing = replace(failing, alone=None)
        if not failing.alone and chosen is None:
            await self._health.note("model", "fail", outcome.text)
            self._was_away = True
        if failing.alone is False:
            # In an outage casts do not count; once it is told, the next probe looks for its end.
            anew = replace(failing, casts=0, alone=None, since=now)
            failing = anew if failing.notified else replace(failing, casts=0)
        elif failing.unreachable and not failing.casts and failing.notified:
            failing = replace(failing, since=now)
        self._failing[row.event_id] = failing
        self._wakeup.set()
        return outcome

    def drop(self, events: Sequence[str]) -> None:
        """Forget these messages: nobody waits for an answer to them any more."""
        for event_id in events:
            self._failing.pop(event_id, None)

    def _forget(self, row: InboxRow) -> None:
        self._failing.pop(row.event_id, None)

    async def _answered(self, row: InboxRow, asked: str | None) -> None:
        """Note that a message has its answer."""
        if asked is None:
            await self._end_outage()
        if self._was_unfit:
            async with self._database.transaction() as tx:
                await self._notices.notice_again(tx, f"unfit {row.conversation_id} ")
                self._was_unfit = bool(await self._notices.noticed(tx, "unfit "))
            if not self._was_unfit and await self._health.part("prompt"):
                await self._health.note("prompt", "ok", "fits")

    async def _end_outage(self) -> None:
        """Tell the rooms that heard of an outage that it is over, if it was long enough (F-036)."""
        part = await self._health.part("model") if self._was_away else None
        if part is not None and part.state == "fail":
            away = self._clock.now() - part.since
            if not timedelta() <= away <= timedelta(seconds=MINUTE):
                await self._tell_outage_over(f"outage {part.since.isoformat()} ")
            # Retry all other messages at once, in the rooms that this speaker serves.
            await self._inbox.retry_now()
            for conversation_id, room_id in await self._inbox.open_conversations():
                if self._speaker.serves(room_id):
                    self.remind(conversation_id, 0.0)
        self._was_away = False
        await self._health.note("model", "ok", "answers")

    def once(self, row: InboxRow, outcome: Outcome, chosen: str | None) -> str:
        """Return the key of a notice that no message fits, told once per room; "" for each time."""
        if outcome.reason not in UNFIT or not is_matrix(row.room_id):
            return ""
        # Otherwise the text has numbers of the message.
        named = outcome.text if outcome.reason == UNFIT[0] else ""
        return f"unfit {row.conversation_id} {self._models.window(ROLE, chosen)} {named}"

    async def _tell_outage_over(self, outage: str) -> None:
        async with self._database.transaction() as tx:
            rooms = [key.removeprefix(outage) for key in await self._notices.noticed(tx, outage)]
            for each in rooms:
                await self._notices.notice_once(
                    tx, f"back {outage} {each}", EVER, each, replies.BACK
                )
        for each in rooms:
            self._speaker.speak(each)


def _given_up(problem: str) -> Outcome:
    return Outcome("truncated", "given_up", problem)


class _Watched:
    """Wraps a cast's watch, and reports failures to `ModelFailures`."""

    def __init__(self, trouble: ModelFailures, row: InboxRow, stop: Stop, watch: Watch) -> None:
        self._trouble = trouble
        self._row = row
        self._stop = stop
        self._watch = watch

    def asked(self) -> None:
        self._trouble.asked(self._row, self._stop)
        self._watch.asked()

    def awaits(self, wait: Wait) -> None:
        self._trouble.awaits(self._row, wait)
        self._watch.awaits(wait)

    def said(self, piece: str) -> None:
        self._trouble.silent(self._row)
        self._watch.said(piece)

    def was_reasoning(self) -> None:
        self._watch.was_reasoning()

    def begun(self) -> None:
        self._trouble.came(self._row, "begun")
        self._watch.begun()

    def gate(self, name: str, doing: str) -> None:
        self._trouble.works(self._row)
        self._trouble.came(self._row, "answered")
        self._watch.gate(name, doing)

    def failed(self, problem: str, *, unreachable: bool) -> None:
        self._trouble.failed(self._row, self._stop, problem, unreachable=unreachable)
