"""A conversation that grows too long for its model, and the summaries that take its place."""

import json
import re
from collections.abc import Callable

from tests.world.house import House
from tests.world.model import (
    ContextTooLarge,
    ModelServer,
    Seen,
    Step,
    Text,
    is_for_summary,
    own_words,
)
from wintermute.config.schema import Context
from wintermute.messages import Json

WINDOW: Json = {"context_tokens": 4096, "max_output_tokens": 1024}
PROMPT_TOKENS = 4096 - 1024
FEW = Context(keep_recent=2)
MARKER = re.compile(r"\[Folded: turns 1-(\d+)\]\n(summary \d+)")
WORDS = "word " * 150


class Summariser:
    """Answers `noted N`, and each question for a summary with `summarise`."""

    def __init__(
        self,
        model: ModelServer,
        summarise: Callable[[int], Step] | None = None,
        most: int | None = None,
    ) -> None:
        """`most`: the characters that a request may really have."""
        self.model = model
        self._most = most
        self._summarise = summarise or (lambda n: Text(f"summary {n} of it all", usage=None))
        model.keyed(self._answer)

    def _answer(self, seen: Seen) -> Step:
        if is_for_summary(seen.body):
            return self._summarise(len(self.summaries) + 1)
        if self.too_large(seen):
            return ContextTooLarge()
        return Text(f"noted {seen.last_user.split()[0]}", usage=None)

    def too_large(self, seen: Seen) -> bool:
        return self._most is not None and len(json.dumps(seen.messages)) > self._most

    @property
    def chats(self) -> list[Seen]:
        return [seen for seen in self.model.requests if not is_for_summary(seen.body)]

    @property
    def summaries(self) -> list[str]:
        """What was to be summed up."""
        asked = [seen for seen in self.model.requests if is_for_summary(seen.body)]
        return [seen.system.split("<history>")[-1] for seen in asked]

    @property
    def marked(self) -> list[tuple[int, str] | None]:
        """Range and summary in each chat request: they open its first message, or end the prompt."""
        opened = (seen.system + opening(seen)[0] for seen in self.chats)
        found = [MARKER.findall(each) for each in opened]
        assert all(len(each) < 2 for each in found)
        return [(int(each[0][0]), each[0][1]) if each else None for each in found]


def opening(seen: Seen) -> tuple[str, str]:
    """What stands before the first message of a request, and the message."""
    before, divider, message = seen.messages[1]["content"].rpartition("\n\n---\n\n")
    return before + divider, message


def first_words(seen: Seen) -> list[str]:
    """The first word of each message after the system prompt, `noted` left out."""
    texts = (own_words(str(message["content"])) for message in seen.messages[1:])
    return [text.removeprefix("noted ").split()[0] for text in texts]


def tokens_of(seen: Seen) -> float:
    """Estimate the tokens of a request."""
    return (
        len(json.dumps([seen.messages, seen.body.get("tools", [])], ensure_ascii=False).encode())
        / 3
    )


async def folds(house: House) -> list[Json]:
    """List the stored folds, oldest first."""
    return await house.rows("SELECT * FROM folds ORDER BY seq")
