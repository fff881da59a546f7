"""Runs a module as a program that cannot outlive whoever started it.

    python -m wintermute.demo.leash MODULE ARGUMENT...

Standard input is the leash: when its other end is gone, be it by kill -9, this process and what it
started are killed.
"""

import os
import runpy
import signal
import sys
import threading


def die_with_the_pipe() -> None:
    """Wait for the end of standard input, then kill this whole group."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the module named by the first argument in this process."""
    # A group of its own: Ctrl-C is for the one at the terminal, who ends us in order.
    os.setsid()
    threading.Thread(target=die_with_the_pipe, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
