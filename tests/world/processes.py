"""The processes that a process has started, and who of them is still alive."""

import select
from pathlib import Path

from tests.world.clock import TICK


def descendants(pid: int) -> set[int]:
    """The processes started by a process, and by those."""
    parents: dict[int, set[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text().rpartition(") ")
        except OSError:
            continue
        parents.setdefault(int(rest.split()[1]), set()).add(int(stat.parent.name))
    children = parents.get(pid, set())
    return children | {found for child in children for found in descendants(child)}


def is_alive(pid: int) -> bool:
    """Decide whether a process is there and no zombie."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    except OSError:
        return False
    return not rest.startswith("Z")


def survivors(pids: set[int], within: float) -> set[int]:
    """Who is still there after so long; nobody as soon as nobody is."""
    looks = int(within / TICK)
    while (alive := set(filter(is_alive, pids))) and looks:
        select.select([], [], [], TICK)
        looks -= 1
    return alive
