"""Which wiki is meant: an option, the environment, cathedral.json and config.yaml, in this order."""

import json
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import FakeClock
from tests.world.configuration import GOOD, configuration, problem, problems
from tests.world.model import ModelServer
from tests.world.schema import open_migrated
from wintermute.config.schema import Backend, Config, Llm, Roles
from wintermute.config.wiki import WikiSettings, command_wiki, daemon_wiki, with_model
from wintermute.errors import ConfigurationError
from wintermute.ids import new_id
from wintermute.llm.models import Models
from wintermute.messages import Request
from wintermute.templates import shipped_folder

SECRET = "sk-1234567890"


def meant(
    folder: Path,
    cathedral: Any = None,
    option: str | None = None,
    config: Config | None = None,
    **environment: str,
) -> WikiSettings:
    """What a command in `folder` means, beside a cathedral.json if one is given."""
    if cathedral is not None:
        text = cathedral if isinstance(cathedral, str) else json.dumps(cathedral, indent=1)
        (folder / "cathedral.json").write_text(text)
    return command_wiki(Path(option) if option else None, environment, folder, config)


def refusal(folder: Path, cathedral: Any = None, **environment: str) -> str:
    with pytest.raises(ConfigurationError) as told:
        meant(folder, cathedral, None, None, **environment)
    return str(told.value)


def write(path: Path, text: str = "A prompt.") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_where_nothing_is_said_it_is_the_wiki_of_the_data_directory(tmp_path: Path) -> None:
    """W-056, W-057: a store is enough, so without an installation the shipped prompts are meant."""
    config = configuration(tmp_path, GOOD + "data_dir: elsewhere\n")
    data = tmp_path / "elsewhere"
    expected = WikiSettings(
        store=data / "wiki",
        runtime_prompt=data / "prompts/runtime/default.md",
        consolidation_prompt=data / "prompts/consolidation/default.md",
        agent_cmds={},
        model=None,
    )
    assert daemon_wiki(config) == meant(tmp_path / "x", config=config) == expected
    assert config.wiki_store == data / "wiki"
    alone = meant(tmp_path)
    assert alone.store == tmp_path / "data/wiki"
    assert alone.runtime_prompt == shipped_folder() / "runtime/default.md"
    assert alone.consolidation_prompt.read_text().startswith("Bring one conversation")
    write(tmp_path / "data/prompts/runtime/default.md")
    assert meant(tmp_path).runtime_prompt == tmp_path / "data/prompts/runtime/default.md"


LAYERS = ("option", "environment", "cathedral", "config", "default")


@pytest.mark.parametrize("first", range(len(LAYERS)))
def test_whoever_is_asked_first_decides(tmp_path: Path, first: int) -> None:
    """W-053, W-054, W-056: with one voice less each time."""
    said = LAYERS[first:]
    for name in LAYERS:
        write(tmp_path / f"{name}.md")
    text = GOOD + (
        "wiki: {store_path: config, model: config, runtime_prompt: config.md,"
        " consolidation_prompt: config.md, agent_cmds: {both: config, mine: config}}\n"
    )
    keys = {
        "store_path": "cathedral",
        "model": "cathedral",
        "runtime_prompt": "cathedral.md",
        "consolidation_prompt": "cathedral.md",
        "agent_cmds": {"both": "cathedral", "theirs": "cathedral"},
    }
    variables = {
        "CATHEDRAL_STORE": "environment",
        "CATHEDRAL_MODEL": "environment",
        "CATHEDRAL_RUNTIME_PROMPT": "environment.md",
    }
    found = meant(
        tmp_path,
        keys if "cathedral" in said else None,
        "option" if "option" in said else None,
        configuration(tmp_path, text if "config" in said else GOOD),
        **(variables if "environment" in said else {}),
    )
    name = LAYERS[first]
    data = tmp_path / "data"
    assert found.store == (data / "wiki" if name == "default" else tmp_path / name)
    other = LAYERS[max(first, 1)]  # an option names nothing but the store
    assert found.model == (None if other == "default" else other)
    shipped = data / "prompts/runtime/default.md"
    assert found.runtime_prompt == (shipped if other == "default" else tmp_path / f"{other}.md")
    other = LAYERS[max(first, 2)]  # and no variable what makes pages
    shipped = data / "prompts/consolidation/default.md"
    at = shipped if other == "default" else tmp_path / f"{other}.md"
    assert found.consolidation_prompt == at
    agents = {"both": "cathedral", "mine": "config", "theirs": "cathedral"}
    of = {"cathedral": agents, "config": {"both": "config", "mine": "config"}, "default": {}}
    assert found.agent_cmds == of[other]


