#!/usr/bin/env python3
"""The files that commands write: whole or not at all, through links and to devices, by several processes at once, and
what becomes of them when a disk is full or somebody interrupts. usage: test_files.py MOEBIUS DEMO.gguf GOLDEN_DIRECTORY

MOEBIUS_SHARE_RUNS=N sets how often each of eight processes runs in one cache directory (3). Each function below is one test; a
failed assertion names itself."""
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

from run_functions import program_runner, run_functions

MOEBIUS, DEMO, GOLDEN = map(os.path.abspath, sys.argv[1:4])
MODEL = os.path.join(GOLDEN, "qwen3moe.gguf")
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
STREAM = ["--expert-ram", "50%"]


def tmp(name):
    return os.path.join(TMP.name, name)


def write(name, text):
    with open(tmp(name), "w") as f:
        f.write(text)
    return tmp(name)


def read(path):
    with open(path, "rb") as f:
        return f.read()


run, fails = program_runner(MOEBIUS)


def leftovers():
    return [f for _, _, files in os.walk(TMP.name) for f in files if re.search(r"\.(tmp|lock|unfinished)$", f)]


def text_file():
    return write("text.txt", "the cat sat on the mat and saw a rat in a hat " * 40)


def messages():
    return write("messages.json", '[{"role": "user", "content": "Hello"}]')


def template():
    return write("plain.jinja", "{{ messages[0].content }}")


def test_a_full_disk_is_no_success():
    """Of every command that prints, whatever else it does."""
    with open("/dev/full", "wb") as full:
        for args in (["help"], ["version"], ["generate", "--help"], ["inspect", MODEL], ["tokenize", "-m", DEMO, "a cat"],
                     ["detokenize", "-m", DEMO, 5, 6], ["ppl", "-m", DEMO, "-f", text_file(), "-c", 64, "--chunks", 1],
                     ["generate", "-m", MODEL, "--tokens", "1,2", "-n", 2], ["verify", "--write", MODEL],
                     ["bench", "-m", MODEL, "-p", 8, "-n", 1, "-r", 1], ["profile", "-m", DEMO, "-f", text_file(), "-n", 64],
                     ["template", "--template", template(), "--messages", messages()],
                     ["imatrix", "-m", DEMO, "-f", text_file(), "-c", 64, "-o", tmp("full.imatrix")],
                     ["quantize", "--force", DEMO, tmp("full.gguf"), "--type", "Q8_0"],
                     ["tune", "-m", MODEL], ["prepare", MODEL, "--to", tmp("full-store")],
                     ["doctor", "-m", MODEL]):
            if args[0] == "verify":
                args[2] = tmp("verified.gguf")
                open(args[2], "wb").write(read(MODEL))
            fails(3, *args, says=["standard output"], stdout=full)
        fails(2, "nonsense", says=["no command"], stdout=full)
    run("version", stdout=None, preexec_fn=lambda: os.dup2(os.open("/dev/null", os.O_WRONLY), 1))
    fails(3, "version", says=["standard output"], stdout=None, preexec_fn=lambda: os.close(1))
    run("logits", "-m", MODEL, "--tokens", 1, "-o", tmp("silent.f32"), stdout=None, preexec_fn=lambda: os.close(1))


