"""The Matrix door: everything between the homeserver and the rooms of the program, and its running."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wintermute.clock import CheckedClock, Clock
from wintermute.commands.stores import Stores
from wintermute.config.schema import Matrix
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.copies import Copies
from wintermute.matrix.followups import FollowUps
from wintermute.matrix.inbox import Policy
from wintermute.matrix.intake import Intake
from wintermute.matrix.invitations import Invitations
from wintermute.matrix.moves import RoomMoves
from wintermute.matrix.outbox import Sender
from wintermute.matrix.people import PeopleStore
from wintermute.matrix.redactions import Redactions, Work
from wintermute.matrix.restored import Restored
from wintermute.matrix.session import Session, load, save
from wintermute.matrix.speaker import MatrixSpeaker
from wintermute.matrix.sync import Sync
from wintermute.matrix.trust import Trust
from wintermute.matrix.verifications import Verifications


@dataclass(frozen=True, slots=True)
class Door:
    """The parts that work until they are cancelled."""

    sync: Sync
    invitations: Invitations
    sender: Sender
    speaker: MatrixSpeaker
    intake: Intake
    verifications: Verifications
    clock: CheckedClock

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        """What is to run; the sender begins later, see `send`."""
        return [
            self.sync.run(),
            self.sync.follow_trust(self.clock),
            self.invitations.run(),
            self.speaker.run(),
            self._verify(),
        ]

    async def _verify(self) -> None:
        await self.sync.ready.wait()
        await self.verifications.run()

    async def send(self, session: Session, folder: Path) -> None:
        """Send until cancelled, when it is known who is in the rooms."""
        if session.keys_lost:
            await self.intake.tell_keys_lost()
            save(folder, replace(load(folder) or session, keys_lost=False))  # its token may be new
        await self.sender.run()


def open_door(
    settings: Matrix,
    policy: Policy,
    client: MatrixClient,
    stores: Stores,
    speaker: MatrixSpeaker,
    sender: Sender,
    verifications: Verifications,
    copies: Copies,
    work: Work,
    pulse: Callable[[], None],
    clocks: tuple[CheckedClock, Clock],
) -> Door:
    """Build what receives for those who do the `work`; `pulse` at each sync.

    Of the clocks the second counts attempts to reach the homeserver.
    """
    clock, attempts = clocks
    trust = Trust(stores, client, PeopleStore(stores.database, clock), policy)
    follow = FollowUps(
        stores.inbox,
        stores.outbox,
        stores.rewards,
        stores.edits,
        stores.occurrences,
        Redactions(stores, work),
    )
    moves = RoomMoves(stores, client, policy)
    intake = Intake(stores, client, follow, trust, verifications, moves, policy, settings, clock)
    invitations = Invitations(client, stores.known, clock)

    def stored() -> None:
        sender.wake()
        invitations.wake()
        pulse()

    restored = Restored(client, stores, policy, clock)
    sync = Sync(client, stores, intake, copies, restored, work.wake, stored, attempts)
    return Door(sync, invitations, sender, speaker, intake, verifications, clock)
