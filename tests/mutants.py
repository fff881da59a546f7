"""Makes small changes in a module's code, and counts those that its tests see.

    python -m tests.mutants wintermute/tasks/due.py tests/test_due.py [--changes 200] [--seed 1]

Run it before and after a test file is rewritten: the same seed makes the same changes, also where
comments and docstrings are others. Options that it does not know, such as `--slow`, go to pytest.

Nothing is written into the checkout: tests and program run in copies of it, in a temporary folder. A
test sees a change if it fails, does not end, or cannot begin. For each change those tests run that
came to its lines, and those that start processes, for nobody knows which lines these come to.
"""

import argparse
import ast
import ctypes
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from coverage import Coverage

from tests.world.small_changes import changes

FORK = multiprocessing.get_context("fork")
FAST = Path("/dev/shm")
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", "node_modules", ".*_cache", ".hypothesis")
OPTIONS = (
    *("-q", "-x", "-n0", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are imported before it
)
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}
UNSEEN = (0, pytest.ExitCode.NO_TESTS_COLLECTED)
PATIENCE, FIRST = 10, 120
"""Seconds that a test may take longer than the longest did, and in which the first has begun."""
NOWHERE, FAILS = "  (no test comes there)", "\nThese tests fail without any change."


class Known(NamedTuple):
    """The lines that a test comes to, if it starts processes, and its seconds."""

    lines: set[int]
    starts: bool
    seconds: float


