#!/usr/bin/env python3
"""Prepared stores as a user meets them: made, interrupted, damaged, full disks. usage: test_store.py MOEBIUS DEMO.gguf

MOEBIUS_KILLS=N sets how often prepare is killed at a random moment (10), MOEBIUS_SEED which moments. Each function below
is one test; a failed assertion names itself."""
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from run_functions import program_runner, run_functions

MOEBIUS, DEMO = sys.argv[1:3]
TMP = tempfile.TemporaryDirectory()
N_EXPERT = 120  # of the demo model: 5 layers of 24


run, fails = program_runner(MOEBIUS)


def tmp(name):
    return os.path.join(TMP.name, name)


def logits(*options, code=0, model=DEMO, **kw):
    path = tmp("logits.f32")
    err = run("logits", "-m", model, "-p", "Once upon a time", "--out", path, *options, code=code, **kw).stderr.decode()
    return hashlib.sha256(open(path, "rb").read()).hexdigest() if code == 0 else None, err


def prepared(name):
    if not os.path.exists(tmp(name)):
        run("prepare", DEMO, "--to", tmp(name))
    return tmp(name)


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))


def test_same_logits_from_any_store():
    expected, _ = logits()
    one = prepared("one")
    assert f"{N_EXPERT} experts and 0 other tensors" in run("verify", one).stdout.decode()
    run("prepare", DEMO, "--to", f"{tmp('a')},{tmp('b')}", "--stripe")
    run("prepare", DEMO, "--to", f"{tmp('c')},{tmp('d')}", "--mirror")
    for dirs in [one, f"{tmp('a')},{tmp('b')}", tmp("a"), f"{tmp('c')},{tmp('d')}", f"{tmp('b')},{tmp('c')}"]:
        for io in [["--io", "io_uring"], ["--io", "pread"], ["--direct", "off"]]:
            got, err = logits("--store", dirs, *io)
            assert got == expected and not err, (dirs, io, err)
    # and it does come from there
    err = run("generate", "-m", DEMO, "-p", "x", "-n", 1, "--stats", "--store", f"{tmp('a')},{tmp('b')}").stderr.decode()
    reads = [int(re.search(re.escape(tmp(d)) + r": (\d+) reads", err)[1]) for d in "ab"]
    assert sum(reads) == 3 * N_EXPERT and min(reads) > 0, err
    # a stripe holds each expert once, and both halves something
    sizes = [os.path.getsize(os.path.join(tmp(d), "experts.bin")) for d in "abc"]
    assert sizes[0] + sizes[1] == sizes[2] and min(sizes) > 0


def test_same_logits_on_two_memory_nodes():
    if "hwloc" not in run("version").stdout.decode() or not {0, 1} <= os.sched_getaffinity(0):
        return
    expected, _ = logits()
    # what hwloc takes for a machine with a node for each of the first two processors
    two = {**os.environ, "HWLOC_SYNTHETIC": "numa:2 core:1 pu:1", "HWLOC_THISSYSTEM": "1"}
    for options in [[], ["--expert-ram", "40%"], ["--expert-ram", "40%", "--direct", "off"]]:
        for threads in [2, 3]:
            got, err = logits("--store", prepared("one"), "-t", threads, *options, env=two)
            assert got == expected and f"{threads} threads on 2 memory nodes" in err, (options, threads, err)
    err = logits("--store", prepared("one"), "-t", 2, "--numa", "off", env=two)[1]
    assert not err, err
    fails(2, "logits", "-m", DEMO, "-p", "x", "--out", tmp("none.f32"), "-t", 2, "--hugetlb", env=two,
          says=["set aside", "2 memory nodes"])


def test_what_is_there_stays_there():
    one = prepared("again")
    before = os.stat(os.path.join(one, "experts.bin")).st_mtime_ns
    out = run("prepare", DEMO, "--to", one).stdout.decode()
    assert f"{N_EXPERT} experts were there already\n0 experts written" in out
    assert os.stat(os.path.join(one, "experts.bin")).st_mtime_ns == before
    # a second drive joins as a mirror of the first
    out = run("prepare", DEMO, "--to", f"{one},{tmp('joined')}", "--mirror").stdout.decode()
    assert f"{N_EXPERT} experts were there already\n{N_EXPERT} experts written" in out
    run("verify", tmp("joined"))


