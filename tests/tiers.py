"""How the suite runs: the quick tier and the slow one, workers, and tests that want to be alone.

A pytest plugin. `pytest` runs the quick tier on all cores; `--slow` adds what is marked `slow`,
`-m slow` runs nothing else, and a test named by its node id runs either way. What is marked
`real_model` takes hours and a model: only `-m real_model` runs it.
What is marked `alone` measures time or memory: no other test runs beside it.
"""

import argparse
import fcntl
import gc
import os
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

from tests.world.budget import Budgeted, nearly_spent

SLOW_FROM, FILE_FROM = 10.0, 20.0
"""Seconds from which on a quick test, or the quick tests of a file, are named: they belong to the slow
tier, or are to be mended.
"""
EVERY = 120
"""Statements between two kills of a series, but for `--every`."""
MEMORY = Path("/dev/shm")
"""No fsync waits here. The suite makes some 100,000, and on a disk each worker would wait for those
of the others too. Tests kill processes; none cuts the power.
"""
ROOM = 2**31
EXAMPLES, MORE_EXAMPLES = 25, 100
"""Examples of a property, in the quick tier and with the slow one."""
REAL = "real_model"
SHARED = pytest.StashKey[Path]()
WRONG = pytest.StashKey[str]()
LEFT_OUT = pytest.StashKey[int]()
T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests as well")
    parser.addoption(
        "--every",
        type=int,
        default=EVERY,
        help="of a series of kills so many statements apart; 1: all",
    )
    parser.addoption(
        "--part", type=a_part, help="run part 2/4 of the slow tests, and those marked `always`"
    )


def pytest_configure(config: pytest.Config) -> None:
    # What one worker or program has compiled the others read: else each spends half a minute on it.
    # A person who wants no such files gets them all the same, in folders that git ignores.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # noqa: TID251
    # A busy machine is no bug, and a found example goes into the test, not into a folder beside it.
    count = MORE_EXAMPLES if wants_slow(config) else EXAMPLES
    settings.register_profile("house", deadline=None, database=None, max_examples=count)
    settings.load_profile("house")
    if worker_of(config) is None and "TMPDIR" not in os.environ and has_room(MEMORY):  # noqa: TID251
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)  # noqa: TID251  for workers and programs
    config.addinivalue_line("markers", "slow: proves it to the last statement; `make test-all`")
    config.addinivalue_line("markers", "quick: only these rows, or every n-th, are quick")
    config.addinivalue_line(
        "markers", "breaks: why requests of it may begin anew (tests/world/prefixes.py)"
    )
    config.addinivalue_line(
        "markers", "opens: settings of the house that a fixture opens (tests/conftest.py)"
    )
    config.addinivalue_line("markers", "real_model: talks with a real model; `make real-model`")
    config.addinivalue_line("markers", "always: slow, and in every part of the slow tests")
    config.addinivalue_line("markers", "alone: measures, so nothing else may run beside it")
    worker = worker_of(config)
    made = Path(worker["shared"] if worker else tempfile.mkdtemp(prefix="wintermute-tests-"))
    config.stash[SHARED] = made


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """What xdist asks the run for each of its workers."""
    node.workerinput["shared"] = str(node.config.stash[SHARED])
    send = node.sendcommand

    def sendcommand(name: str, **kwargs: object) -> None:
        with suppress(OSError):  # it has just died: xdist hears of that next, and would end here
            send(name, **kwargs)

    node.sendcommand = sendcommand


def pytest_unconfigure(config: pytest.Config) -> None:
    if worker_of(config) is None and SHARED in config.stash:
        shutil.rmtree(config.stash[SHARED], ignore_errors=True)


def has_room(folder: Path) -> bool:
    """Whether a run fits into a folder, and may start programs there."""
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(folder).free >= ROOM


def worker_of(config: pytest.Config) -> dict[str, Any] | None:
    """What a worker was given by the run; None in the run itself."""
    given: dict[str, Any] | None = getattr(config, "workerinput", None)
    return given


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Path:
    """A folder of all workers of this run, gone when it ends."""
    return request.config.stash[SHARED]


@pytest.fixture
def budget(record_property: Callable[[str, object], None]) -> Budgeted:
    """Checks what may grow only so far; see `tests/world/budget.py`."""
    return Budgeted(record_property)


