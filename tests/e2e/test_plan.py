#!/usr/bin/env python3
"""Plans and probes from outside. usage: test_plan.py MOEBIUS DEMO.gguf GOLDEN_DIRECTORY

Each function below is one test."""
import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

from run_functions import program_runner, run_functions

MOEBIUS, DEMO, GOLDEN = map(os.path.abspath, sys.argv[1:4])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MACHINES = ROOT + "/dist/machines/"
IS_ASAN = os.environ.get("MOEBIUS_TEST_BUILD") == "asan"
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = TMP.name + "/cache"
os.environ["MOEBIUS_NO_RECEIPT"] = "1"
run, fails = program_runner(MOEBIUS)
REFUSED = 20


def tmp(name):
    return os.path.join(TMP.name, name)


def plan(*args, code=0):
    return json.loads(run("plan", "-m", DEMO, "--json", *args, code=code).stdout)


def short_of_memory():
    """Options that leave room for some of the experts; the program itself is larger with sanitizers."""
    m = plan("--machine", MACHINES + "laptop.json")["memory"]
    return ["--ram", f"{(m['least_bytes'] + m['ram_bytes'] + m['reserve_bytes']) // 2 >> 20}M"]


def write(name, data):
    with open(tmp(name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())
    return tmp(name)


def test_rows_add_up_and_what_fits_is_not_refused():
    for model in DEMO, *(f"{GOLDEN}/{m}.gguf" for m in ("gpt_oss", "deepseek2", "qwen3next", "gemma4")):
        p = json.loads(run("plan", "-m", model, "--json").stdout)
        m = p["memory"]
        assert sum(r["bytes"] for r in m["map"] if r["where"] == "ram") == m["ram_bytes"], m
        assert not p["refused"] and m["slots"] == m["experts"] and m["miss"] == 0, p
        assert "experts" in run("plan", "-m", model).stdout.decode()


def test_what_is_unknown_names_what_makes_it_known():
    said = run("plan", "-m", DEMO).stdout.decode()
    assert "unknown until `moebius probe` has measured the machine once" in said and "upper bounds" not in said, said
    known = run("plan", "-m", DEMO, "--machine", MACHINES + "laptop.json", "--no-receipts").stdout.decode()
    assert "moebius probe" not in known and "\nno earlier runs to forecast from (moebius receipts): these are upper bounds" in known, known


def test_weights_and_experts_take_what_was_planned():
    """The ledger of a run, which is exact; F32 matrices may be kept in half, in each of the layers one."""
    for model in DEMO, *(f"{GOLDEN}/{m}.gguf" for m in ("olmoe", "deepseek2", "qwen3next", "gpt_oss", "llama4")):
        p = json.loads(run("plan", "-m", model, "--ctx", 256, "--json").stdout)
        rows = {r["what"]: r["bytes"] for r in p["memory"]["map"]}
        run("generate", "-m", model, "--tokens", "1,2,3", "-n", 4, "--ctx", 256, "--cold", "--ignore-eos", "--stats-json", tmp("s.json"))
        with open(tmp("s.json")) as f:
            s = json.load(f)["memory"]
        assert rows["experts"] == s["expert_bytes"], (model, rows, s)
        assert s["weight_bytes"] <= rows["weights"] <= s["weight_bytes"] * 1.15, (model, rows, s)
        assert s["context_bytes"] <= rows["texts"], (model, rows, s)


def test_the_process_takes_what_was_planned():
    """Its peak, with 1 text and 8. Small models: the program itself is most of it, so MiB and not percents."""
    if IS_ASAN:
        return
    for texts in 1, 8:
        p = plan("--ctx", 512, "--texts", texts)
        bench = ["bench", "-m", DEMO, "-p", 504, "-n", 8, "-r", 1, "--texts", texts, "--cold"]
        code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2);" + \
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
        out = subprocess.run([sys.executable, "-c", code, MOEBIUS, *map(str, bench)], capture_output=True, text=True, check=True).stdout
        peak = int(out) - (256 << 20)  # what bench measures the memory with
        assert abs(peak - p["memory"]["ram_bytes"]) < 6 << 20, (texts, peak, p["memory"])


