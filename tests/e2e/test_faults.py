#!/usr/bin/env python3
"""Every command with one call that fails: memory, reads, writes, syncs, renames, threads, and signals that interrupt. A
command must survive that with the right result, or end with a sentence and leave its output as it was.
usage: test_faults.py MOEBIUS FAIL_CALLS.so GOLDEN_DIRECTORY

Without more some calls of each kind fail, a few in each command; MOEBIUS_FAULTS=all: each call, in turn; MOEBIUS_FAULTS=N: so
many of each kind in each command. MOEBIUS_SEED: which. MOEBIUS_FAULTS_OF=ppl,chat: in these commands only."""
import concurrent.futures
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile

MOEBIUS, PRELOAD, GOLDEN = map(os.path.abspath, sys.argv[1:4])
SANITIZED = "asan" in os.environ.get("MOEBIUS_TEST_BUILD", "")
SAMPLE = os.environ.get("MOEBIUS_FAULTS", "2" if SANITIZED else "6")
KINDS = ["alloc", "read", "write", "sync", "rename", "thread", "signal"]
TMP = tempfile.TemporaryDirectory()
STREAM = ["--expert-ram", "50%", "--io", "pread"]


def shared(name, text=None):
    """A file that all runs read."""
    path = os.path.join(TMP.name, name)
    if text is not None:
        with open(path, "w") as f:
            f.write(text)
    return path


MODEL = os.path.join(GOLDEN, "qwen3moe.gguf")
TEXT = shared("text.txt", "the cat sat on the mat and saw a rat in a hat " * 3)
REQUESTS = shared("requests.jsonl", '{"tokens": [5, 6]}\n{"prompt": "the cat"}\nnonsense\n{"messages": [{"role": "user"}]}\n')
MESSAGES = shared("messages.json", '[{"role": "user", "content": "Hello"}]')
TEMPLATE = shared("t.jinja", "{% for m in messages %}<{{ m.role | upper }}>{{ m.content }}{% endfor %}")
SCHEMA = shared("schema.json", """{"type": "object", "required": ["a"], "properties": {"a": {"pattern": "b+$", "maxLength": 4}},
    "patternProperties": {"^x": {"items": {"$ref": "#"}, "contains": {"required": ["b"]}}}, "propertyNames": {"maxLength": 3},
    "additionalProperties": {"oneOf": [{"type": "integer", "multipleOf": 7}, {"enum": ["u", null]},
    {"format": "date", "type": "string"}]}}""")
INSTANCES = shared("instances", '{"a": "abb", "x": [{"a": "b"}, {"b": 49, "a": "\\u0062"}], "c": "2026-01-31", "d": null}\n')
GBNF = shared("gbnf", 'root ::= item ("," item)* | %json{"type": "array"}\nitem ::= [a-z]+ | "(" root ")"\n')
STORE, STATE, TRACE = shared("store"), shared("state"), shared("trace")

OUT = object()  # in arguments: a file of each run's own folder, which is there before and must be whole or as it was


class Command:
    """args; stdin; same: standard output is the same each time; keeps: the file OUT is; cost: how much slower than most."""

    def __init__(self, name, *args, stdin=b"", same=True, keeps=True, cost=1):
        self.name, self.args, self.stdin, self.same, self.keeps, self.cost = name, args, stdin, same, keeps, cost

    def __str__(self):
        return " ".join([self.name, *("OUT" if a is OUT else os.path.basename(str(a)) for a in self.args)])