def test_stores_that_do_not_fit_are_refused():
    one = prepared("one")
    fails(3, "generate", "-m", DEMO, "-p", "x", "--store", tmp("none"), says=[tmp("none"), "No such file"])
    fails(4, "generate", "-m", DEMO, "-p", "x", "--store", one, "--reference", says=["layout r16", "this device takes rows"])
    fails(2, "generate", "-m", DEMO, "-p", "x", "--store", one, "--check-ops", says=["--check-ops"])
    other = tmp("other.gguf")
    shutil.copy(DEMO, other)
    size = os.path.getsize(other)
    flip(other, size - 1)  # a model of the same shape with other weights
    err = fails(4, "generate", "-m", other, "-p", "x", "--store", one, says=["prepared from another model"])
    assert one in err
    err = fails(4, "prepare", other, "--to", one, says=[one, "does not fit", "another model"])
    assert os.path.join(one, "store.gguf: prepared from") in err, err
    fails(4, "verify", __file__)
    linked = tmp("linked")  # its data on another drive
    shutil.copytree(one, linked)
    os.rename(os.path.join(linked, "experts.bin"), tmp("moved.bin"))
    os.symlink(tmp("moved.bin"), os.path.join(linked, "experts.bin"))
    run("generate", "-m", DEMO, "-p", "x", "-n", 1, "--store", linked)
    run("verify", linked)


def test_usage_is_explained():
    fails(2, "prepare", DEMO, says=["--to DIR"])
    fails(2, "prepare", DEMO, "--to", f"{tmp('x')},{tmp('y')}", says=["either --mirror or --stripe"])
    fails(2, "prepare", DEMO, "--to", tmp("x"), "--mirror", says=["several directories"])
    fails(2, "prepare", DEMO, "--to", f"{tmp('twice')},{tmp('twice')}/", "--mirror", says=[tmp("twice"), "named twice"])
    fails(2, "prepare", DEMO, "--to", ",", says=["expected a directory"])
    fails(2, "verify", DEMO, says=["there are no checksums", "--write"])
    fails(2, "verify", prepared("one"), "--write", says=["has its checksums"])
    fails(3, "prepare", DEMO, "--to", tmp("no/such/parent"), says=["No such file"])
    assert not os.path.exists(tmp("x"))


def test_damage_is_found_and_read_around():
    expected, _ = logits()
    store = tmp("damaged")
    run("prepare", DEMO, "--to", store)
    data = os.path.join(store, "experts.bin")
    one = os.path.getsize(data) // N_EXPERT
    flip(data, 7 * one + 1234)
    fails(4, "verify", store, says=["layer 0, expert 7", data, "1 of 360"])
    got, err = logits("--store", store)
    assert got == expected and "layer 0, expert 7" in err and "reading it from elsewhere" in err
    # a drive that fails again and again is given up
    for i in range(8, 20):
        flip(data, i * one)
    got, err = logits("--store", store)
    assert got == expected and "nothing more is read from there" in err
    # preparing it again repairs it, each expert in its place
    fails(4, "verify", store, says=["13 of 360", "moebius prepare writes them again"])
    size, digest = os.path.getsize(data), hashlib.sha256(open(prepared("one") + "/experts.bin", "rb").read()).hexdigest()
    out = run("prepare", DEMO, "--to", store).stdout.decode()
    assert f"{N_EXPERT - 13} experts were there already\n13 experts were damaged, and are written again\n13 experts written" in out, out
    assert os.path.getsize(data) == size and hashlib.sha256(open(data, "rb").read()).hexdigest() == digest
    run("verify", store)
    os.truncate(data, os.path.getsize(data) - 1)
    fails(4, "generate", "-m", DEMO, "-p", "x", "--store", store, says=[data, "prepare it again"])


