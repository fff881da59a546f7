"""What answers, wired once: for the daemon, the terminal, and the house that the tests live in."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from wintermute.clock import CheckedClock
from wintermute.commands.chat import ChatCommands, Verifier
from wintermute.config.schema import Config
from wintermute.config.secrets import Redaction
from wintermute.conversation.asking import Asking
from wintermute.conversation.cast import Loop
from wintermute.conversation.casting import Branching, Casting
from wintermute.conversation.folding import Folding
from wintermute.conversation.gates import Gates
from wintermute.conversation.rooms import Rooms
from wintermute.conversation.speaker import Speaker
from wintermute.conversation.state import CastSettings, Prompt
from wintermute.conversation.toolbox import AnyTool, Toolbox
from wintermute.conversation.trouble import Trouble
from wintermute.delegation.delegation import Bounds, Delegation, Ending, WorkerTexts
from wintermute.llm.models import Models
from wintermute.loom.records import Wards
from wintermute.prompt.gather import Gather, Oversize, Texts
from wintermute.schedule.firing import Firing
from wintermute.schedule.homes import EditedNotices
from wintermute.schedule.promises import AtWork, Promises
from wintermute.schedule.runs import Runs, RunSettings
from wintermute.stores import Stores
from wintermute.tools.definition import Done
from wintermute.tools.delegate import delegating
from wintermute.tools.files import ReadFile, Roots, WriteFile
from wintermute.tools.memory import AddSkill, AppendMemory, MemoriesView
from wintermute.tools.task import TaskTool


@dataclass(frozen=True, slots=True)
class Answering:
    """What answers, the same behind every door: the rooms, and the work that they hand out."""

    rooms: Rooms
    delegation: Delegation
    runs: Runs
    promises: Promises
    edited: EditedNotices
    toolbox: Toolbox
    speaker: Speaker

    async def run(self) -> None:
        """Work until cancelled."""
        wake, serves = self.rooms.wake, self.speaker.serves
        async with asyncio.TaskGroup() as group:
            group.create_task(self.rooms.run())
            group.create_task(self.delegation.run(self.toolbox, wake, serves))

    async def keep(self) -> None:
        """Do what nobody asks for at this moment, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.promises.run())
            group.create_task(self.edited.run())


def tools_of(config: Config, stores: Stores) -> tuple[AnyTool, ...]:
    """All tools there are, but those that hand out work."""
    roots = Roots(config.data_dir, config.tools.files.roots, stores.owner)
    view = MemoriesView(stores.memories, stores.places)
    return (
        Done(),
        ReadFile(roots, view),
        WriteFile(roots, view),
        AppendMemory(stores.facts),
        TaskTool(stores.tasks),
        AddSkill(stores.skills, stores.owner),
    )


def answering(
    config: Config,
    stores: Stores,
    models: Models,
    texts: Texts,
    speaker: Speaker,
    clock: CheckedClock,
    redact: Redaction,
    verifier: Verifier | None = None,
    *,
    tools: Iterable[AnyTool] | None = None,
    prompt: Prompt | None = None,
) -> Answering:
    """Build it on what is open. `tools` instead of all, and a `prompt` for rooms, are for tests."""
    limits, hidden = config.sub_sessions, config.tools.ephemeral
    max_tokens, own_models = config.loop.max_tokens, bool(config.llm.roles.sub_sessions)
    gather = Gather(stores, texts.instructions, clock)
    folding = Folding(stores, models, texts.compaction, config.context, hidden)
    asking = Asking(models, folding, hidden)
    loop = Loop(stores, asking, Gates(stores, redact.tree), folding, clock)

    words = WorkerTexts(gather, texts.instructions, texts.worker)
    delegation = Delegation(
        stores.database,
        stores.sub_sessions,
        Ending(stores.sub_sessions, stores.inbox),
        stores.conversations,
        stores.casts,
        loop,
        stores.health,
        words,
        Bounds(limits, max_tokens, tuple(config.llm.backends), own_models),
        clock,
    )
    own = tools_of(config, stores) if tools is None else tools
    toolbox = Toolbox([*own, *delegating(delegation, limits, config.timezone)])
    of_run = RunSettings.of(limits, max_tokens, own_models=own_models)
    runs = Runs(stores, loop, words, texts.task_run, toolbox, of_run, speaker, clock)
    promises = Promises(stores, Firing(stores, speaker, clock), runs, speaker, clock)

    trouble = Trouble(stores, models, speaker, clock)
    branching = Branching(stores, texts.seed, delegation)
    oversize = Oversize(stores, gather, config.context.component_size_limits, clock, texts.kept)
    settings = CastSettings(
        toolbox, prompt or gather, depth=limits.max_depth, wards=Wards.of(config.loop)
    )
    casting = Casting(stores, loop, settings, branching, oversize, speaker, trouble, clock)
    commands = ChatCommands(stores, branching, folding, clock, config.llm.budget, verifier)
    at_work = AtWork(delegation, promises)
    rooms = Rooms(stores, casting, commands, at_work, speaker, trouble, clock)

    edited = EditedNotices(stores, speaker, clock)
    return Answering(rooms, delegation, runs, promises, edited, toolbox, speaker)
