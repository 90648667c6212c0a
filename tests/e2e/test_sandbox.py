#!/usr/bin/env python3
"""Commands are confined to the files that they name. usage: test_sandbox.py MOEBIUS DEMO.gguf

What the sandbox itself does is the matter of tests/unit/test_sandbox.c. Each function below is one test; a failed
assertion names itself."""
import json
import os
import re
import subprocess
import sys
import tempfile

from run_functions import run_functions

MOEBIUS, DEMO = map(os.path.abspath, sys.argv[1:3])
TMP = tempfile.TemporaryDirectory()
HAVE = subprocess.run([MOEBIUS, "version"], capture_output=True, text=True, check=True).stdout
LANDLOCK = re.search(r"^sandbox: Landlock \d+, ", HAVE, re.M)
SECCOMP = re.search(r"^sandbox: .*, seccomp$", HAVE, re.M)


def tmp(name):
    return os.path.join(TMP.name, name)


def write(name, text):
    os.makedirs(os.path.dirname(tmp(name)), exist_ok=True)
    with open(tmp(name), "w") as f:
        f.write(text)
    return tmp(name)


# Models by name: a home of their own, and no network.
os.environ.update(HOME=tmp("home"), HF_ENDPOINT="http://127.0.0.1:9")
for variable in "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME":
    os.environ.pop(variable, None)


def run(*args, code=0, **kw):
    r = subprocess.run([MOEBIUS, *map(str, args)], capture_output=True, text=True, timeout=300, **kw)
    assert r.returncode == code, f"exit {r.returncode}, expected {code}: {args}\n{r.stderr[-2000:]}"
    return r


def seccomp_mode(args):
    """What the kernel says of a command that has ended and is not yet waited for."""
    process = subprocess.Popen([MOEBIUS, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    status = open(f"/proc/{process.pid}/status").read()
    process.wait()
    return int(re.search(r"^Seccomp:\s*(\d)", status, re.M)[1])


def test_every_command_that_opens_a_model_is_confined():
    model, out = tmp("nowhere.gguf"), tmp("out")
    text = write("text", "Once upon a time")
    commands = {
        "chat": ["-m", model],
        "generate": ["-m", model, "-p", "a"],
        "serve": ["-m", model, "--port", 0],
        "batch": ["-m", model, "-i", text, "-o", out],
        "logits": ["-m", model, "-p", "a", "-o", out],
        "ppl": ["-m", model, "-f", text],
        "profile": ["-m", model, "-f", text],
        "trace": ["-m", model, "-f", text, "-o", out],
        "template": ["-m", model, "--messages", text],
        "tokenize": ["-m", model, "a"],
        "detokenize": ["-m", model, "1"],
        "inspect": [model],
        "prepare": [model, "--to", out],
        "verify": [model],
        "imatrix": ["-m", model, "-f", text, "-o", out],
        "quantize": [model, out, "--type", "Q8_0"],
        "bench": ["-m", model],
        "tune": ["-m", model],
        "grammar": ["-m", model, "--regex", text],
        "pull": ["hf:nobody/nothing", "--retries", 0],
        "list": [],
        "rm": ["hf:nobody/nothing", "-y"],
        "alias": [],
        "doctor": ["-m", model],
        "plan": ["-m", model],
        "probe": ["-m", model, "--gpus", "none"],
        "receipts": [],
    }
    names = set(re.findall(r"^  (\w+) ", run("help").stdout, re.M)) - {"help", "version", "devices", "completions", "moebius"}
    assert names == set(commands), names ^ set(commands)
    for name, args in commands.items() if SECCOMP else ():
        assert seccomp_mode([name, *args]) == 2, name
        assert seccomp_mode([name, *args, "--no-sandbox"]) == 0, name


def test_an_input_that_is_replaced_after_the_start_is_not_opened():
    """The tools are read after the messages: by then their name is a link to a file that nobody named."""
    template, messages = write("all.jinja", "{{ messages[0].content }} {{ tools }}"), tmp("messages")
    os.mkfifo(messages)
    for options, reaches in ([], not LANDLOCK), (["--no-sandbox"], True):
        tools = write("tools.json", '["harmless"]')
        secret = write("elsewhere/secret.json", '["secret"]')
        args = [MOEBIUS, "template", "--template", template, "--messages", messages, "--tools", tools, *options]
        with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            with open(messages, "w") as f:  # comes back when the command opens them, too
                os.remove(tools)
                os.symlink(secret, tools)
                json.dump([{"role": "user", "content": "hello"}], f)
            out, err = p.communicate(timeout=60)
        assert (b"secret" in out) == reaches and (p.returncode == 0) == reaches, (options, out, err)
        assert reaches or b"tools.json: Permission denied" in err, err
        os.remove(tools)


def chat(*lines, options=(), code=0):
    os.makedirs(tmp("here"), exist_ok=True)
    return run("chat", "-m", DEMO, "-n", 2, *options, input="".join(line + "\n" for line in lines), code=code,
               cwd=tmp("here"))


def test_chat_saves_and_loads_below_its_folder():
    os.makedirs(tmp("here/below"), exist_ok=True)
    chat("hello", "/save below/talk.json")
    chat("/load below/talk.json", "more", f"/save {tmp('here/talk.json')}")
    assert len(json.load(open(tmp("here/talk.json")))) == 4
    assert chat("/load nowhere.json", code=3).stderr.endswith("nowhere.json: No such file or directory\n")
    outside = tmp("outside.json")
    if LANDLOCK:
        for line in f"/save {outside}", "/load ../elsewhere.json":
            write("elsewhere.json", "[]")
            err = chat(line, code=3).stderr
            assert "Permission denied" in err and "below the folder" in err and "--no-sandbox" in err, err
    chat("hello", f"/save {outside}", f"/load {outside}", options=["--no-sandbox"])
    assert len(json.load(open(outside))) == 2


run_functions(globals())
