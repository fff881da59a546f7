"""What a room was told by its tasks since somebody last spoke there, for the model to know of.

It was said without a model. So it stands before the next message, and is no history of its own:
a reminder every hour does not fill the window of a conversation.
"""

from datetime import datetime
from zoneinfo import ZoneInfo

from wintermute.clock import spoken
from wintermute.db import Transaction
from wintermute.prompt.events import event
from wintermute.tasks.occurrences import Occurrence, Occurrences
from wintermute.text import shortened

MOST = 5
RESULT_CHARACTERS = 8_000
REMINDED = {
    "claimed": "the reminder is being sent",
    "done": "the reminder was delivered",
    "missed": "the reminder could not be sent",
}


class DueEvents:
    """Reads what tasks have told a room."""

    def __init__(self, occurrences: Occurrences, zone: ZoneInfo) -> None:
        self._occurrences = occurrences
        self.zone = zone

    async def since(self, tx: Transaction, conversation_id: str, since: datetime) -> str:
        """The newest of it as events, each followed by a blank line (T-052); "": nothing."""
        found = await self._occurrences.told_in(tx, conversation_id, since, MOST)
        return "".join(f"{self._event(each)}\n\n" for each in found)

    def _event(self, each: Occurrence) -> str:
        failed = each.state == "failed"
        result = REMINDED[each.state] if each.mode == "reminder" else each.result
        result = shortened(result, RESULT_CHARACTERS)
        text = (
            f"Task #{each.task_id}: {each.content}\nDue: {spoken(each.due_at, self.zone)}\n"
            f"{'Error' if failed else 'Result, as the person was shown it'}: {result}"
        )
        return event("task_error" if failed else "scheduled_task", each.task_id, text)
