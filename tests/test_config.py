"""Reading config.yaml: every problem at once, in its place, and no secret shown."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.configuration import GOOD, configuration, problem, problems
from wintermute.config.read import environment, read_config
from wintermute.config.schema import Config, Secret, key_name
from wintermute.config.secrets import Redaction, secret_values
from wintermute.errors import ConfigurationError


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    """L-019: the defaults stand in the schema."""
    config = configuration(tmp_path, GOOD)
    assert config.matrix.password == Secret("correct horse")
    assert config.loop.max_turns == 30
    assert config.sub_sessions.max_turns == 50
    assert config.llm.roles.base == ("local",)
    assert config.data_dir == tmp_path / "data"
    assert config.wiki_store == tmp_path / "data/wiki"


def test_every_problem_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """L-082: unknown keys are named with the nearest known one."""
    text = """\
matrix:
  homserver: https://matrix.example.org
  user_id: "@bot:example.org"
  owner: "@ann:example.org"
  pasword: {env: PASSWORD}
loop: {max_turns: many}
lgo: {level: info}
"""
    assert problems(tmp_path, text) == [
        "1:1: llm.backends: is missing: write a section of names with their values below it",
        "2:3: matrix.homeserver: is missing: write text like https://matrix.example.org",
        "2:3: matrix.homserver: unknown key; the nearest known one is homeserver",
        "2:3: matrix.password: is missing: write {env: NAME} or {file: PATH}, or give an"
        " access_token in the same way",
        "5:3: matrix.pasword: unknown key; the nearest known one is password",
        "6:19: loop.max_turns: must be a whole number of at least 1",
        "7:1: lgo: unknown key; the nearest known one is log",
    ]


NO_NUMBER = ("0", "-1", "null", "1.5", '"30"', "1_000", "9" * 5000, "[1]")
ZONES = {"Europa/Berlin": "Europe/Berlin", "../x": "America", "America": "America", "x" * 300: ""}
EMBEDS = "memory: {embeddings: {provider: endpoint%s}}"
ADDED = [
    *((f"loop: {{max_turns: {n}}}", "9:19: loop.max_turns: must be a whole") for n in NO_NUMBER),
    *(
        (f"context: {{component_size_limits: {{memories: {n}}}}}", ".memories: must be a whole")
        for n in NO_NUMBER
    ),
    *(
        (
            f"timezone: {zone}",
            f"no time zone is called '{zone[:60]}'; the nearest known one is {near}",
        )
        for zone, near in ZONES.items()
    ),
    ('timezone: "Berlin\tMitte"', "9:11: timezone: must be text, not blank and in one line"),
    ("memory: {backend: redis}", "must be one of local_vector, fts5, flat_file, qdrant"),
    ("seed: {language: ../x}", "9:18: seed.language: must be text like en"),
    (EMBEDS % "", ".backend: is missing: write which of llm.backends computes embeddings: local"),
    (EMBEDS % ", backend: locl", "no backend is called 'locl'; the nearest known one is local"),
    ("dreaming:\n  hour: 25", "10:9: dreaming.hour: must be a whole number from 0 to 23"),
    ("dreaming:\n  report_at: '25:00'", "10:14: dreaming.report_at: must be text like 08:00"),
    ("dreaming:\n  dedup_similarity: 0.5", "10:21: dreaming.dedup_similarity: contradiction_simil"),
    (
        "dreaming:\n  dedup_similarity: 0.7\n  contradiction_similarity: 0.8",
        "11:29: dreaming.contradiction_similarity: contradiction_similarity (0.8) must be below"
        " dedup_similarity (0.7)",
    ),
    ("dreaming:\n  contradiction_similarity: 2", "10:29: dreaming.contradiction_similarity: must"),
    ("quiet: {from: 22:00, to: 22:00}", "9:26: quiet.to: is when they begin: write another time"),
    ("quiet: {from: 22:00}", "9:15: quiet.from: needs quiet.to as well: write both, or neither"),
    ("quiet: {from: ten, to: 07:00}", "9:15: quiet.from: must be text like 22:00"),
    *(
        (f"web: {{enabled: {word}}}", "9:16: web.enabled: must be true or false")
        for word in ("no", "off", "yes", "on", '"true"', "0")
    ),
    *(
        (f"loop:\n  max_seconds: {n}", "10:16: loop.max_seconds: must be a number of at least 1")
        for n in (".inf", ".nan", "1e999", "3:30", "2,5")
    ),
    ("loop:", "9:6: loop: must be a section"),
    ("tools: {files: {roots: }}", "9:23: tools.files.roots: must be a list"),
]


@pytest.mark.parametrize(("written", "said"), ADDED, ids=[f"{key[:70]!r}" for key, _ in ADDED])
def test_what_no_key_can_be_is_named_in_its_place(tmp_path: Path, written: str, said: str) -> None:
    """L-019, P-053, P-008, M-014, P-059, M-021, L-082, U-017."""
    assert said in problem(tmp_path, f"{GOOD}{written}\n")


def test_the_owner_is_somebody_and_not_the_bot(tmp_path: Path) -> None:
    """L-079: nobody is never read as everybody."""
    nobody = problem(tmp_path, GOOD.replace('  owner: "@ann:example.org"\n', ""))
    assert nobody.endswith("matrix.owner: is missing: write text like @you:example.org")
    itself = problem(tmp_path, GOOD.replace("@ann", "@bot"))
    assert itself.startswith("4:10: matrix.owner: is the bot's own account")


def test_off_no_and_times_are_text_and_only_true_and_false_are_truths(tmp_path: Path) -> None:
    config = configuration(
        tmp_path,
        GOOD.replace("model: small", "model: 3:30") + "  roles: {base: [local]}\n  transcription:\n"
        "timezone: UTC\nweb: {enabled: TRUE, host: no}\nquiet: {from: 22:00, to: 07:00}\n"
        "memory: {embeddings: {model: 2024-01-01, provider: endpoint, backend: local,"
        " query_prefix: 'query: '}}\nloop: {max_seconds: 1e3}\ndreaming: {dedup_similarity: 1}\n",
    )
    assert config.llm.backends["local"].model == "3:30"
    assert config.llm.transcription is None
    assert (config.web.enabled, config.web.host, config.quiet.from_) == (True, "no", "22:00")
    embeddings = config.memory.embeddings
    assert (embeddings.model, embeddings.backend) == ("2024-01-01", "local")
    assert embeddings.query_prefix == "query: "
    assert config.loop.max_seconds == 1000.0
    assert isinstance(config.dreaming.dedup_similarity, float)
    off = configuration(tmp_path, GOOD.replace("matrix:\n", "matrix:\n  encryption: off\n"))
    assert off.matrix.encryption == "off"


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    text = GOOD + "loop:\n  max_turns: 1\n  max_turns: 2\nlog: {level: info}\nlog: {level: debug}\n"
    assert problems(tmp_path, text) == [
        "11:3: loop.max_turns: is here twice (first in line 10): remove one",
        "13:1: log: is here twice (first in line 12): remove one",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1:1: the file is empty"),
        ("# nothing\n", "1:1: the file is empty"),
        ("matrix:\n\thomeserver: x\n", "2:1: a tab is where only spaces may be"),
        ("matrix:\n  owner: @ann:example.org\n", "2:10: text that starts with @ needs quotes"),
        ("matrix:\n  allowed_rooms: [!abc:x]\n", "2:19: tags are not used here"),
        ("a: &x 1\nb: *x\n", "1:4: anchors and aliases are not used here"),
        ("a: *nowhere\n", "1:4: anchors and aliases are not used here"),
        ("a: {b: [}\n", "1:9: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "2:1: not valid YAML"),
        ('a: "\\Uffffffff"\n', "1:1: not valid YAML"),
        ("a: \x00\n", "1:4: has a character"),
        (b"a: b\nc: \xff\n", "2:4: the file is not UTF-8 text"),
        ("a: b\n".encode("utf-16"), "1:1: the file is not UTF-8 text"),
        ("[" * 100_000, "1:14: nested too deeply"),
        ("- " * 100_000, "1:27: nested too deeply"),
        ("a: " + "x" * 300_000, "1:1: larger than 256 KB"),
    ],
)
def test_no_configuration_is_told_by_place(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert problem(tmp_path, text).startswith(said)


def test_a_document_of_another_shape_names_what_is_missing(tmp_path: Path) -> None:
    first, *others = problems(tmp_path, "hello\n")
    assert first == "1:1: must be a section with keys below it"
    assert any("matrix.owner: is missing" in line for line in others)


def test_a_file_that_is_none_says_what_to_do_and_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file: make one with `wintermute init"):
        read_config(tmp_path / "none.yaml", {})
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        read_config(tmp_path, {})
    assert configuration(tmp_path, b"\xef\xbb\xbf" + GOOD.encode()).timezone == "UTC"


# Secrets ---------------------------------------------------------------------------------------


def with_password(value: str) -> str:
    return GOOD.replace("{env: PASSWORD}", value)


@pytest.mark.parametrize(
    "value",
    [
        *("hunter2", '"hunter2"', "[hunter2]", "{hunter2}", "{hunter2, hunter2}", "[hunter2"),
        *("{env: hunter2 again}", "{value: hunter2}", "{env: A, file: hunter2}", "*hunter2"),
        *("!hunter2! x", "!hunter2!x y", "&hunter2 x", "{env: [hunter2]}", "@hunter2"),
        *('"hunter2', "{? [hunter2]}"),
    ],
)
def test_a_secret_in_plain_sight_is_refused_and_not_repeated(tmp_path: Path, value: str) -> None:
    """L-050."""
    assert "hunter2" not in "\n".join(problems(tmp_path, with_password(value)))


def test_a_secret_in_the_wrong_place_is_not_repeated(tmp_path: Path) -> None:
    """L-050: values are never shown, only keys, time zones and names of backends."""
    text = """\
