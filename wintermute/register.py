"""The register of every tool and every job. A new one is a module of its own and a line here.

Lower folders have registers of their own: names of tools in `prompt/tool_names.py`, embedders in
`llm/embeddings.py`, kinds of items in `stores.py`, commands in `commands/chat.py`, steps of a night
in `night/phases.py`.
"""

from dataclasses import replace
from functools import partial

from wintermute.config.schema import Config
from wintermute.conversation.state import Speaker
from wintermute.conversation.toolbox import AnyTool
from wintermute.forgetting.forget_jobs import SCRUB, run_forgetting, scrub
from wintermute.jobs import FORGET, Job
from wintermute.learning.core_update import NAME as CORE
from wintermute.learning.core_update import CoreUpdate
from wintermute.learning.embedding import embed
from wintermute.learning.harvest import NAME as HARVEST
from wintermute.learning.harvest import Harvest, Harvests
from wintermute.learning.idle_gate import IdleGate
from wintermute.learning.reconstruction import KIND, Reconstruction
from wintermute.learning.splitting import DeferredSplitting
from wintermute.llm.background import BackgroundModels
from wintermute.memory.embedding_search import EMBEDDINGS_JOB
from wintermute.memory.facts import SPLIT
from wintermute.night.daily_report import MORNING, DailyReport
from wintermute.night.night_jobs import NIGHT, NightScheduler
from wintermute.night.pipeline import NightPipeline
from wintermute.stores import Stores
from wintermute.tools.definition import Done
from wintermute.tools.delegate import CallAgent, CallAgentBatch, SpawnSubSession
from wintermute.tools.files import ReadFile, Roots, WriteFile
from wintermute.tools.memory import AddSkill, AppendMemory, MemoriesView, SearchMemory
from wintermute.tools.night_tool import NightAnswers, NightTool
from wintermute.tools.recall import RecallTool
from wintermute.tools.task import TaskTool
from wintermute.work.data_folder import DataFolder
from wintermute.work.delegation import Delegation
from wintermute.work.jobs import EnqueueDue, Function, JobDone, JobPolicy, StoredJobs

LONG = 6 * 3600.0
"""Seconds for one learning job: a slow machine, and many chunks."""
A_NIGHT = 12 * 3600.0


def plain_tools(config: Config, stores: Stores) -> tuple[AnyTool, ...]:
    """Return the tools that need only the stores."""
    roots = Roots(config.data_dir, config.tools.files.roots, stores.owner)
    view = MemoriesView(stores.memories, stores.places)
    return (
        Done(),
        ReadFile(roots, view),
        WriteFile(roots, view),
        AppendMemory(stores.facts, stores.casts, stores.jobs),
        SearchMemory(stores.memories, stores.facts, stores.tasks.zone, config.memory.top_k),
        TaskTool(stores.tasks),
        AddSkill(stores.skills, stores.owner),
        RecallTool(stores.wiki, stores.casts, stores.owner),
    )


def tools_of(
    config: Config, stores: Stores, delegation: Delegation, nights: NightAnswers
) -> tuple[AnyTool, ...]:
    """Return all tools. A small model can delegate only if that is configured."""
    limits = config.sub_sessions
    delegating = (
        SpawnSubSession(delegation, config.timezone),
        CallAgent(delegation, for_small=limits.max_depth is not None),
        CallAgentBatch(delegation, limits.max_parallel, limits.max_batch),
    )
    return (
        *plain_tools(config, stores),
        *(delegating if config.levels else ()),
        NightTool(nights, stores.casts, stores.database),
    )


def jobs_of(own: DataFolder, tidying: NightPipeline, speaker: Speaker) -> list[StoredJobs]:
    """Return all types of background jobs: name, words for "I couldn't …", and function."""
    stores, texts, config, clock = own.stores, own.texts, own.config, own.clock
    models = BackgroundModels(
        own.models, IdleGate(stores, own.models, config.dreaming, clock).wait_until
    )
    reads, harvests = config.memory_harvest.enabled, Harvests(stores.database, clock)
    harvest = Harvest(stores, models, texts.harvest, config.memory_harvest, clock)
    harvesting = (
        (harvest.harvest, harvest.enqueue_due) if reads else (_skipped, harvests.turned_off)
    )
    work = Reconstruction(stores, models, texts.reconstruction, config.memory)
    merging = work.reconstruct, work.enqueue_due
    splitting = DeferredSplitting(stores, models, texts.split).split
    core = CoreUpdate(stores, models, texts.core_update).update
    # Without harvests, forgetting derives no memories anew from the remaining messages.
    forgetting = partial(run_forgetting, stores, harvests if reads else None, clock)
    embedding, scrubbing = partial(embed, stores, clock), partial(scrub, stores, clock)
    morning = DailyReport(stores, config.nights, speaker, clock)
    night = NightScheduler(stores, tidying, morning, config.nights, clock)
    once, learns, stays = JobPolicy(), JobPolicy(max_seconds=LONG), JobPolicy(persists=True)
    tidies = JobPolicy(max_seconds=A_NIGHT, persists=True)  # the next one skips a crashed phase

    def kind(
        name: str,
        use: str,
        policy: JobPolicy,
        function: Function,
        enqueue_due: EnqueueDue | None = None,
    ) -> StoredJobs:
        return StoredJobs(
            stores, name, function, replace(policy, use=use), speaker, clock, enqueue_due
        )

    return [
        kind(EMBEDDINGS_JOB, "prepare new memories for search by meaning", once, embedding),
        kind(HARVEST, "look for memories in {your} messages", learns, *harvesting),
        kind(KIND, "combine {your} new memories with older ones", learns, *merging),
        kind(SPLIT, "split {your} long memories into single facts", learns, splitting),
        kind(CORE, "update my notes about {you}", learns, core),
        kind(FORGET, "forget everything I was asked to forget", stays, forgetting),
        kind(SCRUB, "erase the last traces of what was forgotten", stays, scrubbing),
        kind(NIGHT, "tidy up at night", tidies, night.run_job, night.enqueue_due),
        kind(MORNING, "send the report of the night", stays, morning.run_job, morning.enqueue_due),
    ]


async def _skipped(_: Job) -> JobDone:
    return JobDone()  # enqueued before harvests were turned off
