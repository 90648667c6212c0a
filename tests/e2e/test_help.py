#!/usr/bin/env python3
"""Help, completions and the man page say what there is. usage: test_help.py MOEBIUS DEMO.gguf

What there is comes from the commands' tables of options (--help=table). Each function below is one test."""
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios

from run_functions import program_runner, run_functions

MOEBIUS, DEMO = map(os.path.abspath, sys.argv[1:3])
MAN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../man/moebius.1")
run, fails = program_runner(MOEBIUS)
os.environ["PATH"] = os.path.dirname(MOEBIUS) + ":" + os.environ["PATH"]


def out(*args, **kw):
    return run(*args, **kw).stdout.decode()


COMMANDS = re.findall(r"^  ([a-z]+) ", out("help").split("First steps:")[0], re.M)


def table(command):
    """The options: a list of names, what the value is called, the kind, the choices, and the help of each."""
    rows = [line.split("\t") for line in out(command, "--help=table").splitlines()]
    return [([n for n in r[:2] if n], r[2], r[3], r[4].split("|") if r[4] else [], r[6]) for r in rows]


def names(command):
    return [n for option in table(command) for n in option[0]]


def on_terminal(columns, *args):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    p = subprocess.Popen([MOEBIUS, *args], stdin=subprocess.DEVNULL, stdout=slave)
    os.close(slave)
    text = b""
    try:
        while piece := os.read(master, 65536):
            text += piece
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert p.wait() == 0
    return text.decode().replace("\r\n", "\n")


def test_help_fits_the_terminal():
    assert {"chat", "generate", "serve", "quantize", "bench", "completions", "version"} <= set(COMMANDS)
    for args in ([], *([c] for c in COMMANDS)):
        for width, text in ((80, out("help", *args)), (60, on_terminal(60, "help", *args)), (100, on_terminal(300, "help", *args))):
            long = [line for line in text.splitlines() if len(line) > width and not re.match(r" +\S+$|usage:", line)]
            assert not long, (args, width, long)
    words = " ".join(out("help", "bench").split())
    assert " ".join(on_terminal(60, "help", "bench").split()) == words and "summed. Of a GPU it is" in words


def test_help_has_common_options_first_and_each_once():
    for c in COMMANDS:
        text = out("help", c)
        for option in table(c):
            assert len(re.findall(rf"^  (?:-\S+, )?{option[0][0]}(?=[ \[\n])", text, re.M)) == 1, (c, option)
        assert len(set(names(c))) == len(names(c)), c
    text = out("help", "generate")
    where = [text.index(f"\n{heading}:\n") for heading in ("options", "sampling", "processors and devices", "memory and drives")]
    assert where == sorted(where)
    for common in ("--prompt", "-n ", "--temp", "--ctx", "--model", "--ram"):
        assert text.index(f"{common}", text.index("\noptions:")) < where[1], common
    assert "--sort-cutoff" not in names("tune") and "--split" not in names("imatrix")


def test_version_and_help_by_every_usual_name():
    for word in ("-v", "-V", "--version"):
        assert out(word) == out("version"), word
        for c in COMMANDS:
            assert out(c, word) == out("version"), (c, word)
    for c in COMMANDS:
        assert out(c, "-h") == out("help", c) == out(c, "--help")
    assert out("help", "help") == out("help") == out("-h")


def test_names_of_other_programs_are_known():
    for word, ours in (("run", "chat"), ("show", "inspect"), ("llama-server", "serve"), ("llama-bench", "bench"), ("completion", "generate")):
        fails(2, word, says=[f"no command {word}: did you mean {ours}?"])
    for word, says in (("-ngl", "the GPU gets what fits by itself; --gpu none"), ("-ncmoe", "here it is --n-cpu-moe, whose N counts the last"),
                       ("-hf", "-m hf:OWNER/REPO"), ("--chat-template", "here it is --template, which takes a file"), ("--lora", "merged into"),
                       ("--think", "here it is --var, such as --var enable_thinking=false"), ("-e", "$'...'"), ("-md", "here it is --draft"),
                       ("-st", "generate --chat -p TEXT"), ("--rope-scaling", "--yarn X"), ("--rope-freq-base", "here it is --override-kv"), ("--ctx-size", "here it is --ctx"), ("--n-predict", "here it is -n"), ("-ctk", "here it is --kv"),
                       ("--flash-attn", "leave it out"), ("--top_k", "did you mean --top-k?"),
                       ("--expert-ran", "did you mean --expert-ram?")):
        fails(2, "generate", "-m", DEMO, word, "1", says=[f"there is no option {word}: ", says])
    assert "did you mean" not in fails(2, "generate", "--wings", says=["there is no option --wings for generate"])
    for word in "--keep", "--path", "--prio", "--vat":  # far from --temp, --batch, --io and --var
        assert "did you mean" not in fails(2, "generate", "-m", DEMO, word, "1", says=[f"there is no option {word} for generate"])
    for word in "-p", "-f":
        fails(2, "chat", "-m", DEMO, word, "hi", says=[f"there is no option {word}: `moebius generate --chat`"])
    for word, says in (("--temp", "each request says it"), ("--metrics", "always has them"), ("--no-webui", "here it is --no-page"), ("-a", "here it is --alias"),
                       ("-cb", "leave it out")):
        fails(2, "serve", "-m", DEMO, word, "1", says=[f"there is no option {word}: ", says])
    fails(2, "quantize", DEMO, "out.gguf", "--output-tensor-type", "Q8_0", says=["here it is --rule"])
    fails(2, "chat", DEMO, "hello", says=['"hello" is one word too many: `moebius generate --chat -p TEXT` answers one message'])
    for args in ["-m", DEMO, "-p", "hi"], ["model.gguf"], ["hf:owner/repo"]:
        assert fails(2, *args).startswith(f"moebius: {args[0]}: a command comes first, as in `moebius chat model.gguf`\n")
    assert "did you mean" not in fails(2, "bench", DEMO, "--var", "x", says=["there is no option --var for bench"])  # nor --car
    for word in "r", "m", "rn":
        assert "rm?" not in fails(2, word)
    # only what the command has is named
    assert "--texts" in fails(2, "serve", "-np", "2") and "--texts" not in fails(2, "generate", "-np", "2")


