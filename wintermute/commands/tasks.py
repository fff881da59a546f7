"""Tasks, facts and changes in a chat: lists for a person, and commands that change one task.

`/tasks` lists the tasks and does what reactions on reminders do (T-011, T-063); `/remind` makes a
reminder without a model (T-062).
"""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from itertools import groupby
from zoneinfo import ZoneInfo

from wintermute.changes.change_sets import Change, ChangeSet, Reason
from wintermute.changes.undo import ALL_OF_IT, Conflict, Undone
from wintermute.clock import DAYS, Clock
from wintermute.conversation.dispatcher import written
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.mailbox.inbox import InboxRow
from wintermute.messages import Json
from wintermute.owner import is_owner
from wintermute.stores import Stores
from wintermute.tasks.due import relative_time, tomorrow
from wintermute.tasks.occurrences import LATE, Occurrence
from wintermute.tasks.parse import find_time, spoken, why_unreadable
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import CLOSE, EVERYWHERE, Status, Target, Task, Tasks
from wintermute.text import EMPTY_LISTS, plain

MOST = 160  # characters of a text in a list
MOST_LINES = 50
NOTHING_TO_UNDO = "There is nothing to undo: everything is as it was before."
THINGS = {"fact": "memory", "task": "task"}
"""People's words for the kinds of items that have an id in place of a name."""
BY = {"undo": "an undo", "import": "an import", "edit": "an edit", "command": "a command"}
"""People's words for causes of changes other than the assistant."""
PARTS = {"content": "text", "schedule": "time", "ai_prompt": "prompt", "valid_to": "end"}
"""People's words for the fields of items."""
CORE = "what I always keep in mind"
GROUPS = ("Today", "This week", "Later", "Any time", "Paused")
USUAL = 5  # the priority that a list leaves out
WEEK = 7
"""Days, including today: each weekday comes once."""
HELD = "due, but I have no room to post it in"
SNOOZE = timedelta(minutes=10)
TASK_ID = re.compile(r"task_\w+")
AROUND = "`#()[].,:;"
"""Marks that people copy together with an id."""
VERBS = """\
- `/tasks`: list the tasks of this chat
- `/tasks done TASK`: mark it as done; a repeating task comes again at its next time
- `/tasks snooze TASK`: remind again in 10 minutes
- `/tasks tomorrow TASK`: remind again tomorrow at the same time
- `/tasks cancel TASK`: delete it
- `/tasks pause TASK`, `/tasks resume TASK`: stop it for a while

TASK is the number in the list, or words of the task, as in `/tasks done call mum`.
Without TASK, `done`, `snooze`, `tomorrow` and `cancel` mean the last reminder here.
P1 in the list is an urgent task, P10 one of low priority; the usual P5 is left out."""
FORMS = (
    "tomorrow at 9 call Anna",
    "in 20 minutes take the pizza out",
    "every monday at 8 water the plants",
)
TO_ME = re.compile(r"\Ame\s+", re.IGNORECASE)
LINK = re.compile(r"\A(?:to|that|of|about)\s+", re.IGNORECASE)
"""Words of `/remind me tomorrow at 9 to call mum` that are not part of the reminder."""


def bounded(lines: list[str], count: int = 0) -> str:
    """Join the first lines, and say how many more there are (of `count`, if some are left out already)."""
    more = max(len(lines), count) - MOST_LINES
    return "\n".join(lines[:MOST_LINES] + ([f"\nand {more} more"] if more > 0 else []))


def task_line(task: Task) -> str:
    """Return a task as the prompt shows it, with its status unless it is active."""
    when = f" [{task.schedule}]" if task.schedule else ""
    ended = f"{task.status}: {task.reason}" if task.reason else task.status
    status = "" if task.status == "active" else f" ({ended})"
    return f"[P{task.priority}] #{task.id}: {task.content}{when}{status}"


def set_lines(change_set: ChangeSet, zone: ZoneInfo) -> list[str]:
    """Return id, time and cause of a change set, then the old and new state of each item."""
    when = change_set.created_at.astimezone(zone)
    undone = f", undoes {change_set.undoes}" if change_set.undoes else ""
    head = f"{change_set.id}  {when:%Y-%m-%d %H:%M}  {change_set.cause}{undone}"
    lines = [
        f"  {change_line(change)}{' (undone)' if change.item in change_set.undone else ''}"
        for change in change_set.changes
    ]
    return [head, *lines]


