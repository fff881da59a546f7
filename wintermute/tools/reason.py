"""On whose behalf a tool changes something that can be undone."""

from wintermute.changes.records import Reason
from wintermute.conversation.toolbox import Caller


def reason(caller: Caller) -> Reason:
    """The reason that stands in the change set: the cast, and the message that it answers."""
    evidence = (caller.event_id,) if caller.event_id else ()
    return Reason("tool", caller.scope, caller.cast_id, evidence)
