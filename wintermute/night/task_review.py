"""Review of tasks at night: better wording, better priority, and the end of tasks that are done.

    tasks of a scope ─ one question ─▶ actions ─┬▶ the assistant's own tasks: changed at once, undoable
                                                ╰▶ people's tasks, or the end of a schedule: a question

A task ends at once only if its own text says that it is done, or if a remaining task covers all of it.
"""

import logging
import re
import unicodedata
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import Decision, digest_of
from wintermute.db import Transaction
from wintermute.errors import ContextTooLarge, ToolFailed
from wintermute.forgetting.executors import DecisionKind, Kinds
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import InvalidAnswer
from wintermute.llm.tokens import estimate
from wintermute.memory.lexical_overlap import (
    TOKENS,
    Successors,
    are_made_of,
    is_negated,
    main_words,
    succeeds,
)
from wintermute.messages import Json
from wintermute.night.dedup import LONGER
from wintermute.night.pipeline import ROLE, PhaseStep, PhaseWork, answer_or_step
from wintermute.prompt.assemble import task_lines
from wintermute.stores import Stores
from wintermute.tasks.tasks import (
    EVERYWHERE,
    Target,
    Task,
    checked_priority,
    checked_text,
    state_of,
)
from wintermute.text import counted
from wintermute.work.data_folder import DataFolder

BY_ASSISTANT = "tool"
"""Maker of the tasks that the assistant may end without a question (T-058)."""
MOST_ENDED = 3
"""Tasks of a scope that one night ends at once; the others wait for the next night."""
DONE_WORDS = (
    "done finished completed erledigt fertig abgeschlossen fait faite terminé terminée fini hecho hecha"
    " terminado terminada completado fatto fatta finito completato terminato feito feita concluído gedaan"
)
DONE = frozenset(DONE_WORDS.split())
DONE_SIGNS = re.compile("[✅✓✔☑]|\\[x\\]|已完成|做完了|完了|済み|終わった", re.IGNORECASE)
NAMED = re.compile(r"\btask_\w+")
UNUSABLE = "The model's answer was unusable, so no task was changed."
LARGE = "there are more tasks than a model can be shown at once"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskAction:
    """Change to a task that a model proposes. `content`, `priority`: None keeps the old value. `ends`: the task
    is done.

    `foreign`: the new text has words that are in none of the tasks.
    """

    task: Task
    content: str | None = None
    priority: int | None = None
    reason: str = ""
    ends: bool = False
    foreign: bool = False

    @property
    def after(self) -> Task:
        """The task after the change."""
        if self.ends:
            return replace(self.task, status="completed", reason=self.reason)
        content, priority = self.content, self.priority
        return replace(
            self.task,
            content=self.task.content if content is None else content,
            priority=self.task.priority if priority is None else priority,
        )

    @property
    def is_safe(self) -> bool:
        """True if the change loses nothing and needs no person (T-058, T-059)."""
        if self.task.made_by != BY_ASSISTANT:
            return False
        if self.ends:
            return self.task.plan.schedule is None and self.task.snoozed is None
        return not self.foreign and succeeds(self.task.content, self.after.content)


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """Usable actions of an answer, updates first, and the reasons why others were ignored."""

    actions: tuple[TaskAction, ...]
    ignored: tuple[str, ...] = ()


def actions_of(answer: Json, tasks: Mapping[str, Task]) -> TaskAnswer:
    """Read the usable actions of an answer, at most one a task (T-056, T-057). Raises: Unfit."""
    listed = answer.get("actions")
    if not isinstance(listed, list):
        raise InvalidAnswer('"actions" must be a list')
    actions: dict[str, TaskAction] = {}
    ignored = list[str]()
    for item in listed:
        try:
            action = _action(item, tasks)
        except ToolFailed as problem:
            ignored.append(str(problem))
            continue
        if action is not None and action.after != action.task:
            actions.setdefault(action.task.id, action)
    in_order = sorted(actions.values(), key=lambda action: action.ends)
    return TaskAnswer(tuple(in_order), tuple(ignored))


def _action(item: Any, tasks: Mapping[str, Task]) -> TaskAction | None:
    """Read one action; None keeps the task. Raises: ToolFailed with the reason for ignoring it."""
    if not isinstance(item, dict):
        raise ToolFailed("an action is no object")
    name = item.get("task_id")
    task = tasks.get(name.strip().removeprefix("#")) if isinstance(name, str) else None
    if task is None:
        raise ToolFailed("an action names no task that was shown")
    match item.get("action"):
        case "keep":
            return None
        case "complete":
            return TaskAction(task, reason=_reason(item), ends=True)
        case "update":
            return _update(item, task, tasks)
    raise ToolFailed("an action is neither keep, complete nor update")