def test_what_was_found_where_goes_before_what_a_plan_finds():
    laptop, fomoe = ["--machine", MACHINES + "laptop.json"], ["--machine", MACHINES + "fomoe-desktop.json", "--devices", "vulkan:0"]
    assert plan(*laptop, "--found", "0,75,25")["memory"]["miss"] == 0.25
    m = plan(*fomoe, "--split", "cache:50%", "--found", "46,6,6")["memory"]
    assert m["miss"] == 0.06 and abs(m["gpu_hit"] - 0.94 * 46 / 52) < 1e-6, m
    assert "--found" in " ".join(plan(*laptop, "--found", "0,75,25")["assumptions"])
    for words in ["60,12"], ["60,12,28,0"], ["60,12,29"], ["0,0,0"], ["-1,50,50"], ["x"], ["10,50,40"], ["0,50,50", "--car", "0.5"]:
        fails(2, "plan", "-m", DEMO, *laptop, "--found", *words, says=["found"])
    fails(2, "plan", "-m", DEMO, *fomoe, "--found", "60,12,28", says=["cache or experts"])


def test_the_first_megabyte_is_enough_and_less_than_the_header_is_not():
    with open(DEMO, "rb") as f:
        head = f.read(2 << 20)
    whole, part = plan("--ram", "2G"), json.loads(run("plan", "-m", write("head.gguf", head), "--ram", "2G", "--json").stdout)
    assert part["model"]["is_header"] and not whole["model"]["is_header"]
    assert part["model"]["bytes"] == whole["model"]["bytes"] and part["model"]["fingerprint"] == whole["model"]["fingerprint"]
    for what in "ceiling", "prompts", "regime":
        assert part[what] == whole[what]
    fails(4, "plan", "-m", write("cut.gguf", head[:20000]), says=["cut.gguf", "byte"])
    fails(4, "generate", "-m", tmp("head.gguf"), "-p", "a", says=["truncated"])


def test_a_split_model_needs_each_part():
    part = tmp("m-00001-of-00002.gguf")
    with open(DEMO, "rb") as f:
        magic, version, n_tensor, n_key, rest = *struct.unpack("<4sIQQ", f.read(24)), f.read(2 << 20)
    keys = b"".join(struct.pack("<Q", len(k)) + k + struct.pack("<IH", 2 + 0, v) for k, v in ((b"split.no", 0), (b"split.count", 2)))
    with open(part, "wb") as f:
        f.write(struct.pack("<4sIQQ", magic, version, n_tensor, n_key + 2) + keys + rest)
    fails(3, "plan", "-m", part, says=["part 2 of 2 is missing"])


def test_what_cannot_work_is_refused_with_a_status_of_its_own():
    p = plan("--ram", "20M", code=REFUSED)
    assert p["refused"] and "MiB" in p["refusal"] and p["nearest"], p
    least = p["memory"]["least_bytes"]
    assert not plan("--ram", f"{(least >> 20) + 4}M")["refused"]  # not 1: runs of the program differ in size
    text = run("plan", "-m", DEMO, "--ram", "20M", code=REFUSED).stdout.decode()
    assert "refused:" in text and "what would work" in text
    p = plan("--machine", MACHINES + "laptop.json", "--floor", "1e8", code=REFUSED)
    assert "floor" in p["refusal"]
    fast = p["ceiling"]["decode"]
    plan("--machine", MACHINES + "laptop.json", "--floor", f"{fast * 0.99:.3f}")


def test_a_run_with_what_a_tight_plan_says_works():
    least = plan("--ctx", 256, "--ram", "20M", code=REFUSED)["memory"]["least_bytes"]
    size = f"{(least >> 20) + 8}M"
    p = plan("--ctx", 256, "--ram", size)
    assert p["regime"] == "stream" and 0 < p["memory"]["miss"] < 1
    if not IS_ASAN:
        run("generate", "-m", DEMO, "-p", "Once", "-n", 8, "--ctx", 256, "--cold", "--ram", size)


