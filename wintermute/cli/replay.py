"""`wintermute loom replay`: do today's code and prompt files ask what was asked then (L-088).

Each cast runs through the real loop, on a database of its own that has what the cast had in view.
The models and the gates are the record; nothing else is asked, and no gate runs.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from wintermute.cli.opening import with_stores
from wintermute.cli.options import REDACT, reporting, say
from wintermute.cli.script import (
    Diverged,
    Event,
    RecordEnds,
    Script,
    Unanswered,
    Window,
    steps,
)
from wintermute.clock import SystemClock
from wintermute.config.schema import Config, Context
from wintermute.config.secrets import Redaction
from wintermute.conversation.asking import Asking, Folding
from wintermute.conversation.cast import Loop
from wintermute.conversation.gates import Gates
from wintermute.conversation.state import CastSettings, CastState, Stop, Unwatched
from wintermute.conversation.telling import Telling
from wintermute.conversation.toolbox import AnyTool, BriefTool, Caller, Toolbox
from wintermute.db import Database, open_database
from wintermute.errors import WintermuteError
from wintermute.ids import new_id
from wintermute.llm.calls import attempts
from wintermute.llm.models import Models
from wintermute.loom.conversations import begin_again
from wintermute.loom.reading import LoomReader
from wintermute.loom.records import Cast
from wintermute.messages import Json, Size
from wintermute.owner import Owner
from wintermute.prompt.assemble import SUMMARY, TIME, again, chosen, pieces
from wintermute.prompt.block import Changing, Layout
from wintermute.prompt.gather import FILE_SMALL, Instructions, Recall
from wintermute.prompt.tool_names import DELEGATING
from wintermute.register import plain_tools
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.text import counted, harmless
from wintermute.tools.definition import OwnTool
from wintermute.tools.night_tool import NIGHT
from wintermute.wiki.recall import RECALL

SCOPED = (RECALL, NIGHT)
"""Tools that are not there in every conversation."""


@dataclass(frozen=True, slots=True)
class Today:
    """What requests are made of now.

    `tools` are the definitions of all there are, `ephemeral` the names of those whose results are
    not shown, `small` the backends whose models are small.
    """

    tools: tuple[AnyTool, ...]
    prompts: Path
    context: Context
    ephemeral: Collection[str]
    window: Window
    redact: Redaction
    small: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference: in which cast, at which turn (None: after the last one), and what."""

    cast_id: str
    turn_id: str | None
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """How it went. `unrecorded` casts could not be run again."""

    casts: int
    requests: int
    unrecorded: int
    divergence: Divergence | None


