"""Which wiki is meant, and what works on it: by option, environment, cathedral.json, config.yaml."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from wintermute.config.document import LARGEST, TOP, Entries, Items, Node, Problem, Scalar
from wintermute.config.read import read_wiki, shown
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
"""By key, the variable that says the same."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WikiSettings:
    """What is meant in the end; all paths are absolute."""

    store: Path
    runtime_prompt: Path
    consolidation_prompt: Path
    agent_cmds: Mapping[str, str]
    """By agent, a command line that can be split."""
    model: str | None
    """Who is asked, as `with_model` makes it askable; None: who answers chats."""


def daemon_wiki(config: Config) -> WikiSettings:
    """The wiki of the daemon, of which config.yaml alone decides."""
    return _settings(config.wiki, config.data_dir, config.data_dir / "prompts")


def command_wiki(
    option: Path | None,
    environment: Mapping[str, str],
    working_directory: Path,
    config: Config | None,
) -> WikiSettings:
    """The wiki of a command that was given `--store OPTION`, in the order of W-056.

    Without a `config` the data directory is the working directory's; where that has no prompts, the
    shipped ones are meant.

    Raises: ConfigurationError, one line for each problem with its file or variable, and key.
    """
    data = config.data_dir if config else working_directory / DATA
    said = [
        Wiki(store_path=working_directory / option if option else None),
        _of_environment(environment, working_directory, data),
        _of_cathedral(environment, working_directory, data),
    ]
    prompts = data / "prompts"
    if config is not None:
        said.append(config.wiki)
    elif not prompts.is_dir():
        prompts = shipped_folder()
    return _settings(_merged(said), data, prompts)


def with_model(llm: Llm, model: str | None) -> Llm:
    """The models with one that can be asked as backend `model`: the first one of base, but for it.

    As they are where that is the name of a backend, or None.
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


def _merged(said: Sequence[Wiki]) -> Wiki:
    """Of each key, and of each agent, what is said first."""
    agents = {name: each.agent_cmds[name] for each in reversed(said) for name in each.agent_cmds}
    return Wiki(
        store_path=_first(each.store_path for each in said),
        runtime_prompt=_first(each.runtime_prompt for each in said),
        consolidation_prompt=_first(each.consolidation_prompt for each in said),
        agent_cmds=MappingProxyType(agents),
        model=_first(each.model for each in said),
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
        raise ConfigurationError("\n".join(_told(path, problem) for problem in problems))
    return wiki


def _told(path: Path, problem: Problem) -> str:
    """Without a place, which Python's reader of JSON does not tell."""
    return f"{path}: {problem.key}: {problem.text}" if problem.key else f"{path}: {problem.text}"


def _parsed(text: str, path: Path) -> Node:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict[str, object]()
        for name, value in pairs:
            if name in found:
                raise ConfigurationError(f"{path}: {shown(name)}: is there twice: remove one")
            found[name] = value
        return found

    try:
        # No key is a number, and Python refuses to make one of very many digits.
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
            return Items(TOP, ())  # nothing that a key may be: unlike in YAML, 5 is no text
