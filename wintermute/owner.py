"""The owner of the assistant, the owner's scope, and the rule of who acts with the owner's rights.

No other place decides this: a second owner means a change here and of the key `matrix.owner`.
"""

from dataclasses import dataclass

from wintermute.messages import PERSON, Origin


def is_owner(origin: str) -> bool:
    """Return True if the owner asked, from a verified session (X-034)."""
    return origin == "owner"


@dataclass(frozen=True, slots=True)
class Owner:
    """The person the bot belongs to, by their Matrix id."""

    user_id: str

    @property
    def scope(self) -> str:
        """The owner's scope. It also holds everything without a room: skills, notices, global tasks.

        Its files lie in the data folder itself. A chat on this machine belongs to it.
        """
        return f"{PERSON}{self.user_id}"

    def origin_of(self, sender: str) -> Origin:
        """Return the origin of a message from this sender."""
        return "owner" if sender == self.user_id else "other"

    def owns(self, scope: str) -> bool:
        """Return True if a scope is the owner's."""
        return scope == self.scope

    def may(self, origin: Origin, scope: str) -> bool:
        """Return True if the owner asked, or the system started it in the owner's own chat.

        What the system starts elsewhere has the rights of the people who talk there.
        """
        return is_owner(origin) or (origin != "other" and self.owns(scope))

    def is_unverified(self, origin: Origin, scope: str) -> bool:
        """Return True for an unverified session in the owner's own chat (X-034)."""
        return origin == "other" and self.owns(scope)
