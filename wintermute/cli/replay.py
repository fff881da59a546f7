"""`wintermute loom replay`: recorded casts run again offline."""

import json
from dataclasses import dataclass

import click

from wintermute.answering import tools_of
from wintermute.cli.opening import say, with_stores
from wintermute.cli.options import REDACT, config_option, json_option
from wintermute.clock import SystemClock
from wintermute.config.schema import Config
from wintermute.config.secrets import Redaction
from wintermute.conversation.replay import Replay, Replayed, Today
from wintermute.conversation.toolbox import Caller, Toolbox
from wintermute.errors import WintermuteError
from wintermute.ids import new_id
from wintermute.llm.models import Models
from wintermute.loom.reading import LoomReader
from wintermute.messages import Json
from wintermute.prompt.modes import DELEGATING
from wintermute.stores import Stores
from wintermute.text import counted, harmless
from wintermute.tools.definition import definition


@click.command("replay")
@click.argument("branch", metavar="BRANCH")
@config_option
@json_option
@click.pass_context
def command(ctx: click.Context, branch: str, as_json: bool) -> None:
    """Run a branch again, offline, with today's prompt files and program.

    The models' answers and the tools' results are those of then (`llm.record` must have been on):
    no model is asked and no tool runs. The first request that is not the same is shown, with the
    turn that it led to; then the exit code is 1.

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
    say(ctx, *([_dumped(values)] if as_json else map(harmless, _lines(replayed))))
    if replayed.divergence is not None:
        ctx.exit(1)


def _replay(stores: Stores, config: Config, redact: Redaction) -> Replay:
    # Asked for windows only: as long as no question is put to it, it opens no connection.
    models = Models(config.llm, stores.database, SystemClock(), new_id, config.timezone)
    today = Today(
        _definitions(config, stores),
        config.data_dir / "prompts",
        config.context,
        config.tools.ephemeral,
        models.window,
        redact,
    )
    return Replay(stores, today)


def _definitions(config: Config, stores: Stores) -> tuple[Json, ...]:
    handing = sorted(DELEGATING) if config.sub_sessions.max_depth else ()
    others = [Described(name, *definition(name)) for name in handing]
    return Toolbox([*tools_of(config, stores), *others]).definitions()


@dataclass(frozen=True, slots=True)
class Described:
    """A tool to be looked at, not used."""

    name: str
    description: str
    parameters: Json
    durable: bool = False

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


def _dumped(values: object) -> str:
    return json.dumps(values, indent=2)