def test_machines_that_are_shipped_can_be_planned_for():
    for name in sorted(os.listdir(MACHINES)):
        gpu = ["--devices", "vulkan:0"] if name == "rtx5090.json" else []
        p = plan("--machine", MACHINES + name, *gpu)
        assert p["ceiling"]["decode"] > 0 and p["forecast"]["decode"] is None, name
        assert bool(p["gpu"]) == bool(gpu)
    rows = plan("--machine", MACHINES + "rtx5090.json", "--devices", "vulkan:0", "--n-cpu-moe", 2)["gpu"]
    assert [r["n_cpu_moe"] for r in rows if r["chosen"]] == [2]


def test_a_dense_model_is_planned_for_on_a_gpu():
    p = json.loads(run("plan", "-m", ROOT + "/tests/golden/granite_dense.gguf", "--machine", MACHINES + "rtx5090.json", "--devices",
                       "vulkan:0", "--json").stdout)
    assert p["memory"]["slots"] == p["memory"]["experts"] == 0 and p["ceiling"]["decode"] > 0, p


def test_wrong_machines_and_options_are_named():
    fails(4, "plan", "-m", DEMO, "--machine", write("m.json", '{"memory": [{"threads": 0}]}'), says=["m.json", "memory[0].threads"])
    fails(4, "plan", "-m", DEMO, "--machine", write("m.json", "{"), says=["m.json", "JSON"])
    fails(3, "plan", "-m", DEMO, "--machine", tmp("none.json"), says=["none.json"])
    fails(2, "plan", "-m", DEMO, "--n-cpu-moe", 1, says=["GPU"])
    fails(2, "plan", "-m", DEMO, "--devices", "vulkan:0", "--machine", MACHINES + "laptop.json", says=["GPU"])
    two = ["--machine", MACHINES + "fomoe-desktop.json", "--devices", "vulkan:0,vulkan:1"]
    p = plan(*two)
    assert p["regime"] == "vram" and "--devices vulkan:0,vulkan:1 --split stages" in p["flags"], p
    fails(2, "plan", "-m", DEMO, *two[:3], "vulkan:0,vulkan:1,vulkan:2", says=["a plan for 3 GPUs", "the 2 that are known"])
    for split in "experts", "stages:2,1", "last:1":
        fails(2, "plan", "-m", DEMO, *two, "--split", split, says=[f"split {split} on several GPUs", "stages, without shares"])
    fails(2, "plan", "-m", DEMO, *two, "--found", "60,12,28", says=["a split that divides each layer"])
    fails(2, "plan", "-m", DEMO, *two[:3], "vulkan:0", "--split", "stages", says=["split stages on one GPU"])
    for devices in "cpu:2,cpu:2", "cpu:0", "cpu:-1", "cpu:99999999999", "vulkan:0,cpu:0", "vulkan:1,vulkan:0", "vulkan:0,", "vulkan:0,vulkan:1x":
        fails(2, "plan", "-m", DEMO, "--devices", devices, says=["cpu:N"])
    fails(2, "plan", "-m", DEMO, "--texts", 65536, "-c", 1 << 30, says=["tokens together"])
    fails(2, "plan", says=["-m FILE"])
    fails(3, "plan", "-m", DEMO, "--usage", tmp("no-usage"), says=["no-usage"])
    fails(3, "plan", "-m", DEMO, "--receipts", tmp("no-receipts"), says=["no-receipts"])
    fails(4, "plan", "-m", DEMO, "--receipts", write("text.jsonl", "text\n"), says=["text.jsonl", "moebius receipts export"])
    fails(3, "plan", "-m", DEMO, "--store", tmp("no-store"), says=["no-store/store.gguf: No such file"])
    fails(2, "plan", "-m", DEMO, "--store", ",", says=["\",\": expected a directory"])