def test_bash_offers_every_option():
    script = out("completions", "bash")
    with tempfile.NamedTemporaryFile("w", suffix=".bash") as f:
        f.write(script + "offer() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _moebius; echo \"${COMPREPLY[*]}\"; }\n")
        f.flush()

        def offered(*cases):
            lines = "".join("offer " + " ".join(f"'{w}'" for w in ("moebius", *case)) + "\n" for case in cases)
            r = subprocess.run(["bash", "-c", f". {f.name}\n{lines}"], capture_output=True, text=True)
            assert r.returncode == 0 and not r.stderr, r.stderr
            return [set(line.split()) for line in r.stdout.splitlines()]

        assert set(COMMANDS) <= offered([""])[0] and offered(["insp"]) == [{"inspect"}] and set(COMMANDS) <= offered(["help", ""])[0]
        for c, options in zip(COMMANDS, offered(*([c, "-"] for c in COMMANDS))):
            assert options == {*names(c), "--help", "--version"}, (c, options ^ set(names(c)))
        choices = [(c, n, option[3]) for c in COMMANDS for option in table(c) if option[2] == "choice" for n in option[0]]
        assert len(choices) > 20
        for (c, name, words), got in zip(choices, offered(*([c, name, ""] for c, name, _ in choices))):
            assert got == set(words), (c, name, got)


def test_fish_offers_every_option():
    script = out("completions", "fish")
    for c in COMMANDS:
        lines = [line for line in script.splitlines() if f"'__fish_seen_subcommand_from {c}'" in line]
        assert len(lines) == len(table(c)), c
    if not shutil.which("fish"):
        print("fish is not installed: its completions are looked at, not run")
        return
    with tempfile.NamedTemporaryFile("w", suffix=".fish") as f:
        f.write(script)
        f.flush()
        asked = "".join(f"echo ==; complete -C'moebius {c} --'; complete -C'moebius {c} -'\n" for c in COMMANDS)
        r = subprocess.run(["fish", "--no-config", "-c", f"source {f.name}; complete -C'moebius '\n{asked}"], capture_output=True, text=True,
                           env={**os.environ, "HOME": os.path.dirname(f.name)})
    assert r.returncode == 0 and not r.stderr, r.stderr
    commands, *parts = [{line.split("\t")[0] for line in part.splitlines()} for part in r.stdout.split("==\n")]
    assert set(COMMANDS) <= commands
    for c, part in zip(COMMANDS, parts):
        assert set(names(c)) <= part, (c, set(names(c)) - part)


def test_zsh_offers_every_option():
    script = out("completions", "zsh")
    blocks = dict(re.findall(r"^    ([a-z]+)\)\n(.*?);;\n", script, re.M | re.S))
    for c in COMMANDS:
        forms = re.findall(r"^ +'(?:\*|\([^)]*\))?(-[\w-]*)(?:=-?)?\[", blocks[c], re.M)
        assert forms == names(c), (c, forms)
    if not shutil.which("zsh"):
        print("zsh is not installed: its completions are looked at, not run")
        return
    # _arguments itself compiles the specifications, and says what it can't read
    probe = "autoload -Uz compinit; compinit -D -u\n" + script + "\nwhence -w _moebius; print -r -- $_comps[moebius]\n"
    r = subprocess.run(["zsh", "-f", "-c", probe], capture_output=True, text=True)
    assert r.returncode == 0 and not r.stderr and r.stdout == "_moebius: function\n_moebius\n", (r.stdout, r.stderr)


def test_completions_are_of_a_known_shell():
    for args in ([], ["tcsh"], ["bash", "zsh"]):
        said = fails(2, "completions", *args, says=["zsh"] if len(args) == 2 else ["bash, zsh or fish"])
        assert "completions: completions" not in said


def test_man_has_every_command_and_option():
    page = open(MAN, encoding="utf-8").read().replace("\\-", "-").replace("\\&", "")
    text = re.sub(r"^\.[A-Z]+ ?", "", re.sub(r"\\f[A-Z]", "", page), flags=re.M)
    for c in [*COMMANDS, "help"]:
        assert re.search(rf"^\.TP\n\.B {c}$", page, re.M), f"man: command {c} is missing"
        missing = [n for n in (names(c) if c != "help" else []) if not re.search(rf'(?:^|[ (",|]){re.escape(n)}(?![\w-])', text, re.M)]
        assert not missing, f"man: {c} has {missing}"
    environment = re.search(r"^\.SH ENVIRONMENT\n(.*?)^\.SH", page, re.M | re.S)[1]
    assert not re.findall(r"(?<!^\.TP\n)^\.BR? [A-Z_]+.*", environment, re.M), "man: a variable without an entry of its own"
    known = {n for c in COMMANDS for n in names(c)} | {"--help", "--version", "--name", "--user"}
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert said <= known, f"man: there is no {said - known}"


run_functions(globals())