class Replay:
    """Runs the casts of one database again."""

    def __init__(self, stores: Stores, today: Today) -> None:
        """Raises: ConfigurationError when a prompt file cannot be used."""
        self._stores = stores
        self._today = today
        self._instructions: Mapping[Size, Instructions] = {
            "full": Instructions(today.prompts),
            "small": Instructions(today.prompts, name=FILE_SMALL),
        }
        self._minimal = Template(today.prompts, "WORKER_MINIMAL.txt")
        self._small_minimal = Template(today.prompts, "WORKER_MINIMAL.small.txt")
        self._compaction = Template(today.prompts, "COMPACTION_PROMPT.txt")

    async def branch(self, branch_id: str, *, below: bool) -> Replayed:
        """Run all casts that began in a branch, up to the first difference.

        `below`: it is the branch of a sub-session.
        """
        done = requests = unrecorded = 0
        for cast in filter(lambda cast: cast.turns, await self._stores.casts.of_branch(branch_id)):
            script = await self._script(cast)
            if script is None:
                unrecorded += 1
                continue
            done += 1
            divergence = await self._run(cast, script, below)
            requests += script.compared
            if divergence is not None:
                return Replayed(done, requests, unrecorded, divergence)
        return Replayed(done, requests, unrecorded, None)

    async def _script(self, cast: Cast) -> Script | None:
        """What was recorded of a cast; None when that is not all it did."""
        kept = iter(await self._stores.model_calls.recorded(cast.id))
        events: list[Event] = []
        for attempt in await attempts(self._stores.database, [cast.id]):
            if attempt["outcome"] != "ok":
                events.append(Unanswered(attempt["role"], attempt["outcome"]))
            elif attempt["request"] is not None:
                events.append(next(kept))
        recorded = steps(cast, events)
        if recorded is None:
            return None
        today = self._today
        fold_at = today.context.fold_at
        return Script(cast, recorded, today.window, today.redact, today.small, fold_at)

    async def _run(self, cast: Cast, script: Script, below: bool) -> Divergence | None:
        with TemporaryDirectory(prefix="wintermute-replay-") as folder:
            async with open_database(Path(folder) / "replay.db") as scratch:
                async with scratch.transaction() as tx:
                    begun = await begin_again(self._stores.database, tx, cast)
                try:
                    await self._loop(scratch, begun, script).run(
                        begun,
                        Caller("", "", cast.id, cast.origin, cast.event_id, cast.started_at),
                        CastSettings(self._toolbox(script, below), _Then(script, self, below)),
                        Stop(),
                        Unwatched(),
                    )
                    script.ended()
                except Diverged as found:
                    return Divergence(cast.id, found.turn_id, found.lines)
                except RecordEnds:
                    return None
        return None

    def _loop(self, scratch: Database, cast: Cast, script: Script) -> Loop:
        clock, hidden = _Still(cast.started_at), self._today.ephemeral

        def ids(prefix: str) -> str:  # turns get the names they had
            return script.turn_id if prefix == "turn" else new_id(prefix)

        folder = self._today.prompts.parent
        stores = Stores.of(scratch, folder, Owner(""), clock, ids, timezone="UTC")
        folding = Folding(stores, script, self._compaction, self._today.context, hidden)
        gates = Gates(stores, lambda value: value, self._today.small)
        asking = Asking(script, folding, _Retelling(stores, script), hidden)
        return Loop(stores, asking, gates, folding, clock)

    def _toolbox(self, script: Script, below: bool) -> Toolbox:
        """The tools as they are now; of a sub-session those it was given then.

        Pages can be recalled, and nights acted on, if they could be then: that is not up to our files.
        """
        tools: Iterable[AnyTool] = self._today.tools
        question = script.upcoming.question
        if question is not None:
            given = {tool["function"]["name"] for tool in question.request.tools}
            known = given if below else {tool.name for tool in tools} - {*SCOPED} | given
            tools = [tool for tool in tools if tool.name in known]
        return Toolbox(_Again(script, tool) for tool in tools)

    def prompt(
        self, then: str, tools: Collection[str], summary: str, size: Size, *, below: bool
    ) -> str:
        """A system prompt as it would be now."""
        minimal = self._small_minimal if size == "small" else self._minimal
        return again(
            then,
            instructions=chosen(self._instructions[size].sections(), tools),
            minimal=minimal.text() if below else None,
            summary=summary,
        )


@dataclass(frozen=True, slots=True)
class _Then:
    """The prompt of the next recorded question, with today's instructions."""

    script: Script
    replay: Replay
    below: bool

    @property
    def layout(self) -> Layout:
        """The one of then."""
        question = self.script.upcoming.question
        first = question.request.messages[0] if question else {"role": "", "content": ""}
        names = {name for name, _ in pieces(str(first["content"]))}
        in_system = first["role"] == "system" and not names.isdisjoint((TIME, SUMMARY))
        return "system" if in_system else "append"

    async def changing(
        self, scope: str, query: Recall | None, size: Size, *, anew: bool
    ) -> Changing | None:
        """What was told is on record."""
        return None

    async def system(
        self, scope: str, tools: Collection[str], query: Recall | None, summary: str, size: Size
    ) -> str | None:
        question = self.script.upcoming.question
        if question is None:  # nobody knows it; the failure is all that was recorded
            return ""
        first = question.request.messages[0]
        if first["role"] != "system":
            return None
        return self.replay.prompt(first["content"], tools, summary, size, below=self.below)


class _Retelling(Telling):
    """Tells what was told then."""

    def __init__(self, stores: Stores, script: Script) -> None:
        super().__init__(stores)
        self._script = script

    async def news(self, running: CastState, window: int, *, anew: bool) -> str:
        newest = running.newest
        return self._script.told(newest.id) if newest and not newest.context_block else ""