def change_line(change: Change) -> str:
    """Return a change as a line: `+` something new, `-` something removed, `~` something changed."""
    if change.before is None:
        return f"+ {change.kind} {change.item}: {_brief(change.after)}"
    if change.after is None:
        return f"- {change.kind} {change.item}: {_brief(change.before)}"
    fields = [
        f"{name}: {brief(change.before.get(name))} -> {brief(change.after.get(name))}"
        for name in {**change.before, **change.after}
        if change.before.get(name) != change.after.get(name)
    ]
    return f"~ {change.kind} {change.item}: {'; '.join(fields)}{_unchanged_text(change)}"


def _unchanged_text(change: Change) -> str:
    """Return the text of an item if the change left it alone."""
    said, before = _brief(change.after), _brief(change.before)
    return f" ({said})" if said and said == before else ""


def _brief(state: Json | None) -> str:
    named = state or {}
    return brief(named.get("text") or named.get("content") or "")


def brief(value: object) -> str:
    """Return the beginning of a text, in one line."""
    line = " ".join(str(value).split())
    return line if len(line) <= MOST else f"{line[: MOST - 1]}…"


def describe_undo(undone: Undone) -> str:
    """Describe an undo for a chat."""
    return bounded(undo_lines(undone)) or NOTHING_TO_UNDO


def undo_lines(undone: Undone, *, shell: bool = False) -> list[str]:
    """Describe an undo line by line; no line if nothing was undone and nothing prevented it.

    `shell`: as plain text, with the ids of later changes.
    """
    merged = [line for merge in undone.merges for line in _undone_lines(merge, shell)]
    lines = [f"- undone first, because it was merged since: {line}" for line in merged]
    return lines + [f"- {line}" for line in _undone_lines(undone, shell)]


def _undone_lines(undone: Undone, shell: bool) -> list[str]:
    partly, shown = {kept.item for kept in undone.kept}, str if shell else plain
    back = [_undone_line(change, change.item in partly, shown) for change in undone.back]
    return back + [
        _conflict_line(kept, shown, kept.held_by if shell else "") for kept in undone.kept
    ]


def _conflict_line(kept: Conflict, shown: Callable[[str], str], later: str) -> str:
    """Name the part of an item that could not be undone, and the later change that prevents it."""
    parts = [PARTS.get(name, name) for name in kept.fields if name != ALL_OF_IT]
    part = f"{' and '.join(parts)} of " if parts else ""
    text = f"the {THINGS.get(kept.kind, kept.kind)} {shown(brief(_text_of(kept, kept.state)))}"
    by = BY.get(kept.cause, "I" if kept.cause else "something")
    since = f"since ({later})" if later else "since"
    return f"not undone, because {by} changed it {since}: {part}{CORE if kept.kind == 'core' else text}"


def _undone_line(change: Change, partly: bool, shown: Callable[[str], str]) -> str:
    """Describe the undo of one item. `before` is its state before the undo, `after` the restored one."""
    if change.kind == "core":
        return f"{CORE} is {'partly ' if partly else ''}as it was before"
    thing = THINGS.get(change.kind, change.kind)
    text = shown(_text_of(change, change.after or change.before))
    if change.after is None:
        return f"the {thing} is gone again: {text}"
    if change.before is None:
        return f"the {thing} is back: {text}"
    if change.before.get("status") != change.after.get("status"):
        return f"the {thing} is {change.after.get('status')} again: {text}"
    return f"the {thing} is {'partly ' if partly else ''}as it was before: {text}"


def _text_of(named: Change | Conflict, state: Json | None) -> str:
    """Return the text of a memory or task, else the name of the item."""
    said = state and named.kind in THINGS and (state.get("text") or state.get("content"))
    return str(said or named.item)


