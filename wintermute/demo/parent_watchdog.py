"""Parent watchdog: runs a module as a program that cannot outlive the process that started it.

    python -m wintermute.demo.parent_watchdog MODULE ARGUMENT...

When the other end of standard input is gone, even by kill -9, this process and its children are
killed.
"""

import os
import runpy
import signal
import sys
import threading


def die_with_parent() -> None:
    """Wait for the end of standard input, then kill the whole process group."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the module named by the first argument in this process."""
    # A process group of its own: Ctrl-C goes to the starter only, which ends us in order.
    os.setsid()
    threading.Thread(target=die_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
