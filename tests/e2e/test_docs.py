#!/usr/bin/env python3
"""The commands in the documentation run. usage: test_docs.py MOEBIUS DEMO.gguf

Each block of commands (```sh, and .EX in the man page) is run by the shell in a folder where the files that the
documentation names lie: models are the small bundled one. A line before a block may say

    <!-- not run: REASON -->            it can't run here
    <!-- run: with a server -->         which listens where the block says
    <!-- run: until it listens -->      each line is a server, which is then ended
    <!-- run: with Open MPI -->         where there is one
    <!-- run: findings are no failure -->

Commands named within a sentence must exist, with their options. Each function below is one test."""
import glob
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

from local_hub import Hub
from run_functions import run_functions
from serving import Server

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
    with open("keys.txt", "w") as f:
        f.write("secret\n")
    for folder in "build", "models":
        os.mkdir(folder)
    os.symlink(MOEBIUS, "build/moebius")
    os.symlink(DEMO, "models/demo.gguf")
    os.symlink(ROOT + "/dist", "dist")
    hub = Hub()  # until the script ends
    for repo in "Qwen/Qwen3-30B-A3B-GGUF", "owner/repo":
        hub.add(repo, {"model-Q4_K_M.gguf": open(DEMO, "rb").read()})
    hub.add("unsloth/Qwen3-30B-A3B-GGUF", {"Qwen3-30B-A3B-Q4_K_M.gguf": open(DEMO, "rb").read(),
                                           "Qwen3-30B-A3B-Q8_0.gguf": b"another"})
    os.environ.update(no_proxy="127.0.0.1", HF_ENDPOINT=hub.url, HF_HOME=os.path.abspath("hub"), XDG_CONFIG_HOME=os.path.abspath("config"))
    os.environ.update(PATH=os.path.abspath("build") + ":" + os.environ["PATH"], XDG_CACHE_HOME=os.path.abspath("cache"))


def blocks():
    """Each block of commands: where it is, its lines, and what is said of how it runs: ("run", HOW) or ("not run", WHY)."""
    for page in PAGES:
        how, lines = None, None
        for n, line in enumerate(open(page, encoding="utf-8"), 1):
            where = f"{os.path.relpath(page, ROOT)}:{n}"
            if lines is not None and line.startswith("```"):
                yield begin, "".join(lines), how
                how, lines = None, None
            elif lines is not None:
                lines.append(line)
            elif line.startswith("```sh"):
                begin, lines = where, []
            elif m := re.match(r"<!-- (run|not run): (.+) -->$", line):
                how = m[1], m[2]
            else:
                assert not re.match(r"( {4}|\$ )\S*moebius ", line), f"{where}: a command outside of a ```sh block"
                how = None
    for text in re.findall(r"^\.EX\n(.*?)^\.EE\n", open(MAN, encoding="utf-8").read(), re.M | re.S):
        yield "man/moebius.1", text, None


def run_commands(where, text, allowed=(0,), **more):
    r = subprocess.run(["sh", "-euc", text], stdin=subprocess.DEVNULL, capture_output=True, timeout=300, env={**os.environ, **more})
    assert r.returncode in allowed, f"{where}: exit {r.returncode}\n{text}\n{r.stderr.decode(errors='replace')[-1500:]}"


def run_with_server(where, text):
    """The server has the model of the examples and those that were fetched; it wants no port that may be taken."""
    if not shutil.which("curl"):
        return print(f"{where}: not run without curl")
    run_commands(where, "moebius pull hf:owner/repo:Q4_K_M")
    with open(".curlrc", "w") as f:
        f.write("fail\nshow-error\n")
    with Server(MOEBIUS, "-m", "model.gguf", "--models-listed") as server:
        assert "http://localhost:8080/" in text, where
        run_commands(where, text.replace("localhost:8080", f"127.0.0.1:{server.port}"), CURL_HOME=os.getcwd())


def run_until_it_listens(where, text):
    for line in text.splitlines():
        program, command, *args = shlex.split(line, comments=True)
        assert (program, command) == ("moebius", "serve"), f"{where}: {line}"
        with Server(MOEBIUS, *args, *([] if "--port" in args else ["--port", "0"])) as server:
            assert server.port


def run_with_mpi(where, text):
    if not shutil.which("mpirun") or " mpi" not in subprocess.run([MOEBIUS, "version"], capture_output=True, text=True).stdout.lower():
        return print(f"{where}: not run without Open MPI")
    run_commands(where, text, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")


def run_with_findings(where, text):
    for line in text.splitlines():
        run_commands(where, line, allowed=(0, 23))


WAYS = {"with a server": run_with_server, "until it listens": run_until_it_listens, "with Open MPI": run_with_mpi,
        "findings are no failure": run_with_findings}


def test_blocks_of_commands_run():
    n_run = n_marked = 0
    for where, text, how in blocks():
        kind, way = how or ("run", None)
        if kind == "not run":
            n_marked += 1
            continue
        assert not way or way in WAYS, f"{where}: run: {way}"
        WAYS.get(way, run_commands)(where, text)
        n_run += 1
    print(f"{n_run} blocks ran, {n_marked} are marked as not run")
    assert n_run >= 30


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
            words = {"--help", *re.findall(r"--?[a-z][a-z-]*", helps[command])}
            assert set(options) <= words, f"{page}: moebius {command} has no {set(options) - words}"
            n += 1
    assert n >= 20


set_the_scene()
run_functions(globals())
