#!/usr/bin/env python3
"""A model bigger than its control group's limit runs without an option, with the same tokens; and one whose group becomes
smaller while it runs gives memory back before the system ends it.
usage: test_memory_group.py MOEBIUS DEMO.gguf

Skipped (exit 77) where a memory control group can't be made: that takes root, and a hierarchy that may be written."""
import os
import subprocess
import sys
import tempfile
import time

MOEBIUS, DEMO = sys.argv[1:3]
TMP = tempfile.TemporaryDirectory()
V1 = "/sys/fs/cgroup/memory"
BASE = V1 if os.path.isdir(V1) else "/sys/fs/cgroup"
LIMIT = "memory.limit_in_bytes" if BASE == V1 else "memory.max"
USAGE = "memory.usage_in_bytes" if BASE == V1 else "memory.current"


def make_group(n_bytes):
    group = f"{BASE}/moebius-test-{os.getpid()}"
    try:
        if BASE != V1:
            with open(f"{BASE}/cgroup.subtree_control", "w") as f:
                f.write("+memory")
        os.mkdir(group)
        with open(f"{group}/{LIMIT}", "w") as f:
            f.write(str(n_bytes))
    except OSError as e:
        print(f"no control group: {e}")
        if os.path.isdir(group):
            os.rmdir(group)
        sys.exit(77)
    return group


def generate(model, group=None):
    def enter():
        if group:
            with open(f"{group}/cgroup.procs", "w") as f:
                f.write(str(os.getpid()))
    r = subprocess.run([MOEBIUS, "generate", "-m", model, "-p", "Once upon a time", "-n", "24", "--temp", "0", "--cold",
                        "-t", "2"], capture_output=True, preexec_fn=enter, timeout=120, check=False)
    assert r.returncode == 0, f"exit {r.returncode}: {r.stderr.decode(errors='replace')}"
    return r.stdout, r.stderr.decode()


def shrunk_while_running(model, text):
    """The group's limit falls to less than the process has by then, which the kernel refuses or answers by ending it,
    unless experts are given back meanwhile."""
    size = os.path.getsize(model)
    group = make_group(size * 3)

    def enter():
        with open(f"{group}/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))
    try:
        with subprocess.Popen([MOEBIUS, "generate", "-m", model, "-p", "Once upon a time", "-n", "1500", "-c", "2000",
                               "--ignore-eos", "--temp", "0", "--cold", "-t", "2", "--no-receipt"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=enter) as p:
            start = os.read(p.stdout.fileno(), len(text))  # it generates
            usage = int(open(f"{group}/{USAGE}").read())
            for part in range(20):  # in steps, as others would take memory
                try:
                    with open(f"{group}/{LIMIT}", "w") as f:
                        f.write(str(usage + (6 << 20) - part * size // 40))
                except OSError:
                    pass  # less than it has: it will be tried again
                time.sleep(0.3)
            rest, said = p.communicate(timeout=200)
            assert p.returncode == 0, f"exit {p.returncode}: {said.decode(errors='replace')}"
            least = int(open(f"{group}/{LIMIT}").read())
    finally:
        os.rmdir(group)
    assert least < usage - size // 8, (least, usage)
    assert b"memory is short" in said, said
    return start + rest


def main():
    model = os.path.join(TMP.name, "large.gguf")
    subprocess.run([MOEBIUS, "quantize", DEMO, model, "--type", "F32", "--pure"], check=True, capture_output=True)
    text, said = generate(model)
    assert "read when needed" not in said, said
    group = make_group(os.path.getsize(model) * 2 // 3)
    try:
        limited_text, said = generate(model, group)
    finally:
        os.rmdir(group)
    assert "read when needed" in said, said
    assert limited_text == text
    assert shrunk_while_running(model, text).startswith(text.rstrip())
    print("a group that became smaller got memory back")
    print("a model of 1.5 times the limit ran with the same tokens")


main()
