#!/usr/bin/env python3
"""Several processes under mpirun give what one gives, and none of them can die, hang or be wrong unnoticed.
usage: test_ranks.py MOEBIUS MPIRUN DEMO.gguf GOLDEN_DIRECTORY HANG_THREAD.so

MOEBIUS_RANK_FAULTS=N sets how often each fault comes at a random moment (2), MOEBIUS_SEED which moments;
MOEBIUS_RANK_MODELS=all computes each golden model with 2, 3 and 4 ranks, and streaming; without it one in two (with
sanitizers one in six) with one of these numbers, and half as many streaming. Each function below is one test; a failed
assertion names itself."""
import glob
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from run_functions import program_runner, run_functions

MOEBIUS, MPIRUN, DEMO, GOLDEN, HANG = map(os.path.abspath, sys.argv[1:6])
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
os.environ["TMPDIR"] = TMP.name  # a killed mpirun leaves its folder to who has its number later
os.environ["OMPI_ALLOW_RUN_AS_ROOT"] = os.environ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
os.environ["LSAN_OPTIONS"] = "detect_leaks=0"  # MPI's own
SEED = int(os.environ.get("MOEBIUS_SEED", "1"))
SANITIZED = os.environ.get("MOEBIUS_TEST_BUILD") == "asan"
N_FAULT = int(os.environ.get("MOEBIUS_RANK_FAULTS", "1" if SANITIZED else "2"))
ALL_MODELS = os.environ.get("MOEBIUS_RANK_MODELS") == "all"
STEP = 1 if ALL_MODELS else 6 if SANITIZED else 4  # of the golden models
WAYS = ["self,vader", "self,tcp"]  # through shared memory, and as between machines
VERSION = subprocess.run([MPIRUN, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode()
RAW = ["--output", ":raw"] if re.search(r"\(Open MPI\) [5-9]\.", VERSION) else []  # else parts of lines are lost (docs/machines.md)
LIMIT_S = 10  # a fault is reported by then
START_S = 3  # and a run has started
LONG = ["generate", "-m", DEMO, "-p", "Once", "-n", "100000", "--ctx", "100000", "--ignore-eos", "--cold", "--temp", "0"]

run, _ = program_runner(MOEBIUS)


def tmp(name):
    return os.path.join(TMP.name, name)


def mpi(n_rank, *args, others=None, variables=None, way=WAYS[0]):
    """The words of a run of n_rank processes. others: what ranks are told instead; variables: what is set for ranks alone. By a
    shell, as the mpirun of some distributions crashes where programs are behind colons."""
    def part(rank, words):
        return shlex.join(["exec", "env", *(variables or {}).get(rank, []), MOEBIUS, *map(str, words)])
    command = [MPIRUN, "--oversubscribe", *RAW, "--mca", "btl_tcp_if_include", "lo", "--mca", "btl", way, "-n", str(n_rank)]
    if not others and not variables:
        return [*command, MOEBIUS, *map(str, args)]
    cases = "".join(f"{i}) {part(i, (others or {}).get(i, args))};; " for i in range(n_rank))
    return [*command, "sh", "-c", f"case $OMPI_COMM_WORLD_RANK in {cases}esac"]


def finish_ranks(n_rank, *args, env=None, **kw):
    """The exit status, what was printed, and what was said."""
    r = subprocess.run(mpi(n_rank, *args, **kw), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       timeout=120)
    err = r.stderr.decode(errors="replace")
    assert "Sanitizer" not in err, err
    return r.returncode, r.stdout, err


def run_ranks(n_rank, *args, code=0, **kw):
    status, out, err = finish_ranks(n_rank, *args, **kw)
    assert (status == code) if code is not None else status != 0, f"exit {status}: {args}\n{err[-2000:]}"
    return out, err


def logits_of(runner, model, tokens, *options):
    out = tmp("logits.f32")
    runner("logits", "-m", model, "--tokens", ",".join(map(str, tokens)), "--out", out, "--cold", *options)
    return open(out, "rb").read()


def golden_models():
    for path in sorted(glob.glob(os.path.join(GOLDEN, "*.json"))):
        about = json.load(open(path))
        if about.get("topk") and "tokens" in about:
            yield os.path.join(GOLDEN, about["model"]), about["tokens"]


def test_logits_are_those_of_one_process():
    n = 0
    for i, (model, tokens) in enumerate(list(golden_models())[::STEP]):
        expected = logits_of(run, model, tokens)
        for n_rank in [2, 3, 4] if ALL_MODELS else [2 + i % 3]:
            split = [[], ["--split", f"random:{i + n_rank}", "--replicas", "50%"], ["--split", "cache:40%"], ["--replicas", "30%"]][i % 4]
            got = logits_of(lambda *a: run_ranks(n_rank, *a, way=WAYS[i % 2]), model, tokens, *split)
            assert got == expected, f"{model}, {n_rank} ranks, {split}"
            n += 1
    assert n > 30 // STEP, n


def test_streaming_logits_are_those_of_one_process():
    """Of small models a rank may have too few experts to stream any."""
    n = 0
    for model, tokens in list(golden_models())[::STEP if ALL_MODELS else 2 * STEP]:
        try:
            got = logits_of(lambda *a: run_ranks(2, *a), model, tokens, "--expert-ram", "40%", "--replicas", "25%")
        except AssertionError as e:
            assert "are too few: the top-k experts" in str(e) or "a token's experts in layer" in str(e), e
            continue
        assert got == logits_of(run, model, tokens), model
        n += 1
    assert n > 8 // STEP, n


def answers(runner, requests, *options):
    path, out = tmp("requests"), tmp("answers")
    with open(path, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in requests)
    if os.path.exists(out):
        os.remove(out)
    runner("batch", "-m", DEMO, "-i", path, "-o", out, "--cold", *options)
    return sorted(json.dumps([a["id"], a["text"]]) for a in map(json.loads, open(out)))


def test_batches_and_forks_are_those_of_one_process():
    begin = "Once upon a time there was a little girl named Lily. She loved to play in the park with her dog. "
    requests = [{"id": str(i), "prompt": begin + s, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
                for i, s in enumerate(["One day", "The dog", "Her mom", "It was", "A cat", "She", "Then", "But"])]
    expected = answers(run, requests, "--texts", 1)
    for n_rank, n_texts, more in [(2, 1, []), (2, 3, []), (3, 8, ["--replicas", "60%"]), (4, 8, ["--expert-ram", "10%"])]:
        got = answers(lambda *a: run_ranks(n_rank, *a), requests, "--texts", n_texts, *more)
        assert got == expected, (n_rank, n_texts, more)


def slow_down_memory(path):
    """So that experts take longer than messages, whose time is measured anew by each run."""
    with open(path) as f:
        machine = json.load(f)
    machine["l3_bytes"] = 1  # no cache that holds the model
    for m in machine["memory"]:
        m["bytes_per_s"] = 3e9
    with open(path, "w") as f:
        json.dump(machine, f)


def test_receipts_know_what_ranks_could_do():
    before, cache = dict(os.environ), tmp("receipts")
    os.environ.pop("MOEBIUS_NO_RECEIPT", None)
    os.environ["XDG_CACHE_HOME"] = cache
    try:
        run("probe", "-t", 2, "--gpus", "none")
        slow_down_memory(os.path.join(cache, "moebius", "machine.json"))
        os.environ["MOEBIUS_CPU"] = "scalar"  # a receipt wants half a second of decoding
        args = ["generate", "-m", DEMO, "-p", "Once", "-n", 350, "--ignore-eos", "--seed", 1, "--cold", "-t", 1]
        for split in [[], ["--split", "experts:3,1"]] * 3:
            _, err = run_ranks(2, *args, *split)
            assert "plan: 1 thread" in err, err
    finally:
        os.environ.clear()
        os.environ.update(before)
    told = [json.loads(line) for line in open(os.path.join(cache, "moebius", "receipts.jsonl"))]
    assert [r["regime"] for r in told] == ["ranks"] * 6, told
    assert all(r["decode_products"] > 0 for r in told), told
    assert "decode_low" not in told[0] and 0 < told[2]["decode_low"] < told[2]["decode_high"] <= told[2]["decode_ceiling"], told
    even, uneven = [max(r["decode_ceiling"] for r in told[i::2]) for i in range(2)]  # who disturbs messages only lowers it
    assert uneven < even, told  # one has three quarters
    assert all(r["decode"] < most for i, most in enumerate((even, uneven)) for r in told[i::2]), told


def long_text():
    path = tmp("text")
    with open(path, "w") as f:
        f.write("Once upon a time there was a dog who liked to run in the park with a cat. " * 40)
    return path


def least_ram():
    """MiB with which two processes can open the model, without a context: MPI and sanitizers take of it what they do."""
    _, err = run_ranks(2, "generate", "-m", DEMO, "-p", "Once", "--cold", "--ram", "1M", code=None)
    return math.ceil(float(re.search(r"this model, without a context, needs at least ([\d.]+) MiB", err).group(1)))


def test_commands_run_under_mpirun():
    text, ram = long_text(), least_ram()
    one = run("ppl", "-m", DEMO, "-f", text, "--cold").stdout
    assert run_ranks(2, "ppl", "-m", DEMO, "-f", text, "--cold")[0] == one
    _, err = run_ranks(2, "generate", "-m", DEMO, "-p", "Once", "-n", 4, "--cold", "--ram", f"{ram + 6}M")
    assert "text 4 tokens" in err
    for more in range(4):  # memory is taken back from experts while another rank computes
        run_ranks(2, "generate", "-m", DEMO, "-p", "Once", "-n", 4, "--cold", "--ram", f"{ram + 3 + 2 * more}M")
    out, _ = run_ranks(2, "bench", "-m", DEMO, "-p", 8, "-n", 4, "-r", 1, "--cold")
    assert b"rank 1" in out and b"forecast" in out, out
    stats = tmp("stats.json")
    run_ranks(3, "generate", "-m", DEMO, "-p", "Once", "-n", 4, "--cold", "--replicas", "50%", "--stats-json", stats)
    places = json.load(open(stats))["places"]
    assert all(p["n_replica"] > 0 for p in places) and sum(p["n_expert"] for p in places) == 180, places
    assert sum(p["all_layers"]["n_replica_row"] for p in places) > 0, places


def test_a_share_of_the_experts_memory_is_one_of_all_experts():
    """A rank offers as much, so that one with room for all gets the rest; where the drives count, they were measured."""
    stats, words = tmp("stats.json"), ["generate", "-m", DEMO, "-p", "Once", "-n", 4, "--cold", "--stats-json", tmp("stats.json")]
    run_ranks(2, *words, "--expert-ram", "20%", others={1: [*words, "--expert-ram", "100%"]})
    small, large = json.load(open(stats))["places"]
    assert small["n_expert"] <= 24 and small["n_expert"] + large["n_expert"] == 120, (small, large)
    assert all(p["memory_bytes"] == p["all_bytes"] and p["all_layers"]["n_read"] == 0 for p in (small, large)), (small, large)
    run_ranks(2, *words, "--expert-ram", "20%")
    for p in json.load(open(stats))["places"]:
        assert 0.19 * 120 / p["n_expert"] < p["memory_bytes"] / p["all_bytes"] <= 0.2 * 120 / p["n_expert"], p


def test_what_a_refusal_offers_works():
    """Before the model is open nobody knows what its division takes: nothing is offered then."""
    command, ram = ["ppl", "-m", DEMO, "-f", long_text(), "--cold"], least_ram()
    _, err = run_ranks(2, *command, "--ram", f"{ram - 8}M", code=None)
    assert "this model, without a context" in err and "what would work" not in err, err
    _, err = run_ranks(2, *command, "--ram", f"{ram + 3}M", code=None)
    offered = re.search(r"this session needs.* --ram (\d+M),", err)
    assert offered, err
    run_ranks(2, *command, "--ram", offered.group(1))


def test_what_can_not_be_divided_is_refused():
    for args, words in [(["bench", "-m", DEMO, "--load"], "opened once"),
                        (["generate", "-m", DEMO, "-p", "a", "--devices", "cpu:1,cpu:1"], "devices in 2 processes"),
                        (["generate", "-m", DEMO, "-p", "a", "--split", "experts:1,2,3"], "3 shares for 2 processes"),
                        (["generate", "-m", DEMO, "-p", "a", "--split", "stages"], "split stages in 2 processes"),
                        (["generate", "-m", DEMO, "-p", "a", "--ram", "10M"], "not enough")]:
        _, err = run_ranks(2, *args, code=None)
        assert words in err, err


def test_another_processor_level_is_negotiated():
    expected = subprocess.run([MOEBIUS, "generate", "-m", DEMO, "-p", "Once", "-n", "8", "--temp", "0", "--cold"],
                              env=dict(os.environ, MOEBIUS_CPU="scalar"), stdout=subprocess.PIPE, check=True).stdout
    words = ["generate", "-m", DEMO, "-p", "Once", "-n", "8", "--temp", "0", "--cold"]
    assert run_ranks(2, *words, variables={1: ["MOEBIUS_CPU=scalar"]})[0] == expected
    _, err = run_ranks(2, *words, variables={1: ["MOEBIUS_CPU=none"]}, code=None)
    assert "rank 1 (" in err and "MOEBIUS_CPU=none" in err, err


def damage(path, every):
    with open(path, "r+b") as f:
        for at in range(1000, os.path.getsize(path), every):
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1]))