def test_where_output_goes_is_looked_at_first():
    """The model does not even exist: whoever complains of the output has looked at it before."""
    none, bad = ["-m", tmp("no-model.gguf")], tmp("no/such/folder")
    text = text_file()
    for args in (["imatrix", *none, "-f", text, "-o", bad], ["generate", *none, "-p", "a", "--save-state", bad],
                 ["generate", *none, "-p", "a", "--stats-json", bad], ["profile", *none, "-f", text, "-o", bad],
                 ["profile", *none, "-f", text, "--csv", bad], ["profile", *none, "-f", text, "--svg", bad],
                 ["trace", *none, "-f", text, "-o", bad], ["ppl", *none, "-f", text, "--resume", bad],
                 ["logits", *none, "-p", "a", "-o", bad], ["logits", *none, "-p", "a", "-o", tmp("x"), "--routing", bad]):
        err = fails(3, *args, says=[f"{os.path.dirname(bad)}/: No such file or directory"])
        assert ".tmp" not in err
    fails(3, "imatrix", *none, "-f", text, "-o", TMP.name, says=["is a directory"])
    for args in (["generate", "-f", bad], ["generate", "-p", "a", "--chat", "--template", bad], ["generate", "--load-state", bad],
                 ["generate", "-p", "a", "-jf", bad], ["chat", "--template", bad], ["ppl", "-f", bad], ["bench", "--tokens-from", bad]):
        fails(3, *args, *none, says=[f"{bad}: No such file or directory"])
    for args, word in (["generate"], "one prompt"), (["logits", "-o", tmp("x")], "one prompt"), \
            (["generate", "--chat", "--tokens", "1"], "takes a text"), (["generate", "-p", "a", "-j", "{}", "--grammar", "x"], "choose one"):
        fails(2, *args, *none, says=[word], stdin=subprocess.DEVNULL)
    os.mkdir(tmp("whole.gguf.crc32c"))
    open(tmp("whole.gguf"), "wb").write(read(MODEL))
    fails(3, "verify", "--write", tmp("whole.gguf"), says=["whole.gguf.crc32c: is a directory"])
    assert leftovers() == []


def test_no_output_is_what_the_command_reads():
    """Not the model, in any of its parts, and no text: by any name, and before anything is written."""
    model, text = tmp("read.gguf"), text_file()
    parts = [tmp(f"part-0000{i}-of-00002.gguf") for i in (1, 2)]
    for path in model, *parts:
        open(path, "wb").write(read(MODEL))
    os.symlink(model, tmp("read-link"))
    before = {path: read(path) for path in (model, *parts, text)}
    for args in (["generate", "-m", model, "-p", "a", "--stats-json", model],
                 ["generate", "-m", model, "-p", "a", "--save-state", tmp("read-link")],
                 ["generate", "-m", tmp("read-link"), "-p", "a", "--usage", model],
                 ["generate", "-m", parts[0], "-p", "a", "--save-state", parts[1], "--no-sandbox"],
                 ["plan", "-m", model, "--svg", model], ["probe", "-m", model, "-o", model],
                 ["profile", "-m", model, "-f", text, "--csv", text], ["ppl", "-m", model, "-f", text, "--resume", text],
                 ["trace", "-m", model, "-f", text, "-o", model], ["logits", "-m", model, "-p", "a", "-o", model],
                 ["imatrix", "-m", model, "-f", text, "-o", model], ["tune", "-m", model, "-o", model],
                 ["batch", "-m", model, "-i", text, "-o", text]):
        fails(2, *args, says=["reads this file", "expected another one"])
    assert before == {path: read(path) for path in before}
    state = ["generate", "-m", model, "--temp", 0, "-n", 2, "--save-state", tmp("state")]
    run(*state, "-p", "a")
    run(*state, "--load-state", tmp("state"), "-p", "b")  # a session is gone on with in its own file


