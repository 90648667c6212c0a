#!/usr/bin/env python3
"""Has clang parse all files of a build folder that meson set up for it, which gives its warnings without making code.

usage: tools/clang_warnings.py FOLDER     exit status 1: there were warnings, which FOLDER's options make errors
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

OUTPUT = {"-o": 2, "-MQ": 2, "-MF": 2, "-MD": 1, "-c": 1}  # words about output files, with their arguments


def make_generated(folder):
    """What meson's own commands make: sources and headers. Targets for people are left out."""
    subprocess.run(["ninja", "-C", folder, "build.ninja"], stdout=subprocess.DEVNULL, check=True)  # if meson's files have changed
    targets = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], stdout=subprocess.PIPE, text=True, check=True).stdout
    files = [name for name, _, rule in (line.partition(": ") for line in targets.splitlines())
             if rule.startswith("CUSTOM_COMMAND") and name.endswith((".c", ".h"))]
    subprocess.run(["ninja", "-C", folder, *files], stdout=subprocess.DEVNULL, check=True)


def parse(entry):
    words, out = shlex.split(entry["command"]), []
    while words:
        n = OUTPUT.get(words[0], 0)
        out += [] if n else words[:1]
        words = words[n or 1:]
    return subprocess.run([*out, "-fsyntax-only"], cwd=entry["directory"], check=False).returncode == 0


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    make_generated(folder)
    entries = [e for e in json.loads((folder / "compile_commands.json").read_text()) if e["file"].endswith(".c")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        good = list(pool.map(parse, entries))
    print(f"clang: {sum(good)} of {len(good)} files without warnings")
    sys.exit(0 if all(good) else 1)


main()
