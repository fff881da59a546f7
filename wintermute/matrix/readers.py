"""Why a chat that looks like one of two is not: said once, when somebody speaks there (F-014)."""

from wintermute.matrix.inbox import RULES, Policy, RoomView
from wintermute.matrix.trust import harmless_id

READERS = frozenset({"m.room.member", *RULES})
"""Events that change who can read in a room."""
NOT_PRIVATE = (
    "{why}, so this is not a chat of the two of us: our private memory stays out of it{mention}. "
    "Once {end}, I go on where the two of us were."
)
ONLY_MENTIONED = ", and I answer only messages that mention me or reply to me"
CLOSED = "its settings say that {what}"
MOST_NAMES = 3


def not_private(room: RoomView, us: str, person: str, policy: Policy, *, was: bool) -> str:
    """What to tell a person who speaks in a room that they may think is theirs alone; "" nothing.

    `was`: it has been that.
    """
    why, end = _reason(room, us, person)
    alone = room.members.keys() == {us, person} and not room.invited
    if person not in policy.allowed or not why or not (was or alone):
        return ""
    mention = ONLY_MENTIONED if policy.mention_in_groups else ""
    return NOT_PRIVATE.format(why=why, mention=mention, end=end)


def _reason(room: RoomView, us: str, person: str) -> tuple[str, str]:
    """Who or what makes a room more than a chat with one person, and what ends that; "": nothing."""
    others = sorted(room.readers - {us, person})
    names = ", ".join(f"`{harmless_id(user, 'somebody')}`" for user in others[:MOST_NAMES])
    if len(others) > MOST_NAMES:
        names += " and others"
    if others and room.invited.issuperset(others):
        have = "has" if len(others) == 1 else "have"
        return f"{names} {have} been invited", "the invitation is declined or taken back"
    if others:
        return f"{names} can read what is said here", "we are alone here"
    if room.history == "world_readable":
        return "Anybody may read what is said in this room", CLOSED.format(
            what="only members can read its history"
        )
    return (
        ("Anybody may join this room", CLOSED.format(what="people join by invitation only"))
        if room.is_open
        else ("", "")
    )