def test_a_store_is_looked_at_before_it_is_planned_with():
    run("prepare", DEMO, "--to", f"{tmp('half')},{tmp('other-half')}", "--stripe")
    few = ["-m", DEMO, *short_of_memory(), "--store"]
    whole = run("plan", *few, f"{tmp('half')},{tmp('other-half')}").stdout.decode()
    assert "prepared store (--store)" in whole and "lacks" not in whole, whole
    assert " of 120" in run("plan", *few, tmp("half")).stdout.decode().split("which lacks")[1]
    os.mkdir(tmp("empty"))
    fails(3, "plan", *few, tmp("empty"), says=["empty/store.gguf: No such file"])
    shutil.copytree(tmp("half"), tmp("unfinished"))
    os.rename(tmp("unfinished/store.gguf"), tmp("unfinished/store.gguf.part"))
    fails(3, "plan", *few, tmp("unfinished"), says=["unfinished: this store is not finished"])
    fails(4, "plan", "-m", GOLDEN + "/olmoe.gguf", "--store", tmp("half"), says=["half/store.gguf: prepared from another model"])


def test_names_that_steer_a_terminal_are_spelled_out():
    m = write("escape.json", json.dumps({"name": "a\x1b[31mb", "threads": 2}))
    text = run("plan", "-m", DEMO, "--machine", m).stdout
    assert b"\x1b" not in text and b"a\\x1b[31mb" in text, text[:200]


def test_receipts_make_forecasts():
    p = plan("--machine", MACHINES + "laptop.json")
    receipt = {"time": 1700000000, "machine": p["machine"], "model": "x", "arch": p["model"]["arch"], "method": "bench", "regime": "ram",
               "texts": 1, "decode": 30, "decode_ceiling": 60, "fingerprint": p["model"]["fingerprint"]}
    forecast = plan("--machine", MACHINES + "laptop.json", "--receipts", write("r.jsonl", json.dumps(receipt) + "\nno receipt\n"))
    decode, ceiling = forecast["forecast"]["decode"], forecast["ceiling"]["decode"]
    assert abs(decode["mid"] / ceiling - 0.5) < 1e-6 and decode["low"] < decode["mid"] < decode["high"] <= ceiling
    assert forecast["forecast"]["prefill"] is None


def test_a_probe_is_kept_for_later_plans():
    shutil.rmtree(tmp("cache"), ignore_errors=True)
    before = plan()
    assert before["ceiling"]["decode"] is None, before["ceiling"]
    m = json.loads(run("probe", "-m", DEMO).stdout)
    assert m["memory"][0]["threads"] == 1 and m["memory"][-1]["bytes_per_s"] > 1e6 and m["int8_per_s"] > 1e6
    assert {"F16", "Q8_0", "Q4_K", "MXFP4"} <= {p["type"] for p in m["products"]}
    assert all(1e6 < p["one_per_s"] and 1e6 < p["many_per_s"] < 100 * max(m["int8_per_s"], m["amx_per_s"] or 0) for p in m["products"])
    assert m["thread_int8_per_s"] > 1e6 and m["thread_float_per_s"] > 1e6
    assert all(1e6 < m[f"attention_{n}_per_s"] < 10 * m["float_per_s"] for n in ("one", "many")), m
    reads = m["drives"][0]["random_reads"]
    assert m["drives"][0]["name"] == os.path.dirname(DEMO) and len(reads) == 16 and all(r["bytes_per_s"] > 0 for r in reads)
    has_tiles = b"amx kernels" in subprocess.run([MOEBIUS, "doctor"], stdout=subprocess.PIPE).stdout
    assert (m["amx_per_s"] or 0) > 1e6 if has_tiles else m["amx_per_s"] is None, m
    for key in "sockets", "cores", "l2_bytes", "l3_bytes":
        assert m[key] is None or m[key] > 0, m
    assert m["cores"] is None or m["cores"] <= os.cpu_count(), m
    gpus = json.loads(run("devices", "--json").stdout)["gpus"]
    assert len(m["gpus"]) == len(gpus), (m["gpus"], gpus)
    for g, listed in zip(m["gpus"], gpus):
        if listed["usable"]:
            assert 0 < g["dispatch_s"] < 1 and g["bytes_per_s"] > 1e6, g
            assert all(g[f"{way}{kind}_per_s"] > 1e6 for way in ("to", "from") for kind in ("_bytes", "_pageable_bytes")), g
    after = plan()
    assert after["ceiling"]["decode"] > 0 and after["prompts"][0]["ceiling_s"] > 0
    fails(3, "probe", "-m", tmp("none.gguf"), says=["none.gguf"])
    fails(2, "probe", "-m", write("small", "x"), says=["small", "1 MiB"])
    fails(2, "probe", "--gpus", "all", says=["vulkan or none"])
    out = tmp("machine.json")
    run("probe", "-o", out)
    with open(out) as f:
        assert json.load(f)["drives"] == []
    assert plan("--machine", out)["ceiling"]["decode"] > 0


