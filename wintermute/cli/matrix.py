"""`wintermute matrix`: the bot's login, its keys and identity, and whom it trusts.

`verify` and `trust` work beside a running daemon; for the others it must be stopped.
"""

import asyncio
from functools import partial
from typing import Final

import click

from wintermute.cli.check import show
from wintermute.cli.opening import open_config
from wintermute.cli.options import config_option, reporting, say
from wintermute.clock import SystemClock
from wintermute.config.lock import hold
from wintermute.config.schema import Config
from wintermute.db import open_database
from wintermute.health.health import Finding, Health, HealthState, people, verifications
from wintermute.ids import new_id
from wintermute.matrix import login
from wintermute.matrix.people import PeopleStore, fingerprint
from wintermute.matrix.reset import reset_identity

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
    """Remove the bot's device from the homeserver and its token from here.

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
    """Move the key store aside, with a date; the next start makes a new device.

    With --identity it replaces the cross-signing identity instead, if that is lost or somebody else
    has it. Everybody must then verify the bot again. The homeserver asks for the password, or for a
    yes on its web page.

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
@reporting
def verify(ctx: click.Context, as_json: bool) -> None:
    """Show the bot's keys, and the emojis of a verification under way.

    Compare the emojis with those that your client shows: if they differ, somebody sits between.
    Fingerprints are for clients that compare these instead. Works beside the running daemon.

    Example: wintermute matrix verify
    """
    config = open_config(ctx)
    show(ctx, asyncio.run(_shown(config)), as_json=as_json)


async def _shown(config: Config) -> list[Finding]:
    facts = [Finding("user", "ok", config.matrix.user_id)]
    async with open_database(config.data_dir / "wintermute.db", read_only=True) as database:
        health = Health(database, SystemClock())
        for name in ("device", "identity"):
            part = await health.part(name)
            facts.append(
                Finding(name, part.state, part.detail) if part else Finding(name, *NOT_YET)
            )
        facts.append(Finding("people", *await people(database)))
        facts += [Finding(*found) for found in await verifications(database)]
    return facts


@command.command("trust")
@click.argument("user", metavar="USER")
@config_option
@click.pass_context
def trust(ctx: click.Context, user: str) -> None:
    """Believe the new identity of a person, after asking them on another way.

    Needed when somebody has reset their encryption. Only the identity that the bot named in its
    notice is taken; beside a running daemon it answers within seconds what waited.

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