matrix: {homeserver: hunter2, user_id: hunter2, owner: true, access_token:hunter2}
llm: {backends: {local: {base_url: "http://me:hunter2@x/v1", model: "hunter2\\n"}}, max_retries: hunter2}
log: {level: hunter2}
pasword: hunter2
data_dir: [hunter2]
"""
    said = "\n".join(problems(tmp_path, text))
    assert "hunter2" not in said
    assert "matrix.access_token: unknown key" in said


def test_a_secret_comes_from_a_file_beside_it_or_else_from_the_credentials(tmp_path: Path) -> None:
    credentials, beside = tmp_path / "credentials", tmp_path / "token"
    credentials.mkdir()
    (credentials / "token").write_text("of systemd")
    around = {"CREDENTIALS_DIRECTORY": str(credentials)}
    text = with_password("{file: token}")
    assert configuration(tmp_path, text, around).matrix.password == Secret("of systemd")
    beside.write_text("s3cret\n")
    assert configuration(tmp_path, text, around).matrix.password == Secret("s3cret")
    for named in ("token", beside):
        config = configuration(tmp_path, with_password(f"{{file: {named}}}"))
        assert config.matrix.password == Secret("s3cret")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{env: NOWHERE}", "the environment variable NOWHERE is not set"),
        ("{env: EMPTY}", "the environment variable EMPTY is empty"),
        ("{env: LINES}", "the environment variable LINES must hold one line"),
        ("{file: nowhere}", "there is no file "),
        ("{file: /}", "there is no file /"),
        ("{file: /dev/zero}", "there is no file /dev/zero"),
        ("{file: " + "x" * 5000 + "}", "cannot be read: File name too long"),
        ("{file: binary}", "is not UTF-8 text"),
        ("{file: blank}", "blank is empty"),
    ],
)
def test_a_secret_that_cannot_be_had_is_named(tmp_path: Path, value: str, said: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "blank").write_text("\n")
    (line,) = problems(tmp_path, with_password(value), {"EMPTY": "", "LINES": "a\nb"})
    assert line.startswith("5:13: matrix.password: ")
    assert said in line


def test_the_bot_needs_one_way_to_log_in(tmp_path: Path) -> None:
    token = with_password("null") + "\n"
    assert "matrix.password: is missing" in problem(tmp_path, token)
    only_token = configuration(tmp_path, GOOD.replace("password: {env", "access_token: {env"))
    assert only_token.matrix.device_id is None
    both = GOOD.replace("matrix:\n", "matrix:\n  access_token: {env: KEY}\n")
    assert "matrix.access_token: is set beside a password" in problem(tmp_path, both)


def test_the_secrets_of_a_configuration_are_known_and_hidden(tmp_path: Path) -> None:
    """L-050."""
    around = {"PASSWORD": 'a "b"\\c', "KEY": "sk-ü/1", "MCP": "third"}
    config = configuration(
        tmp_path,
        GOOD.replace("model: small", "model: small, api_key: {env: KEY}")
        + "tools: {mcp: {one: {env: {TOKEN: {env: MCP}}}}}\n",
        around,
    )
    assert set(secret_values(config)) == set(around.values())
    assert "sk-" not in repr(config)
    hide = Redaction(secret_values(config))
    assert hide("a third way") == "a [secret] way"
    said = hide(f'{around["PASSWORD"]!r} {around["KEY"]} sk-%C3%BC%2F1 "a \\"b\\"\\\\c"')
    assert said == "'[secret]' [secret] [secret] \"[secret]\""
    assert Redaction([])("as it was") == Redaction(["x"])("as it was") == "as it was"


# Rules about several keys ----------------------------------------------------------------------

TWO = GOOD + '    other: {base_url: "http://[::1]:1/v1", model: big}\n'


def test_a_role_names_backends_that_exist_and_several_need_a_base(tmp_path: Path) -> None:
    assert problem(tmp_path, TWO).endswith(
        "llm.roles.base: is missing: several backends, so write which to use: local, other"
    )
    config = configuration(tmp_path, TWO + "  roles: {base: [other, local]}\n")
    assert config.llm.roles.base == ("other", "local")
    assert problems(tmp_path, TWO + "  roles: {base: [othr], harvest: [local, Lokal]}\n") == [
        "10:18: llm.roles.base[0]: no backend is called 'othr'; the nearest known one is other",
        "10:42: llm.roles.harvest[1]: no backend is called 'Lokal'; the nearest known one is local",
    ]


def test_no_backend_at_all_is_refused(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("  backends")] + "  backends: {}\n"
    assert problem(tmp_path, text).startswith("7:13: llm.backends: names no backend")


def test_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    text = GOOD + "data_dir: ../kept\ntools: {files: {roots: [notes, /x, ~/y]}}\n"
    config = configuration(tmp_path, text)
    assert config.data_dir == tmp_path / "../kept"
    assert config.tools.files.roots == (tmp_path / "notes", Path("/x"), Path.home() / "y")


def test_the_environment_is_that_of_the_process() -> None:
    assert environment()["PATH"]


# Anything at all -------------------------------------------------------------------------------

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.dates()
    | st.sampled_from(
        ["@a:b", "https://x", "UTC", "local", "off", "data", "~nobody", "/", "\ud800"]
    )
)
SECRETS = st.sampled_from([{"env": "PASSWORD"}, {"file": "config.yaml"}, {"file": "no\0"}, "x"])


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Mostly what the key wants, sometimes anything."""
    if dataclasses.is_dataclass(kind):
        return sections(kind)
    if get_origin(kind) is tuple:
        return st.lists(values(get_args(kind)[0]), max_size=2)
    if get_origin(kind) is Mapping:
        names = st.sampled_from(["local", "a b", "x.y", ""])
        return st.dictionaries(names, values(get_args(kind)[1]), max_size=2)
    if kind is Secret:
        return SECRETS
    if get_origin(kind) is not None and type(None) in get_args(kind):
        return st.none() | values(get_args(kind)[0])
    return LEAVES