COMMANDS = [
    Command("version"),
    Command("help"),
    Command("list", "--json"),
    Command("list", "--known", "--json"),
    Command("alias"),
    Command("inspect", MODEL),
    Command("inspect", MODEL, "--json"),
    Command("tokenize", "-m", MODEL, "the cat"),
    Command("tokenize", "-m", MODEL, "-", stdin=b"the cat"),
    Command("detokenize", "-m", MODEL, 5, 6, 7),
    Command("template", "--template", TEMPLATE, "--messages", MESSAGES),
    Command("template", "-m", MODEL, "--template", TEMPLATE, "--messages", "-", stdin=b"[]"),
    Command("generate", "-m", MODEL, "--tokens", "1,2,3", "-n", 4, "--ids", "--temp", 0, "--save-state", OUT),
    Command("generate", "-m", MODEL, "-f", TEXT, "-n", 4, "--temp", 0, "--stats-json", OUT, *STREAM, keeps=False),
    Command("generate", "-m", MODEL, "--load-state", STATE, "-n", 4, "--ids", "--temp", 0),
    Command("generate", "-m", MODEL, "--tokens", "1,2,3", "-n", 4, "--ids", "--seed", 1, "--frequency-penalty", 1,
            "--dry-multiplier", 1, "--logit-bias", "5+1"),
    Command("generate", "-m", MODEL, "--store", STORE, "--tokens", "1,2", "-n", 4, "--ids", "--temp", 0, *STREAM),
    Command("generate", "-m", MODEL, "--chat", "--template", TEMPLATE, "-p", "Hello", "-n", 4, "--temp", 0),
    Command("generate", "-m", MODEL, "--tokens", "1,2", "-n", 4, "--ids", "--temp", 0, "--json-schema-file", SCHEMA),
    Command("grammar", "--schema", SCHEMA, "--check", INSTANCES),
    Command("grammar", "--gbnf", GBNF, "--check", shared("lists", "a,(b,c)\n[1, [2]]\n")),
    Command("grammar", "--regex", "(a|bc)+[^x]{2}", "--check", shared("words", "abcyz\n"), "-m", MODEL, "--json", same=False),
    Command("batch", "-m", MODEL, "-i", REQUESTS, "-o", "answers", "--template", TEMPLATE, "-n", 4, "--temp", 0, "--texts", 1),
    Command("batch", "-m", MODEL, "-i", "-", "-o", "-", "-n", 4, "--temp", 0, "--texts", 1,
            stdin=b'{"tokens": [5, 6]}\n{"prompt": "the"}'),
    Command("chat", "-m", MODEL, "--template", TEMPLATE, "-n", 4, "--temp", 0,
            stdin=b"/system Be kind.\nthe cat\n/stats\n/save SAVED\n/load SAVED\nthe mat\n", same=False),
    Command("logits", "-m", MODEL, "--tokens", "1,2,3", "-o", OUT, "--routing", "routing"),
    Command("ppl", "-m", MODEL, "-f", TEXT, "-c", 16, "--chunks", 3),
    Command("ppl", "-m", MODEL, "-f", TEXT, "-c", 16, "--chunks", 2, "--car", 0.5, "--deterministic", "--against",
            "--expert-ram", "50%", "--cold", "--io", "pread"),
    Command("profile", "-m", MODEL, "-f", TEXT, "-o", OUT, "--csv", "csv", "--svg", "svg"),
    Command("trace", "-m", MODEL, "-f", TEXT, "-o", OUT),
    Command("trace", "replay", TRACE),
    Command("imatrix", "-m", MODEL, "-f", TEXT, "-c", 16, "-o", OUT),
    Command("quantize", "--force", MODEL, OUT, "--type", "Q8_0"),
    Command("prepare", MODEL, "--to", "store"),
    Command("prepare", MODEL, "--to", "a,b", "--stripe", same=False, cost=20),
    Command("verify", STORE),
    Command("verify", "--write", "copy.gguf"),
    Command("bench", "-m", MODEL, "-p", 8, "-n", 2, "-r", 1, "--ops", same=False, cost=10),
    Command("bench", "-m", MODEL, "--load", "-r", 1, same=False),
    Command("tune", "-m", MODEL, "-t", 1, same=False, cost=50),
]