def test_no_two_outputs_are_one_file():
    """By any name, and before anything is loaded; devices, FIFOs and standard streams take what comes from all."""
    os.mkdir(tmp("twice"))
    both, old = tmp("twice/both"), write("twice/old", "old")
    os.link(old, tmp("twice/hard"))
    os.symlink("old", tmp("twice/soft"))
    os.symlink(tmp("twice"), tmp("twice/folder"))
    profile, logits = ["profile", "-m", MODEL, "-f", text_file()], ["logits", "-m", MODEL, "--tokens", "1,2"]
    for args in ([*profile, "-o", both, "--csv", both], [*profile, "-o", both, "--svg", tmp("twice/./both")],
                 [*profile, "--csv", old, "--svg", tmp("twice/hard")], [*profile, "--csv", old, "--usage", tmp("twice/soft")],
                 [*logits, "-o", both, "--routing", tmp("twice/folder/both")], ["trace", *profile[1:], "-o", both, "--usage", both],
                 ["generate", "-m", MODEL, "-p", "a", "--stats-json", both, "--save-state", both]):
        assert "loading" not in fails(2, *args, says=["writes this file; expected another one"])
    fails(2, *logits, "-o", "both", "--routing", "./both", says=["writes this file"], cwd=tmp("twice"))
    assert sorted(os.listdir(tmp("twice"))) == ["folder", "hard", "old", "soft"] and read(old) == b"old"
    null = device("null", 3)
    if null:
        run(*logits, "-o", null, "--routing", null)
    piped = run(*logits, "-o", "-", "--routing", "/dev/stdout").stdout
    with open(tmp("twice/all"), "wb") as f:
        run(*logits, "-o", "-", "--routing", "/dev/stdout", stdout=f)
    assert read(tmp("twice/all")) == piped and len(piped) > 8


def test_no_folder_is_made_for_an_output():
    """It is rather mistyped. Only the cache directory is made."""
    for option in ("--usage", "--stats-json", "--save-state"):
        fails(3, "generate", "-m", MODEL, "-p", "a", "-n", 1, *STREAM, option, tmp("nix/da/file"), says=[option, tmp("nix/da")])
    fails(3, "tune", "-m", MODEL, "-o", "nix/file", says=["--out nix/file: nix/: No such file"], cwd=TMP.name)
    assert not os.path.exists(tmp("nix"))


def test_a_closed_stream_is_no_file_that_is_opened_later():
    closed = {fd: dict(preexec_fn=lambda fd=fd: os.close(fd)) for fd in (0, 1, 2)}
    fails(2, "generate", "-m", DEMO, "-n", 1, says=["expected one prompt"], **closed[0])
    fails(3, "tokenize", "-m", DEMO, "-", says=["Bad file descriptor"], **closed[0])
    fails(3, "logits", "-m", MODEL, "-p", "a", "-o", tmp("closed.f32"), "--routing", "-", says=["/dev/stdout"], **closed[1])
    r = subprocess.run([MOEBIUS, "generate", "-m", DEMO, "-p", "a", "-n", "1", "--save-state", tmp("closed.state")],
                       stdout=subprocess.PIPE, **closed[2])
    assert r.returncode == 0 and read(tmp("closed.state")).startswith(b"MOEBSESS")


def device(name, minor):
    """One of the machine's devices; root, who could replace it, gets a copy, or None where there can be none."""
    if os.geteuid() != 0:
        return "/dev/" + name
    if not os.path.exists(tmp(name)):
        os.mknod(tmp(name), 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    try:
        open(tmp(name), "wb").close()
    except PermissionError:
        return None
    return tmp(name)


def test_devices_and_fifos_are_written_to_and_stay():
    null, full = device("null", 3), device("full", 7)
    if null and full:
        run("logits", "-m", MODEL, "--tokens", "1,2", "-o", null)
        assert stat.S_ISCHR(os.stat(null).st_mode)
        fails(3, "logits", "-m", MODEL, "--tokens", "1,2", "-o", full, says=[f"{full}: No space left on device"])
        fails(3, "generate", "-m", MODEL, "--tokens", "1,2", "-n", 1, "--stats-json", full, says=[f"{full}: No space"])
    run("logits", "-m", MODEL, "--tokens", "1,2", "-o", tmp("plain.f32"))
    fifo, got = tmp("fifo"), []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: got.append(read(fifo)))
    reader.start()
    run("logits", "-m", MODEL, "--tokens", "1,2", "-o", fifo)
    reader.join()
    assert got == [read(tmp("plain.f32"))] and stat.S_ISFIFO(os.stat(fifo).st_mode)


