"""The model that a conversation asks, and the use of all: `/model` and `/usage`."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, time

from wintermute.clock import Clock
from wintermute.commands.forgetting import named_in
from wintermute.config.schema import Llm
from wintermute.db import Transaction
from wintermute.llm.calls import RoleUsage
from wintermute.llm.context_windows import Judgement
from wintermute.mailbox.inbox import InboxRow
from wintermute.owner import is_owner
from wintermute.stores import Stores
from wintermute.text import counted, plain

RESET = "reset"
NOT_YOURS = "Only the owner can choose a model, from a verified session."
UNKNOWN = "There is no model {name}. `/model` lists what there is."
UNFIT = "I did not choose {name}: {problem}."
CHOSEN = (
    "From the next message on, this conversation asks {name} alone. `/model reset` goes back to"
    " the usual models."
)
USUAL_AGAIN = "From the next message on, this conversation asks the usual models again: {usual}."
ASKS_ONE = "This conversation asks {name} alone. `/model reset` goes back to {usual}."
ASKS_USUAL = "This conversation asks the usual models: {usual}."
HOW = "The owner can choose one of these for this conversation: `/model NAME`."
GONE_SINCE = " (no longer configured)"
NOTHING_USED = "- no model calls"
FOR_OWNER = "I show the use of all chats only in a direct chat: ask me there."
Judge = Callable[[str], Awaitable[Judgement]]
"""Returns how a message fits into a backend's window beside instructions and tools (L-090)."""


class ModelCommands:
    """Answers `/model` and `/usage`."""

    def __init__(self, stores: Stores, llm: Llm, judge: Judge, clock: Clock) -> None:
        self._stores = stores
        self._backends = llm.backends
        self._usual = ", then ".join(map(_name, llm.roles.base)) or "none"
        self._judge = judge
        self._clock = clock

    async def refused(self, row: InboxRow) -> str | None:
        """Return why the named model cannot be chosen; None: it can, or none is named."""
        name = named_in(row.body)
        if not name:
            return None
        if not is_owner(row.origin):
            return NOT_YOURS
        if name == RESET:
            return None
        if name not in self._backends:
            return UNKNOWN.format(name=_name(name[:60]))
        judgement = await self._judge(name)
        unfit = judgement.state == "fail"
        return UNFIT.format(name=_name(name), problem=judgement.text) if unfit else None

    async def model(self, tx: Transaction, row: InboxRow, _scope: str) -> str:
        """Choose the named model, or list all."""
        conversations, name = self._stores.conversations, named_in(row.body)
        if not name:
            return self._listed(await conversations.backend(row.conversation_id))
        chosen = None if name == RESET else name
        await conversations.choose(tx, row.conversation_id, chosen)
        if chosen is None:
            return USUAL_AGAIN.format(usual=self._usual)
        return CHOSEN.format(name=_name(chosen))

    def _listed(self, chosen: str | None) -> str:
        lines = [f"- {_name(name)}: {plain(each.model)}" for name, each in self._backends.items()]
        asks = ASKS_USUAL.format(usual=self._usual)
        if chosen is not None:
            named = _name(chosen) + ("" if chosen in self._backends else GONE_SINCE)
            asks = ASKS_ONE.format(name=named, usual=self._usual)
        return "\n".join([asks, "", *lines, "", HOW])

    async def usage(self, tx: Transaction, row: InboxRow, scope: str) -> str:
        """Return the usage of this conversation; the owner also sees that of all chats."""
        calls, zone = self._stores.model_calls, self._stores.tasks.zone
        sections = [
            _bill("This conversation", await calls.of_conversation(tx, row.conversation_id))
        ]
        if not is_owner(row.origin):
            return sections[0]
        if not self._stores.owner.owns(scope):
            return f"{sections[0]}\n\n{FOR_OWNER}"
        today = self._clock.now().astimezone(zone).date()
        for heading, day in (("Today", today), ("This month", today.replace(day=1))):
            since = datetime.combine(day, time(), zone)
            sections.append(_bill(f"{heading}, all chats", await calls.by_backend(tx, since)))
        return "\n\n".join(sections)


def _bill(heading: str, spent: Mapping[str, RoleUsage]) -> str:
    """Return a line for each backend, and their sum in the heading."""
    lines = [f"- {_name(name)}: {_used(each)}" for name, each in spent.items()]
    if len(lines) > 1:
        first, *rest = spent.values()
        heading = f"{heading}: {_used(sum(rest, start=first))}"
    return "\n".join([f"**{heading}**", *(lines or [NOTHING_USED])])


def _used(used: RoleUsage) -> str:
    """Return tokens, and USD if there is a price; small sums with more digits than cents."""
    usd = f", {used.usd:.{4 if used.usd >= 0.01 else 6}f} USD" if used.usd else ""
    tokens = f"{used.tokens_in:,} tokens in ({used.tokens_cached:,} from a cache)"
    return f"{counted(used.calls, 'call')}, {tokens}, {used.tokens_out:,} out{usd}"


def _name(backend: str) -> str:
    return f"`{backend.replace('`', '')}`"
