"""`wintermute matrix`: the bot's login, its keys and identity, and the people it trusts.

`verify` and `trust` work beside a running daemon; for the others it must be stopped.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import click

from wintermute.cli.check import show
from wintermute.cli.opening import open_config, open_with_gaps
from wintermute.cli.options import config_option, reporting, say
from wintermute.clock import SystemClock
from wintermute.config.lock import hold, started
from wintermute.config.schema import Config
from wintermute.db import Row, open_database
from wintermute.errors import WintermuteError
from wintermute.health.health import Health, HealthState, StatusLine, people, verifications
from wintermute.ids import new_id
from wintermute.matrix import login
from wintermute.matrix.people import PeopleStore, fingerprint
from wintermute.matrix.reset import reset_identity
from wintermute.matrix.sas import LASTS
from wintermute.matrix.verifications import LOOK_SECONDS, VerificationStore

WAITING = "Waiting up to ten minutes. Verify the bot in your client now, or send it `/verify`."
NOT_RUNNING = (
    "Wintermute is not running. Start it with `wintermute run`; this command waits for it."
)
CONFIRM = "Now confirm it in your client too."
NOTHING_CAME = "no emojis came within ten minutes -> run this again, and begin in your client"
CANCELLED = "cancelled: somebody may sit between you and the bot -> see docs/encryption.md first"
TOO_LATE = "it was over already -> if your client trusts the bot now, remove that trust there"
NEVER_ENDED = "your client did not answer within ten minutes -> begin again"
T = TypeVar("T")
NOT_YET: Final[tuple[HealthState, str]] = ("warn", "none yet -> start it with `wintermute run`")


@click.group("matrix")
def command() -> None:
    """Verify the bot, trust people, log out, and replace keys.

    Example: wintermute matrix verify
    """


@command.command("logout")
@config_option
@click.pass_context
def logout(ctx: click.Context) -> None:
    """Log out: remove the bot's device at the homeserver and its token on this machine.

    Example: wintermute matrix logout
    """
    config = open_config(ctx)
    with hold(config.data_dir):
        said = asyncio.run(login.logout(config.matrix, config.data_dir / "matrix", SystemClock()))
    say(ctx, said)


@command.command("reset-crypto")
@click.option(
    "--identity", is_flag=True, help="Replace the identity instead; keys and device stay."
)
@config_option
@click.pass_context
def reset_crypto(ctx: click.Context, identity: bool) -> None:
    """Rename the folder of encryption keys; the next start makes a new device.

    With --identity it replaces the cross-signing identity instead. Use that if the identity is lost
    or somebody else has it. Everybody must then verify the bot again. The homeserver asks for the
    password, or for your approval on its web page.

    Example: wintermute matrix reset-crypto
    """
    config = open_config(ctx)
    folder, clock = config.data_dir / "matrix", SystemClock()
    with hold(config.data_dir):
        if identity:
            tell = partial(say, ctx)
            say(ctx, asyncio.run(reset_identity(config.matrix, folder, clock, new_id, tell)))
        else:
            say(ctx, login.reset_crypto(folder, clock))


@command.command("verify")
@click.option("--show", "only_show", is_flag=True, help="Print keys and verifications, and leave.")
@reporting
def verify(ctx: click.Context, as_json: bool, only_show: bool) -> None:
    """Compare emojis with your client, so that it can trust the bot.

    Run it beside the daemon, then begin a verification in your client. The command waits up to ten
    minutes for one, shows the emojis and asks you if they are the same. Ctrl-C ends it.

    --show prints the fingerprints of the bot's keys, for clients that compare these instead, and
    who has verified it. --json does too.

    Example: wintermute matrix verify
    """
    config, _ = open_with_gaps(ctx, level="warning")
    if only_show or as_json:
        show(ctx, asyncio.run(_shown(config)), as_json=as_json)
        return
    if started(config.data_dir) is None:
        click.echo(NOT_RUNNING, err=True)
    say(ctx, WAITING)

    async def of_running_daemon(store: VerificationStore) -> Row | None:
        """Return the verification of the daemon that runs now; the secrets of others are lost."""
        since = started(config.data_dir)
        return await store.comparison(since) if since else None

    compared = _looked_for(config, of_running_daemon)
    if compared is None:
        raise WintermuteError(NOTHING_CAME)
    say(ctx, "{user_id}, session {device_id}:\n  {shown}".format(**compared))
    if not click.confirm("Does your client show the same?", default=None):
        answer = partial(VerificationStore.refuse, compared=compared)
        raise WintermuteError(CANCELLED if _looked_for(config, answer) == "noted" else TOO_LATE)
    say(ctx, CONFIRM)
    ended = _looked_for(config, partial(VerificationStore.ending, compared=compared))
    state, text = ended or ("fail", NEVER_ENDED)
    if state != "ok":
        raise WintermuteError(text)
    say(ctx, text)


def _looked_for(
    config: Config, look: Callable[[VerificationStore], Awaitable[T | None]]
) -> T | None:
    """Poll until there is a result, for as long as a verification lasts. Ctrl-C ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    async def found() -> T | None:
        clock = SystemClock()
        until = clock.monotonic() + LASTS.total_seconds()
        async with open_database(config.data_dir / "wintermute.db") as database:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # so that it can close its files
            while not (one := await look(VerificationStore(database, clock))):
                if clock.monotonic() > until:
                    return None
                await clock.sleep(LOOK_SECONDS)
        return one

    try:
        return asyncio.run(found())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _shown(config: Config) -> list[StatusLine]:
    facts = [StatusLine("user", "ok", config.matrix.user_id)]
    async with open_database(config.data_dir / "wintermute.db", read_only=True) as database:
        health = Health(database, SystemClock())
        for name in ("device", "identity"):
            part = await health.part(name)
            facts.append(
                StatusLine(name, part.state, part.detail) if part else StatusLine(name, *NOT_YET)
            )
        facts.append(StatusLine("people", *await people(database)))
        facts += [StatusLine(*found) for found in await verifications(database)]
    return facts


@command.command("trust")
@click.argument("user", metavar="USER")
@config_option
@click.pass_context
def trust(ctx: click.Context, user: str) -> None:
    """Accept the new identity of a person. First ask them outside Matrix, such as by phone.

    You need this after somebody has reset their encryption. It accepts only the identity that the
    bot named in its notice. A running daemon then answers their waiting messages within seconds.

    Example: wintermute matrix trust @ann:example.org
    """
    config = open_config(ctx)
    say(ctx, asyncio.run(_trusted(config, user)))


async def _trusted(config: Config, user: str) -> str:
    async with (
        open_database(config.data_dir / "wintermute.db") as database,
        database.transaction() as tx,
    ):
        person = await PeopleStore(database, SystemClock()).trust(tx, user)
    if not person.changed_to:
        return (
            f"{user} is trusted without an identity; Wintermute accepts the next one that they make"
        )
    return f"trusted: {user} is now {fingerprint(person.changed_to)}"
