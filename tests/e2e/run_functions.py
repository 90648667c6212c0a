"""What the Python tests of this folder share: running the program, and a script's test functions."""
import subprocess
import sys
import traceback


def program_runner(program, timeout=300):
    """Two functions: run(*args) returns what the program did and checks its exit status; fails(code, *args) returns
    what it said, and checks for the words in `says`."""
    def run(*args, code=0, stdout=subprocess.PIPE, **kw):
        r = subprocess.run([program, *map(str, args)], stdout=stdout, stderr=subprocess.PIPE, timeout=timeout, **kw)
        assert r.returncode == code, f"exit {r.returncode}, expected {code}: {' '.join(map(str, args))}\n" + \
            r.stderr.decode(errors="replace")[-2000:]
        assert b"runtime error" not in r.stderr, r.stderr
        return r

    def fails(code, *args, says=(), **kw):
        err = run(*args, code=code, **kw).stderr.decode()
        for word in says:
            assert word in err, f"{word!r} is not in {err!r}"
        return err

    return run, fails


def run_functions(names):
    """Runs the functions named test_* of a script's globals(), prints what failed, and ends the script."""
    tests = [(k, f) for k, f in names.items() if k.startswith("test_")]
    failed = 0
    for name, f in tests:
        try:
            f()
        except Exception:
            failed += 1
            print(f"FAIL {name}")
            traceback.print_exc(file=sys.stdout)
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
