"""What the Python tests of this folder share: running the program, and a script's test functions."""
import contextlib
import faulthandler
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import traceback

# What runs keep for later ones is neither the user's nor stays: a machine that was probed says more in its plans.
CACHE = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = CACHE.name


def program_runner(program, timeout=300):
    """Two functions: run(*args) returns what the program did and checks its exit status; fails(code, *args) returns
    what it said, and checks for the words in `says`."""
    def run(*args, code=0, stdout=subprocess.PIPE, **kw):
        r = subprocess.run([program, *map(str, args)], stdout=stdout, stderr=subprocess.PIPE, timeout=timeout, **kw)
        assert r.returncode == code, f"exit {r.returncode}, expected {code}: {' '.join(map(str, args))}\n" + \
            r.stderr.decode(errors="replace")[-2000:]
        assert b"Sanitizer" not in r.stderr, r.stderr
        return r

    def fails(code, *args, says=(), **kw):
        err = run(*args, code=code, **kw).stderr.decode()
        for word in says:
            assert word in err, f"{word!r} is not in {err!r}"
        return err

    return run, fails


class Hang(BaseException):
    """A test took too long. No Exception, so that no test takes it for what it waits for."""


def descendants():
    """The processes that this one has started, and theirs."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            pass
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def kill_descendants(but):
    for pid in descendants() - but:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run_limited(f, limit_s):
    """Raises Hang where the test is when it has taken so long, and says where its threads are. Nothing that a failed test has
    started goes on. Seconds are counted one by one: those in which the machine stood still are no test's."""
    left, before = limit_s, descendants()

    def tick(*_):
        nonlocal left
        left -= 1
        if left > 0:
            return
        sys.stdout.flush()
        faulthandler.dump_traceback(sys.stdout)
        left = 10  # for what cleans up behind the test
        kill_descendants(before)
        raise Hang(f"no end after {limit_s} s")

    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    try:
        f()
    except BaseException:
        kill_descendants(before)
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_functions(names, limit_s=240):
    """Runs the functions named test_* of a script's globals(), prints what failed, and ends the script. None of them takes longer
    than limit_s, times MOEBIUS_LIMIT_FACTOR where a test's long form is asked for."""
    limit_s *= int(os.environ.get("MOEBIUS_LIMIT_FACTOR", "1"))
    tests = [(k, f) for k, f in names.items() if k.startswith("test_")]
    failed = 0
    for name, f in tests:
        try:
            run_limited(f, limit_s)
        except (Exception, Hang):
            failed += 1
            print(f"FAIL {name}")
            traceback.print_exc(file=sys.stdout)
    print(f"{len(tests) - failed} passed, {failed} failed", flush=True)
    faulthandler.dump_traceback_later(60, exit=True)  # a thread that doesn't end keeps no script
    sys.exit(1 if failed else 0)