def test_a_dash_is_standard_output():
    os.mkdir(tmp("here"))
    r = run("generate", "-m", MODEL, "--tokens", "1,2", "-n", 3, "--temp", 0, "--ids", "--stats-json", "-", cwd=tmp("here"))
    ids, text = r.stdout.decode().split("\n", 1)
    stats = json.loads(text)
    assert len(ids.split()) == 3 and stats["prefill"]["n_tok"] == 2
    device, = stats["devices"]
    memory = stats["memory"]
    for what in ("weight_bytes", "expert_bytes"):
        assert device[what] == memory[what], stats
    for what in ("context_bytes", "work_bytes"):  # tokens and logits are the host's
        assert 0 < device[what] <= memory[what], stats
    plain = run("logits", "-m", MODEL, "--tokens", "1,2", "-o", "-", cwd=tmp("here")).stdout
    assert plain == run("logits", "-m", MODEL, "--tokens", "1,2", "-o", "/dev/stdout").stdout and len(plain) > 8
    with open(tmp("redirected"), "wb") as f:
        run("generate", "-m", MODEL, "--tokens", "1,2", "-n", 3, "--temp", 0, "--ids", "--stats-json", "/dev/stdout", stdout=f)
    again = read(tmp("redirected")).decode()
    assert again.startswith(ids + "\n{") and json.loads(again.split("\n", 1)[1])
    run("imatrix", "-m", DEMO, "-f", text_file(), "-c", 64, "-o", tmp("i.gguf"))
    through = run("imatrix", "-m", DEMO, "-f", text_file(), "-c", 64, "-o", "-")
    assert through.stdout == read(tmp("i.gguf")) and b"windows" in through.stderr
    assert os.listdir(tmp("here")) == []


def test_no_planted_link_is_followed_and_real_ones_are():
    victim = write("victim", "precious")
    os.mkdir(tmp("planted"))
    out = tmp("planted/out.f32")
    os.symlink(victim, out + ".tmp")
    os.symlink(victim, tmp("planted/o.gguf.unfinished"))
    os.symlink(victim, tmp("planted/u.txt.lock"))
    run("logits", "-m", MODEL, "--tokens", "1,2", "-o", out)
    fails(3, "quantize", DEMO, tmp("planted/o.gguf"), "--type", "Q8_0", says=["o.gguf.unfinished: is a link"])
    err = run("generate", "-m", MODEL, "--tokens", "1,2", "-n", 2, *STREAM, "--usage", tmp("planted/u.txt")).stderr.decode()
    assert "usage of experts is not kept" in err and "u.txt.lock: is a link" in err
    assert read(victim) == b"precious" and not os.path.islink(out)
    link = tmp("planted/link")
    for name in ("elsewhere", "elsewhere.gguf"):
        write(name, "old")
    os.symlink("../elsewhere", link)
    run("logits", "-m", MODEL, "--tokens", "1,2", "-o", link)
    assert os.path.islink(link) and read(tmp("elsewhere")) == read(out)
    os.symlink("../elsewhere.gguf", link + ".gguf")
    run("quantize", "--force", DEMO, link + ".gguf", "--type", "Q8_0")
    assert os.path.islink(link + ".gguf") and read(tmp("elsewhere.gguf"))[:4] == b"GGUF"
    os.symlink("missing", tmp("planted/nowhere"))
    fails(3, "logits", "-m", MODEL, "--tokens", "1,2", "-o", tmp("planted/nowhere"), says=["a link to a file that does not exist"])
    for name in ("out.f32.tmp", "o.gguf.unfinished", "u.txt.lock"):
        os.remove(tmp("planted/" + name))