class Survey:
    """A plugin for a run of the tests as they are: which of them comes to which lines.

    Lines belong to a test, to a fixture that several tests share, or to the import of all ("").
    """

    def __init__(self, module: Path) -> None:
        self._file = str(module)
        self._coverage = Coverage(data_file=None, config_file=False, include=[self._file])
        self._now = ""
        self._starts: set[str] = set()
        self._tests: dict[str, tuple[list[str], float]] = {}

    def begin(self) -> None:
        """Note from now on which lines are come to, and who starts processes."""
        sys.addaudithook(self._hear)
        self._coverage.start()

    def _hear(self, event: str, _args: object) -> None:
        if event in STARTS:
            self._starts.add(self._now)

    def _goes_on(self, owner: str) -> None:
        self._now = owner
        self._coverage.switch_context(owner)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        before = self._now
        if fixturedef.scope != "function":
            self._goes_on(fixturedef.argname)
        try:
            return (yield)
        finally:
            self._goes_on(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Function) -> Iterator[None]:
        self._goes_on(item.nodeid)
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            used = [item.nodeid, *item.fixturenames]
            self._tests[item.nodeid] = used, time.perf_counter() - began

    def result(self) -> tuple[dict[str, Known], set[int]]:
        """Return the tests, fastest first, and the lines that importing comes to."""
        self._coverage.stop()
        lines, tests = defaultdict[str, set[int]](set), dict[str, Known]()
        for line, owners in self._coverage.get_data().contexts_by_lineno(self._file).items():
            for owner in owners:
                lines[owner].add(line)
        for test, (used, seconds) in sorted(self._tests.items(), key=lambda each: each[1][1]):
            own = set[int]().union(*(lines[each] for each in used))
            tests[test] = Known(own, not self._starts.isdisjoint(used), seconds)
        return tests, lines[""]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A plugin that runs these tests, and any that is not among all whose `seconds` are known."""

    tests: Sequence[str]
    seconds: Mapping[str, float]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {test: n for n, test in enumerate(self.tests)}
        out = self.seconds.keys() - order.keys()
        kept = [item for item in items if item.nodeid not in out]
        items[:] = sorted(kept, key=lambda item: order.get(item.nodeid, -1))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        usual = 2 * max(self.seconds.values()) + 5 * self.seconds.get(item.nodeid, 0)
        signal.alarm(int(PATIENCE + usual))
        return (yield)


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs the tests of a module in copies of the checkout, one for each process."""

    folder: Path
    module: str
    arguments: Sequence[str]

    @property
    def own(self) -> Path:
        """The copy of this process."""
        made = self.folder / str(os.getpid())
        if not made.exists():
            shutil.copytree(Path.cwd(), made, symlinks=True, ignore=NOT_COPIED)
        return made

    def survey(self) -> tuple[int, tuple[dict[str, Known], set[int]], Collection[str]]:
        """Run all tests as they are: pytest's code, what they came to, and modules of others."""
        root, top = self.own, {path.stem for path in Path.cwd().iterdir()}
        plugin = Survey(root / self.module)
        plugin.begin()
        code = self._run(root, plugin)
        modules = [name for name in sys.modules if name.partition(".")[0] not in top]
        return code, plugin.result(), modules

    def attempt(self, n: int, text: str, chosen: Chosen) -> int:
        """Run tests with another text of the module; return pytest's code, or the signal that ended it."""
        root = self.own
        (root / self.module).write_text(text)
        os.utime(root / self.module, (n, n))  # what is compiled of another text has another time
        process = FORK.Process(target=lambda: os._exit(self._run(root, chosen)))
        process.start()
        process.join()
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        return process.exitcode or 0

    def _run(self, root: Path, plugin: object) -> int:
        """Run tests from a copy, in a process that does nothing else."""
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # dies with its parent
        signal.alarm(FIRST if isinstance(plugin, Chosen) else 0)
        scratch = root.with_suffix(".tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        with (self.folder / "output").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        others = [each for each in sys.path if Path(each).resolve() != Path.cwd()]
        sys.path[:] = [str(root), *others]
        os.chdir(root)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        tempfile.tempdir = str(scratch)
        os.environ.update(PYTHONPATH=str(root), TMPDIR=str(scratch))  # noqa: TID251  for what tests start
        return int(pytest.main([*OPTIONS, *self.arguments], plugins=[plugin]))


def preload(names: Collection[str]) -> None:
    """Import modules, so that processes that are forked later need not."""
    for name in names:
        with suppress(Exception):  # what cannot be imported alone, the tests import
            importlib.import_module(name)


def main() -> int:
    """Count the changes that tests see, and list the others."""
    parser = argparse.ArgumentParser("python -m tests.mutants")
    parser.add_argument("module")
    for option, default in (("--changes", 200), ("--seed", 1), ("--jobs", os.cpu_count())):
        parser.add_argument(option, type=int, default=default)
    given, arguments = parser.parse_known_args()
    began, tree = time.perf_counter(), ast.parse(Path(given.module).read_text())
    every = dict(enumerate(changes(tree)))
    picked = sorted(random.Random(given.seed).sample([*every], min(given.changes, len(every))))
    with tempfile.TemporaryDirectory(None, "mutants-", FAST if FAST.is_dir() else None) as folder:
        bench = Bench(Path(folder), given.module, arguments)
        with ProcessPoolExecutor(1, FORK) as alone:
            code, (known, imported), modules = alone.submit(bench.survey).result()
        seconds = {test: each.seconds for test, each in known.items()}
        with ProcessPoolExecutor(given.jobs, FORK, preload, (modules,)) as pool:
            same = pool.submit(bench.attempt, 1, ast.unparse(tree), Chosen([*known], seconds))
            if code or same.result():
                sys.exit((bench.folder / "output").read_text() + FAILS)
            codes = {}
            for n in picked:
                if tests := candidates({*every[n].lines}, known, imported):
                    asked = n + 2, every[n].text(tree), Chosen(tests, seconds)
                    codes[n] = pool.submit(bench.attempt, *asked)
            unseen = [n for n in picked if n not in codes or codes[n].result() in UNSEEN]
    late = sum(each.result() < 0 for each in codes.values())
    print(  # noqa: T201
        f"{given.module}: {len(picked) - len(unseen)} of {len(picked)} changes seen ({late} by their time);"
        f" {len(every)} in all, seed {given.seed}, {time.perf_counter() - began:.0f} s. Not seen:"
    )
    for n in unseen:
        print(f"{given.module}:{every[n]}{'' if n in codes else NOWHERE}")  # noqa: T201
    return 0


def candidates(lines: set[int], known: Mapping[str, Known], imported: set[int]) -> list[str]:
    """List the tests that may see a change of these lines, first the fastest that come there."""
    if lines & imported:
        return [*known]
    near = [test for test, each in known.items() if lines & each.lines]
    return near + [test for test, each in known.items() if each.starts and not lines & each.lines]


if __name__ == "__main__":
    sys.exit(main())