def sections(shape: Any) -> st.SearchStrategy[Any]:
    """Some of the section's keys, and sometimes one that it does not have."""
    fields = {
        key_name(field): st.deferred(lambda kind=field.type: values(kind) | LEAVES)  # type: ignore[misc]  # the default fixes the type
        for field in dataclasses.fields(shape)
    }
    return st.fixed_dictionaries({}, optional={**fields, "naem": LEAVES})


READ = settings(
    max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@READ
@given(text=st.text(max_size=60) | st.binary(max_size=60) | sections(Config).map(yaml.safe_dump))
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path: Path, text: str | bytes) -> None:
    with contextlib.suppress(ConfigurationError):
        configuration(tmp_path, text.encode("utf-8", "replace") if isinstance(text, str) else text)


def small(more: str) -> str:
    """A configuration whose backend says more."""
    return GOOD.replace("model: small", f"model: small, {more}")


def test_an_address_ends_without_a_slash(tmp_path: Path) -> None:
    """Paths are put behind it."""
    text = GOOD.replace("example.org\n", "example.org/\n", 1).replace("8080/v1", "8080/v1//")
    config = configuration(tmp_path, text)
    assert config.matrix.homeserver == "https://matrix.example.org"
    assert config.llm.backends["local"].base_url == "http://127.0.0.1:8080/v1"