def prepared(name):
    run("prepare", DEMO, "--to", tmp(name))
    return sorted(glob.glob(os.path.join(tmp(name), "*")), key=os.path.getsize)


def bad_files():
    """What a rank may be told in place of a good model, and what is said of it."""
    with open(tmp("truncated.gguf"), "wb") as f, open(DEMO, "rb") as whole:
        f.write(whole.read(os.path.getsize(DEMO) * 3 // 4))
    damage(prepared("bad-manifest")[0], 50)
    with open(tmp("tuned.gguf"), "wb") as f, open(DEMO, "rb") as whole:  # the same shapes
        content = whole.read()
        f.write(content[:-64] + bytes(b ^ 1 for b in content[-64:]))
    return [(["-m", tmp("truncated.gguf")], "truncated"), (["-m", tmp("missing.gguf")], "No such file"),
            (["-m", next(m for m, _ in golden_models())], "another model"), (["-m", DEMO, "--ram", "1M"], "not enough"),
            (["-m", tmp("tuned.gguf")], "another model"),
            (["-m", DEMO, "--store", tmp("bad-manifest")], "bad-manifest"),
            (["-m", DEMO, "--reference"], "--reference on all ranks")]


PROMPT = ["-p", "Once", "-n", "50", "--ignore-eos", "--cold", "--temp", "0"]


def test_a_bad_file_or_option_of_one_rank_is_named():
    for i, (options, words) in enumerate(bad_files()):
        rank = 1 + i % 2
        begin = time.monotonic()
        _, err = run_ranks(3, "generate", "-m", DEMO, *PROMPT, others={rank: ["generate", *options, *PROMPT]}, code=None,
                           way=WAYS[i % 2])
        assert f"rank {rank} (" in err and words in err, (options, err)
        assert time.monotonic() - begin < LIMIT_S + START_S


def test_a_damaged_store_of_one_rank_changes_no_token():
    damage(prepared("damaged")[-1], 4096)  # a byte of each expert
    out, err = run_ranks(3, "generate", "-m", DEMO, *PROMPT,
                         others={2: ["generate", "-m", DEMO, "--store", tmp("damaged"), *PROMPT]})
    assert "rank 2: warning" in err and "are damaged" in err, err
    assert out == run("generate", "-m", DEMO, *PROMPT).stdout


def test_a_file_that_is_cut_while_a_rank_reads_it_is_named():
    with open(tmp("cut.gguf"), "wb") as f:
        f.write(open(DEMO, "rb").read())
    words = ["generate", "-m", tmp("cut.gguf"), *LONG[3:], "--expert-ram", "10%"]  # of the third that it gets
    p = subprocess.Popen(mpi(3, *LONG, "--split", "experts:1,1,1", others={1: words}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    time.sleep(START_S)
    os.truncate(tmp("cut.gguf"), 1 << 20)
    _, err = p.communicate(timeout=LIMIT_S)
    assert p.returncode != 0 and b"rank 1 (" in err and b"cut.gguf" in err, err


def processes_of(pid):
    """The ranks that an mpirun has started: {rank: process}."""
    found = {}
    try:
        children = open(f"/proc/{pid}/task/{pid}/children").read().split()
    except OSError:
        return found
    for child in children:
        try:
            words = open(f"/proc/{child}/environ", "rb").read().split(b"\0")
        except OSError:
            continue
        for w in words:
            if w.startswith(b"OMPI_COMM_WORLD_RANK="):
                found[int(w.split(b"=")[1])] = int(child)
    return found


def hit(rank, number, delay_s, way):
    """Sends a signal to one of three ranks at a moment: (exit status, output, what was said, after how long)."""
    p = subprocess.Popen(mpi(3, *LONG, way=way), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 10
    while len(processes_of(p.pid)) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    ranks = processes_of(p.pid)
    time.sleep(delay_s)
    begin = time.monotonic()
    try:
        os.kill(ranks[rank], number)
        out, err = p.communicate(timeout=60)
    finally:
        for process in [*ranks.values(), p.pid]:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
    return p.returncode, out, err.decode(errors="replace"), time.monotonic() - begin


def check_fault(number, words):
    """A rank that gets a signal at any moment: an end in time, the rank's name, and no token that is not the model's."""
    moments = random.Random(SEED * 100 + number)
    expected = run(*LONG[:6], "2000", *LONG[7:]).stdout[:-1]  # without the end of the line
    for i in range(N_FAULT):
        rank, delay_s = 1 + i % 2, moments.uniform(0, 2) if i else 2
        code, out, err, took_s = hit(rank, number, delay_s, WAYS[i // 2 % 2])
        what = f"rank {rank}, signal {number} after {delay_s:.3f} s, {took_s:.1f} s to the end:\n{err}"
        assert code != 0, what
        assert took_s < LIMIT_S, what
        assert any(w in err for w in words(rank)), what
        assert out.startswith(expected) or expected.startswith(out), what


def test_a_rank_that_is_killed_is_named():
    check_fault(signal.SIGKILL, lambda rank: [f"rank {rank} (", f"process rank {rank} "])


def test_a_rank_that_hangs_is_named():
    check_fault(signal.SIGSTOP, lambda rank: [f"rank {rank} ("])


def run_hanging(words, rank, hang_s, **more):
    env = dict(os.environ, LD_PRELOAD=HANG, HANG_RANK=str(rank), HANG_MS=str(hang_s * 1000), **more,
               ASAN_OPTIONS="verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", ""))
    return subprocess.run(words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=60)


def test_a_rank_whose_computing_thread_hangs_is_named():
    """Its process lives and gives signs of life; the run ends in time, and no token is wrong."""
    moments = random.Random(SEED)
    expected = run(*LONG[:6], "2000", *LONG[7:]).stdout[:-1]  # without the end of the line
    for i in range(N_FAULT):
        rank, hang_s, way = 1 + i % 2, moments.uniform(START_S, START_S + 2), WAYS[i // 2 % 2]
        begin = time.monotonic()
        try:
            p = run_hanging(mpi(3, *LONG, way=way), rank, hang_s)
        except subprocess.TimeoutExpired as e:
            assert not e.stdout, (e.stdout, e.stderr)  # else, on a busy machine, the run had not begun when the thread hung
            hang_s, begin = hang_s + 3 * START_S, time.monotonic()
            p = run_hanging(mpi(3, *LONG, way=way), rank, hang_s)
        took_s, err = time.monotonic() - begin - hang_s, p.stderr.decode(errors="replace")
        what = f"rank {rank}, hangs after {hang_s:.3f} s, {took_s:.1f} s to the end:\n{err}"
        assert p.returncode != 0 and 6 < took_s < LIMIT_S + 1, what  # mpirun takes a moment to start
        assert f"rank {rank} (" in err and "lives, but has not gone on for 7 s" in err, what
        assert p.stdout and expected.startswith(p.stdout) or p.stdout.startswith(expected), what


def test_a_rank_that_stands_still_while_it_loads_is_named():
    """A read of an expert takes long; as long as it may, the rank is waited for."""
    words = ["generate", "-m", DEMO, "-p", "Once", "-n", "8", "--cold", "-t", "2", "--io", "pread", "--direct", "off"]
    p = run_hanging(mpi(2, *words), 1, 0, HANG_READ_MS="60000", MOEBIUS_RANK_PATIENCE="3")
    assert p.returncode != 0 and re.search(rb"rank 1 \(.*lives, but has not gone on for [34] s", p.stderr), p.stderr
    p = run_hanging(mpi(2, *words), 1, 0, HANG_READ_MS="9000", MOEBIUS_RANK_PATIENCE="30")
    assert p.returncode == 0 and b"a read took 9000 ms" in p.stderr, p.stderr
    _, err = run_ranks(2, *words, code=None, env=dict(os.environ, MOEBIUS_RANK_PATIENCE="soon"))
    assert "MOEBIUS_RANK_PATIENCE is soon: expected seconds" in err, err


def test_a_rank_that_waits_for_its_drive_is_waited_for():
    """Longer than a thread may stand still that computes."""
    words = ["generate", "-m", DEMO, "-p", "Once", "-n", "1500", "--ignore-eos", "--cold", "--temp", "0"]
    p = run_hanging(mpi(2, *words, "--expert-ram", "30%", "--io", "pread", "--direct", "off"), 1, 0.4, HANG_READ_MS="11000")
    assert p.returncode == 0 and b"a read took 11000 ms" in p.stderr, p.stderr
    assert p.stdout == run(*words).stdout


def test_without_rank_0_the_others_end():
    for number in [signal.SIGKILL, signal.SIGSTOP]:
        code, _, err, took_s = hit(0, number, 2, WAYS[0])
        assert code != 0 and took_s < LIMIT_S and "rank 0" in err, (number, took_s, err)


def test_an_end_from_outside_is_told_from_a_fault():
    p = subprocess.Popen(mpi(3, *LONG), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(2)
    p.terminate()
    _, err = p.communicate(timeout=20)
    assert p.returncode != 0 and b"has died" not in err, err


def test_nothing_is_left_behind():
    before = set(os.listdir("/dev/shm"))
    run_ranks(3, "generate", "-m", DEMO, "-p", "Once", "-n", 4, "--cold")
    assert set(os.listdir("/dev/shm")) <= before


if __name__ == "__main__":
    run_functions(globals())
