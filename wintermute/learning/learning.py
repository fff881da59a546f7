"""What is learnt while nobody waits, as kinds of work: each stage is a function and a policy.

conversation ─ harvest ─▶ facts, queued ─ reconstruct ─▶ one clear version ─ core ─▶ core.md
"""

from dataclasses import dataclass

from wintermute.clock import Clock
from wintermute.config.schema import Config
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.conversation.state import Speaker
from wintermute.jobs import Job
from wintermute.learning.core_update import NAME as CORE
from wintermute.learning.core_update import CoreUpdate
from wintermute.learning.harvest import NAME as HARVEST
from wintermute.learning.harvest import Harvest, Harvests
from wintermute.learning.quiet import Quiet
from wintermute.learning.reconstruction import KIND, Reconstructing, Reconstruction
from wintermute.learning.splitting import SplitLater, Splitting
from wintermute.llm.models import Models
from wintermute.memory.facts import SPLIT
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
    clock: Clock
    redact: Redaction = UNHIDDEN


def learning(own: Background, speaker: Speaker) -> list[JobKind]:
    """All kinds of it."""
    kinds = [each(own, speaker) for each in (_reconstructing, _splitting, _core)]
    if own.config.memory_harvest.enabled:
        return [_harvesting(own, speaker), *kinds]
    off = Harvests(own.stores.database, own.clock).turned_off
    return [_kind(own, speaker, HARVEST, _nothing, off), *kinds]


async def _nothing(_: Job) -> JobDone:
    return JobDone()  # it was owed before it was turned off


def _core(own: Background, speaker: Speaker) -> JobKind:
    work = CoreUpdate(own.stores, own.models, own.texts.core_update, own.quiet, own.clock)
    return _kind(own, speaker, CORE, work.update)


def _harvesting(own: Background, speaker: Speaker) -> JobKind:
    settings, template = own.config.memory_harvest, own.texts.harvest
    work = Harvest(own.stores, own.models, template, settings, own.quiet, own.clock)
    return _kind(own, speaker, HARVEST, work.harvest, work.owe)


def _reconstructing(own: Background, speaker: Speaker) -> JobKind:
    template, memory = own.texts.reconstruction, own.config.memory
    work = Reconstruction(own.stores, own.models, template, memory)
    due = Reconstructing(own.stores, work, own.quiet, own.clock)
    return _kind(own, speaker, KIND, due.reconstruct, due.owe)


def _splitting(own: Background, speaker: Speaker) -> JobKind:
    work = Splitting(own.stores, own.models, own.texts.split)
    return _kind(own, speaker, SPLIT, SplitLater(own.stores, work, own.quiet).take_apart)


def _kind(
    own: Background, speaker: Speaker, name: str, work: Function, owe: OweDue | None = None
) -> JobKind:
    policy = JobPolicy(max_seconds=MOST_SECONDS)
    return JobKind(own.stores, name, work, policy, speaker, own.clock, owe)
