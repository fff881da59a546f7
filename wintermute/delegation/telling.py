"""What a sub-session is told: its mode's instructions, its context and its objective."""

from collections.abc import Collection
from dataclasses import dataclass

from wintermute.prompt.gather import Gather
from wintermute.prompt.instructions import Instructions
from wintermute.prompt.modes import Mode, worker_prompt
from wintermute.prompt.sections import chosen
from wintermute.templates import Template


@dataclass(frozen=True, slots=True)
class Words:
    """Where the instructions of sub-sessions come from. `minimal` is WORKER_MINIMAL.txt."""

    gather: Gather
    instructions: Instructions
    minimal: Template


@dataclass(frozen=True, slots=True)
class Told:
    """The prompt of one sub-session, read anew for every question (P-041..P-045)."""

    words: Words
    mode: Mode
    objective: str
    context: str

    async def system(
        self, scope: str, tools: Collection[str], query: str | None, summary: str
    ) -> str | None:
        """As `conversation.terms.Prompt`. Nothing is ranked by what a sub-session is told."""
        full = self.mode == "full"
        return worker_prompt(
            self.mode,
            minimal=self.words.minimal.text(),
            instructions=chosen(self.words.instructions.sections(), tools),
            parts=await self.words.gather.gather(scope, tools) if full else None,
            objective=self.objective,
            context=self.context,
            summary=summary,
        ).system
