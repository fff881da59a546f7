"""What is learnt while nobody waits, as kinds of work: each stage is a function and a policy.

conversation ─ harvest ─▶ facts, queued ─ reconstruct ─▶ one clear version ─ core ─▶ core.md
"""

from dataclasses import dataclass

from wintermute.clock import Clock
from wintermute.config.schema import Config
from wintermute.conversation.state import Speaker
from wintermute.llm.models import Models
from wintermute.memory.facts import SPLIT
from wintermute.night.quiet import Quiet
from wintermute.night.reconstruction import KIND, Reconstructing, Reconstruction
from wintermute.night.splitting import Splitting
from wintermute.prompt.gather import Texts
from wintermute.stores import Stores
from wintermute.work.jobs import JobKind, JobPolicy


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


def learning(background: Background) -> list[JobKind]:
    """All kinds of it."""
    return [_reconstructing(background), _splitting(background)]


def _reconstructing(own: Background) -> JobKind:
    template, memory = own.texts.reconstruction, own.config.memory
    work = Reconstruction(own.stores, own.models, template, memory)
    due = Reconstructing(own.stores, work, own.quiet, own.clock)
    return JobKind(
        *(own.stores, KIND, due.reconstruct, JobPolicy(), own.speaker, own.clock), owe=due.owe
    )


def _splitting(own: Background) -> JobKind:
    work = Splitting(own.stores, own.models, own.texts.split)
    return JobKind(*(own.stores, SPLIT, work.take_apart, JobPolicy(), own.speaker, own.clock))