def task_list(
    tasks: Sequence[Task], last: Mapping[str, Occurrence], now: datetime, zone: ZoneInfo
) -> str:
    """Return the tasks under headings by due time; empty if there are none.

    `last`: the newest occurrence of each task that has one.
    """
    moments = {task.id: _moment(task, last.get(task.id)) for task in tasks}

    def group(task: Task) -> int:
        return _group(task, moments[task.id], now, zone)

    in_order = sorted(tasks, key=lambda task: (group(task), moments[task.id] or now))
    parts = []
    for heading, found in groupby(in_order[:MOST_LINES], group):
        lines = [_line(task, moments[task.id], last.get(task.id), now, zone) for task in found]
        parts.append("\n".join([f"**{GROUPS[heading]}**", *lines]))
    more = len(tasks) - MOST_LINES
    return "\n\n".join([*parts, *([f"and {more} more"] if more > 0 else [])])


def _moment(task: Task, last: Occurrence | None) -> datetime | None:
    """Return when a task is due; until a claimed reminder is delivered, when it was due."""
    if task.status == "paused":
        return None
    if task.next_due is None and last is not None and last.state == "claimed":
        return last.due_at
    return task.next_due


def _group(task: Task, due: datetime | None, now: datetime, zone: ZoneInfo) -> int:
    if due is None:
        return GROUPS.index("Paused" if task.status == "paused" else "Any time")
    days = _days(due, now, zone)
    return GROUPS.index("Today" if days < 1 else "This week" if days < WEEK else "Later")


def _days(when: datetime, now: datetime, zone: ZoneInfo) -> int:
    return (when.astimezone(zone).date() - now.astimezone(zone).date()).days


def _shown(when: datetime, now: datetime, zone: ZoneInfo) -> str:
    """Return `18:30` for today, `Thu 09:00` for the week to come, else the date and time."""
    local, days = when.astimezone(zone), _days(when, now, zone)
    time = f"{local:%H:%M}"
    if days == 0:
        return time
    return f"{DAYS[local.weekday()][:3]} {time}" if 0 < days < WEEK else f"{local.date()} {time}"


def _line(
    task: Task, due: datetime | None, last: Occurrence | None, now: datetime, zone: ZoneInfo
) -> str:
    details = [f"P{task.priority}"] if task.priority != USUAL else []
    if task.schedule and (task.plan.recurs or due is None):
        details.append(task.schedule)
    if task.plan.mode != "reminder":
        details.append("runs by itself")
    notes = [", ".join(details), _time_remark(task, due, now), _last_outcome(task, last, now, zone)]
    about = "; ".join(note for note in notes if note)
    when = f"{_shown(due, now, zone)} " if due else ""
    line = f"- `{task.number}` {when}{plain(brief(task.content))}"
    return f"{line} ({about})" if about else line


def _time_remark(task: Task, due: datetime | None, now: datetime) -> str:
    """Return a remark about the task's time."""
    if task.held:
        return HELD
    if task.status == "active" and due is None and task.plan.schedule:
        return "its time has passed"
    return "overdue" if task.next_due and due and now - task.next_due > LATE else ""


def _last_outcome(task: Task, last: Occurrence | None, now: datetime, zone: ZoneInfo) -> str:
    """Return how the last occurrence went, unless all went well."""
    if last is None:
        return ""
    reminds = last.mode == "reminder"
    missed = f"{last.missed} missed, " if last.missed > 1 else ""
    if last.state == "claimed":
        return missed + ("being delivered" if reminds else "its run is not finished")
    if last.state == "failed":
        # The result of a run is as private as its room.
        why = f": {plain(brief(last.result))}" if task.scope != EVERYWHERE else ""
        return f"last run failed{why}"
    ended = (last.ended_at or last.due_at).replace(second=0, microsecond=0)
    if not last.missed and not (reminds and ended - last.due_at > LATE):
        return ""
    return f"{missed}last {'said' if reminds else 'run'} late at {_shown(ended, now, zone)}"