def test_what_a_server_wants_besides_is_taken_as_it_stands(tmp_path: Path) -> None:
    """Names and values are the server's own: nothing is guessed, and no secret fetched."""
    extra = (
        "{temperature: 0.3, top_k: 20, cache_prompt: true, seed: 12345678901234567890, stop: null,"
        ' id: "7", answer: no, chat_template_kwargs: {enable_thinking: false, tags: [a, 1.5]},'
        " env: {env: PASSWORD}}"
    )
    config = configuration(tmp_path, small(f"extra: {extra}"))
    assert dict(config.llm.backends["local"].extra) == {
        **{"temperature": 0.3, "top_k": 20, "cache_prompt": True, "seed": 12345678901234567890},
        **{"stop": None, "id": "7", "answer": "no", "env": {"env": "PASSWORD"}},
        "chat_template_kwargs": {"enable_thinking": False, "tags": ["a", 1.5]},
    }


SIZES = "context_tokens: {}, max_output_tokens: {}"
BACKENDS = [
    *(
        (f"extra: {{{name}: 1}}", f"8:73: ….extra.{name}: is set by Wintermute itself: {instead}")
        for names, instead in (
            ("messages tools tool_choice n stream stream_options", "remove it"),
            ("max_tokens max_completion_tokens", "write max_output_tokens of this backend"),
            ("model", "write model of this backend"),
        )
        for name in names.split()
    ),
    ("extra: 0.7", "8:72: ….extra: must be a section"),
    ("extra: [a]", "8:72: ….extra: must be a section"),
    ("extra: {a: 1e999}", "8:76: ….extra.a: is too large for a number"),
    ("extra: {a: 1, a: 2}", "8:79: ….extra.a: is here twice"),
    ('extra: {a: "\\ud800"}', "8:76: ….extra.a: has half a character"),
    ("extra: {a: {b: [{b: 1, b: 2}]}}", "8:88: ….extra.a.b[0].b: is here twice"),
    (SIZES.format(4096, 4096), "8:106: ….max_output_tokens: leaves no room"),
]


@pytest.mark.parametrize(("more", "said"), BACKENDS, ids=[more for more, _ in BACKENDS])
def test_what_no_request_carries_is_refused_there(tmp_path: Path, more: str, said: str) -> None:
    told = problem(tmp_path, small(more))
    assert told.startswith(said.replace("…", "llm.backends.local"))
    assert not more.endswith("4096") or told.endswith(
        "below 4096 (context_tokens), or empty: a quarter of the window then"
    )


@pytest.mark.parametrize(
    ("window", "written", "longest"),
    [(4096, "", 1024), (16_384, "", 4096), (200_000, "", 4096), (8192, 100, 100), (1024, "", 256)],
)
def test_answers_fit_a_window(
    tmp_path: Path, window: int, written: int | str, longest: int
) -> None:
    """Of a large window as much as ever; a number in the file is taken as it is."""
    config = configuration(tmp_path, small(SIZES.format(window, written)))
    assert config.llm.backends["local"].longest_answer == longest
