"""Ends what a launcher leaves behind: waits for the launcher's end of a pipe to close, then ends all marked processes.

The mark is an entry of the environment, which every descendant inherits, whatever session or group it moves to. Runs as
a script in a session of its own, with an empty environment, so that neither Ctrl-C nor another guard reaches it.
Usage: ``guard.py MARK GRACE_S``, with the pipe as standard input; ``AT_ONCE`` on it leaves out the grace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

__all__ = ["end_marked", "main", "marked"]

LOOK_AGAIN_S = 0.05
AT_ONCE = b"at once"
GIVE_UP_S = 10.0


def marked(mark: str) -> list[int]:
    """Return the ids of the running processes that have ``mark``, as in ``NAME=value``, in their environment."""
    wanted, found = mark.encode(), []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(entry))
    return found


def end_marked(mark: str, grace_s: float) -> None:
    """Ask every marked process to end; after ``grace_s`` seconds kill those that are left.

    None counts as left when two looks in a row find none: a process that is just being replaced (exec) shows no mark.
    """
    asked: set[int] = set()
    kill_at_s = time.monotonic() + grace_s
    looks_without = 0
    while looks_without < 2 and time.monotonic() < kill_at_s + GIVE_UP_S:
        late = time.monotonic() >= kill_at_s
        left = marked(mark)
        for pid in left:
            if late or pid not in asked:
                asked.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        looks_without = 0 if left else looks_without + 1
        time.sleep(LOOK_AGAIN_S)


def main(arguments: list[str]) -> None:
    """Wait for the launcher's end and clear up after it, without grace if it said so."""
    mark, grace_s = arguments
    said = sys.stdin.buffer.read()
    end_marked(mark, 0.0 if said == AT_ONCE else float(grace_s))


if __name__ == "__main__":
    main(sys.argv[1:])
