"""Runs the casts of a branch again, offline: is the model asked now what it was asked then (L-088).

    python -m tests.replay DATA THREAD

DATA is a data folder with its config.yaml beside it, whose daemon had `llm.record: true`; THREAD is
the id of a branch, or of a room for its newest branch. It prints `no divergence`, or the first
request that differs with its turn, and leaves with 1; with 2 when nothing can be run again.

    Loop ── ask ──▶ Script: is this what was asked then? ──▶ the recorded answer
         ── run ──▶ Script: what did this call give then? ──▶ the recorded observation

Each cast runs through the real loop, on a copy of the database in which nothing is newer than it.
"""

import argparse
import asyncio
import difflib
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.world.clock import SYSTEM, FakeClock
from wintermute.cli.prompt import Described, described
from wintermute.clock import stamp
from wintermute.config.read import environment, read_with_gaps
from wintermute.config.schema import Config, Context
from wintermute.config.secrets import UNHIDDEN, Redaction, secret_values
from wintermute.conversation import model_requests
from wintermute.conversation.cast import Loop
from wintermute.conversation.context_updates import ContextUpdates
from wintermute.conversation.gates import Gates
from wintermute.conversation.state import CastSettings, CastState, Stop, Unwatched
from wintermute.conversation.toolbox import Accepted, AnyTool, Caller, Rejected, Toolbox
from wintermute.db import Database, driver, open_database
from wintermute.db.values import reader
from wintermute.errors import ContextTooLarge, EmptyReply, ModelUnavailable, WintermuteError
from wintermute.ids import new_id
from wintermute.llm import tokens
from wintermute.llm.backend import SILENT_LISTENER, Listener
from wintermute.llm.models import Models, with_empty_answer_hint
from wintermute.llm.provider_fields import without_fields
from wintermute.loom.reader import LoomReader
from wintermute.loom.records import Cast, Turn
from wintermute.messages import Json, Reply, Request, Size
from wintermute.owner import Owner
from wintermute.prompt import assemble
from wintermute.prompt.assemble import DIVIDER, INSTRUCTIONS, SUMMARY, pieces
from wintermute.prompt.context_block import Layout
from wintermute.prompt.context_builder import FILE, FILE_SMALL, Instructions
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.text import harmless
from wintermute.tools.night_tool import NIGHT
from wintermute.wiki.recall import RECALL

DATABASE = "wintermute.db"
SAME = "no divergence"
SCOPED = {RECALL, NIGHT}
"""Tools that are not there in every conversation."""
OUR_HEADINGS = {*assemble.HEADINGS, assemble.RANKED, *assemble.WORKER_HEADINGS}
FILES = {"full": (FILE, "WORKER_MINIMAL.txt"), "small": (FILE_SMALL, "WORKER_MINIMAL.small.txt")}
COMPACTION = model_requests.ROLE
BY_ITSELF = {"text", "done", "max_turns", "max_tokens"}
"""Reasons for which the loop ended a cast without anybody or anything outside."""
TOO_LARGE = "context"
CUT = 100
"""Characters: whatever is shortened to fit a window loses more."""
TOO_MANY = 1_000
"""Times the window: so much that no fold can have been enough."""
ITS_PLACE = "(SELECT seq FROM casts WHERE id = :cast)"
EARLIER = (
    "DELETE FROM folds WHERE created_at >= :begun",
    f"DELETE FROM turns WHERE cast_id IN (SELECT id FROM casts WHERE seq >= {ITS_PLACE})",
    "DELETE FROM observations WHERE turn_id NOT IN (SELECT id FROM turns)",
    f"DELETE FROM casts WHERE seq > {ITS_PLACE}",
    "UPDATE casts SET state = 'running', reason = NULL, result = NULL, ended_at = NULL,"
    " fold_refused = 0 WHERE id = :cast",
)
"""Statements that take away what is newer than the beginning of a cast."""


