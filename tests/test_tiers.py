"""How the suite runs: two tiers, workers, shuffled, and nothing is left behind (issue 12)."""

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Literal

import pytest

from tests.tiers import is_too_long, seconds_of_files
from tests.world.homeserver import free_port
from tests.world.processes import descendants, survivors

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
# Those that ours rests on, and no other that this environment happens to have: they cost a second.
PLUGINS = (
    "-p",
    "xdist",
    "-p",
    "pytest_randomly",
    "-p",
    "pytest_asyncio.plugin",
    "-p",
    "no:cacheprovider",
)
TESTS = """
import pytest

def test_one():
    pass

@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_long(n):
    pass
"""
ROWS = """
import pytest

@pytest.mark.quick("b")
@pytest.mark.parametrize("row", "abc")
def test_named(row):
    pass

@pytest.mark.quick(every=3)
@pytest.mark.parametrize("n", range(7))
def test_counted(n):
    pass

@pytest.mark.slow
@pytest.mark.always
def test_always():
    pass

@pytest.mark.parametrize("n", range(2))
def test_left_undone(n):
    pytest.skip("no bell: apt-get install bell")
"""
SPENT = """
def test_within(budget):
    budget("lines of pages", {"a": 89, "b": 90, "c": 100}, 100, "Split it.")
    budget("words of pages", {"a": 89}, {"a": 100}, "Shorten it.")

def test_passed(budget):
    budget("lines of books", {"a": 101, "b": 3, "c": 1_100}, {"a": 100, "b": 4, "c": 1_000}, "Split it.")
"""
BESIDE = """
import os, pytest

def note(what):
    with open("log", "a") as log:
        log.write(f"{what}\\n")

@pytest.mark.parametrize("n", range(40))
def test_together(n):
    note(f"in {n}")
    sum(range(300_000))
    note(f"out {n}")

@pytest.mark.alone
@pytest.mark.parametrize("n", range(4))
def test_alone(n):
    note(f"alone {n}")
    sum(range(300_000))
    note(f"done {n}")
"""
DYING = """
import os, pytest

@pytest.mark.parametrize("n", range(8))
def test_some(n):
    if n == 3:
        os._exit(1)

@pytest.mark.alone
def test_alone():
    pass
"""


class Suite:
    """A small suite that runs as ours does."""

    def __init__(self, folder: Path, tests: str) -> None:
        self.folder = folder
        (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {SETTINGS['addopts']}\n")
        (folder / "conftest.py").write_text('pytest_plugins = ["tests.tiers"]\n')
        (folder / "test_it.py").write_text(tests)
        (folder / "tmp").mkdir()

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "pytest", *PLUGINS, *words]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TMPDIR": str(self.folder / "tmp"),
        }

    def run(self, *words: str, cores: set[int] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(before(f"os.sched_setaffinity(0, {cores})") if cores else []),
                *self.command(*words),
            ],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def outcome(self, *words: str) -> dict[str, int]:
        """How many tests passed, failed, ...."""
        ended = self.run(*words).stdout.splitlines()[-1]
        return {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", ended)}


def before(first: str) -> list[str]:
    """The beginning of a command whose process does this first."""
    return [
        sys.executable,
        "-c",
        f"import os, signal, sys; {first}; os.execv(sys.argv[1], sys.argv[1:])",
    ]


@pytest.mark.quick("words0-1", "words2-3", "words5-1")
@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ([], 1),
        (["-m", "not alone"], 1),
        (["--slow"], 3),
        (["-m", "slow"], 2),
        (["test_it.py::test_long"], 2),
        (["test_it.py::test_long[2]"], 1),
        (["test_it.py::test_one", "test_it.py::test_long[1]"], 2),
        (["-k", "long or one"], 1),
        (["test_it.py"], 1),
    ],
)
def test_slow_tests_run_when_they_are_asked_for(
    tmp_path: Path, words: list[str], passed: int
) -> None:
    """By the tier, or by the name of the test."""
    assert Suite(tmp_path, TESTS).outcome("-n0", *words)["passed"] == passed


def test_the_last_lines_say_what_was_left_out_and_the_first_how_it_was_shuffled(
    tmp_path: Path,
) -> None:
    said = Suite(tmp_path, TESTS).run().stdout
    assert "2 slow tests were left out: `make test-all`" in said
    assert re.search(r"--randomly-seed=\d+", said)


def test_a_budget_that_is_passed_says_what_to_do_and_one_nearly_spent_is_told_at_the_end(
    tmp_path: Path,
) -> None:
    """U-032: also from workers; the limit itself is kept."""
    ended = Suite(tmp_path, SPENT).run("-n", "1")
    assert "\nlines of books. Split it.\n  c: 1,100 of 1,000\n  a: 101 of 100\n" in ended.stdout
    assert "\nbudget nearly spent: lines of pages: c: 100 of 100; 2 in all\n" in ended.stdout
    assert "1 failed, 1 passed" in ended.stdout
    assert "words of pages" not in ended.stdout


