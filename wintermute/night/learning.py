"""What is learnt while nobody waits, as kinds of work: each stage is a function and a policy.

conversation ─ harvest ─▶ facts, queued ─ reconstruct ─▶ one clear version ─ core ─▶ core.md
"""

from dataclasses import dataclass

from wintermute.clock import Clock
from wintermute.config.schema import Config
from wintermute.conversation.state import Speaker
from wintermute.jobs import Job
from wintermute.llm.models import Models
from wintermute.memory.facts import SPLIT
from wintermute.night.core_update import NAME as CORE
from wintermute.night.core_update import CoreUpdate
from wintermute.night.forget_jobs import forgetting
from wintermute.night.harvest import NAME as HARVEST
from wintermute.night.harvest import Harvest, Harvests
from wintermute.night.quiet import Quiet
from wintermute.night.reconstruction import KIND, Reconstructing, Reconstruction
from wintermute.night.splitting import SplitLater, Splitting
from wintermute.prompt.gather import Texts
from wintermute.stores import Stores
from wintermute.work.jobs import Function, JobDone, JobKind, JobPolicy, OweDue

MOST_SECONDS = 6 * 3600.0
"""For one piece of it: a slow machine, and many chunks."""


@dataclass(frozen=True, slots=True)
class Background:
    """What work that nobody waits for is made with."""

    config: Config
    stores: Stores
    models: Models
    texts: Texts
    quiet: Quiet
    speaker: Speaker
    clock: Clock


def learning(own: Background) -> list[JobKind]:
    """All kinds of it."""
    kinds = [_reconstructing(own), _splitting(own), _core(own)]
    harvests = Harvests(own.stores.database, own.clock)
    if own.config.memory_harvest.enabled:
        return [_harvesting(own), *kinds, *forgetting(own.stores, harvests, own.speaker, own.clock)]
    off = _kind(own, HARVEST, _nothing, harvests.turned_off)
    return [off, *kinds, *forgetting(own.stores, None, own.speaker, own.clock)]


async def _nothing(_: Job) -> JobDone:
    return JobDone()  # it was owed before it was turned off


def _core(own: Background) -> JobKind:
    work = CoreUpdate(own.stores, own.models, own.texts.core_update, own.quiet, own.clock)
    return _kind(own, CORE, work.update)


def _harvesting(own: Background) -> JobKind:
    settings, template = own.config.memory_harvest, own.texts.harvest
    work = Harvest(own.stores, own.models, template, settings, own.quiet, own.clock)
    return _kind(own, HARVEST, work.harvest, work.owe)


def _reconstructing(own: Background) -> JobKind:
    template, memory = own.texts.reconstruction, own.config.memory
    work = Reconstruction(own.stores, own.models, template, memory)
    due = Reconstructing(own.stores, work, own.quiet, own.clock)
    return _kind(own, KIND, due.reconstruct, due.owe)


def _splitting(own: Background) -> JobKind:
    work = Splitting(own.stores, own.models, own.texts.split)
    return _kind(own, SPLIT, SplitLater(own.stores, work, own.quiet).take_apart)


def _kind(own: Background, name: str, work: Function, owe: OweDue | None = None) -> JobKind:
    policy = JobPolicy(max_seconds=MOST_SECONDS)
    return JobKind(own.stores, name, work, policy, own.speaker, own.clock, owe)
