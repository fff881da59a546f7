"""The measure of tests: which small changes of a module they see."""

import subprocess
import sys
from pathlib import Path

MODULE = '''\
def more(count: int) -> int:
    """One more; a docstring is left as it is."""
    return count + 1

def tell() -> None:
    print("word")

def less(count: int) -> int:
    return -count
'''
TESTS = """\
import subprocess, sys, counts

def test_more():
    assert counts.more(1) == 2

def test_a_process():
    words = [sys.executable, "-c", "import counts; counts.tell()"]
    assert subprocess.check_output(words) == b"word\\n"
"""


def test_changes_that_no_test_sees_are_listed_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """Changes that only a process of a test comes to are seen as well."""
    (tmp_path / "counts.py").write_text(MODULE)
    (tmp_path / "test_counts.py").write_text(TESTS)
    words = (sys.executable, "-m", "tests.mutants", "counts.py", "test_counts.py")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    told, unseen = done.stdout.splitlines()
    assert told.startswith("counts.py: 6 of 7 changes seen (0 by their time); 7 in all, seed 1, ")
    assert unseen == "counts.py:9:4: return -count -> return None"
    assert (tmp_path / "counts.py").read_text() == MODULE
    assert len(list(tmp_path.iterdir())) == 2
