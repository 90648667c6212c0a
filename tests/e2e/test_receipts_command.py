#!/usr/bin/env python3
"""What runs leave behind, `moebius receipts` and `moebius doctor`. usage: test_receipts_command.py MOEBIUS DEMO.gguf GOLDEN

Each function below is one test; a failed assertion names itself."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

from run_functions import program_runner, run_functions
from serving import Server

MOEBIUS, DEMO, GOLDEN = map(os.path.abspath, sys.argv[1:4])
TMP = tempfile.TemporaryDirectory()
os.environ.pop("MOEBIUS_NO_RECEIPT", None)
run, fails = program_runner(MOEBIUS)

# Long enough for a receipt on any machine, with the slowest kernels, and the sanitizers' are slower still.
IS_SLOW = os.environ.get("MOEBIUS_TEST_BUILD") == "asan"
MANY = "60" if IS_SLOW else "400"
os.environ["MOEBIUS_CPU"] = "scalar"
GENERATE = ["generate", "-m", DEMO, "-p", "Once upon a time", "-n", MANY, "-c", "500", "--ignore-eos", "-t", "1", "--cold"]


def tmp(name):
    return os.path.join(TMP.name, name)


def write(name, text):
    with open(tmp(name), "w") as f:
        f.write(text)
    return tmp(name)


def cache(name, **more):
    """The environment with a cache directory of its own."""
    return {**os.environ, "XDG_CACHE_HOME": tmp(name), **more}


def left(name):
    path = os.path.join(tmp(name), "moebius", "receipts.jsonl")
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def test_each_command_leaves_what_it_measured():
    env = cache("each")
    text = write("text", "Once upon a time there was a little girl named Lily. She loved to play outside.\n" * 300)
    requests = write("requests", "".join(json.dumps({"id": i, "prompt": "Once upon a time", "seed": i}) + "\n" for i in range(8)))
    run(*GENERATE, env=env)
    run("bench", "-m", DEMO, "-p", "0", "-n", MANY, "-r", "1", "--cold", env=env)
    run("batch", "-m", DEMO, "-i", requests, "-o", tmp("answers"), "-n", "40" if IS_SLOW else "150", "-c", "500", "--ignore-eos", "--cold", env=env)
    run("ppl", "-m", DEMO, "-f", text, "-c", "128", "--chunks", "1" if IS_SLOW else "12", "--cold", env=env)
    with Server(MOEBIUS, "-m", DEMO, "-c", "500", env=env) as s:
        s.json("/v1/completions", {"prompt": "Once upon a time", "max_tokens": int(MANY), "ignore_eos": True, "seed": 1})
        assert not any(r["method"] == "serve" for r in left("each"))
    receipts = left("each")
    by = {r["method"]: r for r in receipts}
    assert [r["method"] for r in receipts] == ["generate", "bench", "batch", "ppl", "serve"], receipts
    for r in receipts:
        assert r["regime"] == "ram" and r["model"] == os.path.basename(DEMO) and r["peak_bytes"] > 1e7, r
        assert r["fingerprint"] == receipts[0]["fingerprint"] and r["arch"] == "qwen3moe", r
    assert by["bench"]["decode"] < by["bench"]["decode_ceiling"], by["bench"]
    assert by["bench"]["memory"] > 1e6 and by["bench"]["units"] > 1e6 and not {"memory", "units"} & by["generate"].keys(), by
    assert "decode" not in by["ppl"] and by["ppl"]["prefill"] > 0, by["ppl"]
    assert by["batch"]["texts"] >= 6 and by["serve"]["texts"] == 1, receipts
    assert by["batch"]["ctx"] == by["batch"]["prompt"] + (20 if IS_SLOW else 75) and by["serve"]["ctx"] > int(MANY) // 2, receipts
    assert by["generate"]["threads"] == 1 and by["generate"]["decode"] > 0


def test_streaming_runs_say_what_came_from_where():
    run(*GENERATE, "--expert-ram", "50%", env=cache("stream"))
    r, = left("stream")
    assert r["regime"] == "stream" and 0 < r["at"] < 1 and r["read_bytes"] > 0 and r["hit_bytes"] > 0, r
    assert "--expert-ram 50%" in r["settings"], r


def plan(env, *args):
    return json.loads(run("plan", "-m", DEMO, "-t", "1", "-c", "500", "--cold", "--json", *args, env=env).stdout)


def test_streaming_runs_are_forecast_from_such_runs_and_those_in_memory():
    # What AddressSanitizer keeps of freed memory is in no plan that was made before.
    env = cache("forecast", ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1")
    memory = plan(env)["memory"]
    ram = ["--ram", f"{(memory['least_bytes'] + memory['ram_bytes'] + memory['reserve_bytes']) // 2 >> 20}M"]
    fast = {"threads": 1, "memory": [{"threads": 1, "bytes_per_s": 1e11}], "int8_per_s": 1e13, "float_per_s": 1e12,
            "drives": [{"name": "a drive", "random_reads": [{"bytes": 65536, "depth": 1, "bytes_per_s": 1e9}]}]}
    os.makedirs(tmp("forecast/moebius"), exist_ok=True)
    write("forecast/moebius/machine.json", json.dumps({"name": plan(env)["machine"], **fast}))
    assert plan(env, *ram)["forecast"]["decode"] is None
    run(*GENERATE, env=env)
    assert plan(env)["forecast"]["decode"] and plan(env, *ram)["forecast"]["decode"] is None  # nothing is known of reads
    run(*GENERATE, *ram, env=env)
    in_memory, reading = left("forecast")
    assert "decode_reads" not in in_memory and reading["decode_reads"] > reading["decode"], (in_memory, reading)
    assert in_memory["decode_products"] > in_memory["decode"] and in_memory["decode_state"] > in_memory["decode"], in_memory
    reading["decode"] = in_memory["decode"] / 2  # as if the drive were none that memory stands for
    write("forecast/moebius/receipts.jsonl", json.dumps(in_memory) + "\n" + json.dumps(reading) + "\n")
    assert plan(env, *ram)["forecast"]["decode"]
    found = f"0,{100 * (1 - reading['at'])},{100 * reading['at']}"
    p = plan(env, *ram, "--found", found, "--depth", reading["ctx"])
    parts, forecast = p["parts"]["decode"], p["forecast"]["decode"]
    assert p["regime"] == "stream" and parts["products"] > 0 and parts["reads"] > 0 and parts["beside"] is None, p
    assert abs(forecast["mid"] / reading["decode"] - 1) < 0.1 and forecast["low"] < forecast["mid"] < forecast["high"], p
    assert "one after the other" in run("receipts", "explain", "2", env=env).stdout.decode()

    # The drive as runs found it, but for a machine that a file tells of.
    write("forecast/moebius/receipts.jsonl", json.dumps(in_memory) + "\n" + json.dumps({**reading, "drive": 3e9}) + "\n")
    p = plan(env, *ram, "--found", found, "--depth", reading["ctx"])
    assert "the drive gives 2.00 GB/s: the median of the probe's and of 1 runs'" in p["assumptions"], p["assumptions"]
    assert p["parts"]["decode"]["reads"] > 1.2 * parts["reads"], (p, parts)
    p = plan(env, *ram, "--found", found, "--depth", reading["ctx"], "--machine", tmp("forecast/moebius/machine.json"))
    assert not any("the drive gives" in a for a in p["assumptions"]), p["assumptions"]
    assert abs(p["parts"]["decode"]["reads"] / parts["reads"] - 1) < 1e-3, (p, parts)


def test_none_is_left_where_nobody_wants_one():
    run(*GENERATE, "--no-receipt", env=cache("none"))
    run(*GENERATE, env=cache("none", MOEBIUS_NO_RECEIPT="1"))
    run("generate", "-m", DEMO, "-p", "Once", "-n", "8", "--cold", env=cache("none"))  # too short
    assert left("none") == []
    run("receipts", env=cache("none"))


def test_a_cache_that_cannot_be_written_is_a_warning():
    err = run(*GENERATE, env=cache("nowhere", XDG_CACHE_HOME="/dev/null/x")).stderr.decode()
    assert "no receipt of this run" in err and "/dev/null/x" in err, err


def test_runs_at_the_same_time_lose_none():
    env = cache("shared")
    runs = [subprocess.Popen([MOEBIUS, *GENERATE], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(4)]
    for r in runs:
        err = r.communicate(timeout=300)[1]
        assert r.returncode == 0, err
    assert len(left("shared")) == 4


def llama_bench(**more):
    return {"cpu_info": "C", "gpu_info": "", "model_filename": "/m/Q.gguf", "n_threads": 8, "n_gpu_layers": 0, "n_prompt": 0,
            "n_gen": 128, "test_time": "2026-11-01T12:00:00Z", "avg_ts": 10.0, **more}


def test_measurements_by_others_are_added_explained_and_exported():
    env = cache("others")
    mine = write("mine.json", json.dumps([llama_bench(), llama_bench(n_prompt=512, n_gen=0, avg_ts=100)]))
    assert "2 measurements added" in run("receipts", "add", mine, "--decode-ceiling", 20, env=env).stdout.decode()
    lines = run("receipts", env=env).stdout.decode()
    assert "10.00 (50%)" in lines and "100.00" in lines and "llama-bench" in lines, lines
    explained = run("receipts", "explain", 1, env=env).stdout.decode()
    assert "of a ceiling of 20.00: 50.0%" in explained, explained
    exported = [json.loads(line) for line in run("receipts", "export", env=env).stdout.splitlines()]
    assert exported == left("others") and exported[1]["prefill"] == 100, exported
    # above the ceiling: told by the exit status, and left out of what is forecast
    assert b"ABOVE" in run("receipts", "add", mine, "--decode-ceiling", 5, env=env, code=22).stdout
    assert b"ABOVE THE CEILING" in run("receipts", "explain", 3, env=env, code=22).stdout
    run("receipts", "add", mine, "--decode-ceiling", 25, env=env)
    assert b"from 1 other: 50% " in run("receipts", "explain", 5, env=env).stdout


def test_wrong_words_and_damaged_files_are_refused():
    env = cache("wrong")
    for words in ["add"], ["explain"], ["explain", "1"], ["explain", "x"], ["lists"], ["list", "1"], ["add", "a", "b"]:
        fails(2, "receipts", *words, env=env)
    for words in ["list"], [], ["explain", 1], ["export"]:
        fails(2, "receipts", "--layers", 4, *words, env=env, says=["--layers: receipts", "takes no such option"])
    fails(2, "receipts", "explain", 1, env=env, says=["there are no receipts"])
    fails(3, "receipts", "add", tmp("nosuch.json"), env=env, says=["nosuch.json"])
    for text in "", "{}", "[{}]", "[", '[{"n_gen": 1, "avg_ts": "x"}]':
        fails(4, "receipts", "add", write("bad.json", text), env=env, says=["bad.json"])
    moe = write("moe.json", json.dumps([llama_bench(gpu_info="G", n_gpu_layers=99, n_cpu_moe=24)]))
    fails(2, "receipts", "add", moe, env=env, says=["--layers"])
    run("receipts", "add", moe, "--layers", 48, env=env)
    assert left("wrong")[0]["regime"] == "offload" and left("wrong")[0]["at"] == 0.5
    with open(os.path.join(tmp("wrong"), "moebius", "receipts.jsonl"), "a") as f:
        f.write('{"regime": "ra')
    assert b"line 2" in run("receipts", env=env).stderr
    assert b".damaged" in run("receipts", "add", moe, "--layers", 48, env=env).stderr
    assert len(left("wrong")) == 2


# ---- the doctor -----------------------------------------------------------------------------------------------------


def doctor(*args):
    r = subprocess.run([MOEBIUS, "doctor", "--json", *args], capture_output=True, timeout=300)
    found = json.loads(r.stdout)
    assert r.returncode == (23 if found["n_findings"] else 0), (r.returncode, r.stderr)
    assert found["n_findings"] == sum(x["state"] == "finding" for x in found["lines"])
    for x in found["lines"]:
        assert x["state"] in ("ok", "finding", "unknown") and x["said"] and x["topic"], x
        assert x["state"] != "finding" or x["remedy"], x
    return found["lines"]


def test_the_doctor_says_what_it_looked_at():
    topics = {x["topic"] for x in doctor()}
    assert {"instructions", "clock", "processors", "load", "memory", "huge pages", "io_uring", "PCIe link"} <= topics, topics
    text = subprocess.run([MOEBIUS, "doctor", "-m", DEMO], capture_output=True, text=True, timeout=300)
    assert text.returncode in (0, 23) and max(map(len, text.stdout.splitlines())) <= 102, text.stdout
    fails(2, "doctor", "--deep", says=["-m FILE"])


def test_a_damaged_model_is_found_by_its_bytes():
    model = tmp("model.gguf")
    shutil.copy(os.path.join(GOLDEN, "q_q4_k.gguf"), model)
    of_values = [x for x in doctor("-m", model, "--deep") if x["topic"] == "values"]
    assert of_values and all(x["state"] == "ok" for x in of_values), of_values
    run("verify", "--write", model)
    with open(model, "r+b") as f:
        f.seek(-30000, os.SEEK_END)
        f.write(b"\xff" * 20000)
    lines = {x["topic"]: x for x in doctor("-m", model, "--deep") if x["state"] == "finding"}
    assert "NaN or infinite" in lines["values"]["said"] and "checksum" in lines["damage"]["said"], lines
    shutil.copy(os.path.join(GOLDEN, "q_q8_0.gguf"), model)  # the checksums are another model's now
    assert any(x["topic"] == "model" and x["state"] == "finding" for x in doctor("-m", model)), doctor("-m", model)
    lines = {x["topic"]: x for x in doctor("-m", os.path.join(GOLDEN, "q_q8_0.gguf"))}
    assert f"moebius verify {GOLDEN}/q_q8_0.gguf --write" in lines["checksums"]["remedy"], lines["checksums"]
    os.truncate(model, 5000)
    lines = {x["topic"]: x for x in doctor("-m", model) if x["state"] == "finding"}
    assert "publisher" in lines["model"]["remedy"], lines


def test_what_is_no_model_is_no_finding():
    fails(3, "doctor", "-m", tmp("nosuch.gguf"), says=["nosuch.gguf: No such file"])
    os.mkdir(tmp("store"))
    fails(2, "doctor", "-m", tmp("store"), says=[f"moebius verify {tmp('store')}"])


run_functions(globals())
