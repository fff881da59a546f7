"""How far each verification by emoji has come, and what is to be compared: what this machine shows of it."""

from datetime import timedelta

from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Transaction
from wintermute.matrix.sas import Party, Verification

DAY = timedelta(days=1)


class VerificationStore:
    """The store of verifications, for this machine to look at; each stays for a day after its end."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def save(self, tx: Transaction, verification: Verification) -> None:
        """Keep how far it has come."""
        await tx.execute(
            "INSERT INTO verifications (txn_id, user_id, device_id, room_id, phase, shown, code,"
            " began_at, changed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (user_id, txn_id)"
            " DO UPDATE SET device_id = excluded.device_id, phase = excluded.phase,"
            " shown = excluded.shown, code = excluded.code, changed_at = excluded.changed_at",
            (
                verification.transaction_id,
                verification.their_user,
                verification.their_device,
                verification.room_id,
                verification.phase,
                shown(verification),
                verification.code,
                stamp(verification.began_at),
                stamp(self._clock.now()),
            ),
        )

    async def rename(self, tx: Transaction, user: str, before: str, now: str) -> None:
        """The event of a request is known, and with it the transaction."""
        await tx.execute(
            "UPDATE verifications SET txn_id = ? WHERE user_id = ? AND txn_id = ?",
            (now, user, before),
        )

    async def knows(self, tx: Transaction, user: str, transaction_id: str) -> bool:
        """Whether there is such a verification, over or not."""
        query = "SELECT 1 FROM verifications WHERE user_id = ? AND txn_id = ?"
        return await tx.row(query, (user, transaction_id)) is not None

    async def unfinished(self, ours: Party) -> list[Verification]:
        """Those that are not over, as far as a later run can know them."""
        rows = await self._database.rows(
            "SELECT txn_id, room_id, user_id, device_id, began_at FROM verifications"
            " WHERE phase NOT IN ('done', 'cancelled') ORDER BY began_at"
        )
        return [
            Verification(
                row["txn_id"],
                row["room_id"],
                ours,
                row["user_id"],
                row["device_id"],
                False,
                moment(row["began_at"]),
                "requested",
            )
            for row in rows
        ]

    async def sweep(self) -> None:
        """Forget what has been over for a day."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "DELETE FROM verifications WHERE phase IN ('done', 'cancelled') AND changed_at < ?",
                (stamp(self._clock.now() - DAY),),
            )


def shown(verification: Verification) -> str:
    """What is to be compared, in one line."""
    if verification.emojis:
        return ", ".join(f"{sign} {name}" for sign, name in verification.emojis)
    return " ".join(map(str, verification.decimals))