def test_the_daemon_listens_to_config_yaml_alone(tmp_path: Path) -> None:
    """W-056: whatever lies in the folder that it was started in."""
    config = configuration(tmp_path, GOOD + "wiki: {store_path: mine, model: local}\n")
    write(tmp_path / "cathedral.json", '{"store_path": "theirs", "model": "theirs"}')
    assert (daemon_wiki(config).store, daemon_wiki(config).model) == (tmp_path / "mine", "local")


@pytest.mark.parametrize("there", [("beside", "data"), ("beside",), ("data",)])
@pytest.mark.parametrize("source", ["config", "cathedral", "environment"])
def test_a_prompt_has_two_places(tmp_path: Path, source: str, there: tuple[str, ...]) -> None:
    """W-055."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    beside, name = home if source == "config" else work, "prompts/runtime/own.md"
    for place in there:
        write((beside if place == "beside" else home / "data") / name)
    config = configuration(
        home, GOOD + (f"wiki: {{runtime_prompt: {name}}}\n" if source == "config" else "")
    )
    cathedral = {"runtime_prompt": name} if source == "cathedral" else None
    variables = {"CATHEDRAL_RUNTIME_PROMPT": name} if source == "environment" else {}
    found = meant(work, cathedral, config=config, **variables).runtime_prompt
    assert found == (beside if "beside" in there else home / "data") / name


def test_paths_start_at_the_file_or_folder_they_come_from(tmp_path: Path) -> None:
    """W-054, W-055: the other file has a folder of its own, as a variable and an option have not."""
    there = tmp_path / "there"
    write(there / "own.md")
    other = write(there / "other.json", '{"store_path": "pages", "runtime_prompt": "own.md"}')
    (tmp_path / "cathedral.json").write_text("not read")
    found = meant(tmp_path, CATHEDRAL_CONFIG="there/other.json")
    assert (found.store, found.runtime_prompt) == (there / "pages", there / "own.md")
    assert meant(tmp_path, CATHEDRAL_CONFIG=str(other), CATHEDRAL_STORE="s").store == tmp_path / "s"
    assert meant(tmp_path, option="o", CATHEDRAL_CONFIG=str(other)).store == tmp_path / "o"
    assert meant(tmp_path, option="/o", CATHEDRAL_CONFIG=str(other)).store == Path("/o")
    assert meant(tmp_path, "{}", CATHEDRAL_CONFIG="", CATHEDRAL_STORE="").store == (
        tmp_path / "data/wiki"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "{file}:1:1: not valid JSON: Expecting value"),
        ('{\n\t"model": "a"\n\t"x": 1}', "{file}:3:2: not valid JSON: Expecting ',' delimiter"),
        ("{'model': 'a'}", "{file}:1:2: not valid JSON: Expecting property name"),
        ("[" * 200_000, "{file}: nested too deeply"),
        ('{"a":' * 40_000, "{file}: nested too deeply"),
        ("[]", "{file}: must be a section with keys below it"),
        ('"model"', "{file}: must be a section with keys below it"),
        ('{"mode": "a"}', "{file}: mode: unknown key; the nearest known one is model"),
        ('{"data_dir": "b"}', "{file}: data_dir: unknown key; the nearest known one is "),
        ('{"model": 5}', "{file}: model: must be text"),
        ('{"model": NaN}', "{file}: model: must be text"),
        ('{"model": ' + "9" * 5000 + "}", "{file}: model: must be text"),
        ('{"model": true}', "{file}: model: must be text"),
        ('{"model": ["a"]}', "{file}: model: must be text"),
        ('{"model": " "}', "{file}: model: must be text, not blank and in one line"),
        ('{"model": "a\\u0000"}', "{file}: model: must be text, not blank and in one line"),
        ('{"store_path": {"a": "b"}}', "{file}: store_path: must be a path"),
        ('{"store_path": "\\ud800"}', "{file}: store_path: must be a path"),
        ('{"model": "a", "model": "b"}', "{file}: model: is there twice: remove one"),
        ('{"agent_cmds": "codex"}', "{file}: agent_cmds: must be a section of names"),
        ('{"agent_cmds": {"codex": 5}}', "{file}: agent_cmds.codex: must be text"),
        ('{"agent_cmds": {"codex": null}}', "{file}: agent_cmds.codex: must be text, not empty"),
        ('{"agent_cmds": {"co dex": "x"}}', "{file}: agent_cmds: names are made of letters"),
        ('{"agent_cmds": {"codex": "x \'y"}}', "{file}: agent_cmds.codex: cannot be split"),
        ('{"agent_cmds": {"codex": "x \\\\"}}', "{file}: agent_cmds.codex: cannot be split"),
        ('{"agent_cmds": {"codex": "\'\'"}}', "{file}: agent_cmds.codex: names no program"),
        (
            '{"agent_cmds": {"codex": "x {page} {store}"}}',
            "{file}: agent_cmds.codex: has an unknown placeholder: there are {{store}}, {{sleep}}"
            " and {{conversation}}",
        ),
        (
            '{"runtime_prompt": "own.md"}',
            "{file}: runtime_prompt: there is no file {folder}/own.md, nor {folder}/data/own.md:",
        ),
        (
            '{"consolidation_prompt": "/own.md"}',
            "{file}: consolidation_prompt: there is no file /own.md: write it, or",
        ),
        ('{"runtime_prompt": "' + "x" * 300 + '"}', "{file}: runtime_prompt: there is no file "),
    ],
    ids=range(30),
)
def test_what_is_wrong_in_cathedral_json_is_named(tmp_path: Path, text: str, told: str) -> None:
    """W-057: with its file and key, and its place where it is no JSON."""
    said = refusal(tmp_path, text)
    assert said.startswith(told.format(file=tmp_path / "cathedral.json", folder=tmp_path))
    assert "\n" not in said


def test_all_problems_of_a_file_are_told_at_once_and_none_shows_a_secret(tmp_path: Path) -> None:
    """W-057: what stands in the wrong place is nobody's business."""
    cathedral = {
        f"api_key:{SECRET}": "a",
        "model": [SECRET],
        "agent_cmds": {
            f"x {SECRET}": "a",
            "codex": f"codex --key {SECRET} '",
            "b": f"{{{SECRET}}}",
        },
        "store_path": f"\n{SECRET}",
    }
    said = refusal(tmp_path, cathedral)
    keys = ("api_key", "model", "agent_cmds", "agent_cmds.codex", "store_path")
    assert {line.split(": ")[1] for line in said.splitlines()} == set(keys)
    assert SECRET not in said
    assert SECRET not in refusal(tmp_path, f'{{"model": "{SECRET}')


