"""The parts that answer, wired once: for the daemon, the terminal, the web pages and the tests."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from wintermute.commands.chat import ChatCommands, Verifier
from wintermute.commands.models import ModelCommands
from wintermute.commands.night import NightCommands
from wintermute.config.schema import Backend, Config
from wintermute.config.wiki import WikiSettings
from wintermute.conversation.cast import Loop
from wintermute.conversation.context_updates import ContextUpdates
from wintermute.conversation.dispatcher import Branching, Dispatcher
from wintermute.conversation.folder_chat import FolderChat, FolderPrompt
from wintermute.conversation.gates import Gates
from wintermute.conversation.model_failures import ModelFailures
from wintermute.conversation.model_requests import Folding, RequestBuilder
from wintermute.conversation.rooms import Rooms
from wintermute.conversation.state import CastSettings, Prompt, Speaker, Watch
from wintermute.conversation.toolbox import AnyTool, Toolbox
from wintermute.errors import ConfigurationError
from wintermute.forgetting.forget_jobs import SCRUB
from wintermute.jobs import FORGET
from wintermute.llm.context_windows import Judgement, compare_windows, server_window
from wintermute.llm.probes import fits
from wintermute.loom.records import Wards
from wintermute.messages import Request, Size
from wintermute.night.daily_report import NightReports
from wintermute.night.phases import night_pipeline
from wintermute.night.pipeline import NightPipeline
from wintermute.prompt.assemble import (
    CORE,
    INSTRUCTIONS,
    WIKI,
    chosen,
    core_text,
    joined,
    runtime_text,
    wiki_text,
)
from wintermute.prompt.context_builder import ContextBuilder, Instructions, Oversize
from wintermute.register import jobs_of, tools_of
from wintermute.schedule.backend_notices import BackendNotices
from wintermute.schedule.edited_notices import EditedNotices
from wintermute.schedule.firing import Firing
from wintermute.schedule.loop import ScheduleLoop
from wintermute.stores import Stores
from wintermute.templates import read_template
from wintermute.tools.recall import RecallTool
from wintermute.wiki.conversations import ConversationFolder
from wintermute.wiki.recall import RECALL
from wintermute.work.data_folder import DataFolder
from wintermute.work.delegation import Bounds, Delegation, WorkerTexts
from wintermute.work.runner import JobType, Runner
from wintermute.work.runs import Runs, RunSettings

log = logging.getLogger(__name__)


class Part(Protocol):
    """A part that runs until it is cancelled."""

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Answering:
    """The parts that answer, the same behind every door: the rooms, and the work that they start."""

    rooms: Rooms
    runner: Runner
    promises: ScheduleLoop
    notices: tuple[Part, ...]
    toolbox: Toolbox

    async def run(self) -> None:
        """Run rooms and work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.rooms.run())
            group.create_task(self.runner.run(self.rooms.wake))

    async def finish_forgetting(self) -> None:
        """Run only the forgetting until cancelled: the part of the due work that cannot wait."""
        await self.runner.run(self.rooms.wake, unasked=True, only=(FORGET, SCRUB))

    async def run_due_work(self) -> None:
        """Run due and background work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.promises.run())
            group.create_task(self.runner.run(self.rooms.wake, unasked=True))
            for part in self.notices:
                group.create_task(part.run())


def answering(
    own: DataFolder,
    speaker: Speaker,
    verifier: Verifier | None = None,
    *,
    kinds: Iterable[JobType[Any]] = (),
    tools: Callable[[Iterable[AnyTool]], Iterable[AnyTool]] = tuple,
    prompt: Prompt | None = None,
    night: Callable[[DataFolder], NightPipeline] = night_pipeline,
) -> Answering:
    """Build the parts on an open data folder. `kinds` are more types of work; `tools` filters all
    tools, `prompt` replaces that of rooms, `night` that of nights: all for tests.
    """
    config, stores, models, texts, clock = own.config, own.stores, own.models, own.texts, own.clock
    limits = config.sub_sessions
    max_tokens, own_models = config.loop.max_tokens, bool(config.llm.roles.sub_sessions)
    layout, small = config.context.layout, texts.small
    top_k = config.memory.top_k
    gather = ContextBuilder(stores, texts.instructions, clock, layout, small, top_k, texts.runtime)
    folding, loop = _loop(own)

    workers = WorkerTexts(gather, texts.worker, texts.small_worker)
    bounds = Bounds(limits, max_tokens, tuple(config.llm.backends), own_models)
    delegation = Delegation(stores, loop, workers, bounds, speaker, clock)
    tidied = night(own)
    verbs = NightCommands(stores, tidied, config.dreaming, clock)
    toolbox = Toolbox(tools(tools_of(config, stores, delegation, verbs)))
    of_run = RunSettings.of(limits, config.levels, max_tokens, own_models=own_models)
    runs = Runs(stores, loop, workers, texts.task_run, of_run, speaker, clock)
    unasked: list[JobType[Any]] = [runs, *jobs_of(own, tidied, speaker)]
    runner = Runner(stores, toolbox, speaker, clock, [delegation, *unasked, *kinds])
    rung = [kind.wakeup for kind in unasked]
    promises = ScheduleLoop(stores, Firing(stores, speaker, clock), rung, speaker, clock)

    trouble = ModelFailures(stores, models, speaker, clock)
    branching = Branching(stores, texts.seed, delegation)
    oversize = Oversize(stores, gather, config.context.component_size_limits, clock, texts.kept)
    wards, news, seen = Wards.of(config.loop), NightReports(stores.nights), prompt or gather
    settings = CastSettings(toolbox, seen, depth=config.levels, wards=wards, background_news=news)
    casting = Dispatcher(stores, loop, settings, branching, oversize, speaker, trouble, clock)
    ceilings, judge = config.llm.budget, partial(_judge, own, toolbox)
    chosen = ModelCommands(stores, config.llm, judge, clock)
    commands = ChatCommands(stores, branching, folding, clock, ceilings, verifier, verbs, chosen)
    rooms = Rooms(stores, casting, commands, runner, speaker, trouble, clock)
    notices = EditedNotices(stores, speaker, clock), BackendNotices(stores, models, speaker)
    return Answering(rooms, runner, promises, notices, toolbox)


def _loop(own: DataFolder) -> tuple[Folding, Loop]:
    """Build the loop, and the folding that sums up long conversations for it."""
    stores, hidden = own.stores, own.config.tools.ephemeral
    folding = Folding(stores, own.models, own.texts.compaction, own.config.context, hidden)
    asking = RequestBuilder(own.models, folding, ContextUpdates(stores, hidden), hidden)
    gates = Gates(stores, own.redact.tree, own.config.llm.small)
    return folding, Loop(stores, asking, gates, folding, own.clock)


def folder_answers(
    own: DataFolder, settings: WikiSettings
) -> Callable[[ConversationFolder, Watch], Awaitable[str]]:
    """Build the function that answers the last message of a conversation in a folder, within `held` (W-072)."""
    stores, (_, loop) = own.stores, _loop(own)
    tools = Toolbox([RecallTool(stores.wiki, stores.casts, stores.owner)])
    wards = replace(Wards.of(own.config.loop), require_done=False)
    of_cast = CastSettings(tools, FolderPrompt(""), backend=settings.model, wards=wards)
    chat = FolderChat(stores, loop, of_cast, own.redact, own.clock)

    async def answer(folder: ConversationFolder, watch: Watch) -> str:
        prompt = settings.runtime_prompt
        runtime = await asyncio.to_thread(read_template, prompt.parent, prompt.name)
        index, has_pages = await stores.wiki.index_text(), await stores.wiki.has_pages()
        return await chat.answer(folder, runtime_text(runtime, index, has_pages=has_pages), watch)

    return answer


class Windows:
    """The context windows of the chats' models, judged by the configuration and what is known of them."""

    def __init__(self, config: Config, stores: Stores, fixed: Request) -> None:
        self._backends = {name: config.llm.backends[name] for name in config.llm.roles.base}
        self._stores = stores
        self._fixed = fixed

    async def prove(self) -> tuple[str, ...]:
        """Return the windows with little room, in words.

        Raises: ConfigurationError if the first model has no room for a message.
        """
        judgements = [(name, await self._judged(name)) for name in self._backends]
        for name, first in judgements[:1]:
            if first.state == "fail":
                await self._stores.health.note("windows", "fail", f"{name}: {first.text}")
                raise ConfigurationError(f"{name}: {first.text}")
        return _problems(judgements)

    async def run(self) -> None:
        """Note the problems once, also those that servers on private addresses report themselves."""
        health, judgements = self._stores.health, []
        for name, settings in self._backends.items():
            judgements.append((name, await self._judged(name)))
            if reported := await server_window(settings):
                judgements.append((name, compare_windows(name, settings, reported)))
        wrong = _problems(judgements)
        for line in wrong:
            log.warning("model window problem=%s", line)
        if wrong or await health.part("windows"):
            await health.note("windows", "warn" if wrong else "ok", "; ".join(wrong))

    async def _judged(self, name: str) -> Judgement:
        return await _fitting(name, self._backends[name], self._stores, self._fixed)