def _update(item: Json, task: Task, tasks: Mapping[str, Task]) -> TaskAction:
    content, priority = item.get("content"), item.get("priority")
    if content is None and priority is None:
        raise ToolFailed("an update has neither content nor priority")
    text = None if content is None else checked_text(content, "content")
    known = [each.content for each in tasks.values()]
    if text is not None and len(text) >= LONGER * max(map(len, known)):
        raise ToolFailed("an update is much longer than the tasks it is made from")
    foreign = text is not None and not are_made_of(text, known)
    number = None if priority is None else checked_priority(priority)
    return TaskAction(task, text, number, _reason(item, "clearer"), foreign=foreign)


def _reason(item: Json, otherwise: str = "") -> str:
    words = item.get("reason") or otherwise
    return checked_text(words, "the reason of an action")


async def change_task(stores: Stores, tx: Transaction, item: Decision, why: Reason) -> bool:
    """Reword, reprioritise or end a task if it is unchanged since the question (T-060).

    Returns False if the task, or one that the decision relies on, was changed meanwhile.
    """
    tasks, plan = stores.tasks, item.plan
    if await tasks.state(tx, plan["task"]) != plan["was"]:
        return False
    for name, content in plan["beside"].items():
        state = await tasks.state(tx, name)
        if state is None or (state["content"], state["status"]) != (content, "active"):
            return False
    owns = stores.owner.owns(item.scope)
    target = Target(plan["task"], item.scope, why, by_owner=owns)
    if plan["ends"]:
        await tasks.complete(tx, target, plan["ends"])
    else:
        content, priority = plan["content"], plan["priority"]
        await tasks.change(tx, target, content=content, priority=priority)
    return True


TIDIED = DecisionKind(
    *("task", "task tidied", "tasks tidied", "Change this task?", "task changed", change_task),
    ends=("Is this task done?", "task completed"),
)


class TaskReview:
    """Asks a model about the tasks of a scope, once for each state of the list (T-056)."""

    name: ClassVar = "tasks"
    use: ClassVar = "review tasks"
    kinds: ClassVar[Kinds] = (TIDIED,)

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        self._template = own.texts.dream_tasks

    async def size(self, scope: str) -> int:
        """Count active tasks."""
        return len(await self._tasks(scope))

    async def _tasks(self, scope: str) -> dict[str, Task]:
        """Return the tasks of a scope; tasks shown everywhere belong to the owner's."""
        scopes = {scope, EVERYWHERE} if self._stores.owner.owns(scope) else {scope}
        tasks = await self._stores.tasks.listed(scope)
        return {task.id: task for task in tasks if task.scope in scopes}

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield at most one step. Raises: ModelError."""
        tasks = await self._tasks(work.scope)
        digest = _digest(tasks.values())
        if not tasks or not await self._stores.nights.not_yet_asked(work.scope, [digest]):
            return
        answer = await answer_or_step(
            *(self._ask(work, tasks), (digest,)),
            lambda problem: LARGE if isinstance(problem, ContextTooLarge) else UNUSABLE,
        )
        if isinstance(answer, PhaseStep):
            yield answer
            return
        for left_out in answer.ignored:
            log.warning("action on a task ignored reason=%s", left_out)
        plan = plan_actions(answer, tasks)
        waiting = f"{counted(plan.waiting, 'task')} that could end wait for the next night"
        notes = [*answer.ignored, *([waiting] if plan.waiting else [])]
        # The resulting list is not asked about again, unless some ends have to wait.
        known = (digest,) if plan.waiting else (digest, _digest(plan.tasks_after))
        note, left = "; ".join(notes), plan.waiting > 0
        yield PhaseStep(plan.items, judged=known, note=note, unfinished=left)

    async def _ask(self, work: PhaseWork, tasks: Mapping[str, Task]) -> TaskAnswer:
        async def are_unchanged(tx: Transaction) -> bool:
            return all([await _is_unchanged(self._stores, tx, task) for task in tasks.values()])

        shown, template = task_lines(tasks.values()), self._template.text()
        if estimate(template + shown) > work.models.window(ROLE):
            raise ContextTooLarge(LARGE)
        return await work.models.answer_in_json(
            *(ROLE, template, {"content": shown}, lambda found: actions_of(found, tasks)),
            sources=QuestionSources(tuple(tasks), are_unchanged),
        )


async def _is_unchanged(stores: Stores, tx: Transaction, task: Task) -> bool:
    return await stores.tasks.state(tx, task.id) == state_of(task)


def says_done(content: str) -> bool:
    """Decide if a task's text says that it is done and has no negation."""
    words = TOKENS.findall(unicodedata.normalize("NFKC", content).casefold())
    return not is_negated(content) and bool(DONE.intersection(words) or DONE_SIGNS.search(content))