@pytest.mark.parametrize("harm", ["folder", "latin", "huge", "missing"])
def test_a_file_that_is_none_is_named(tmp_path: Path, harm: str) -> None:
    """W-054, W-057: and one that is named has to be there."""
    path = tmp_path / "own.json"
    if harm == "folder":
        path.mkdir()
    elif harm != "missing":
        path.write_bytes(b'{"model": "\xff"}' if harm == "latin" else b" " * 300_000)
    said = refusal(tmp_path, CATHEDRAL_CONFIG="own.json")
    reasons = {
        "folder": f"{path} is not a plain file",
        "latin": f"{path} is not UTF-8 at byte 11",
        "huge": f"{path} has over 262144 bytes",
        "missing": f"CATHEDRAL_CONFIG: there is no file {path}: correct the path, or unset it",
    }
    assert said.startswith(reasons[harm])


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"CATHEDRAL_STORE": " "}, "CATHEDRAL_STORE: must be a path"),
        ({"CATHEDRAL_MODEL": "a\nb"}, "CATHEDRAL_MODEL: must be text"),
        ({"CATHEDRAL_RUNTIME_PROMPT": "x.md"}, "CATHEDRAL_RUNTIME_PROMPT: there is no file "),
    ],
)
def test_a_bad_variable_is_named(tmp_path: Path, variables: Mapping[str, str], told: str) -> None:
    """W-057."""
    assert refusal(tmp_path, **variables).startswith(told)


