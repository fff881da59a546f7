"""The settings of a wiki: from an option, the environment, cathedral.json or config.yaml."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from wintermute.config.document import LARGEST, TOP, Entries, Items, Node, Problem, Scalar
from wintermute.config.read import read_wiki, safe_key
from wintermute.config.schema import DATA, WIKI, Config, Llm, Wiki
from wintermute.errors import ConfigurationError, FileUnusable
from wintermute.files import content_of, decoded
from wintermute.templates import CONSOLIDATION, RUNTIME, shipped_folder

CATHEDRAL = "cathedral.json"
OTHER = "CATHEDRAL_CONFIG"
VARIABLES = {
    "store_path": "CATHEDRAL_STORE",
    "model": "CATHEDRAL_MODEL",
    "runtime_prompt": "CATHEDRAL_RUNTIME_PROMPT",
}
"""The environment variable for each key."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WikiSettings:
    """The settings that count; all paths are absolute."""

    store: Path
    runtime_prompt: Path
    consolidation_prompt: Path
    agent_cmds: Mapping[str, str]
    """The command line for each agent; it can be split into words."""
    model: str | None
    """The model, made a backend by `with_model`; None: the model that answers chats."""


def daemon_wiki(config: Config) -> WikiSettings:
    """Return the wiki settings of the daemon, which come from config.yaml alone."""
    return _settings(config.wiki, config.data_dir, config.data_dir / "prompts")


def command_wiki(
    option: Path | None,
    environment: Mapping[str, str],
    working_directory: Path,
    config: Config | None,
) -> WikiSettings:
    """Return the wiki settings of a command with `--store OPTION`, in the order of W-056.

    Without a `config` the data directory is the working directory's; if that has no prompts, the
    shipped ones are used.

    Raises: ConfigurationError, one line for each problem with its file or variable, and key.
    """
    data = config.data_dir if config else working_directory / DATA
    sources = [
        Wiki(store_path=working_directory / option if option else None),
        _of_environment(environment, working_directory, data),
        _of_cathedral(environment, working_directory, data),
    ]
    prompts = data / "prompts"
    if config is not None:
        sources.append(config.wiki)
    elif not prompts.is_dir():
        prompts = shipped_folder()
    return _settings(_merged(sources), data, prompts)


def with_model(llm: Llm, model: str | None) -> Llm:
    """Add a backend named `model`: a copy of the first one of base with another model.

    Nothing changes if `model` is None or the name of a backend.
    """
    if model is None or model in llm.backends:
        return llm
    first = llm.backends[llm.roles.base[0]]
    backends = {**llm.backends, model: dataclasses.replace(first, model=model)}
    return dataclasses.replace(llm, backends=MappingProxyType(backends))


def _settings(wiki: Wiki, data: Path, prompts: Path) -> WikiSettings:
    return WikiSettings(
        store=wiki.store_path or data / WIKI,
        runtime_prompt=wiki.runtime_prompt or prompts / RUNTIME,
        consolidation_prompt=wiki.consolidation_prompt or prompts / CONSOLIDATION,
        agent_cmds=wiki.agent_cmds,
        model=wiki.model,
    )


def _merged(sources: Sequence[Wiki]) -> Wiki:
    """Take each key, and each agent, from the first source that has it."""
    agents = {
        name: source.agent_cmds[name] for source in reversed(sources) for name in source.agent_cmds
    }
    return Wiki(
        store_path=_first(source.store_path for source in sources),
        runtime_prompt=_first(source.runtime_prompt for source in sources),
        consolidation_prompt=_first(source.consolidation_prompt for source in sources),
        agent_cmds=MappingProxyType(agents),
        model=_first(source.model for source in sources),
    )


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def _of_environment(environment: Mapping[str, str], folder: Path, data: Path) -> Wiki:
    given = {key: environment[name] for key, name in VARIABLES.items() if environment.get(name)}
    wiki, problems = read_wiki(_node(given), folder, data)
    if problems:
        lines = [f"{VARIABLES[problem.key]}: {problem.text}" for problem in problems]
        raise ConfigurationError("\n".join(lines))
    return wiki


def _of_cathedral(environment: Mapping[str, str], folder: Path, data: Path) -> Wiki:
    named = environment.get(OTHER)
    path = folder / (named or CATHEDRAL)
    try:
        content = content_of(path, LARGEST, follow=True)
        text = None if content is None else decoded(content)
    except FileUnusable as problem:
        raise ConfigurationError(f"{path} {problem}") from problem
    if text is None and named:
        raise ConfigurationError(f"{OTHER}: there is no file {path}: correct the path, or unset it")
    if text is None:
        return Wiki()
    wiki, problems = read_wiki(_parsed(text, path), path.absolute().parent, data)
    if problems:
        raise ConfigurationError("\n".join(_described(path, problem) for problem in problems))
    return wiki


def _described(path: Path, problem: Problem) -> str:
    """Describe a problem without its place, which Python's JSON parser does not give."""
    return f"{path}: {problem.key}: {problem.text}" if problem.key else f"{path}: {problem.text}"


def _parsed(text: str, path: Path) -> Node:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values = dict[str, object]()
        for name, value in pairs:
            if name in values:
                raise ConfigurationError(f"{path}: {safe_key(name)}: is there twice: remove one")
            values[name] = value
        return values

    try:
        # No key has a number as value, and Python refuses integers with very many digits.
        return _node(json.loads(text, object_pairs_hook=once, parse_int=float))
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}:{error.colno}"
        raise ConfigurationError(f"{where}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{path}: nested too deeply") from error


def _node(value: object) -> Node:
    match value:
        case str():
            return Scalar(TOP, value, plain=False)
        case None:
            return Scalar(TOP, "null", plain=True)
        case dict():
            pairs = ((_node(name), _node(item)) for name, item in value.items())
            return Entries(TOP, tuple(pairs))
        case _:
            return Items(TOP, ())  # valid for no key: unlike in YAML, 5 is no text