def files(folder):
    """Contents by name, but for the cache and what the next run of the command goes on with."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(where, name), folder)
            with open(os.path.join(where, name), "rb") as f:
                found[path] = hashlib.sha256(f.read()).hexdigest()
    return found


def run(command, folder, fault="none:0"):
    """In a folder of its own, with one call that fails; without, FOLDER.calls says how many there are of each kind."""
    cache = folder + ".cache"
    if command.name == "verify":
        shutil.copy(MODEL, os.path.join(folder, "copy.gguf"))
    env = dict(os.environ, LD_PRELOAD=PRELOAD, FAIL_CALLS=fault, FAIL_REPORT=folder + ".calls", XDG_CACHE_HOME=cache)
    if SANITIZED:
        env["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + env.get("ASAN_OPTIONS", "")
    args = [str("out" if a is OUT else a) for a in command.args]
    p = subprocess.run([MOEBIUS, command.name, *args], input=command.stdin.replace(b"SAVED", b"saved.json"),
                       capture_output=True, timeout=120, cwd=folder, env=env, check=False)
    shutil.rmtree(cache, ignore_errors=True)
    return p


def new_folder(command):
    folder = tempfile.mkdtemp(dir=TMP.name)
    if OUT in command.args:
        with open(os.path.join(folder, "out"), "w") as f:
            f.write("as it was")
    return folder


def reference(command):
    """What an undisturbed run prints and leaves, and how many calls it makes of each kind."""
    folder = new_folder(command)
    before = files(folder)
    p = run(command, folder)
    assert p.returncode == 0, f"{command}: exit {p.returncode}: {p.stderr.decode()}"
    after = files(folder)
    with open(folder + ".calls") as f:
        calls = {kind: int(n) for kind, n in (line.split() for line in f)}
    assert sorted(calls) == sorted(KINDS)
    return p.stdout, before, after, calls


def check_failed(command, p, before, found, after):
    """Nothing but a sentence, and files that are whole or as they were."""
    last = p.stderr.decode(errors="replace").strip().splitlines()[-1:]
    assert 1 <= p.returncode <= 9, f"exit {p.returncode}"
    assert last and (last[0].startswith("moebius") or "`moebius" in last[0]), f"no sentence at the end: {last}"
    for name, sum_ in found.items():
        unfinished = command.name in ("quantize", "--force", "prepare", "batch") and name not in ("out", "store/store.gguf")
        assert unfinished or sum_ == before.get(name) or sum_ == after.get(name) or not command.keeps, f"{name} is half a file"
        assert not name.endswith(".tmp"), f"{name} was left"


def check(command, kind, k, before, after, stdout):
    """What went wrong, or None."""
    folder = new_folder(command)
    p = None
    try:
        p = run(command, folder, f"{kind}:{k}")
        found = files(folder)
        assert b"Sanitizer" not in p.stderr, "the sanitizer complains"
        if p.returncode == 0:
            assert p.stdout == stdout or not command.same, "success with another output"
            assert sorted(found) == sorted(after), f"success with other files: {sorted(found)}"
            assert found == after or not command.keeps or not command.same, "success with other contents"
        else:
            assert kind != "signal", "an interrupted call is no failure"
            check_failed(command, p, before, found, after)
            if command.name in ("quantize", "--force", "prepare", "batch"):
                again = run(command, folder)
                assert again.returncode == 0 and (files(folder) == after or not command.same), "the next run does not go on"
        return None
    except (AssertionError, subprocess.TimeoutExpired, IndexError) as e:
        err = p.stderr.decode(errors="replace") if p else ""
        err = err[max(err.find("Sanitizer"), 0):][:1500] if "Sanitizer" in err else err[-1500:]
        return f"{command}\n  {kind} {k}: {e}\n  exit {p.returncode if p else '?'}: {err}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def choose(n, cost, rng):
    """Which of n calls fail: at least one, and fewer of slow commands."""
    if SAMPLE == "all":
        return range(1, n + 1)
    most = max(int(SAMPLE) // cost, 1)
    return sorted({*range(1, min(n, most // 3) + 1), *(rng.randint(1, n) for _ in range(most - most // 3) if n)})


def main():
    rng = random.Random(int(os.environ.get("MOEBIUS_SEED", "1")))
    wanted = os.environ.get("MOEBIUS_FAULTS_OF")
    for args in (["prepare", MODEL, "--to", STORE], ["trace", "-m", MODEL, "-f", TEXT, "-o", TRACE],
                 ["generate", "-m", MODEL, "--tokens", "1,2,3", "-n", "2", "--save-state", STATE]):
        subprocess.run([MOEBIUS, *args], capture_output=True, check=True, env=dict(os.environ, XDG_CACHE_HOME=shared("c")))
    commands = [c for c in COMMANDS if not wanted or c.name in wanted.split(",")]
    bad, n_run, n_call = [], 0, 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for command in commands:
            stdout, before, after, calls = reference(command)
            jobs = [(kind, k) for kind in KINDS for k in choose(calls[kind], command.cost, rng)]
            n_run, n_call = n_run + len(jobs), n_call + sum(calls.values())
            bad += filter(None, pool.map(lambda j: check(command, *j, before, after, stdout), jobs))
    for text in bad:
        print("FAIL", text)
    print(f"{n_run} of {n_call} calls were made to fail in {len(commands)} commands; {len(bad)} went wrong")
    return 1 if bad else 0


sys.exit(main())
