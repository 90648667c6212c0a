#!/usr/bin/env python3
"""The commands in the documentation run. usage: test_docs.py MOEBIUS DEMO.gguf

Each block of commands (```sh, and .EX in the man page) is run by the shell in a folder where the files that the
documentation names lie: models are the small bundled one. A block that can't run here has a line before it that says why,
<!-- not run: REASON -->. Commands named within a sentence must exist, with their options. Each function below is one test."""
import glob
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

from local_hub import Hub
from run_functions import run_functions

MOEBIUS, DEMO = map(os.path.abspath, sys.argv[1:3])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = sorted(glob.glob(ROOT + "/*.md") + glob.glob(ROOT + "/docs/**/*.md", recursive=True) + [ROOT + "/models/README.md"])
MAN = ROOT + "/man/moebius.1"
TMP = tempfile.TemporaryDirectory()
os.chdir(TMP.name)

MODELS = ["FILE", "IN", "Qwen3-30B-A3B-Q4_K_M.gguf", "model-Q4_K_M.gguf", "model-Q8_0.gguf"]
TEXTS = {"TEXT": 150, "book.txt": 8, "notes.txt": 8, "wiki.test.raw": 150}  # sentences


def with_template(model, path):
    """A copy of the model with a chat template: a key more, as long as the alignment of what follows."""
    with open(model, "rb") as f:
        magic, version, n_tensor, n_key, rest = *struct.unpack("<4sIQQ", f.read(24)), f.read()
    key, text = b"tokenizer.chat_template", b"{% for m in messages %}{{ m.content }}\n{% endfor %}"
    text += b"{# #}" + b" " * (-(len(key) + len(text) + 5 + 20) % 32)
    with open(path, "wb") as f:
        f.write(struct.pack("<4sIQQ", magic, version, n_tensor, n_key + 1))
        f.write(struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(text)) + text + rest)


def set_the_scene():
    with_template(DEMO, "model.gguf")
    for name in MODELS:
        os.symlink(DEMO, name)
    for name, n in TEXTS.items():
        with open(name, "w") as f:
            f.write("Once upon a time there was a little girl who lived near the sea. " * n)
    with open("messages.json", "w") as f:
        json.dump([{"role": "user", "content": "Hello"}], f)
    os.mkdir("build")
    os.symlink(MOEBIUS, "build/moebius")
    hub = Hub()  # until the script ends
    hub.add("unsloth/Qwen3-30B-A3B-GGUF", {"Qwen3-30B-A3B-Q4_K_M.gguf": open(DEMO, "rb").read(),
                                           "Qwen3-30B-A3B-Q8_0.gguf": b"another"})
    os.environ.update(no_proxy="127.0.0.1", HF_ENDPOINT=hub.url, HF_HOME=os.path.abspath("hub"), XDG_CONFIG_HOME=os.path.abspath("config"))
    os.environ.update(PATH=os.path.abspath("build") + ":" + os.environ["PATH"], XDG_CACHE_HOME=os.path.abspath("cache"))


def blocks():
    """Each block of commands: where it is, its lines, and why it isn't run."""
    for page in PAGES:
        reason, lines = None, None
        for n, line in enumerate(open(page, encoding="utf-8"), 1):
            where = f"{os.path.relpath(page, ROOT)}:{n}"
            if lines is not None and line.startswith("```"):
                yield begin, "".join(lines), reason
                reason, lines = None, None
            elif lines is not None:
                lines.append(line)
            elif line.startswith("```sh"):
                begin, lines = where, []
            elif m := re.match(r"<!-- not run: (.+) -->$", line):
                reason = m[1]
            else:
                assert not re.match(r"( {4}|\$ )\S*moebius ", line), f"{where}: a command outside of a ```sh block"
                reason = None
    for text in re.findall(r"^\.EX\n(.*?)^\.EE\n", open(MAN, encoding="utf-8").read(), re.M | re.S):
        yield "man/moebius.1", text, None


def test_blocks_of_commands_run():
    n_run = n_marked = 0
    for where, text, reason in blocks():
        if reason:
            n_marked += 1
            continue
        r = subprocess.run(["sh", "-euc", text], stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
        assert r.returncode == 0, f"{where}: exit {r.returncode}\n{text}\n{r.stderr.decode(errors='replace')[-1500:]}"
        n_run += 1
    print(f"{n_run} blocks ran, {n_marked} are marked as not run")
    assert n_run >= 10


def test_commands_in_sentences_exist():
    helps, n = {}, 0
    for page in PAGES:
        text = open(page, encoding="utf-8").read()
        for command, rest in re.findall(r"`(?:build/)?moebius\s+([a-z]+)\b([^`]*)`", text):
            if command not in helps:
                r = subprocess.run([MOEBIUS, "help", command], capture_output=True, text=True)
                helps[command] = r.stdout if r.returncode == 0 else None
            assert helps[command], f"{page}: there is no command {command}"
            options = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest)
            words = set(re.findall(r"--?[a-z][a-z-]*", helps[command]))
            assert set(options) <= words, f"{page}: moebius {command} has no {set(options) - words}"
            n += 1
    assert n >= 20


set_the_scene()
run_functions(globals())
