#!/usr/bin/env python3
"""The library as others meet it: the examples, what it exports, its pkg-config file.
usage: test_library.py MOEBIUS LIBMOEBIUS.so MOEBIUS.pc DEMO.gguf COMPILER...

Each function below is one test."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from run_functions import run_functions

MOEBIUS, LIBRARY, PC, DEMO = map(os.path.abspath, sys.argv[1:5])
CC = sys.argv[5:]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TMP = tempfile.TemporaryDirectory()


def command(*args, **kw):
    r = subprocess.run([*args], capture_output=True, text=True, timeout=300, **kw)
    assert r.returncode == 0, (args, r.stdout, r.stderr)
    return r.stdout


def build(name, *libraries):
    """An example, built with nothing but the header and the library."""
    target = os.path.join(TMP.name, name)
    folder = os.path.dirname(LIBRARY)
    command(*CC, "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-I", ROOT + "/include", f"{ROOT}/examples/{name}.c", "-o", target,
            LIBRARY, f"-Wl,-rpath,{folder}", *libraries)
    return target


def test_the_example_of_a_prompt():
    said = command(build("complete"), DEMO, "Once upon a time")
    want = command(MOEBIUS, "generate", DEMO, "-p", "Once upon a time", "-n", "64", "--seed", "1", "--repeat-penalty", "1")
    assert said == want and len(said) > 40, (said, want)
    r = subprocess.run([os.path.join(TMP.name, "complete"), "nowhere.gguf", "x"], capture_output=True, text=True)
    assert r.returncode == 3 and "nowhere.gguf" in r.stderr


def test_the_example_of_a_conversation():
    chat = build("chat", "-ljansson")
    said = command(chat, DEMO, input="Hello\nAnd then?\n")
    assert said.count("\n") >= 2 and len(said) > 80, said
    p = subprocess.Popen([chat, DEMO], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    p.stdin.write(b"Tell me a long story\n")
    p.stdin.flush()
    p.stdout.read(20)  # the answer has begun
    p.send_signal(signal.SIGINT)
    time.sleep(0.5)
    p.stdin.write(b"Another\n")
    rest = p.communicate(timeout=300)[0]
    assert p.returncode == 0 and len(rest) > 40, rest


def test_the_example_of_several_texts():
    prompts = ["Once upon a time", "The dog", "In the morning"]
    parts = command(build("texts"), DEMO, *prompts).split("\n---\n")
    assert len(parts) == 4 and not parts[3]
    for prompt, part in zip(prompts, parts):
        alone = command(MOEBIUS, "generate", DEMO, "-p", prompt, "-n", "32", "--temp", "0", "--echo")
        assert part + "\n" == alone, (part, alone)


def test_what_the_library_exports_is_what_the_header_declares():
    header = open(ROOT + "/include/moebius/moebius.h").read()
    declared = set(re.findall(r"MOEBIUS_API[^;]*?\b(moebius_\w+)\(", header))
    exported = {line.split()[-1] for line in command("nm", "-D", "--defined-only", LIBRARY).splitlines() if " T " in line}
    assert exported == declared, exported ^ declared


def test_the_library_can_be_found():
    assert "SONAME" in (dynamic := command("readelf", "-d", LIBRARY)) and "[libmoebius.so.0]" in dynamic
    text = open(PC).read()
    assert re.search(r"^Libs: .*-lmoebius$", text, re.M) and re.search(r"^Cflags: -I", text, re.M), text
    version = re.search(r"^Version: (\S+)$", text, re.M)[1]
    assert command(MOEBIUS, "version").startswith(f"moebius {version}\n")


run_functions(globals())