class TaskCommands:
    """Answers `/tasks` and its subcommands."""

    def __init__(self, stores: Stores, clock: Clock) -> None:
        self._tasks = stores.tasks
        self._occurrences = stores.occurrences
        self._clock = clock
        self._verbs: dict[str, Callable[[Transaction, Target], Awaitable[str]]] = {
            "done": self._done,
            "snooze": self._snooze,
            "tomorrow": self._tomorrow,
            "cancel": self._cancel,
            "pause": self._pause,
            "resume": self._resume,
        }

    async def answer(self, tx: Transaction, row: InboxRow, scope: str) -> str:
        """List the tasks of a scope, or change one of them."""
        words = row.body.split()[1:]
        room_tasks = await self._occurrences.room_tasks_shown_in(tx, row.conversation_id)
        if not words:
            return await self._listed({scope, *room_tasks.values()})
        verb = self._verbs.get(words[0].lower())
        if len(words) == 1 and words[0].lower() in ("done", "snooze", "tomorrow", "cancel"):
            last = await self._occurrences.last_delivered(tx, row.conversation_id)
            words += [last] if last else []
        if verb is None or len(words) < 2:
            return f"{self._missing(words)}\n\n{VERBS}"
        why = Reason("command", scope, evidence=(row.event_id,))  # `/undo` here finds it
        task_id = ""
        try:
            task_id = await self._named(" ".join(words[1:]), {scope, *room_tasks.values()})
            its_scope, by_owner = room_tasks.get(task_id, scope), is_owner(row.origin)
            return await verb(tx, Target(task_id, its_scope, why, by_owner))
        except ToolFailed as problem:
            said = str(problem)  # the id is shown only if the person wrote it
            return said if task_id in row.body.lower() else said.replace(task_id, "It")

    def _missing(self, words: Sequence[str]) -> str:
        """Name the wrong or missing part of a line, with a line that works."""
        verb = words[0].lower()
        if verb in self._verbs:
            return f"Which task? Add its number or its words, as in `/tasks {verb} 2`."
        near = get_close_matches(verb, self._verbs, 1, CLOSE)
        say = f"Did you mean `/tasks {near[0]}`?" if near else "Say what to do: `/tasks done 2`."
        return f"I do not know {plain(brief(words[0]))}. {say}"

    async def _named(self, name: str, scopes: Collection[str]) -> str:
        """Find one task by its number, its id or words of it. Raises: ToolFailed unless there is exactly one."""
        called = name.strip(AROUND).lower()
        if TASK_ID.fullmatch(called):
            return called
        is_number = called.isascii() and called.isdigit()  # a number is never searched in the text
        begins = re.compile(rf"(?<![a-z0-9]){re.escape(name.casefold())}")  # `all` is not in `call`
        for statuses in (("active", "paused"), ("completed",)):
            found = await self._of(scopes, *statuses)
            numbered = [task for task in found if called == str(task.number)]
            saying = [task for task in found if begins.search(task.content.casefold())]
            named = numbered if is_number else saying
            if len(named) > 1:
                which = "\n".join(
                    f"- `{task.number}` {_named(task)}" for task in named[:MOST_LINES]
                )
                raise ToolFailed(f"Several tasks say that. Give the number of one:\n{which}")
            if named:
                return named[0].id
        what = "has the number" if is_number else "says"
        raise ToolFailed(f"No task here {what} {plain(brief(name))}. `/tasks` lists them.")

    async def _of(self, scopes: Collection[str], *statuses: Status) -> list[Task]:
        found = [
            task
            for scope in sorted(scopes)
            for status in statuses
            for task in await self._tasks.listed(scope, status)
        ]
        return list({task.id: task for task in found}.values())  # global ones come twice

    async def _listed(self, scopes: Collection[str]) -> str:
        tasks = await self._of(scopes, "active", "paused")
        last = await self._occurrences.last([task.id for task in tasks])
        listed = task_list(tasks, last, self._clock.now(), self._tasks.zone)
        return listed or EMPTY_LISTS["tasks"]

    async def _done(self, tx: Transaction, target: Target) -> str:
        before = await self._tasks.get(target.task_id, target.scope)
        if before.status == "paused" and not before.plan.recurs:
            await self._tasks.complete(tx, target, "done")
            return f"Done: {_named(before)}"
        task = await self._tasks.acknowledge(tx, target)
        to_come = task.plan.recurs and task.next_due and task.next_due > self._clock.now()
        if to_come and task == before and not await self._occurrences.last([task.id]):
            return f"It is not due yet and comes {self._spoken(task)}: {_named(task)}"
        until = f" until {self._spoken(task).removeprefix('on ')}" if task.next_due else ""
        return f"Done{until}: {_named(task)}"

    async def _snooze(self, tx: Transaction, target: Target) -> str:
        until = self._clock.now().replace(microsecond=0) + SNOOZE
        task = await self._tasks.snooze(tx, target, until)
        return f"Again at {until.astimezone(self._tasks.zone):%H:%M}: {_named(task)}"

    async def _tomorrow(self, tx: Transaction, target: Target) -> str:
        now, zone = self._clock.now(), self._tasks.zone
        before = await self._tasks.get(target.task_id, target.scope)
        last = (await self._occurrences.last([before.id])).get(before.id)
        due = last.due_at if last else before.next_due or now.replace(second=0, microsecond=0)
        until = tomorrow(due, now, zone)
        task = await self._tasks.snooze(tx, target, until)
        return f"Again {relative_time(until, now, zone)}: {_named(task)}"

    async def _cancel(self, tx: Transaction, target: Target) -> str:
        task = await self._tasks.delete(tx, target)
        elsewhere = task.scope == EVERYWHERE and target.scope != self._tasks.owner.scope
        where = " in the owner's own chat" if elsewhere else ""
        return f"Cancelled: {_named(task)} (`/undo`{where} brings it back)"

    async def _pause(self, tx: Transaction, target: Target) -> str:
        task = await self._tasks.pause(tx, target)
        return f"Paused until `/tasks resume {task.number}`: {_named(task)}"

    async def _resume(self, tx: Transaction, target: Target) -> str:
        task = await self._tasks.resume(tx, target)
        if task.next_due:
            return f"Active again, next {self._spoken(task)}: {_named(task)}"
        if task.plan.schedule is None:
            return f"Active again: {_named(task)}"
        return (
            "Active again, but its time has passed and it will not come by itself;"
            f" `/tasks tomorrow {task.number}` lets it come tomorrow: {_named(task)}"
        )

    def _spoken(self, task: Task) -> str:
        now, zone = self._clock.now(), self._tasks.zone
        return relative_time(task.next_due, now, zone) if task.next_due else ""