def interrupted(*args, after=0.3, code=9):
    """What a command prints that is interrupted some time after it has begun with its work, and then catches interrupts."""
    p = subprocess.Popen([MOEBIUS, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while p.poll() is None and not int(re.search(r"SigCgt:\s*(\w+)", open(f"/proc/{p.pid}/status").read())[1], 16) & 2:
        time.sleep(0.01)
    time.sleep(after)
    p.send_signal(signal.SIGINT)
    got, err = (x.decode() for x in p.communicate(timeout=120))
    assert p.returncode == code, (p.returncode, args, err)
    return got, err


def test_an_interrupt_is_an_error_and_shows_what_was_done():
    text = write("long.txt", "Once upon a time a girl called Mia went to the river with a red ball. " * 9000)
    os.mkdir(tmp("stopped"))
    old = write("stopped/old", "as it was")
    demo = ["-m", DEMO, "-t", 1, "-f", text]
    for args in (["trace", *demo, "-o", old], ["profile", *demo, "-o", old], ["imatrix", *demo, "-o", old],
                 ["logits", *demo, "-c", 1 << 20, "-o", old, "--positions", "last:1"]):
        got, err = interrupted(*args)
        assert "interrupted" in err and os.listdir(tmp("stopped")) == ["old"] and read(old) == b"as it was", (args, err)
        assert ("MoE layers" in got) == (args[0] == "profile"), got
    got, err = interrupted("ppl", *demo)
    assert "perplexity" in got and "interrupted" in err
    for more in ([], ["--json"]):
        got, err = interrupted("bench", "-m", DEMO, "-p", 8, "-n", 1, "-r", 9999, *more)
        n = int(re.search(r"interrupted after (\d+) of 9999 rounds", err)[1])
        assert (json.loads(got)["rounds"] == n) if more else ("decode 1" in got)
    got, err = interrupted("bench", "--load", "-m", DEMO, "-r", 9999, "--json")
    assert json.loads(got)["rounds"] == int(re.search(r"interrupted after (\d+) of 9999 rounds", err)[1])


def test_a_signal_leaves_no_unfinished_file():
    text = write("long.txt", "Once upon a time a girl called Mia went to the river with a red ball. " * 9000)
    os.mkdir(tmp("ended"))
    args = [MOEBIUS, "logits", "-m", DEMO, "-t", "1", "-f", text, "-c", str(1 << 20), "-o", tmp("ended/out"), "--positions", "last:1"]
    for number in (signal.SIGTERM, signal.SIGHUP):
        p = subprocess.Popen(args, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # tests may run under nohup
        while p.poll() is None and not os.listdir(tmp("ended")):
            time.sleep(0.01)
        time.sleep(0.1)
        p.send_signal(number)
        err = p.communicate(timeout=120)[1]
        assert p.returncode == -number and os.listdir(tmp("ended")) == [], (number, p.returncode, err)


def test_a_failed_write_leaves_the_old_file():
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
    old = write("kept", "as it was")
    for args in (["logits", "-m", DEMO, "--tokens", "1,2", "-o", old],
                 ["generate", "-m", DEMO, "--tokens", "1,2", "-n", 2, "--save-state", old],
                 ["imatrix", "-m", DEMO, "-f", text_file(), "-c", 64, "-o", old],
                 ["profile", "-m", DEMO, "-f", text_file(), "-n", 64, "--csv", old]):
        err = fails(3, *args, says=["kept: "], preexec_fn=limit)
        assert "File too large" in err and read(old) == b"as it was", err
    assert leftovers() == []


# ---- the cache directory -----------------------------------------------------------------------------------------


def usage_path(cache):
    found = [f for f in os.listdir(os.path.join(cache, "moebius")) if re.fullmatch(r"usage-[0-9a-f]{16}\.txt", f)]
    assert len(found) == 1, found
    return os.path.join(cache, "moebius", found[0])


def counts(path):
    lines = read(path).decode().splitlines()
    assert lines[0] == "moebius usage 1" and re.fullmatch(r"layers \d+ experts \d+", lines[2])
    n_layer, n_expert = map(int, lines[2].split()[1::2])
    rows = [list(map(int, line.split())) for line in lines[3:]]
    assert len(rows) == n_layer and all(len(row) == n_expert for row in rows)
    return [sum(row) for row in rows]


def short_run(cache, **kw):
    return run("generate", "-m", MODEL, "--tokens", "1", "-n", 2, "--temp", 0, "-t", 1, *STREAM, env=dict(os.environ, XDG_CACHE_HOME=cache), **kw)


def test_an_input_that_never_ends_takes_half_of_what_is_free():
    with open(tmp("meminfo"), "w") as f:
        f.write("MemTotal: 64000000 kB\nMemFree: 100000 kB\nMemAvailable: 100000 kB\nBuffers: 0 kB\nCached: 0 kB\n")
    little = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"', tmp("meminfo")]
    if subprocess.run([*little, "true"], capture_output=True).returncode != 0:
        print("no mount is permitted here: endless inputs are left out")
        return
    for args in (["generate", "-m", MODEL, "-f", "/dev/zero"], ["template", "--template", "/dev/zero", "--messages", "/dev/null"],
                 ["grammar", "--gbnf", "/dev/zero"], ["trace", "replay", "/dev/zero"]):
        r = subprocess.run([*little, MOEBIUS, *args], capture_output=True, timeout=60)
        assert r.returncode == 7 and b"/dev/zero: expected at most " in r.stderr, (args, r.returncode, r.stderr)


def test_a_folder_that_can_not_be_made_is_named():
    err = short_run("/sys/moebius-cache").stderr.decode()
    assert "usage of experts is not kept: /sys/moebius-cache: " in err and "No such file" not in err, err


def test_counts_begin_in_a_file_that_is_not_there():
    path = tmp("new-counts.txt")
    err = run("generate", "-m", MODEL, "--tokens", "1", "-n", 2, *STREAM, "--usage", path).stderr.decode()
    assert "plan: " in err and "warning" not in err and sum(counts(path)) > 0, err


def test_runs_at_the_same_time_lose_no_counts():
    """Eight processes add their counts to one file again and again: it holds the sum, and nothing else is left."""
    cache, runs = tmp("shared"), int(os.environ.get("MOEBIUS_SHARE_RUNS", "3"))
    short_run(cache)
    one, bad = counts(usage_path(cache)), []

    def go_on():
        for _ in range(runs):
            try:
                err = short_run(cache).stderr.decode()
                assert "usage" not in err and "warning" not in err, err
            except (AssertionError, subprocess.TimeoutExpired) as e:
                bad.append(e)
                return

    threads = [threading.Thread(target=go_on) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad, bad[0]
    assert counts(usage_path(cache)) == [n * (1 + 8 * runs) for n in one]
    assert len(os.listdir(os.path.join(cache, "moebius"))) == 1


def test_a_damaged_file_of_the_cache_is_set_aside():
    cache = tmp("damaged")
    short_run(cache)
    path = usage_path(cache)
    whole = read(path)
    for damage in (b"", whole[:40], whole + b"1", whole.replace(b"usage 1", b"usage 2"), os.urandom(500)):
        open(path, "wb").write(damage)
        err = short_run(cache).stderr.decode(errors="replace")
        assert "warning: earlier usage of experts is not known" in err and f"it is now {path}.damaged" in err, err
        assert read(path) == whole and read(path + ".damaged") == damage
        assert "warning" not in short_run(cache).stderr.decode()
    os.remove(path)
    os.mkdir(path)  # that is nothing to rename away
    err = short_run(cache).stderr.decode()
    assert "usage of experts is not kept" in err and os.path.isdir(path), err


def test_a_damaged_file_that_the_user_named_is_an_error():
    mine = write("mine.txt", "my own text")
    fails(4, "generate", "-m", MODEL, "--tokens", "1,2", "-n", 1, *STREAM, "--usage", mine, says=["mine.txt"])
    assert read(mine) == b"my own text"


def test_what_a_killed_run_left_is_in_nobodys_way():
    cache = tmp("left")
    short_run(cache)
    path = usage_path(cache)
    one = counts(path)
    for name in (path + ".lock", path + ".0123456789abcdef.tmp"):
        open(name, "w").write("half a file")
    assert "warning" not in short_run(cache).stderr.decode()
    assert counts(path) == [2 * n for n in one] and not os.path.exists(path + ".lock")


run_functions(globals())
