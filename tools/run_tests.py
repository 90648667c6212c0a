#!/usr/bin/env python3
"""Configures, builds and tests build folders, and counts: the last line is "N passed, N failed".

usage: tools/run_tests.py FOLDER[:MESON-OPTION...] ...     e.g. build 'build-asan:-Db_sanitize=address,undefined'

The option --suite=NAME builds and runs the tests of that suite alone; --no-suite=NAME leaves those of one out.
A cmocka program counts as its test functions, any other as one test. A folder that doesn't build counts as failed. While a
folder is tested, the next ones are built, as some tests leave processors idle.
Exit status: 0 when nothing failed.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

TALLY = re.compile(r"\[  (PASSED|FAILED)  \] (\d+) test\(s\)")


def is_configured(folder):
    """Whether the folder was configured with the tests; `make` alone leaves them out where cmocka is missing."""
    if not (folder / "build.ninja").exists():
        return False
    answer = subprocess.run(["meson", "introspect", "--buildoptions", folder], capture_output=True, check=False)
    options = json.loads(answer.stdout) if answer.returncode == 0 else []
    return any(o["name"] == "tests" and o["value"] == "enabled" for o in options)


def build(folder, options, suites):
    """True when the folder is configured and built; of a suite `meson test` builds what it needs."""
    if not is_configured(folder):
        again = ["--reconfigure"] if (folder / "build.ninja").exists() else []
        setup = ["meson", "setup", *again, folder, "-Dtests=enabled", *options]
        if subprocess.run(setup, check=False, stdout=subprocess.DEVNULL).returncode != 0:
            return False
    if any(s.startswith("--suite=") for s in suites):
        return True
    least_load = str((os.cpu_count() or 1) + 1)  # of a busy machine, which compilers leave to the tests but for one
    return subprocess.run(["ninja", "-C", folder, "-l", least_load], check=False).returncode == 0


def count(entry):
    """(passed, failed, skipped) of one line of meson's testlog.json."""
    if entry["result"] == "SKIP":
        return 0, 0, 1
    tally = {"PASSED": 0, "FAILED": 0}
    for word, n in TALLY.findall(entry.get("stdout", "") + entry.get("stderr", "")):
        tally[word] += int(n)
    passed, failed = tally["PASSED"], tally["FAILED"]
    if entry["result"] in ("OK", "EXPECTEDFAIL"):
        return max(passed, 1 - failed), failed, 0
    return passed, max(failed, 1), 0


def test(folder, suites):
    """Runs the tests of a built folder; returns the sums of count() and the names of what failed."""
    log = folder / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    environment = dict(os.environ)
    environment.setdefault("ASAN_OPTIONS", "handle_sigill=1")  # undefined behaviour traps, and its stack is printed
    # The multiplier: sanitizers and busy machines are slow, and a test that hangs still ends. One process more than processors, as
    # some tests mostly wait.
    which = suites if any(s.startswith("--suite=") for s in suites) else [*suites, "--no-rebuild"]
    subprocess.run(["meson", "test", "-C", folder, *which, "--print-errorlogs", "--timeout-multiplier", "4",
                    "--num-processes", str((os.cpu_count() or 1) + 1)], check=False, env=environment)
    sums, bad = [0, 0, 0], []
    for line in log.read_text().splitlines() if log.exists() else []:
        entry = json.loads(line)
        counts = count(entry)
        sums = [a + b for a, b in zip(sums, counts)]
        if counts[1]:
            bad.append(f"{folder}: {entry['name']}")
    if sum(sums) == 0:
        return (0, 1, 0), [f"{folder}: no test ran"]
    return sums, bad


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    passed = failed = skipped = 0
    bad = []
    builder = concurrent.futures.ThreadPoolExecutor(1)
    folders = []
    for word in sys.argv[1:]:
        name, *options = word.split(":")
        suites = [o for o in options if o.startswith(("--suite=", "--no-suite="))]
        options = [o for o in options if o not in suites]
        folders.append((pathlib.Path(name), suites, builder.submit(build, pathlib.Path(name), options, suites)))
    try:
        for folder, suites, is_built in folders:
            if is_built.result():
                sums, names = test(folder, suites)
            else:
                sums, names = (0, 1, 0), [f"{folder}: does not build"]
            passed, failed, skipped = passed + sums[0], failed + sums[1], skipped + sums[2]
            bad += names
    finally:  # also at Ctrl-C: then the next folders are not built
        builder.shutdown(cancel_futures=True)
    print()
    for name in bad:
        print(f"failed: {name}")
    if skipped:
        print(f"{skipped} skipped")
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
