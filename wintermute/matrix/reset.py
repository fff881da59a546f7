"""Replacement of the bot's identity on request: the only code that replaces an existing one.

The old identity stays until the homeserver has accepted the new one, whose seeds are on disk
before they are uploaded. After a kill the same command goes on with the same seeds.
"""

from collections.abc import Callable
from pathlib import Path

from wintermute.clock import Clock
from wintermute.config.schema import Matrix
from wintermute.errors import ApprovalNeeded, ConfigurationError, WintermuteError
from wintermute.ids import NewId
from wintermute.matrix.client import MatrixClient, open_client
from wintermute.matrix.cross_signing import IdentityState, approval_text
from wintermute.matrix.kept_login import load, store_file
from wintermute.matrix.people import People, fingerprint
from wintermute.matrix.signing import NEXT, Seeds, keep_seeds, new_seeds, next_seeds

WAIT_SECONDS = 2.0
MOST_TRIES = 450
"""Tries, in a quarter of an hour, while a person approves it."""


async def reset_identity(
    matrix: Matrix, folder: Path, clock: Clock, new_id: NewId, say: Callable[[str], None]
) -> str:
    """Replace the old identity by a new one; return the line to print.

    `say` shows what a person has to do meanwhile.

    Raises: WintermuteError with what to do.
    """
    if matrix.encryption == "off":
        raise ConfigurationError("matrix.encryption is off: without it the bot has no identity")
    session = load(folder)
    if session is None or not store_file(folder, session).exists():
        raise WintermuteError(
            "there is no login with encryption keys here yet: run `wintermute run` first, which "
            "makes an identity by itself if the account has none"
        )
    seeds = _next_identity(folder, matrix.user_id)
    async with open_client(matrix, session, folder, new_id, clock, People()) as client:
        state = await _upload_when_approved(client, seeds, matrix, clock, say)
    if not state.signed:
        raise WintermuteError(state.text)
    return (
        f"new identity {fingerprint(seeds.master.public)}; the old one is kept with a date. "
        "Everybody who verified the bot has to verify it again"
    )


def _next_identity(folder: Path, user_id: str) -> Seeds:
    try:
        seeds = next_seeds(folder, user_id)
    except ConfigurationError:
        seeds = None  # unusable, and nobody has verified it yet
    if seeds is None:
        seeds = new_seeds(user_id)
        keep_seeds(folder, seeds, NEXT)
    return seeds


async def _upload_when_approved(
    client: MatrixClient, seeds: Seeds, matrix: Matrix, clock: Clock, say: Callable[[str], None]
) -> IdentityState:
    shown = ""
    for _ in range(MOST_TRIES):
        try:
            return await client.keys.replace_identity(seeds)
        except ApprovalNeeded as error:
            if not error.page:
                text = approval_text(error, has_password=matrix.password is not None)
                raise WintermuteError(text) from error
            if error.page != shown:
                shown = error.page
                say(f"open {error.page} as {matrix.user_id} and approve; waiting for that")
        await clock.sleep(WAIT_SECONDS)
    raise WintermuteError("nobody approved it; run this again to go on")
