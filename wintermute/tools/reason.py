"""On whose behalf a tool acts, and what that lets it do."""

from wintermute.changes.records import Reason
from wintermute.conversation.toolbox import Caller


def reason(caller: Caller) -> Reason:
    """The reason that stands in the change set: the cast, and the message that it answers."""
    evidence = (caller.event_id,) if caller.event_id else ()
    return Reason("tool", caller.scope, caller.cast_id, evidence)


def for_owner(caller: Caller, owner_scope: str) -> bool:
    """Whether the owner asked, or it happens by itself in the owner's own chat.

    What the system starts elsewhere has no more rights than whoever talks there. In the owner's
    own chat another asks through a session of the owner that nobody vouches for (X-034).
    """
    if caller.origin == "other":
        return False
    return caller.origin == "owner" or caller.scope == owner_scope