@pytest.mark.slow
def test_a_table_has_quick_rows_and_the_slow_ones_come_in_parts(tmp_path: Path) -> None:
    """And what is skipped is a line for each reason, with what to do."""
    suite = Suite(tmp_path, ROWS)
    assert suite.outcome("-n0")["passed"] == 1 + 3
    assert suite.outcome("-n0", "-m", "slow")["passed"] == 2 + 4 + 1
    parts = [suite.run("-n0", "-m", "slow", "--part", f"{n}/3", "-v").stdout for n in (1, 2, 3)]
    assert all("slow tests: part" in said for said in parts)
    assert [said.count("test_always PASSED") for said in parts] == [1, 1, 1]
    assert sorted(said.count("test_named") for said in parts) == [0, 0, 2]
    assert sorted(said.count("test_counted") for said in parts) == [0, 0, 4]
    assert "2 skipped: no bell: apt-get install bell\n" in suite.run("-n2").stdout
    (tmp_path / "test_it.py").write_text(ROWS.replace('quick("b")', 'quick("d")'))
    assert "marked quick, and not there: ['d']" in suite.run("-n2").stdout


def test_a_test_that_measures_has_nobody_beside_it(tmp_path: Path) -> None:
    suite = Suite(tmp_path, BESIDE)
    assert suite.outcome("-n", "3") == {"passed": 44}
    log = (tmp_path / "log").read_text().splitlines()
    inside: set[str] = set()
    most = 0
    for line in log:
        what, n = line.split()
        if what == "in":
            inside.add(n)
        elif what == "out":
            inside.remove(n)
        most = max(most, len(inside))
        assert what not in {"alone", "done"} or not inside
    assert most > 1
    assert [log[i + 1] for i, line in enumerate(log) if line.startswith("alone")] == [
        line.replace("alone", "done") for line in log if line.startswith("alone")
    ]


@pytest.mark.slow
def test_a_worker_that_dies_costs_one_test_and_holds_up_nobody(tmp_path: Path) -> None:
    suite = Suite(tmp_path, DYING)
    ended = suite.run("-n", "2")
    assert ended.returncode == 1
    assert re.search(
        r"worker 'gw\d' crashed while running 'test_it.py::test_some\[3\]'", ended.stdout
    )
    assert "1 failed, 8 passed" in ended.stdout
    assert left_in(suite) == []


def left_in(suite: Suite) -> list[str]:
    """What a run has left beside the folders in which pytest keeps what has failed."""
    return [
        path.name
        for path in (suite.folder / "tmp").iterdir()
        if not path.name.startswith("pytest-of")
    ]


@pytest.mark.slow
def test_what_failed_is_kept_and_run_again_whatever_its_tier(tmp_path: Path) -> None:
    """With `-x` too, which ends the run as Ctrl-C would."""
    failing = TESTS.replace(
        "def test_long(n):\n    pass", "def test_long(n, tmp_path):\n    assert 0"
    )
    suite = Suite(tmp_path, failing)
    cache = ("-p", "cacheprovider")
    assert suite.outcome(*cache, "-x", "-n", "2", "-m", "slow")["failed"] >= 1
    assert list((tmp_path / "tmp").glob("pytest-of*/pytest-[0-9]*/popen-gw*/test_long*"))
    assert "passed" not in suite.outcome(*cache, "-n0", "--lf")


@pytest.mark.slow
def test_one_core_has_no_workers(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    ended = Suite(tmp_path, TESTS).run(cores={core})
    assert (ended.returncode, " workers" in ended.stdout) == (0, False)
    assert "2 slow tests were left out" in ended.stdout


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no workers")
def test_two_cores_have_three_workers_for_much_is_waited(tmp_path: Path) -> None:
    two = set(sorted(os.sched_getaffinity(0))[:2])
    ended = Suite(tmp_path, TESTS).run(cores=two)
    assert "created: 3/3 workers" in ended.stdout


def report(
    file: str, seconds: float, *marks: str, when: Literal["setup", "call"] = "call"
) -> pytest.TestReport:
    words: dict[str, Literal[1]] = dict.fromkeys(marks, 1)
    name, place = f"{file}::test", (file, 1, "test")
    return pytest.TestReport(name, place, words, "passed", None, when, duration=seconds)


@pytest.mark.parametrize(
    ("when", "seconds", "marks", "told"),
    [
        ("call", 10.0, (), True),
        ("call", 9.9, (), False),
        ("call", 99.0, ("slow",), False),
        ("setup", 99.0, (), False),
    ],
)
def test_a_quick_test_that_is_not_quick_is_told(
    when: Literal["setup", "call"], seconds: float, marks: tuple[str, ...], told: bool
) -> None:
    assert is_too_long(report("test_it.py", seconds, *marks, when=when)) is told


def test_a_file_whose_quick_tests_take_long_in_all_is_known() -> None:
    reports = [report("a.py", 3), report("a.py", 4), report("b.py", 5), report("b.py", 9, "slow")]
    assert seconds_of_files(reports) == {"a.py": 7, "b.py": 5}


def test_a_machine_without_a_free_port_is_told_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"no free port on loopback from {port}"):
            free_port(range(port, port + 1))


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    """Ctrl-C in the middle, with homeservers, daemons and warm interpreters at work."""
    suite = Suite(tmp_path, "")
    # As a terminal has it: what a script starts in the background is deaf to Ctrl-C.
    hears = before("signal.signal(signal.SIGINT, signal.default_int_handler)")
    with subprocess.Popen(
        [*hears, *suite.command("-v", "-n", "2", "tests/test_rooms_come_in.py")],
        cwd=ROOT,
        env=suite.environment | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "PASSED" in line:
                break
        begun = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stdout.read()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, said
    assert len(begun) >= 4  # two workers, a homeserver, a warm interpreter
    assert survivors(begun, within=10) == set()
    assert left_in(suite) == []
    assert list((tmp_path / "tmp").glob("pytest-of*/pytest-[0-9]*")) == []