def test_free_memory_of_gpus_is_looked_at_anew():
    card = dict(os.environ, MOEBIUS_VULKAN_KIND="discrete", XDG_CACHE_HOME=tmp("card"))
    gpus = [g for g in json.loads(run("devices", "--json", env=card).stdout)["gpus"] if g["usable"]]
    if not gpus:
        return
    run("probe", env=card)
    kept = tmp("card/moebius/machine.json")
    with open(kept) as f:
        m = json.load(f)
    assert abs(m["gpus"][0]["free_bytes"] - gpus[0]["budget_bytes"]) < 1 << 28, (m["gpus"], gpus)
    m["gpus"][0]["free_bytes"] = 1 << 20
    with open(kept, "w") as f:
        json.dump(m, f)
    command = "plan", "-m", DEMO, "--json", "--devices", "vulkan:0"
    assert json.loads(run(*command, env=card).stdout)["memory"]["vram_limit_bytes"] > 1 << 28
    assert json.loads(run(*command, "--machine", kept, env=card, code=20).stdout)["memory"]["vram_limit_bytes"] == 1 << 20
    write("cache/moebius/machine.json", "{}x")
    fails(4, "plan", "-m", DEMO, says=["machine.json"])


def test_a_gpu_that_fails_while_it_is_measured_keeps_its_name():
    gpus = json.loads(run("devices", "--json").stdout)["gpus"]
    lost = json.loads(run("probe", "-t", 1, env=dict(os.environ, MOEBIUS_VULKAN_LOSE="1")).stdout)["gpus"]
    assert [g["name"] for g in lost] == [g["name"] for g in gpus], (lost, gpus)
    assert all(g["bytes_per_s"] is None and g["dispatch_s"] is None for g in lost), lost


def words_of(p):
    """The plan's line on standard error."""
    lines = [l for l in p.stderr.decode().splitlines() if l.startswith("plan: ")]
    assert len(lines) == 1, p.stderr
    return lines[0]


def test_runs_say_their_plan_in_a_line_and_quiet_ones_do_not():
    shutil.rmtree(tmp("cache"), ignore_errors=True)
    line = words_of(run("generate", "-m", DEMO, "-p", "Once", "-n", 4, "--threads", 1))
    assert line.startswith("plan: 1 thread, 1 text of ") and "tokens, f16 KV cache" in line and "of memory" in line, line
    assert "plan:" not in run("generate", "-m", DEMO, "-p", "Once", "-n", 4, "-q").stderr.decode()
    assert " 1 text of 512 tokens" in words_of(run("generate", "-m", DEMO, "-p", "Once", "-n", -1))
    assert "slots for" in words_of(run("generate", "-m", DEMO, "-p", "Once", "-n", 4, "--expert-ram", "25%"))
    assert "3 texts of 24 tokens, q8_0 KV cache" in words_of(run("bench", "-m", DEMO, "-p", 16, "-n", 8, "-r", 1, "--texts", 3, "--kv", "q8_0"))
    assert "1 text of 128 tokens" in words_of(run("ppl", "-m", DEMO, "-f", write("t.txt", "Once upon a time " * 100), "--ctx", 128))
    write("cache/moebius/machine.json", "{}x") if os.path.isdir(tmp("cache/moebius")) else None
    if os.path.isdir(tmp("cache/moebius")):
        p = run("generate", "-m", DEMO, "-p", "Once", "-n", 4)
        assert "warning: no plan of this run" in p.stderr.decode() and "machine.json" in p.stderr.decode(), p.stderr
        os.remove(tmp("cache/moebius/machine.json"))


