"""On what terms a cast runs: all in which rooms, due tasks, sub-sessions and nights differ (A-1)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from wintermute.conversation.toolbox import Toolbox


class Prompt(Protocol):
    """Where instructions come from: read anew for every question (P-001)."""

    async def system(
        self, scope: str, tools: Collection[str], query: str | None, summary: str
    ) -> str | None:
        """The system prompt for this scope and these tools; None: there is to be none.

        `query` is what memory may rank by, `summary` stands for what was folded.

        Raises: ConfigurationError when there are no instructions (L-005).
        """
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What a cast may use, and what it is told.

    `backend` names one model that is asked instead of those of the `role`. `depth` is how many
    levels of sub-sessions may be below this cast (L-060). `patient`: the time until a first token
    is not its own (F-017); whoever waits for a sub-session was promised an end (L-061).
    """

    toolbox: Toolbox
    prompt: Prompt
    role: str = "base"
    backend: str | None = None
    depth: int = 0
    patient: bool = True
