"""Whose assistant this is, what belongs to the owner, and who acts with the owner's rights.

The one place that says so: a second owner is a change here and of the key `matrix.owner`.
"""

from dataclasses import dataclass

from wintermute.messages import PERSON, Origin


def is_owner(origin: str) -> bool:
    """Whether the owner asked, by a session that somebody vouches for (X-034)."""
    return origin == "owner"


@dataclass(frozen=True, slots=True)
class Owner:
    """The person the bot belongs to, by their Matrix id."""

    user_id: str

    @property
    def scope(self) -> str:
        """Theirs. What belongs to no one room stands there too: skills, notices, global tasks.

        Its files lie in the data folder itself, and a chat at this machine is in it.
        """
        return f"{PERSON}{self.user_id}"

    def origin_of(self, sender: str) -> Origin:
        """As whom a person speaks here."""
        return "owner" if sender == self.user_id else "other"

    def owns(self, scope: str) -> bool:
        """Whether a scope is the owner's."""
        return scope == self.scope

    def may(self, origin: Origin, scope: str) -> bool:
        """Whether the owner asked, or it happens by itself in the owner's own chat.

        What the system starts elsewhere has no more rights than whoever talks there.
        """
        return is_owner(origin) or (origin != "other" and self.owns(scope))

    def is_unvouched(self, origin: Origin, scope: str) -> bool:
        """Whether another asks in the owner's own chat: a session that nobody vouches for (X-034)."""
        return origin == "other" and self.owns(scope)