def test_a_context_that_nobody_names_is_the_same_for_all_whose_texts_are_open():
    with open(DEMO, "rb") as f:
        data = f.read()
    key = b".context_length" + struct.pack("<I", 4)
    at = data.index(key) + len(key)
    model = write("long.gguf", data[:at] + struct.pack("<I", 20000) + data[at + 4:])
    said = [words_of(run("chat", "-m", model, "--cold", input=b"")),
            words_of(run("generate", "-m", model, "-p", "Once", "-n", "-1", "--stop", " ", "--seed", 1, "--cold"))]
    planned = json.loads(run("plan", "-m", model, "--json").stdout)["settings"]
    assert all(f"1 text of {planned['ctx']} tokens" in line for line in said) and planned["ctx"] > 8192, (said, planned)
    assert planned["depth"] == 4096, planned
    named = json.loads(run("plan", "-m", model, "--ctx", 9000, "--json").stdout)["settings"]
    assert named["ctx"] == named["depth"] == 9000, named
    assert "1 text of 9 tokens" in words_of(run("generate", "-m", model, "--tokens", "1,2,3", "-n", 6, "--cold"))


def test_what_a_refused_run_is_told_works():
    """A context of 512 tokens in as little memory as a shorter one needs; each way out that is named is taken."""
    if IS_ASAN:
        return
    least = plan("--ctx", 256, "--ram", "20M", code=REFUSED)["memory"]["least_bytes"]
    sizes = [f"{(least >> 20) - 3}M", "40M", "30M"]
    for size, devices in [(size, []) for size in sizes] + [("58M", ["--devices", "cpu:1,cpu:1,cpu:1,cpu:1"])]:
        how = ["generate", "-m", DEMO, "-p", "Once", "-n", 2, *devices]
        said = fails(7, *how, "--ctx", 512, "--cold", "--ram", size, says=["MiB", "what would work: "])
        for way in said.split("what would work: ")[1].split(", or "):
            flags = way.split(", ")[0].split()
            given = ["--ctx", 512, "--cold", "--ram", size]
            for i in range(0, len(flags), 2):
                given = [x for j, x in enumerate(given) if flags[i] not in (x, given[j - 1])] + flags[i:i + 2]
            run(*how, *given)


def test_the_least_memory_of_a_plan_is_about_what_a_run_needs():
    if IS_ASAN:
        return
    for ctx in 64, 512, 2048:
        least = plan("--ctx", ctx, "--ram", "20M", code=REFUSED)["memory"]["least_bytes"]
        generate = ["generate", "-m", DEMO, "-p", "Once", "-n", 2, "--ctx", ctx, "--cold"]
        run(*generate, "--ram", f"{(least >> 20) + 2}M")
        fails(7, *generate, "--ram", f"{(least >> 20) - 2}M", says=["MiB"])


def places_of(*args):
    """What each place of a run on two processor devices has of the experts, what it wrote, and what it said."""
    p = run("generate", "-m", DEMO, "-p", "Once upon a time", "-n", 6, "--temp", 0, "--ignore-eos", "--devices", "cpu:1,cpu:1",
            "--stats-json", tmp("s.json"), *args)
    with open(tmp("s.json")) as f:
        return [q["n_expert"] for q in json.load(f)["places"]], p.stdout, p.stderr.decode()


def test_the_last_layers_experts_go_where_they_are_asked_to():
    whole = run("generate", "-m", DEMO, "-p", "Once upon a time", "-n", 6, "--temp", 0, "--ignore-eos").stdout
    for n in 0, 2, 5:
        experts, text, _ = places_of("--n-cpu-moe", n)
        assert experts == [120 - 24 * n, 24 * n] and text == whole, (n, experts)
    fails(2, "generate", "-m", DEMO, "-p", "a", "--devices", "cpu:1,cpu:1", "--n-cpu-moe", 6, says=["6 layers", "at most the 5"])
    fails(2, "generate", "-m", DEMO, "-p", "a", "--devices", "cpu:1", "--n-cpu-moe", 1, says=["no GPU"])
    fails(2, "generate", "-m", DEMO, "-p", "a", "--devices", "cpu:1,cpu:1", "--n-cpu-moe", 1, "--split", "layers", says=["one of the two"])
    fails(2, "generate", "-m", DEMO, "-p", "a", "--n-cpu-moe", "-1", says=["--n-cpu-moe"])
    fails(2, "generate", "-m", DEMO, "-p", "a", "--devices", "cpu:1,cpu:1", "--split", "last", says=["last:N"])
    flags = plan("--machine", MACHINES + "rtx5090.json", "--devices", "vulkan:0", "--n-cpu-moe", 3)["flags"]
    assert "--gpu 0" in flags and "--n-cpu-moe 3" in flags, flags


