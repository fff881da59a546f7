"""What is learnt while nobody waits, as kinds of work: each stage is a function and a policy.

conversation ─ harvest ─▶ facts, queued ─ reconstruct ─▶ one clear version ─ core ─▶ core.md
"""

from dataclasses import dataclass

from wintermute.clock import Clock
from wintermute.config.schema import Config
from wintermute.conversation.state import Speaker
from wintermute.llm.models import Models
from wintermute.night.forget_jobs import forgetting
from wintermute.night.quiet import Quiet
from wintermute.prompt.gather import Texts
from wintermute.stores import Stores
from wintermute.work.jobs import JobKind


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
    return [*forgetting(background.stores, background.speaker, background.clock)]