def examples(count: int) -> int:
    """So many of a property that wants more or fewer than others, in this tier."""
    return max(1, count * settings().max_examples // MORE_EXAMPLES)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each worker of a whole run begin with other files, so that none is compiled twice."""
    worker = worker_of(session.config)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    folder = Path(__file__).parent
    files = sorted([*folder.glob("test_*.py"), *folder.glob("kill/test_*.py")])
    names = [".".join(file.relative_to(folder.parent).with_suffix("").parts) for file in files]
    first = int(worker["workerid"].removeprefix("gw")) * len(names) // worker["workercount"]
    for name in names[first:] + names[:first]:
        with suppress(Exception):  # pytest tells it when it comes to that file
            import_module(name)


def mark_rows(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow the rows of a table that `@pytest.mark.quick("one", "two")` does not name, or of
    which `@pytest.mark.quick(every=4)` passes three over. A mark that cannot be makes its test fail.
    """
    tables: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        test, _, row = item.nodeid.partition("[")
        if item.get_closest_marker("quick"):
            tables.setdefault(test, {})[row.removesuffix("]")] = item
    rows_asked_for = any("[" in argument for argument in config.args)
    for rows in tables.values():
        mark = next(iter(rows.values())).get_closest_marker("quick")
        assert mark is not None
        every, unknown = mark.kwargs.get("every", 0), set(mark.args) - rows.keys()
        for number, (row, item) in enumerate(rows.items()):
            if unknown and not rows_asked_for:
                item.stash[WRONG] = f"marked quick, and not there: {sorted(unknown)}"
            elif number % every if every else row not in mark.args:
                item.add_marker("slow")
            elif item.get_closest_marker("slow"):
                item.stash[WRONG] = "marked quick, and slow all the same"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if problem := item.stash.get(WRONG, ""):
        pytest.fail(problem, pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Mark the rows of tables before anybody chooses or shuffles, and choose when all others have."""
    mark_rows(config, items)
    yield
    choose(config, items)


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put those that are to be alone at the end; leave the slow out, unless they are asked for."""
    items.sort(key=is_alone)  # each one before that would empty the other workers
    if REAL not in config.getoption("markexpr"):
        leave_out(config, items, [item for item in items if item.get_closest_marker(REAL)])
    named = named_tests(config)
    if part := config.getoption("part"):
        left = [item for item in items if not is_in(item, *part) and not is_one(item, named)]
        leave_out(config, items, left)
    if wants_slow(config) or failed_last(config):
        return
    left = [item for item in items if item.get_closest_marker("slow") and not is_one(item, named)]
    config.stash[LEFT_OUT] = len(left)
    leave_out(config, items, left)


def a_part(text: str) -> tuple[int, int]:
    """Read `2/4`. Raises: argparse.ArgumentTypeError."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part such as 2/4")
    return int(number), int(count)


def is_in(item: pytest.Item, number: int, count: int) -> bool:
    """Tell whether a test belongs to this part of the slow ones; all rows of a table are in the same."""
    if item.get_closest_marker("slow") is None or item.get_closest_marker("always"):
        return True
    return zlib.crc32(item.nodeid.partition("[")[0].encode()) % count == number % count


def pytest_report_header(config: pytest.Config) -> str | None:
    part = config.getoption("part")
    return f"slow tests: part {part[0]} of {part[1]}" if part else None


def wants_slow(config: pytest.Config) -> bool:
    """Tell whether the slow tier is run as well."""
    marks = config.getoption("markexpr").replace("not slow", "")
    return bool(config.getoption("slow") or config.getoption("part") or "slow" in marks)


def leave_out(config: pytest.Config, items: list[pytest.Item], left: list[pytest.Item]) -> None:
    """Take these out of what is run."""
    if left:
        config.hook.pytest_deselected(items=left)
        out = set(left)
        items[:] = [item for item in items if item not in out]


def failed_last(config: pytest.Config) -> bool:
    """Whether the run is of what failed the last time, slow or not."""
    cache = config.cache if config.getoption("lf", default=False) else None
    return bool(cache and cache.get("cache/lastfailed", {}))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let no look for garbage go through what was collected: it is there until the end."""
    gc.collect()
    gc.freeze()


def is_alone(item: pytest.Item) -> bool:
    """Whether nothing may run beside a test."""
    return item.get_closest_marker("alone") is not None


def named_tests(config: pytest.Config) -> list[tuple[Path, str]]:
    """The file and the name of each test that the command line names by a node id."""
    parts = (argument.partition("::") for argument in config.args)
    folder = config.invocation_params.dir
    return [((folder / file).resolve(), name) for file, _, name in parts if name]


def is_one(item: pytest.Item, named: list[tuple[Path, str]]) -> bool:
    """Whether a test was named, alone or with all its parameters."""
    name = item.nodeid.partition("::")[2]
    return any(
        item.path.resolve() == file
        and (name == wanted or name.startswith((f"{wanted}[", f"{wanted}::")))
        for file, wanted in named
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three workers for two cores, for a test at the door waits for much of its time; none where one
    process does as well.
    """
    named = named_tests(config)
    if config.option.collectonly or (named and len(named) == len(config.args)):
        return 0
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return cores + cores // 2 if cores > 1 else 0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let tests run beside each other, and those that are to be alone beside none."""
    with turn(item.config.stash[SHARED], alone=is_alone(item)):
        return (yield)


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """A test that is alone waits until nobody is inside, and meanwhile keeps others out.

    The locks of a worker that dies are gone with it.
    """
    with (folder / "inside").open("w") as inside:
        with (folder / "door").open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(inside, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def tiered(cases: Mapping[str, T], quick: Iterable[str]) -> list[ParameterSet]:
    """A parameter for each case of a table, with its name; those that are not `quick` are slow."""
    wanted = set(quick)
    assert wanted < set(cases), wanted - set(cases)
    return [
        pytest.param(case, id=name, marks=() if name in wanted else pytest.mark.slow)
        for name, case in cases.items()
    ]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    worker = worker_of(session.config)
    if worker is not None:
        output = session.config.workeroutput  # type: ignore[attr-defined]  # xdist's
        output["left_out"] = session.config.stash.get(LEFT_OUT, 0)
    elif exitstatus == pytest.ExitCode.INTERRUPTED and not session.testsfailed:
        # pytest keeps the folders of what failed to be looked at; nobody looks at these.
        shutil.rmtree(session.config._tmp_path_factory.getbasetemp(), ignore_errors=True)  # type: ignore[attr-defined]  # has no public name


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear from a worker that ends what it left out; all of them leave out the same."""
    told: dict[str, int] = getattr(node, "workeroutput", {})
    node.config.stash[LEFT_OUT] = told.get("left_out", node.config.stash.get(LEFT_OUT, 0))


def is_too_long(report: pytest.TestReport) -> bool:
    """Whether a quick test itself took so long; what it stands on may just have been started."""
    quick = report.when == "call" and "slow" not in report.keywords
    return quick and report.duration >= SLOW_FROM


def seconds_of_files(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """Sum up the quick tests of each file, without what they stand on, which others share."""
    found: Counter[str] = Counter()
    for report in reports:
        if report.when == "call" and "slow" not in report.keywords:
            found[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]  # counts seconds
    return found


def skip_reasons(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """Count the skipped tests for each reason; ours say what to do (tests/world/missing.py)."""
    skipped = (report.longrepr for report in reports if report.skipped)
    return Counter(
        str(each[2]).removeprefix("Skipped: ") for each in skipped if isinstance(each, tuple)
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    known = (report for reports in terminalreporter.stats.values() for report in reports)
    reports = [report for report in known if isinstance(report, pytest.TestReport)]
    for report in filter(is_too_long, reports):
        write(f"{report.duration:.1f} s for a quick test: {report.nodeid}")
    for file, seconds in seconds_of_files(reports).most_common():
        if seconds >= FILE_FROM:
            write(f"{seconds:.0f} s for the quick tests of {file}")
    if any(is_too_long(report) for report in reports):
        write(f"(The load is {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores.)")
    for line in nearly_spent(reports):
        write(line)
    for reason, count in skip_reasons(reports).most_common():
        write(f"{count} skipped: {reason}")
    if left_out := terminalreporter.config.stash.get(LEFT_OUT, 0):
        write(
            f"{left_out} slow tests were left out: `make test-all` runs everything, `--slow` adds"
            " those of what is named here, and a node id runs a test whatever its tier."
        )