def says_all_of(kept: Task, other: Task) -> bool:
    """Decide if `kept` covers all of `other`, as in M-039; names must match whole.

    It must also be due at the same time, at least as urgent, and visible in the same room or everywhere.
    """
    covering = Successors([kept.content])
    return (
        kept.scope in {other.scope, EVERYWHERE}
        and (kept.plan, kept.snoozed) == (other.plan, other.snoozed)
        and kept.priority <= other.priority
        and _words(other.content) <= _words(kept.content)
        and covering.cover(other.content, 0)
        and not covering.outdates(other.content, 0)
    )


def _words(content: str) -> set[str]:
    """Return the main words and all names, including short ones."""
    names = {word.casefold() for word in TOKENS.findall(content) if word != word.lower()}
    return names | main_words(content)


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """End of a task. `successor`: the task that covers it. `proved`: its own text or the other task proves it."""

    action: TaskAction
    successor: Task | None = None
    proved: bool = True


def ends_of(actions: Sequence[TaskAction], then: Mapping[str, Task]) -> list[TaskEnd]:
    """Choose the tasks that may end together: a task that covers another one stays, so one of a cycle stays.

    `tasks_after`: all tasks with their new wording.
    """
    ending = {action.task.id: action for action in actions if action.ends}
    ended = {name for name, action in ending.items() if says_done(action.task.content)}
    ends = [TaskEnd(ending[name]) for name in ending if name in ended]
    staying = [name for name in then if name not in ending]
    for name, action in ending.items():
        if name in ended or name in staying:
            continue
        others = [*staying, *(each for each in ending if each not in {*ended, *staying, name})]
        successor = next((each for each in others if says_all_of(then[each], action.task)), None)
        proved = successor is not None
        if successor is None:
            successor = next(
                (each for each in NAMED.findall(action.reason) if each in others), None
            )
        ends.append(TaskEnd(action, then[successor] if successor else None, proved))
        ended.add(name)
        if successor is not None and successor not in staying:
            staying.append(successor)
    return ends


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Decisions from an answer. `tasks_after`: tasks after them. `waiting`: number of ends left for the next night."""

    items: tuple[Decision, ...]
    tasks_after: tuple[Task, ...]
    waiting: int = 0


def plan_actions(answer: TaskAnswer, tasks: Mapping[str, Task]) -> TaskPlan:
    """Turn actions into decisions. While an update waits or was ignored, no task ends at once.

    The wording that makes one task cover another may not be in place yet.
    """
    updates = [action for action in answer.actions if not action.ends]
    waits = bool(answer.ignored) or not all(action.is_safe for action in updates)
    then = {**tasks, **{action.task.id: action.after for action in updates}}
    items = [_item(action, {}, question=not action.is_safe) for action in updates]
    done = [action for action in updates if action.is_safe]
    ended = 0
    for end in ends_of(answer.actions, then):
        at_once = end.proved and end.action.is_safe and not waits
        ended += at_once
        if at_once and ended > MOST_ENDED:
            continue
        relies = {end.successor.id: end.successor.content} if end.successor else {}
        items.append(_item(end.action, relies, question=not at_once))
        done += [end.action] if at_once else []
    after = {**tasks, **{action.task.id: action.after for action in done}}
    active = tuple(task for task in after.values() if task.status == "active")
    return TaskPlan(tuple(items), active, max(0, ended - MOST_ENDED))


def _item(action: TaskAction, relied_on: Mapping[str, str], *, question: bool) -> Decision:
    after = action.after
    return Decision(
        kind="task",
        before=(task_lines([action.task]),),
        after="" if action.ends else task_lines([after]),
        reason=f"done: {action.reason}" if action.ends else action.reason,
        plan={
            "task": action.task.id,
            "was": state_of(action.task),
            "content": action.content,
            "priority": action.priority,
            "ends": action.reason if action.ends else "",
            "beside": dict(relied_on),
        },
        evidence=(action.task.id,),
        state="open" if question else "planned",
    )


def _digest(tasks: Iterable[Task]) -> str:
    return digest_of("tasks", *(task_lines([task]) for task in tasks))
