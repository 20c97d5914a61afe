"""Runs a command, and ends all that it started when standard input ends: so nothing outlives who asked for it, however
that ended.

A script for any Python on Linux, without imports of ours: guard.py SECONDS COMMAND … prints the number of the command's
process group, and gives that so many seconds to end. Where the command ends by itself, the rest of its group is ended.
The exit code is the command's own.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36


def end(group: int, grace_s: float) -> None:
    """Ask all processes of the group to end, wake those that are stopped, and after a while end them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        os.killpg(group, signal.SIGCONT)
        time.sleep(grace_s)
        os.killpg(group, signal.SIGKILL)


def main(grace_s: float, command: list[str]) -> int:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the group are ours to wait for
    try:
        group = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True).pid
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    print(group, flush=True)

    def end_with_parent() -> None:
        sys.stdin.read()
        end(group, grace_s)

    threading.Thread(target=end_with_parent, daemon=True).start()
    code = 0
    with contextlib.suppress(ChildProcessError):  # nobody of the group is left
        while True:
            ended, status = os.waitpid(-group, 0)
            if ended == group:
                code = os.waitstatus_to_exitcode(status)
                threading.Thread(target=end, args=(group, grace_s), daemon=True).start()
    return code


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
