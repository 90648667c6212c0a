"""How the Python tests of this folder end: runs a script's test functions and counts."""
import sys
import traceback


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
