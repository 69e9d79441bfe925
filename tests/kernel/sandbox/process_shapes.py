"""Trees of processes that try to outlive the command that started them."""

from __future__ import annotations

import sys
from pathlib import Path

PYTHON = f"{sys.executable} -S -I -c"

# What the processes of a tree do before "ready" is printed. Each adds its pid to the file
# that PIDS names, so that survivors are counted without the means under test.
SHAPES = {
    "plain child": "sleep 300 & note $!; ready; wait",
    "background child": "(sleep 300 & note $!) ; ready; sleep 300",
    "setsid": "setsid sh -c 'echo $$ >> $PIDS; exec sleep 300' & await 1; ready; wait",
    "double fork": (
        "(setsid sh -c '(echo $(exec sh -c \"echo \\$PPID\") >> $PIDS; exec sleep 300) &' &) ; "
        "await 1; ready; sleep 300"
    ),
    "nohup": "nohup sleep 300 & note $!; ready; wait",
    "ignores SIGTERM": "trap '' TERM; note $$; sleep 300 & note $!; ready; while :; do wait; done",
    "holds the pipe": "(setsid sh -c 'echo $$ >> $PIDS; sleep 300; echo late' &) ; await 1; ready",
    "fork chain": (
        '(setsid sh -c \'hop() { echo $(exec sh -c "echo \\$PPID") >> $PIDS; '
        "[ -e $PIDS.end ] || (hop &) ; }; hop' &) ; await 3; ready; sleep 300"
    ),
    "stopped": "sleep 300 & note $!; kill -STOP $!; ready; wait",
    "environment cleared": (
        "marked; (env -i setsid sh -c 'echo $$ >> '$PIDS'; exec sleep 300' &) ; await 1; ready; sleep 300"
    ),
    "environment overwritten": (
        f'marked; ({PYTHON} "\nimport ctypes, os\nif os.fork(): os._exit(0)\nos.setsid()\n'
        "first, last = map(int, open('/proc/self/stat').read().rsplit(')')[1].split()[47:49])\n"
        "ctypes.memset(first, 120, last - first)\n"
        "open(os.environ['PIDS'], 'a').write(f'{os.getpid()}\\n')\n"
        'import time; time.sleep(300)" &) ; await 1; ready; sleep 300'
    ),
    "threads outlive the first": (
        f'marked; (setsid {PYTHON} "\nimport ctypes, os, threading, time\n'
        "open(os.environ['PIDS'], 'a').write(f'{os.getpid()}\\n')\n"
        "threading.Thread(target=time.sleep, args=(300,)).start()\n"
        'ctypes.CDLL(None).syscall(60, 0)" &) ; await 1; ready; sleep 300'
    ),
    "another runtime inside, killed": (
        f'(setsid {PYTHON} "\nimport os, resource, subprocess\n'
        "resource.setrlimit(10, ((1 << 59) + 1, resource.getrlimit(10)[1]))\n"
        "child = subprocess.Popen(['/bin/sleep', '300'], env={}, start_new_session=True)\n"
        "open(os.environ['PIDS'], 'a').write(f'{child.pid}\\n')\n"
        'os.kill(os.getpid(), 9)" &) ; await 1; ready; sleep 300'
    ),
    "stubborn daemon": (
        "(trap '' TERM HUP INT; setsid sh -c 'cd /; exec >/dev/null 2>&1 </dev/null; "
        "echo $$ >> $PIDS; while :; do sleep 300; done' &) ; await 1; ready; sleep 300"
    ),
}
SHAPES["marks wiped, same session"] = (
    "marked; set -m; (env -i bash -c 'ulimit -S -x unlimited; echo $$ >> '$PIDS'; "
    "exec sleep 300' &) ; await 1; ready; sleep 300"
)
ONLY_WHEN_STOPPED = {
    # Only its parent, which ends first, shows where it belongs: we must have looked before.
    "marks wiped, parent ends first": (
        "marked; trap '' TERM; env -i setsid bash -c 'ulimit -S -x unlimited; "
        "echo $$ >> '$PIDS'; exec sleep 300' & trap - TERM; await 1; ready; wait"
    ),
}
PRELUDE = (
    'note() { echo "$1" >> "$PIDS"; }; '
    "ready() { echo ready; }; "
    # A cleared environment is seen through only once the limit is set, moments after the start.
    'marked() { until [ "$(ulimit -S -x)" != unlimited ]; do :; done; }; '
    'await() { while [ "$(cat "$PIDS" 2>/dev/null | wc -l)" -lt "$1" ]; do :; done; }; '
)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return state[0] not in "ZX" or int(state[17]) > 1
