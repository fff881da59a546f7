"""What is learnt while nobody waits, as kinds of work: each stage is a function and a policy.

conversation ─ harvest ─▶ facts, queued ─ reconstruct ─▶ one clear version ─ core ─▶ core.md
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from wintermute.clock import Clock
from wintermute.config.schema import Config
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.jobs import Job
from wintermute.llm.models import Models
from wintermute.night.core_update import NAME as CORE
from wintermute.night.core_update import CoreUpdate
from wintermute.night.harvest import NAME as HARVEST
from wintermute.night.harvest import Harvest
from wintermute.night.quiet import Quiet
from wintermute.prompt.gather import Texts
from wintermute.stores import Stores
from wintermute.work.jobs import JobDone, JobFailed, JobKind, JobPolicy, JobPutOff

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


class Owed(Protocol):
    """One kind of it."""

    async def owe(self, tx: Transaction) -> datetime | None:
        """Enqueue what is due; when to look again."""
        ...

    async def run(self, job: Job) -> JobDone | JobPutOff | JobFailed:
        """Do it."""
        ...


def learning(with_: Background) -> list[JobKind]:
    """All kinds of it."""
    stores, models, texts, clock = with_.stores, with_.models, with_.texts, with_.clock
    kinds = []
    if with_.config.memory_harvest.enabled:
        settings = with_.config.memory_harvest
        harvest = Harvest(stores, models, texts.harvest, settings, with_.quiet, clock)
        kinds.append(_kind(with_, HARVEST, harvest))
    kinds.append(
        _kind(with_, CORE, CoreUpdate(stores, models, texts.core_update, with_.quiet, clock))
    )
    return kinds


def _kind(with_: Background, name: str, work: Owed) -> JobKind:
    policy = JobPolicy(max_seconds=MOST_SECONDS)
    return JobKind(with_.stores, name, work.run, policy, with_.speaker, with_.clock, work.owe)