@dataclass(frozen=True, slots=True)
class Today:
    """The material of requests now.

    `ephemeral` are the names of tools whose results are not shown, `small` the backends whose models
    are small.
    """

    tools: tuple[AnyTool, ...]
    prompts: Path
    context: Context
    window: Callable[[str, str | None], int]
    ephemeral: Collection[str] = ()
    small: Collection[str] = ()
    redact: Redaction = UNHIDDEN

    @classmethod
    def of(cls, config: Config, stores: Stores) -> "Today":
        """Read a configuration; no model is asked, so no connection is opened."""
        return cls(
            (*described(config, stores), *map(Described, SCOPED)),
            stores.prompts,
            config.context,
            Models(config.llm, stores.database, SYSTEM, new_id, config.timezone).window,
            config.tools.ephemeral,
            config.llm.small,
            Redaction(secret_values(config)),
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """One question and its answer, as they were kept."""

    role: str
    outcome: str
    request: Request
    answer: Reply
    attempt: int = 1
    """The first to this backend, or which after others that failed."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An attempt that failed; `outcome` is one word."""

    role: str
    outcome: str


Event = Recorded | Unanswered


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """A turn, the question that led to it (None: it records a failure), and what came before."""

    turn: Turn
    question: Recorded | None
    before: list[Event]

    def failures(self, role: str, outcome: str = "", until: int | None = None) -> list[Event]:
        """List the attempts at an answer, or at a summary, that failed."""
        return [
            each
            for each in self.before[:until]
            if isinstance(each, Unanswered)
            and (each.role == COMPACTION) == (role == COMPACTION)
            and outcome in ("", each.outcome)
        ]


class Diverged(Exception):
    """Something else happens than what was recorded; `turn_id` is None after the last turn."""

    def __init__(self, cast_id: str, turn_id: str | None, *lines: str) -> None:
        super().__init__(lines[0])
        self.cast_id = cast_id
        self.turn_id = turn_id
        self.lines = lines


class RecordEnds(Exception):
    """Nothing of what follows was recorded: the cast was stopped, or is still running."""


async def events(database: Database, cast_id: str) -> list[Event]:
    """Read all attempts of a cast that failed, or that were kept, oldest first."""
    rows = await database.rows(
        "SELECT role, outcome, request, answer, attempt FROM model_calls WHERE cast_id = ?"
        " AND (outcome <> 'ok' OR request IS NOT NULL) ORDER BY created_at, rowid",
        (cast_id,),
    )
    kept, failed = reader(Recorded), reader(Unanswered)
    return [kept(row) if row["outcome"] == "ok" else failed(row) for row in rows]


def steps(cast: Cast, events: Sequence[Event]) -> list[ScriptStep] | None:
    """Sort what was recorded of a cast by its turns; None when it is not all there.

    An answer that a crash kept from becoming a turn was asked for again: the later one counts.
    """
    found, turns = list[ScriptStep](), [*cast.turns]
    if turns[-1].error is not None or not (turns[-1].backend or turns[-1].tokens):
        found.append(ScriptStep(turns.pop(), None, []))
    for event in reversed(events):
        if isinstance(event, Unanswered) or event.role == COMPACTION:
            for step in found[:1]:
                step.before.insert(0, event)
        elif (
            turns
            and event.answer.text == turns[-1].utterance
            and event.answer.calls == turns[-1].calls
        ):
            found.insert(0, ScriptStep(turns.pop(), event, []))
    return None if turns else found


class Script:
    """Stands in for what a cast asks: models (`ModelClient`), its prompt (`Prompt`), and gates."""

    def __init__(
        self, cast: Cast, recorded: Sequence[ScriptStep], today: Today, *, below: bool = False
    ) -> None:
        """`below`: it is the cast of a sub-session."""
        self._cast = cast
        self._steps = recorded
        self._today = today
        self._below = below
        self._given = 0
        self.compared = 0
        """The number of requests that are the same as in the record."""

    @property
    def turn_id(self) -> str:
        """The turn that was answered last."""
        return self._steps[self._given - 1].turn.id

    def turn(self, turn_id: str) -> Turn:
        """A turn as it was recorded."""
        return next(step.turn for step in self._steps if step.turn.id == turn_id)

    @property
    def upcoming(self) -> ScriptStep:
        """The next recorded step. Raises: Diverged, RecordEnds when there is none."""
        if self._given < len(self._steps):
            return self._steps[self._given]
        if self._cast.reason in BY_ITSELF:
            line = "the record ends here; now the model is asked once more"
            raise Diverged(self._cast.id, None, line)
        raise RecordEnds

    def ended(self) -> None:
        """The loop has come to an end. Raises: Diverged when more was asked then."""
        if self._given < len(self._steps):
            turn_id = self.upcoming.turn.id
            raise Diverged(self._cast.id, turn_id, f"now the cast ends before {turn_id}")

    async def ask(
        self,
        role: str,
        request: Request,
        *,
        backend: str | None = None,
        cast_id: str | None = None,
        listener: Listener = SILENT_LISTENER,
    ) -> Reply:
        """Give the recorded answer. Raises: ModelError as then; Diverged, RecordEnds."""
        step, is_summary, place = self.upcoming, role == COMPACTION, None
        then = step.question
        if is_summary:
            then = next((each for each in step.before if isinstance(each, Recorded)), None)
            place = step.before.index(then) if then else 0
        elif then is None:
            self._given += 1
            raise (EmptyReply if step.turn.error is None else ModelUnavailable)(
                step.turn.error or ""
            )
        failed = step.failures(role, until=place)
        found = ["now a summary is asked for"]
        if then is not None:
            outcomes = [each.outcome for each in failed]
            now = with_empty_answer_hint(
                self._plain(request), outcomes[len(failed) - then.attempt + 1 :]
            )
            found = difference(self._plain(then.request), now)
            if not found:
                self.compared += 1
                self._given += not is_summary
                del step.before[: place + 1 if place is not None else 0]
                return then.answer
        for each in step.failures(role, "" if is_summary else TOO_LARGE)[:1]:
            step.before.remove(each)
            raise (ModelUnavailable if is_summary else ContextTooLarge)("as then")
        raise Diverged(self._cast.id, step.turn.id, *found)

    def window(self, role: str, backend: str | None = None) -> int:
        """As configured now."""
        return self._today.window(role, backend)

    def tokens(self, role: str, request: Request, backend: str | None = None) -> int:
        """Count as much as the record says about its fit: estimates depend on what else was asked."""
        request, window, step = self._plain(request), self.window(role, backend), self.upcoming
        if role == COMPACTION:
            return tokens.size(request)
        if self._fits(request, step):
            return 0
        if not any(each.role == COMPACTION for each in step.before):
            return TOO_MANY * window  # it was cut, for no fold was enough
        # A fold takes as much as is too much: as the next question was counted.
        asked, ratio = step.question, 1.0
        if asked is not None:
            ratio = asked.answer.usage.tokens_in / max(1, tokens.size(asked.request))
        least = int(self._today.context.fold_at * window) + 1
        return max(least, int(tokens.size(request) * ratio))

    def _fits(self, request: Request, step: ScriptStep) -> bool:
        if step.before and isinstance(step.before[0], Recorded):  # it was folded
            return False
        if step.question is None or step.failures("base", TOO_LARGE):
            return True
        then, now = step.question.request.messages, request.messages
        return len(now) <= len(then) and _characters(now) < _characters(then) + CUT

    def sizes(self, role: str, backend: str | None = None) -> tuple[Size, ...]:
        """That of the model which answered then."""
        question = self.upcoming.question
        return ("full" if question is None else self.size_of(question.answer.backend),)

    def size_of(self, backend: str) -> Size:
        """As configured now."""
        return "small" if backend in self._today.small else "full"

    def _plain(self, request: Request) -> Request:
        """As the record has it: JSON, without secrets."""
        both = self._today.redact.tree([without_fields(request.messages), request.tools])
        messages, tools = json.loads(json.dumps(both))
        return Request(tuple(messages), tuple(tools), request.must_call)

    @property
    def _system(self) -> str | None:
        """The system prompt of then; "" when nobody knows it: a failure is all that was recorded."""
        question = self.upcoming.question
        first = question.request.messages[0] if question else {"role": "system", "content": ""}
        return str(first["content"]) if first["role"] == "system" else None

    @property
    def layout(self) -> Layout:
        """The one of then."""
        names = {name for name, _ in pieces(self._system or "")}
        return "append" if names.isdisjoint((assemble.TIME, SUMMARY)) else "system"

    async def changing_parts(self, *_: object, anew: bool) -> None:
        """Nothing: what was told is on record."""

    async def system(
        self, scope: str, tools: Collection[str], query: object, summary: str, size: Size
    ) -> str | None:
        """The prompt of then, with today's instructions."""
        then, folder, (file, light) = self._system, self._today.prompts, FILES[size]
        return then and again(
            then,
            instructions=assemble.chosen(Instructions(folder, name=file).sections(), tools),
            minimal=Template(folder, light).text() if self._below else None,
            summary=summary,
        )

    @property
    def toolbox(self) -> Toolbox:
        """The tools as they are now; of a sub-session those it was given then.

        Pages can be recalled, and nights acted on, if they could be then: that is not up to our files.
        """
        tools: Iterable[AnyTool] = self._today.tools
        question = self.upcoming.question
        if question is not None:
            given = {tool["function"]["name"] for tool in question.request.tools}
            known = given if self._below else {tool.name for tool in tools} - SCOPED | given
            tools = [tool for tool in tools if tool.name in known]
        return Toolbox(tools)


def _characters(messages: Iterable[Json]) -> int:
    return sum(len(each["content"] or "") for each in messages if each["role"] != "system")


class _Retelling(ContextUpdates):
    """Tells what was told then."""

    def __init__(self, stores: Stores, script: Script) -> None:
        super().__init__(stores)
        self._script = script

    async def news(self, running: CastState, window: int, *, anew: bool) -> str:
        newest = running.newest
        if newest is None or newest.context_block:
            return ""
        return self._script.turn(newest.id).context_block


class _Observed(Gates):
    """Gives what the gates gave then. Calls are accepted or refused as they would be now."""

    def __init__(self, stores: Stores, script: Script, small: Collection[str]) -> None:
        super().__init__(stores, lambda value: value, small)
        self._script = script

    async def _effect(
        self, verdict: Accepted | Rejected, caller: Caller, turn_id: str, n: int
    ) -> tuple[object, bool]:
        if isinstance(verdict, Rejected):
            return await super()._effect(verdict, caller, turn_id, n)
        observations = self._script.turn(turn_id).observations
        seen = next((each for each in observations if each.n == n and each.completed), None)
        if seen is None:
            raise RecordEnds
        async with self._database.transaction() as tx:
            await self._casts.complete_observation(tx, turn_id, n, seen.result, seen.is_error)
        return seen.result, seen.is_error


def difference(then: Request, now: Request) -> list[str]:
    """Name what differs first, and how; nothing when they are the same."""
    pairs: list[tuple[str, Any, Any]] = [
        (f"message {n} ({(old or new)['role']})", old, new)
        for n, (old, new) in enumerate(zip_longest(then.messages, now.messages), start=1)
    ]
    olds, news = ({tool["function"]["name"]: tool for tool in each.tools} for each in (then, now))
    pairs += [(f"tool {name}", olds.get(name), news.get(name)) for name in sorted(olds | news)]
    for name, old, new in pairs:
        if old != new:
            both = _lines(old), _lines(new)
            return [name, *difflib.unified_diff(*both, "recorded", "now", n=1, lineterm="")]
    return []


def _lines(part: Json | None) -> list[str]:
    """Show a tool, or a message with its text line by line."""
    if part is None:
        return []
    rest = dict(part)
    said = str(rest.pop("content", None) or "")
    return [*said.splitlines(), *json.dumps(rest, indent=1, ensure_ascii=False).splitlines()]


def again(prompt: str, *, instructions: str, minimal: str | None, summary: str) -> str:
    """Make a prompt as it would be now, had nothing but our own files and code changed.

    `minimal`: the light instructions, for prompts of sub-sessions, which may begin with them.
    """
    parts: list[tuple[str, str]] = []
    for name, text in pieces(prompt):
        if parts and name not in OUR_HEADINGS:  # the instructions may have dividers of their own
            parts[-1] = (parts[-1][0], parts[-1][1] + text)
        else:
            parts.append((name, text.removeprefix(DIVIDER)))
    if minimal is not None and parts[0][0] not in OUR_HEADINGS:
        parts[0] = ("", minimal.strip())
    now = {INSTRUCTIONS: instructions, SUMMARY: assemble.inert(summary)}
    kept = ((name, text) for name, text in parts if now.get(name, text))
    return DIVIDER.join(f"# {name}\n{now[name]}" if name in now else text for name, text in kept)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay. `unrecorded` casts cannot be run again; a divergence ends it."""

    casts: int = 0
    requests: int = 0
    unrecorded: int = 0
    divergence: Diverged | None = None


async def replay(stores: Stores, today: Today, name: str) -> Replayed:
    """Run all casts that began in a branch, up to the first difference. Raises: WintermuteError."""
    reading, found = LoomReader(stores.database), Replayed()
    branch = await reading.branch(await reading.find(name))
    for cast in filter(lambda cast: cast.turns, await stores.casts.of_branch(branch["id"])):
        recorded = steps(cast, await events(stores.database, cast.id))
        if recorded is None:
            found = replace(found, unrecorded=found.unrecorded + 1)
            continue
        script = Script(cast, recorded, today, below=branch["parent_cast"] is not None)
        divergence = None
        try:
            with suppress(RecordEnds):
                await _run(cast, script, today, stores.data_dir / DATABASE)
        except Diverged as diverged:
            divergence = diverged
        requests = found.requests + script.compared
        found = Replayed(found.casts + 1, requests, found.unrecorded, divergence)
        if divergence is not None:
            break
    return found


async def _run(cast: Cast, script: Script, today: Today, database: Path) -> None:
    begun = replace(cast, state="running", reason=None, result=None, turns=(), fold_refused=0)
    clock, folder = FakeClock(cast.started_at), today.prompts.parent

    def ids(prefix: str) -> str:  # turns get the names they had
        return script.turn_id if prefix == "turn" else new_id(prefix)

    with TemporaryDirectory(prefix="wintermute-replay-") as scratch:
        copy = Path(scratch) / DATABASE
        _copy(database, copy, cast)
        async with open_database(copy) as opened:
            stores = Stores.of(opened, folder, Owner(""), clock, ids, timezone="UTC")
            compaction = Template(today.prompts, "COMPACTION_PROMPT.txt")
            folding = model_requests.Folding(
                stores, script, compaction, today.context, today.ephemeral
            )
            asks = model_requests.RequestBuilder(
                script, folding, _Retelling(stores, script), today.ephemeral
            )
            gates = _Observed(stores, script, today.small)
            caller = Caller("", "", cast.id, cast.origin, cast.event_id, cast.started_at)
            settings = CastSettings(script.toolbox, script)
            loop = Loop(stores, asks, gates, folding, clock)
            await loop.run(begun, caller, settings, Stop(), Unwatched())
    script.ended()


def _copy(source: Path, target: Path, cast: Cast) -> None:
    """Copy a database as it was when this cast began. Its triggers would keep what is newer."""
    with (
        closing(driver.connect(source, read_only=True)) as old,
        closing(driver.connect(target, read_only=False)) as new,
    ):
        old.backup(new)
        new.execute("PRAGMA foreign_keys = OFF")
        triggers = new.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for statement in (*(f"DROP TRIGGER {name}" for (name,) in triggers), *EARLIER):
            new.execute(statement, {"cast": cast.id, "begun": stamp(cast.started_at)})


async def replayed(data: Path, name: str) -> Iterator[str]:
    """Run a branch of a data folder again; the lines that say how it went. Raises: WintermuteError."""
    config, _ = read_with_gaps(data.parent / "config.yaml", environment())
    async with open_database(data / DATABASE, read_only=True) as database:
        stores = Stores.of(database, data, config.owner, SYSTEM, new_id, timezone=config.timezone)
        found = await replay(stores, Today.of(config, stores), name)
    if found.unrecorded and not found.casts:
        raise WintermuteError(f"{name} was not recorded: set llm.record to true")
    if found.divergence is None:
        return iter([SAME])
    where, (first, *others) = found.divergence.turn_id, found.divergence.lines
    return map(harmless, [f"{where or 'after the last turn'}: {first}", *others])


def main() -> int:
    """Run a branch again, and say how it went."""
    parser = argparse.ArgumentParser("python -m tests.replay")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("branch", metavar="THREAD")
    given = parser.parse_args()
    try:
        lines = "\n".join(asyncio.run(replayed(given.data, given.branch)))
    except WintermuteError as error:
        parser.error(str(error))
    print(lines)  # noqa: T201
    return lines != SAME


if __name__ == "__main__":
    sys.exit(main())