@pytest.mark.parametrize(
    ("wiki", "told"),
    [
        ("{runtime_prompt: x.md}", "wiki.runtime_prompt: there is no file "),
        ("{consolidation_prompt: data}", "wiki.consolidation_prompt: there is no file "),
        ('{agent_cmds: {a: "\'"}}', "wiki.agent_cmds.a: cannot be split into words"),
        ("{agent_cmds: {a: '{x}'}}", "wiki.agent_cmds.a: has an unknown placeholder"),
        ("{store: x}", "wiki.store: unknown key; the nearest known one is store_path"),
    ],
)
def test_the_same_keys_are_checked_in_config_yaml(tmp_path: Path, wiki: str, told: str) -> None:
    """W-053, W-057: with their places."""
    (tmp_path / "data").mkdir()
    line, _, said = problem(tmp_path, f"{GOOD}wiki: {wiki}\n").partition(":")
    assert line == "9"
    assert said.partition(": ")[2].startswith(told)


def test_the_data_directory_of_the_file_itself_is_looked_into(tmp_path: Path) -> None:
    """W-055: also where it is wrong, which is told as well."""
    write(tmp_path / "elsewhere/own.md")
    wiki = "wiki: {runtime_prompt: own.md}\ndata_dir: "
    found = configuration(tmp_path, f"{GOOD}{wiki}elsewhere\n")
    assert found.wiki.runtime_prompt == tmp_path / "elsewhere/own.md"
    first, second = problems(tmp_path, f"{GOOD}{wiki}[]\n")
    assert f"there is no file {tmp_path}/own.md, nor {tmp_path}/data/own.md" in first
    assert "data_dir: must be a path" in second


@pytest.mark.parametrize(
    "command", ["claude -p", "'my agent' --in {store} -o '{sleep}/x' {conversation}", "x {} {a-b}"]
)
def test_a_command_line_stays_as_it_was_written(tmp_path: Path, command: str) -> None:
    """W-061."""
    assert meant(tmp_path, {"agent_cmds": {"a": command}}).agent_cmds == {"a": command}


FIRST = Backend(base_url="http://127.0.0.1:1", model="small", context_tokens=5000)
OTHER = Backend(base_url="http://127.0.0.1:2", model="large")
GEMINI = "openrouter/google/gemini-3-pro-preview"


def test_a_wiki_has_a_backend_or_a_model_of_the_first_one_of_base() -> None:
    """W-053."""
    backends = {"other": OTHER, "first": FIRST}
    llm = Llm(backends=backends, roles=Roles(base=("first", "other")))
    assert with_model(llm, None) is llm
    assert with_model(llm, "other") is llm
    more = with_model(llm, GEMINI)
    asked = Backend(base_url="http://127.0.0.1:1", model=GEMINI, context_tokens=5000)
    assert more.backends == {**backends, GEMINI: asked}
    assert more.roles == llm.roles
    assert llm.backends == backends


async def test_such_a_model_can_be_asked_by_its_name(tmp_path: Path) -> None:
    """W-053: and chats are answered by who did before."""
    request = Request(({"role": "user", "content": "hello"},))
    async with (
        ModelServer(rules=False) as server,
        open_migrated(tmp_path / "wintermute.db") as database,
    ):
        first = Backend(base_url=server.url, model="small")
        llm = with_model(Llm(backends={"first": first}, roles=Roles(base=("first",))), GEMINI)
        async with aclosing(Models(llm, database, FakeClock(), new_id, "UTC")) as models:
            await models.ask("base", request, backend=GEMINI)
            await models.ask("base", request)
    assert [seen.body["model"] for seen in server.requests] == [GEMINI, "small"]
