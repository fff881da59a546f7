"""Conversations in folders of message files, answered by the same loop (W-025, W-036, A-1).

    files ─▶ steps ─▶ known part: its branch in the loom; new steps: recorded there ─▶ cast

The files are what the model sees. A person may add messages by hand: they are recorded. If one was
changed or removed, the branch is forked. There is no room and no inbox: the caller waits.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from wintermute.clock import Clock
from wintermute.conversation.cast import Loop
from wintermute.conversation.replies import reply_text
from wintermute.conversation.state import CastSettings, Stop, Unwatched, Watch
from wintermute.conversation.toolbox import Caller
from wintermute.db import Transaction
from wintermute.errors import WintermuteError
from wintermute.loom.records import Cast
from wintermute.messages import FOLDER, Reply, Size, Usage
from wintermute.prompt.context_block import ChangingParts, Layout
from wintermute.prompt.context_builder import MemoryQuery
from wintermute.stores import Stores
from wintermute.text import untagged
from wintermute.wiki.conversations import ConversationFolder, MessageFile

ENTERED = "entered"
"""The end reason of a cast that records existing messages, without a model."""
OPENS = "(The conversation begins here.)"
"""The intent of a cast whose answer has no message before it."""
ANSWERED = "The last message is an answer: add a message first"


@dataclass(frozen=True, slots=True)
class MessageStep:
    """One message with its answers; `said` is None if the conversation begins with an answer."""

    said: str | None
    answers: tuple[str, ...] = ()

    def same(self, other: "MessageStep") -> bool:
        """Compare two steps, ignoring white space around the texts."""
        texts = [[text and text.strip() for text in (s.said, *s.answers)] for s in (self, other)]
        return texts[0] == texts[1]


def steps_of(messages: Sequence[MessageFile]) -> tuple[MessageStep, ...]:
    """Return the messages of people in a folder, each with its answers."""
    steps: list[MessageStep] = []
    for message in messages:
        if message.role == "user":
            steps.append(MessageStep(message.text))
        elif message.role == "assistant":
            last = steps.pop() if steps else MessageStep(None)
            steps.append(replace(last, answers=(*last.answers, message.text)))
    return tuple(steps)


def _recorded(casts: Sequence[Cast]) -> Iterator[tuple[MessageStep, Cast]]:
    """Yield the steps of a branch on record, each with the last of its casts."""
    for cast, later in zip(casts, [*casts, None][1:], strict=True):
        if later is not None and later.event_id is not None and later.event_id == cast.event_id:
            continue  # not answered, and asked again
        if cast.reason == ENTERED:
            answers = tuple(turn.utterance for turn in cast.turns)
        else:
            answers = (cast.result,) if cast.state == "terminated" and cast.result else ()
        yield MessageStep(None if cast.event_id is None else cast.intent, answers), cast


class FolderPrompt:
    """The system message of a folder. Implements `Prompt`."""

    layout: Layout = "append"

    def __init__(self, text: str) -> None:
        self._text = text

    async def system(
        self,
        scope: str,
        tools: Collection[str],
        query: MemoryQuery | None,
        summary: str,
        size: Size,
    ) -> str | None:
        """Return the message of the folder, which is written once (W-025)."""
        return self._text or None

    async def changing_parts(
        self, scope: str, query: MemoryQuery | None, size: Size, *, anew: bool
    ) -> ChangingParts | None:
        """Return None: the files have everything."""
        return None


class FolderChat:
    """Answers the last message in a folder."""

    def __init__(
        self,
        stores: Stores,
        loop: Loop,
        settings: CastSettings,
        redact: Callable[[str], str],
        clock: Clock,
    ) -> None:
        """Take the usual cast settings; the prompt is replaced by the folder's."""
        self._stores = stores
        self._loop = loop
        self._settings = settings
        self._redact = redact
        self._clock = clock

    async def answer(
        self, folder: ConversationFolder, system: str, watch: Watch | None = None
    ) -> str:
        """Return the model's answer to the last message; only `system` is written, once.

        To be called within `ConversationFolder.held`. Raises: WintermuteError when there is no
        answer.
        """
        messages = await asyncio.to_thread(_with_system, folder, system)
        steps = tuple(map(self._as_recorded, steps_of(messages)))
        if not steps or steps[-1].answers:
            raise WintermuteError(ANSWERED if steps else "There is no message: add one first")
        conversation, cast = await self._opened(str(folder.path.resolve()), steps)
        instructions = "\n\n".join(each.text for each in messages if each.role == "system")
        scope = self._stores.owner.scope
        # Tools are offered even without pages: otherwise a recall tag would be text (W-027).
        settings = replace(self._settings, prompt=FolderPrompt(instructions))
        caller = Caller(
            *(conversation, scope, cast.id, "owner", cast.event_id), begun=cast.started_at
        )
        outcome = await self._loop.run(cast, caller, settings, Stop(), watch or Unwatched())
        async with self._stores.database.transaction() as tx:
            await self._stores.casts.end(tx, cast.id, outcome.state, outcome.reason, outcome.text)
        if outcome.state != "terminated" or not outcome.text.strip():
            raise WintermuteError(reply_text(outcome) or "The model gave no answer")
        return outcome.text

    def _as_recorded(self, step: MessageStep) -> MessageStep:
        """Return a step in its recorded form: without tags in a person's words (L-071) or secrets."""
        text = None if step.said is None else self._redact(untagged(step.said))
        return MessageStep(text, tuple(map(self._redact, step.answers)))

    async def _opened(self, path: str, steps: tuple[MessageStep, ...]) -> tuple[str, Cast]:
        """Return a folder's conversation, and the cast for its last step; record the steps before."""
        stores = self._stores
        async with stores.database.transaction() as tx:
            conversation = await stores.conversations.in_room(
                tx, f"{FOLDER}{path}", stores.owner.scope, "job"
            )
            branch = await stores.conversations.current_branch(tx, conversation)
            recorded = list(_recorded((await stores.casts.past(branch, None)).casts))
            same = _common(steps, [step for step, _ in recorded])
            if same < len(recorded):
                while same and not recorded[same - 1][1].turns:  # a branch is forked from a turn
                    same -= 1
                left_at = recorded[same - 1][1].turns[-1].id if same else None
                branch = await stores.conversations.branch(
                    tx, conversation, "edit", forked_from=left_at
                )
            for n in range(same, len(steps) - 1):
                await self._enter(tx, branch, conversation, steps[: n + 1])
            event_id = _event_id(conversation, steps)
            running = await stores.casts.running(event_id)
            if running is None or running.branch_id != branch:
                running = await self._begin(tx, branch, event_id, steps[-1])
            return conversation, running

    async def _enter(
        self, tx: Transaction, branch: str, conversation: str, steps: tuple[MessageStep, ...]
    ) -> None:
        """Record the last of these steps."""
        casts, step = self._stores.casts, steps[-1]
        event_id = None if step.said is None else _event_id(conversation, steps)
        cast = await self._begin(tx, branch, event_id, step)
        for answer in step.answers:
            _, parent = await casts.last_turn(tx, cast.id)
            reply = Reply(answer, (), "stop", Usage(), "", "", 0)
            await casts.add_turn(tx, cast, parent, reply, None)
        await casts.end(tx, cast.id, "terminated", ENTERED, "".join(step.answers[-1:]))

    async def _begin(
        self, tx: Transaction, branch: str, event_id: str | None, step: MessageStep
    ) -> Cast:
        wards = self._settings.wards.record()
        intent = OPENS if step.said is None else step.said
        return await self._stores.casts.start(tx, branch, event_id, intent, "owner", wards)


def _with_system(folder: ConversationFolder, system: str) -> tuple[MessageFile, ...]:
    messages = folder.messages()
    if system and not any(each.role == "system" for each in messages):
        folder.append("system", system)
        messages = folder.messages()
    return messages


def _common(steps: Sequence[MessageStep], recorded: Sequence[MessageStep]) -> int:
    """Count the equal steps at the beginning."""
    pairs = zip(steps, recorded, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].same(pair[1]), pairs))


def _event_id(conversation: str, steps: Sequence[MessageStep]) -> str:
    """Return an id made of the messages, so that a repeated question is not shown twice (L-034)."""
    digest = hashlib.sha256(conversation.encode())
    for step in steps:
        for text in (step.said or "", *step.answers):
            digest.update(hashlib.sha256(text.strip().encode()).digest())
        digest.update(b"|")
    return f"file_{digest.hexdigest()[:32]}"