def _named(task: Task) -> str:
    return plain(brief(task.content))


class RemindCommand:
    """Answers `/remind`: reads a time and a text, and makes a task of them."""

    def __init__(self, tasks: Tasks, clock: Clock) -> None:
        self._tasks = tasks
        self._clock = clock

    async def answer(self, tx: Transaction, row: InboxRow, scope: str) -> str:
        """Make a reminder; the answer says when it is due next, with a remark if that may surprise."""
        line = "".join(row.body.split(maxsplit=1)[1:])
        now = self._clock.now()
        try:
            asked = TO_ME.sub("", line, 1)
            read = find_time(asked, now, self._tasks.zone)
            if read is None or not read.rest:
                forms = (f"- `/remind {form}`" for form in FORMS)
                why = (not read and plain(why_unreadable(asked))) or "I need a time and a text."
                return "\n".join([f"{why} Write for example:", *forms])
            task = await self._tasks.add(
                tx,
                Reason("command", scope, evidence=(row.event_id,)),
                LINK.sub("", read.rest, 1) if TO_ME.match(line) else read.rest,
                scope=scope,
                request=PlanRequest.of({"at": read.at}),
                conversation_id=row.conversation_id,
                origins=(row.event_id,),
                written=written(row, now),
            )
        except ToolFailed as problem:
            return str(problem)
        return self._promise(task, now, *spoken(read.at))

    def _promise(self, task: Task, now: datetime, often: str, zoned: bool) -> str:
        schedule, due, zone = task.plan.schedule, task.next_due, self._tasks.zone
        whom = "this room" if task.scope.startswith("room:") else "you"
        if schedule is None or due is None:
            return f"Done: {plain(task.content)}"
        when = relative_time(due, now, zone) + (f" {due.astimezone(zone):%Z}" if zoned else "")
        if due <= now:
            return f"That was due {when}, before I read it. I'll remind {whom} now."
        remark = schedule.remark(due, zone)
        said = f"I'll remind {whom} {when}, {often}: {plain(task.content)}"
        return f"{said}\n{remark[0].upper()}{remark[1:]}." if remark else said
