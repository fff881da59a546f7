"""What a model wrote as arguments, and what becomes of it before anything is stored."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.house import Gate, house_at_work
from tests.world.model import Calls, ModelServer, Text, Use
from wintermute.config.secrets import Redaction
from wintermute.llm.json_repair import repaired, unaliased

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)
SCRAPS = st.lists(
    st.sampled_from(
        [
            *('{"a": 1}', "{}", "{", "}", "[", "]", '"', "\\", ",", ":", "1", "a", '"a"', "null"),
            *("```json\n", "\n```", "```", "\n", " ", "\\ud800", "\\u0073", "NaN"),
        ]
    ),
    max_size=12,
).map("".join)


def parsed(text: str) -> Any:
    """As the toolbox will read it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@given(OBJECTS, st.sampled_from([None, 1, 4]), st.booleans())
def test_valid_arguments_stay_as_they_were_written(
    value: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    """L-027: byte for byte, so that a provider's cache is of use."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert repaired(text) == text


@given(SCRAPS | st.text(max_size=40))
def test_what_comes_out_is_an_object_or_what_came_in(text: str) -> None:
    """L-027, L-030: and repairing it again changes nothing."""
    found = repaired(text)
    assert found == text or isinstance(parsed(found), dict)
    assert repaired(found) == found


@given(OBJECTS, st.sampled_from(["```json\n{}\n```", "```\n{}```", " ```JSON\n{}\n``` \n"]))
def test_a_fence_is_taken_away(value: dict[str, Any], fence: str) -> None:
    """L-027."""
    text = json.dumps(value)
    assert parsed(repaired(fence.replace("{}", text))) == value


@given(OBJECTS)
def test_an_object_written_as_a_string_is_that_object(value: dict[str, Any]) -> None:
    """L-027: some models encode twice."""
    assert parsed(repaired(json.dumps(json.dumps(value)))) == value


@given(OBJECTS.filter(bool))
def test_a_comma_after_the_last_item_is_taken_away_and_none_else(value: dict[str, Any]) -> None:
    """L-027: strings keep theirs, whatever stands in them."""
    value = {"of": value, "odd": ',} ,] "\\', "list": [1, 2]}
    text = json.dumps(value)
    spoilt = text.replace("2]}", "2, ] ,\n}")
    assert parsed(spoilt) is None
    assert parsed(repaired(spoilt)) == value


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", {}),
        (" \n", {}),
        ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1', None),
        ('{"a": "cut in its mid', None),
        ('{"a": 1} {"b": 2}', None),
        ("{'a': 1}", None),
        ("null", None),
        ("[1]", None),
        ('"text"', None),
        ("{" * 100_000, None),
    ],
)
def test_only_what_has_one_meaning_is_repaired(text: str, meant: object) -> None:
    """L-030: what was cut is not completed, for nobody knows what was meant."""
    found = repaired(text)
    assert found == text if meant is None else parsed(found) == meant


@pytest.mark.parametrize("depth", [50, *range(900, 1000), 20_000])
def test_deep_arguments_harm_nobody(depth: int) -> None:
    """L-030, L-031."""
    text = '{"a": ' + "[" * depth + "]" * depth + ",}"
    found = repaired(text)
    assert repaired(found) == found


def test_a_cut_string_full_of_quotes_is_given_up_at_once() -> None:
    """The loop stands still meanwhile: this took a minute once, in place of a millisecond."""
    text = '{"content": "' + '\\"' * 100_000
    assert repaired(text) == text


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("call_entity", '{"intent": "x"}', ("call_agent", {"intent": "x"})),
        ("call_entity_batch", "{}", ("call_agent_batch", {})),
        ("submit_answer", '{"x": 4}', ("done", {"answer": 4})),
        ("submit_answer", '{"x": "ä",}', ("done", {"answer": "ä"})),
        ("submit_answer", '{"answer": 4}', ("done", {"answer": 4})),
        ("submit_answer", '{"answer": 4, "x": 5}', ("done", {"answer": 4, "x": 5})),
        ("submit_answer", "{}", ("done", {})),
        ("done", '{"x": 4}', ("done", {"x": 4})),
        ("echo", "{}", ("echo", {})),
    ],
)
def test_names_become_ours(name: str, arguments: str, expected: tuple[str, object]) -> None:
    """L-004, L-010."""
    ours, written = unaliased(name, repaired(arguments))
    assert (ours, parsed(written)) == expected


@pytest.mark.parametrize("spoilt", ["{}", "```json\n{}\n```", "{},", '"{}"'])
async def test_half_a_character_in_arguments_harms_nobody(
    tmp_path: Path, model: ModelServer, spoilt: str
) -> None:
    """L-031: no text of the record, the next request or the answer has one."""
    half = '{"say": "\\ud83d half",}' if spoilt == "{}," else '{"say": "\\ud83d half"}'
    arguments = (
        json.dumps(half) if spoilt == '"{}"' else spoilt.replace("{},", "{}").replace("{}", half)
    )
    model.script(Calls((Use("echo", arguments),)), Text("fine"))
    async with house_at_work(tmp_path, model.url, gates=[Gate()]) as house:
        await house.incoming("go")
        assert await house.said(1) == ["fine"]


@pytest.mark.parametrize("mark", ["", ","])
async def test_a_secret_in_repaired_arguments_is_hidden(
    tmp_path: Path, model: ModelServer, mark: str
) -> None:
    """L-089: also when the model wrote it with escapes, in arguments that were no JSON."""
    key = "sk-canary-77"
    written = "".join(f"\\u{ord(mark):04x}" for mark in key)
    gate = Gate()
    model.script(Calls((Use("echo", f'{{"say": "{written}"{mark}}}'),)), Text("fine"))
    async with house_at_work(tmp_path, model.url, gates=[gate], redact=Redaction([key])) as house:
        await house.incoming("go")
        assert await house.said(1) == ["fine"]
        rows = await house.rows("SELECT calls, args, result FROM turns JOIN observations")
    assert key not in str(rows)
    assert key not in str(gate.taken)