def test_a_run_takes_what_the_plan_was_given():
    given = ["--override-kv", "general.name=it's a test", "--yarn", "2"]
    flags = shlex.split(plan(*given)["flags"])
    assert flags[-4:] == given, flags
    run("generate", "-m", DEMO, "-p", "a", "-n", 1, *flags)
    stores = plan("--machine", MACHINES + "laptop.json", "--store", "fast,my drive")["flags"]
    assert stores.endswith(" --store 'fast,my drive'"), stores
    many = [x for i in range(16) for x in ("--override-kv", f"general.name={i:0200}")]
    assert shlex.split(plan(*many)["flags"])[-32:] == many


def test_the_gate_decides_and_runs_obey_it():
    """Without costs, by what slots find beside whole layers: text repeats itself, and a curve that is as even as chance holds."""
    HOLD = 21
    shutil.rmtree(tmp("cache"), ignore_errors=True)
    text = write("text.txt", open(ROOT + "/README.md", "rb").read()[:6000])
    unknown, _, said = places_of("--split", "gate:25%")
    assert "which has them all" in said and unknown[1] == 120, (unknown, said)
    g = json.loads(run("profile", "-m", DEMO, "-f", text, "--gate", "--json").stdout)
    assert g["decision"] == "pass" and g["share"] == 0.25 and g["hit"] > 0.3 and g["layer_share"] == 0.2, g
    c = g["measured"]
    assert 0.3 < c["share_of_90"] < 1 and 0.5 < c["entropy"] <= 1 and c["policy"] == "lfru", c
    hits = [p["hit"] for p in c["curve"]]
    assert hits == sorted(hits) and len(hits) >= 8, hits
    passes, whole, said = places_of("--split", "gate:25%")
    assert "the gate passes" in said and passes == [30, 120], (passes, said)
    kept = [n for n in os.listdir(tmp("cache/moebius")) if n.startswith("gate-")]
    assert len(kept) == 1, kept
    even = dict(c, curve=[dict(p, hit=p["share"]) for p in c["curve"]])
    write("cache/moebius/" + kept[0], json.dumps(even))
    holds, same, said = places_of("--split", "gate:25%")
    assert "the gate holds" in said and holds == [24, 96] and same == whole, (holds, said)
    assert places_of("--split", "cache:25%")[0] == [30, 120]  # flags override
    assert places_of("--split", "gate:25%", "--cold")[0] == [30, 120]
    write("cache/moebius/" + kept[0], json.dumps(even)[:-5])
    assert "warning: what moebius profile --gate found is not known" in places_of("--split", "gate:25%")[2]
    os.remove(tmp("cache/moebius/" + kept[0]))
    slow = dict(json.load(open(MACHINES + "rtx5090.json")))
    slow["gpus"][0]["dispatch_s"] = 0.01
    p = run("profile", "-m", DEMO, "-f", text, "--gate", "--budget", "40%", "--machine", write("slow.json", json.dumps(slow)), code=HOLD)
    assert p.stdout.decode().count("<- decided for") == 1 and "\nhold: " in p.stdout.decode(), p.stdout
    fails(2, "profile", "-m", DEMO, "-f", text, "--budget", "40%", says=["--gate"])
    fails(7, "profile", "-m", DEMO, "-f", text, "--gate", "--budget", "1%", says=["budget of 1.00%"])
    fails(2, "generate", "-m", DEMO, "-p", "a", "--devices", "cpu:1,cpu:1", "--split", "gate", says=["gate:N%"])
    fails(2, "generate", "-m", DEMO, "-p", "a", "--devices", "cpu:1,cpu:1,cpu:1", "--split", "gate:10%", says=["two"])
    fails(2, "inspect", DEMO, "--devices", "cpu:1,cpu:1", "--split", "gate:10%", says=["gate:10%"])