def test_a_sidecar_guards_a_raw_file():
    model = tmp("raw.gguf")
    shutil.copy(DEMO, model)
    run("verify", model, "--write")
    assert "all as written" in run("verify", model).stdout.decode()
    expected, _ = logits(model=model)
    flip(model, os.path.getsize(model) // 2)
    err = fails(4, "verify", model, says=["are damaged", model])
    assert "layer " in err  # it is an expert's, so it is never computed with
    fails(4, "generate", "-m", model, "-p", "x", says=[model, "layer ", "expert ", "are damaged"])
    flip(model, os.path.getsize(model) // 2)
    assert logits(model=model)[0] == expected
    tensors = json.loads(run("inspect", "--json", model).stdout)["tensors"]
    at = next(t["offset"] + t["bytes"] - 1 for t in tensors if t["name"] == "output.weight")
    flip(model, at)  # no expert's: noticed when the model is loaded
    fails(4, "generate", "-m", model, "-p", "x", says=[model, 'tensor "output.weight"', "is damaged"])
    fails(4, "verify", model, says=['tensor "output.weight"', "are damaged"])
    flip(model, at)
    shutil.copy(prepared("one") + "/store.gguf", model + ".crc32c")
    fails(4, "verify", model, says=["not a file of checksums"])


def test_killed_at_any_moment():
    """After kill -9 there is a whole store or none, and running it again completes it."""
    rng = random.Random(int(os.environ.get("MOEBIUS_SEED", "1")))
    store = prepared("timing")
    shutil.rmtree(store)
    start = time.monotonic()
    run("prepare", DEMO, "--to", store)
    took = time.monotonic() - start
    reference = hashlib.sha256(open(os.path.join(store, "experts.bin"), "rb").read()).hexdigest()
    expected, _ = logits()
    n_whole = n_part = 0
    for i in range(int(os.environ.get("MOEBIUS_KILLS", "10"))):
        store = tmp(f"killed{i}")
        while True:  # killed until one run got to its end
            p = subprocess.Popen([MOEBIUS, "prepare", DEMO, "--to", store], stdout=subprocess.DEVNULL)
            time.sleep(rng.uniform(0, 1.3 * took))
            p.send_signal(signal.SIGKILL)
            ended = p.wait() == 0
            whole = os.path.exists(os.path.join(store, "store.gguf"))
            assert whole or not ended
            if whole:
                run("verify", store)
                got, err = logits("--store", store)
                assert got == expected and not err
                n_whole += 1
                break
            n_part += 1
            if os.path.exists(os.path.join(store, "store.gguf.part")):
                fails(3, "generate", "-m", DEMO, "-p", "x", "--store", store, says=[store, "not finished"])
                fails(3, "verify", store, says=[store, "not finished"])
        run("prepare", DEMO, "--to", store)
        assert sorted(os.listdir(store)) == ["experts.bin", "store.gguf"], os.listdir(store)
        assert hashlib.sha256(open(os.path.join(store, "experts.bin"), "rb").read()).hexdigest() == reference
        shutil.rmtree(store)
    print(f"killed {n_part} times before the end, {n_whole} stores completed")


def limit_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))


def test_full_disks():
    store = tmp("limited")  # as when a quota ends: a write fails in the middle
    fails(3, "prepare", DEMO, "--to", store, says=[store, "writing", "File too large"], preexec_fn=limit_files)
    assert "store.gguf" not in os.listdir(store)
    fails(3, "generate", "-m", DEMO, "-p", "x", "--store", store, says=["not finished"])
    fails(3, "verify", store, says=["not finished: run moebius prepare again"])
    run("prepare", DEMO, "--to", store)
    run("verify", store)
    # a file system that is too small is refused before anything is written
    small = tmp("small")
    os.mkdir(small)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], capture_output=True).returncode != 0:
        print("no mount is permitted here: the small file system is left out")
        return
    try:
        fails(3, "prepare", DEMO, "--to", small + "/store", says=[small, "are needed", "are free"])
    finally:
        subprocess.run(["umount", small], check=True)


def test_two_at_once():
    store = tmp("locked")
    os.mkdir(store)
    with open(os.path.join(store, "experts.bin"), "w") as f:
        import fcntl
        fcntl.flock(f, fcntl.LOCK_EX)
        fails(3, "prepare", DEMO, "--to", store, says=[store, "experts.bin: another moebius is at work on it"])


run_functions(globals())