async def _fitting(name: str, settings: Backend, stores: Stores, fixed: Request) -> Judgement:
    counted = await stores.token_counts.known(settings.model, settings.base_url)
    return fits(name, settings, fixed, counted)


async def _judge(own: DataFolder, toolbox: Toolbox, name: str) -> Judgement:
    """Judge a chosen model by the rule of a start (L-090)."""
    fixed = await fixed_request(own, toolbox)
    return await _fitting(name, own.config.llm.backends[name], own.stores, fixed)


def _problems(judgements: Iterable[tuple[str, Judgement]]) -> tuple[str, ...]:
    return tuple(f"{name}: {one.text}" for name, one in judgements if one.state != "ok")


async def fixed_request(own: DataFolder, toolbox: Toolbox) -> Request:
    """Return the smallest question of the owner's chats: their fixed part with a short message."""
    stores, texts, scope = own.stores, own.texts, own.stores.owner.scope
    core, toolbox = core_text(await stores.core.text(scope)), await toolbox.within(scope)
    index = await stores.wiki.index_text() if RECALL in toolbox.names else None
    wiki = wiki_text(texts.runtime.text(), index)
    done = own.config.loop.require_done_tool

    def request(instructions: Instructions, size: Size, small: Request | None = None) -> Request:
        instructions_text = chosen(instructions.sections(), toolbox.offered(size), index)
        system = {
            "role": "system",
            "content": joined([(INSTRUCTIONS, instructions_text), (CORE, core), (WIKI, wiki)]),
        }
        message = {"role": "user", "content": "Reply with: ok"}
        return Request((system, message), toolbox.definitions(size, done=done), done, small)

    return request(texts.instructions, "full", request(texts.small, "small"))
