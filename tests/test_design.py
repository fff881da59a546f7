"""The two pages that a contributor reads first name only what is there (U-031)."""

import re
import tomllib
from functools import cache

import pytest
import yaml

from tests.full_config import full_config
from tests.world.manual import NAME, ROOT, dotted, understood
from wintermute.commands.chat import NAMES

DESIGN = ROOT / "docs" / "design.md"
PLACES = [ROOT, *(ROOT / name for name in (NAME, "tests", "docs", "data", "data/wiki"))]
NAMED = re.compile(r"(?<!`)`([^`\n]+)`| {4}(make [a-z-]+)|-m (tests\.\w+)")
PATH = re.compile(r"[\w*./<>-]+/[\w*./-]*|\w+\.(py|md|toml|yaml)")
IN_FOLDER = {"core.md", "skills/", "prompts/", "wiki/", "wintermute.db"}
IN_FILE = re.compile(r"((?:`[\w.]+`(?:, | and | or ))*`[\w.]+`) (?:\(|in )`([\w/]+\.py)`")
KEYS = frozenset(dotted(yaml.safe_load(full_config())))


@cache
def names() -> tuple[frozenset[str], frozenset[str]]:
    """Names that the code defines or takes from a module, and all of its words."""
    files = [path for name in (NAME, "tests") for path in (ROOT / name).rglob("*.*")]
    kinds = {".py", ".sql", ".json"}
    found = [path for path in files if path.suffix in kinds and "node_modules" not in path.parts]
    code = "\n".join(path.read_text("utf-8") for path in found)
    defined = re.findall(r"(?:\bclass |\bdef |\.|-> |class \w+\()(?=(\w+))", code)
    return frozenset(defined), frozenset(re.findall(r"\w+", code))


def is_there(named: str) -> bool:
    """Tell whether a command, path, key or name of the code is there."""
    first, *more = named.split()
    if first == NAME:
        understood(more)
    elif first == "make":
        return f"\n{more[0]}:" in (ROOT / "Makefile").read_text("utf-8")
    elif first.startswith("/"):
        return first in NAMES
    elif named not in IN_FOLDER and PATH.fullmatch(
        named := re.sub(r"^tests\.(\w+)$", r"tests/\1.py", named)
    ):
        return any(any(place.glob(named.rstrip("/"))) for place in PLACES)
    elif first.rstrip(":") not in KEYS | IN_FOLDER:
        return all(map(is_name, re.findall(r"[A-Za-z_]\w+", named.partition("(")[0])))
    return True


def is_name(word: str) -> bool:
    """Tell whether code has a word; of a class and of a private function, its definition."""
    return word in names()[not re.match("_|[A-Z]+[a-z]", word)]


@pytest.mark.parametrize("page", ["docs/design.md", "CONTRIBUTING.md"])
def test_what_a_page_for_contributors_names_is_there(page: str) -> None:
    """U-031."""
    found = {"".join(groups) for groups in NAMED.findall((ROOT / page).read_text("utf-8"))}
    assert sorted(named for named in found if not is_there(named)) == []


def is_defined_in(name: str, file: str) -> bool:
    """Tell whether a file of the program or its tests defines a name."""
    [path] = [path for place in PLACES if (path := place / file).is_file()]
    definition = rf"^ *(?:class |(?:async )?def |){name}\b[:( =]"
    return re.search(definition, path.read_text("utf-8"), re.M) is not None


def test_a_name_before_a_file_is_defined_in_that_file() -> None:
    """U-031: as in "`VERBS` (`cli/main.py`)"."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    found = [
        (name, file)
        for listed, file in IN_FILE.findall(page)
        for name in re.findall(r"`(?:\w+\.)*(\w+)`", re.sub(r"`\w+\.py`", "", listed))
    ]
    assert len(found) > 20
    assert [each for each in found if not is_defined_in(*each)] == []


def test_the_drawing_of_the_layers_is_the_contract() -> None:
    """U-031."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    drawing = DESIGN.read_text("utf-8").split("## 2.")[1].split("```")[1].splitlines()[1:]
    layers = [re.split(" {2,}", line[13:])[0] for line in drawing]
    assert layers == settings["importlinter"]["contracts"][0]["layers"]