@dataclass(frozen=True, slots=True)
class _Again:
    """A gate that gives what it gave then."""

    script: Script
    tool: AnyTool
    durable: bool = True

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def description(self) -> str:
        return self.tool.description

    @property
    def parameters(self) -> Json:
        return self.tool.parameters

    @property
    def brief(self) -> tuple[str, Json] | None:
        if isinstance(self.tool, BriefTool):
            return self.tool.brief
        return self.description, self.parameters

    async def run(self, caller: Caller, args: Json) -> object:
        if caller.place is None:
            raise LookupError(self.name)
        return self.script.result(caller.place.turn_id, caller.place.n)


@dataclass(frozen=True, slots=True)
class _Still:
    """A clock that stands where the cast began."""

    begun: datetime

    def now(self) -> datetime:
        return self.begun

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Nobody waits here."""


@click.command("replay")
@click.argument("branch", metavar="BRANCH")
@reporting
def command(ctx: click.Context, branch: str, as_json: bool) -> None:
    """Run a branch again, offline, with today's prompt files and program.

    It uses the recorded answers of models and tools (`llm.record` must have been on): no model is
    asked and no tool runs. It shows the first request that differs, and the turn that followed it;
    then the exit code is 1.

    Example: wintermute loom replay branch_0123456789abcdef
    """

    async def work(stores: Stores, config: Config) -> tuple[str, Replayed]:
        reading = LoomReader(stores.database)
        found = await reading.find(branch)
        below = (await reading.branch(found))["parent_cast"] is not None
        replay = _replay(stores, config, ctx.meta[REDACT])
        return found, await replay.branch(found, below=below)

    found, replayed = with_stores(ctx, work)
    if not replayed.casts and replayed.unrecorded:
        raise WintermuteError(
            f"{found} was not recorded: set llm.record to true; what is said from then on can be"
            " run again"
        )
    values = _json(found, replayed)
    say(ctx, *([json.dumps(values, indent=2)] if as_json else map(harmless, _lines(replayed))))
    if replayed.divergence is not None:
        ctx.exit(1)


def _replay(stores: Stores, config: Config, redact: Redaction) -> Replay:
    # Asked for windows only: as long as no question is put to it, it opens no connection.
    models = Models(config.llm, stores.database, SystemClock(), new_id, config.timezone)
    scoped = map(Described, SCOPED)
    today = Today(
        (*described(config, stores), *scoped),
        config.data_dir / "prompts",
        config.context,
        config.tools.ephemeral,
        models.window,
        redact,
        config.llm.small,
    )
    return Replay(stores, today)


def described(config: Config, stores: Stores) -> tuple[AnyTool, ...]:
    """All tools that a model is told of."""
    handing = sorted(DELEGATING) if config.levels else ()
    asked_for = config.sub_sessions.max_depth is not None
    others = (Described(name, for_small=asked_for) for name in handing)
    return (*plain_tools(config, stores), *others)


class Described(OwnTool):
    """A tool to be looked at, not used."""

    durable = False

    def __init__(self, name: str, *, for_small: bool = True) -> None:
        self.name, self.for_small = name, for_small

    async def run(self, caller: Caller, args: Json) -> object:
        raise TypeError(f"{self.name} is only looked at")


def _lines(replayed: Replayed) -> list[str]:
    requests, casts = counted(replayed.requests, "request"), counted(replayed.casts, "cast")
    told = f"the same as then: {requests} of {casts}"
    if replayed.unrecorded:
        told += f"; not recorded: {counted(replayed.unrecorded, 'cast')}"
    found = replayed.divergence
    if found is None:
        return ["no divergence", told]
    where = f"the request of {found.turn_id}" if found.turn_id else "after the last turn"
    first, *others = found.lines
    return [f"{where} in {found.cast_id} differs: {first}", *others, told]


def _json(branch: str, replayed: Replayed) -> dict[str, object]:
    found = replayed.divergence
    return {
        "branch": branch,
        "casts": replayed.casts,
        "requests": replayed.requests,
        "unrecorded": replayed.unrecorded,
        "divergence": found
        and {"cast": found.cast_id, "turn": found.turn_id, "lines": list(found.lines)},
    }