def test_other_ways_to_divide_a_model_are_planned_for():
    gpu = ["--machine", MACHINES + "rtx5090.json", "--devices", "vulkan:0"]
    cache, share, last = plan(*gpu, "--split", "cache:40%"), plan(*gpu, "--split", "experts:3,1"), plan(*gpu, "--split", "last:2")
    rows = {(r["what"], r["where"]): r["bytes"] for r in cache["memory"]["map"]}
    assert abs(rows["expert copies", "vram"] / rows["experts", "ram"] - 0.4) < 0.001 and "--split cache:40%" in cache["flags"], rows
    assert abs(share["memory"]["gpu_hit"] - 0.75) < 1e-6 and "--split experts:75,25" in share["flags"]
    assert last["gpu"][2]["chosen"] and plan(*gpu, "--split", "layers:3,2")["gpu"][2]["chosen"]
    assert share["ceiling"]["decode"] > last["ceiling"]["decode"] > 0
    fails(2, "plan", "-m", DEMO, "--split", "cache", says=["without a GPU"])
    fails(2, "plan", "-m", DEMO, *gpu, "--split", "random:3", says=["plans know"])
    fails(2, "plan", "-m", DEMO, *gpu, "--split", "stages", says=["plans know"])
    fails(2, "inspect", DEMO, "--devices", "cpu:1,cpu:1", "--split", "stages", says=["divides layers"])
    fails(2, "plan", "-m", DEMO, *gpu, "--split", "last:6", says=["at most the 5"])
    fails(2, "plan", "-m", DEMO, *gpu, "--split", "cache", "--n-cpu-moe", 2, says=["one of the two"])
    fails(2, "plan", "-m", DEMO, *gpu, "--car", "0.5", says=["with a GPU"])
    m = json.load(open(MACHINES + "laptop.json"))
    m["drives"].append({"name": "fast", "random_reads": [{"bytes": 65536, "depth": 8, "bytes_per_s": 2e10}]})
    laptop = ["--machine", write("two.json", json.dumps(m)), *short_of_memory(), "--cold"]
    raw, store = plan(*laptop), plan(*laptop, "--store", "fast," + m["drives"][0]["name"])
    assert store["ceiling"]["prefill"] >= raw["ceiling"]["prefill"] > 0 and any("--store" in a for a in store["assumptions"]), store
    assert plan(*laptop, "--store", "elsewhere")["ceiling"]["decode"] is None
    car = plan(*laptop, "--car", "0.4")
    assert car["memory"]["gives_way"] > 0 and car["ceiling"]["decode"] >= raw["ceiling"]["decode"] and "--car 0.4" in car["flags"]
    kept = {r["what"]: r["bytes"] for r in plan("--machine", MACHINES + "laptop.json", "--state", "64M")["memory"]["map"]}
    assert 60 << 20 < kept["prompt cache"] < 64 << 20, kept


def test_a_picture_has_each_row_as_text():
    out = tmp("plan.svg")
    p = plan("--machine", MACHINES + "laptop.json", *short_of_memory(), "--svg", out)
    import xml.etree.ElementTree as ET
    root = ET.parse(out).getroot()
    words = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    for r in p["memory"]["map"]:
        assert any(t.startswith(r["what"] + " ") for t in words), (r, words)
    assert any(t.startswith("Llama stories MoE demo 27M on ") for t in words) and max(map(len, words)) <= 84, words
    assert all(float(r.get("x", 0)) + float(r.get("width").rstrip("%")) <= 900 for r in root.iter("{http://www.w3.org/2000/svg}rect"))
    fails(3, "plan", "-m", DEMO, "--svg", tmp("no/such/plan.svg"), says=["plan.svg"])


run_functions(globals())
