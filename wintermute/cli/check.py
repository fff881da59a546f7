"""`wintermute check`: every part tried, none changed."""

import asyncio

import click

from wintermute.cli import probes
from wintermute.cli.facts import show
from wintermute.cli.opening import open_config
from wintermute.cli.options import CONFIG, config_option, json_option
from wintermute.clock import SystemClock
from wintermute.config.schema import Backend, Config
from wintermute.config.write import UNTOUCHED, is_untouched
from wintermute.errors import ModelError, ModelUnavailable, WintermuteError
from wintermute.health.report import Fact
from wintermute.llm.probe import probe as ask_model
from wintermute.matrix.login import probe as ask_homeserver
from wintermute.memory.places import Places
from wintermute.prompt.edited import unusable_files


@click.command("check")
@config_option
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Try every part and say what to do.

    One tiny question goes to each model; nothing is written and no device is made. Leaves with
    1 when a part fails, with 2 when the configuration cannot be read.

    Example: wintermute check --config ~/wintermute/config.yaml
    """
    config = open_config(ctx, level="error")
    path = str(ctx.meta[CONFIG])
    untouched = Fact("config", "fail", f"{path}: {UNTOUCHED}")
    facts = [untouched if is_untouched(config) else Fact("config", "ok", path)]
    show(ctx, facts + asyncio.run(_probe(config)), as_json=as_json)


async def _probe(config: Config) -> list[Fact]:
    backends, seconds = config.llm.backends, config.loop.max_seconds
    models = [await _model(name, backends[name], seconds) for name in config.llm.roles.base]
    return [
        probes.data_folder(config.data_dir),
        probes.disk(config.data_dir),
        await probes.database(config.data_dir / "wintermute.db"),
        probes.templates(config.data_dir / "prompts", config.seed.language),
        *unusable_files(Places(config.data_dir, config.matrix.owner)),
        probes.time_zone(config.timezone, SystemClock()),
        *models,
        *await _homeserver(config),
        *await probes.noticed(config.data_dir / "wintermute.db"),
    ]


async def _model(name: str, backend: Backend, seconds: float) -> Fact:
    try:
        return Fact(f"model {name}", "ok", await ask_model(name, backend, seconds))
    except ModelUnavailable as error:
        advice = f"see that it runs, and check base_url of {name} in config.yaml"
        return Fact(f"model {name}", "fail", f"{error} -> {advice}")
    except ModelError as error:
        return Fact(f"model {name}", "fail", str(error))


async def _homeserver(config: Config) -> tuple[Fact, ...]:
    try:
        return await ask_homeserver(config.matrix, config.data_dir / "matrix")
    except WintermuteError as error:
        return (Fact("matrix", "fail", str(error)),)
