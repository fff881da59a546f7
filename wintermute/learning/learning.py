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
from wintermute.learning.reconstruction import KIND, Reconstruction
from wintermute.learning.splitting import SplitLater
from wintermute.llm.models import Models
from wintermute.llm.unasked import UnaskedModels
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
    clock: Clock
    redact: Redaction = UNHIDDEN


def learning(own: Background, speaker: Speaker) -> list[JobKind]:
    """All kinds of it."""
    stores, texts, config, clock = own.stores, own.texts, own.config, own.clock
    quiet = Quiet(stores, own.models, config.dreaming, clock)
    models = UnaskedModels(own.models, quiet.until)
    reads, harvests = config.memory_harvest.enabled, Harvests(stores.database, clock)
    harvest = Harvest(stores, models, texts.harvest, config.memory_harvest, clock)
    rewriting = Reconstruction(stores, models, texts.reconstruction, config.memory)
    kinds: list[tuple[str, Function, OweDue | None]] = [
        (HARVEST, harvest.harvest, harvest.owe)
        if reads
        else (HARVEST, _nothing, harvests.turned_off),
        (KIND, rewriting.reconstruct, rewriting.owe),
        (SPLIT, SplitLater(stores, models, texts.split).take_apart, None),
        (CORE, CoreUpdate(stores, models, texts.core_update, clock).update, None),
    ]
    policy = JobPolicy(max_seconds=MOST_SECONDS)
    return [JobKind(stores, name, do, policy, speaker, clock, owe) for name, do, owe in kinds]


async def _nothing(_: Job) -> JobDone:
    return JobDone()  # it was owed before it was turned off
