#!/usr/bin/env python3
"""The library as others meet it: the examples, what it exports, its pkg-config file, and what is installed.
usage: test_library.py MOEBIUS LIBMOEBIUS.so MOEBIUS.pc DEMO.gguf COMPILER...

Each function below is one test."""
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from run_functions import run_functions

MOEBIUS, LIBRARY, PC, DEMO = map(os.path.abspath, sys.argv[1:5])
CC = sys.argv[5:]
BUILD = os.path.dirname(os.path.dirname(PC))
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
    text = open(PC).read()
    assert re.search(r"^Libs: .*-lmoebius$", text, re.M) and re.search(r"^Cflags: -I", text, re.M), text
    version = re.search(r"^Version: (\S+)$", text, re.M)[1]
    assert command(MOEBIUS, "version").startswith(f"moebius {version}\n")
    major, minor, _ = version.split(".")
    dynamic = command("readelf", "-d", LIBRARY)
    assert f"soname: [libmoebius.so.{major if major != '0' else '0.' + minor}]" in dynamic, dynamic


def install(folder):
    """Installs below the folder, and returns the prefix there. `make uninstall` goes on to mean what was installed before."""
    log = BUILD + "/meson-logs/install-log.txt"
    before = open(log).read() if os.path.exists(log) else None
    command("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", folder)
    if before is not None:
        with open(log, "w") as f:
            f.write(before)
    else:
        os.remove(log)
    return folder + re.search(r"^prefix=(.*)$", open(PC).read(), re.M)[1]


def test_an_installed_tree_is_whole():
    with tempfile.TemporaryDirectory() as folder:
        prefix = install(folder)
        files = {os.path.relpath(os.path.join(where, f), prefix) for where, _, names in os.walk(prefix) for f in names}
        pages = {"share/doc/moebius/docs/" + f for f in os.listdir(ROOT + "/docs") if f.endswith(".md")}
        examples = {"share/doc/moebius/examples/" + f for f in os.listdir(ROOT + "/examples")}
        machines = {"share/moebius/machines/" + f for f in os.listdir(ROOT + "/dist/machines")}
        wanted = {"bin/moebius", "include/moebius/moebius.h", "share/man/man1/moebius.1", "share/doc/moebius/LICENSE",
                  "share/doc/moebius/README.md", "share/doc/moebius/CHANGELOG.md", "share/doc/moebius/SECURITY.md",
                  "share/bash-completion/completions/moebius", "share/zsh/site-functions/_moebius",
                  "share/fish/vendor_completions.d/moebius.fish"}
        assert wanted | pages | examples | machines <= files, (wanted | pages | examples | machines) - files
        assert not [f for f in files if "meson" in f or f.endswith((".in", ".a"))], files
        assert len([f for f in files if re.search(r"/(libmoebius\.so[.0-9]*|moebius\.pc)$", f)]) == 4, files
        version = command(prefix + "/bin/moebius", "version").split()[1]
        assert f'"moebius {version}"' in open(prefix + "/share/man/man1/moebius.1").readline()
        units = [f for f in files if f.endswith("/moebius.service")]
        for unit in units:  # where there is a server, and systemd may be
            text = open(os.path.join(prefix, unit)).read()
            assert f"ExecStart={prefix[len(folder):]}/bin/moebius serve " in text and not re.search("@[A-Z]", text), text
            assert unit.replace(".service", ".socket") in files


def test_an_installed_tree_works_from_anywhere():
    with tempfile.TemporaryDirectory() as folder:
        prefix = install(folder)
        pc = command("find", prefix, "-name", "moebius.pc").strip()
        env = {**os.environ, "PKG_CONFIG_PATH": os.path.dirname(pc), "PKG_CONFIG_SYSROOT_DIR": folder}
        env["LD_LIBRARY_PATH"] = os.path.dirname(os.path.dirname(pc))
        os.symlink(prefix + "/share/doc/moebius/examples", folder + "/examples")
        os.symlink(DEMO, folder + "/model.gguf")
        typed = re.search(r"^```sh\n(cc .*?)^```", open(ROOT + "/docs/embed.md").read(), re.M | re.S)[1]
        said = command("sh", "-euc", f"cc() {{ {shlex.join(CC)} \"$@\"; }}\n{typed}", cwd=folder, env=env)
        assert len(said) > 40 and folder in command("ldd", "complete", cwd=folder, env=env)
        want = command("bin/moebius", "generate", DEMO, "-p", "Once upon a time", "-n", "64", "--seed", "1", "--repeat-penalty", "1", cwd=prefix)
        assert said == want, (said, want)


run_functions(globals())
