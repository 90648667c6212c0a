#!/usr/bin/env python3
"""Runs on GPUs as a user asks for them. usage: test_gpu_command.py MOEBIUS DEMO.gguf GOLDEN_DIRECTORY

Each function below is one test. Where Vulkan has no device, not even a software driver, there is little to test."""
import atexit
import contextlib
import glob
import json
import math
import os
import shutil
import sys
import tempfile

from gguf_reader import read_gguf
from run_functions import program_runner, run_functions

MOEBIUS, DEMO, GOLDEN = map(os.path.abspath, sys.argv[1:4])
TMP = tempfile.TemporaryDirectory()
os.environ["MOEBIUS_VULKAN_PRODUCTS"] = "float"  # or what is measured decides which bits runs have
SANITIZED = "asan" in os.environ.get("MOEBIUS_TEST_BUILD", "")  # a few runs will do: a software driver compiles for long
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
SHADERS = os.environ.get("MESA_SHADER_CACHE_DIR", "")  # what other tests have compiled, and those after this one
os.environ["MESA_SHADER_CACHE_DIR"] = os.path.join(TMP.name, "cache", "moebius")  # which the sandbox lets it reach


def copy_shaders(source, to, copy=shutil.copy2):
    """What Mesa keeps, but for its index, which other processes have mapped."""
    source, to = (os.path.join(folder, "mesa_shader_cache") for folder in (source, to))
    with contextlib.suppress(OSError):  # a file went while others write, or is there already; there is no such folder
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("index"), copy_function=copy, dirs_exist_ok=True)


if os.path.isdir(SHADERS):
    copy_shaders(SHADERS, os.environ["MESA_SHADER_CACHE_DIR"])
    atexit.register(copy_shaders, os.environ["MESA_SHADER_CACHE_DIR"], SHADERS)
run_program, fails_program = program_runner(MOEBIUS)


@contextlib.contextmanager
def with_shaders(env):
    """A run with a cache directory of its own finds compiled shaders there: its sandbox lets it reach no other. Others find what
    it compiles."""
    ours = os.environ["MESA_SHADER_CACHE_DIR"]
    if not env or "XDG_CACHE_HOME" not in env:
        yield dict(os.environ, **env or {})
        return
    own = os.path.join(env["XDG_CACHE_HOME"], "moebius")
    copy_shaders(ours, own, os.link)
    yield {**os.environ, "MESA_SHADER_CACHE_DIR": own, **env}
    copy_shaders(own, ours, os.link)


def run(*args, env=None, **kw):
    with with_shaders(env) as environment:
        return run_program(*args, env=environment, **kw)


def fails(*args, env=None, **kw):
    with with_shaders(env) as environment:
        return fails_program(*args, env=environment, **kw)


def out(*args, **kw):
    return run(*args, **kw).stdout.decode()


def golden(name):
    return os.path.join(GOLDEN, name + ".gguf"), json.load(open(os.path.join(GOLDEN, name + ".json")))


def tmp(name):
    return os.path.join(TMP.name, name)


def test_gpus():
    """Where Vulkan lists a device, usually the software driver, it runs the model, and what it compiled is kept."""
    about = json.loads(out("devices", "--json"))
    assert about["cpu"]["processors"] >= 1 and ("no_gpu" in about) == (not about["gpus"])
    assert f"{about['cpu']['processors']} processors" in out("devices")
    fails(2, "generate", "-m", DEMO, "-p", "a", "--devices", "vulkan:x", says=["vulkan:NUMBER"])
    fails(5, "generate", "-m", DEMO, "-p", "a", "--devices", "vulkan:63", says=[])
    if not about["gpus"] or not about["gpus"][0]["usable"]:
        return
    home = {"XDG_CACHE_HOME": tmp("gpu-cache")}
    args = ["generate", "-m", DEMO, "-p", "Once upon a time", "-n", 12, "--temp", 0]
    first = run(*args, "--devices", "vulkan:0", env=home)
    assert first.stdout == run(*args, "--reference").stdout
    kept = glob.glob(tmp("gpu-cache/moebius/vulkan-*.bin"))
    assert len(kept) == 1
    with open(kept[0], "r+b") as f:
        f.seek(70)
        f.write(b"damaged")
    again = run(*args, "--devices", "vulkan:0", env=home)
    assert again.stdout == first.stdout and "is damaged: shaders are compiled again" in again.stderr.decode()
    both = run(*args, "--devices", "vulkan:0,cpu:1", "--stats-json", tmp("gpu.json"), env=home)
    assert "damaged" not in both.stderr.decode()
    with open(tmp("gpu.json"), encoding="utf-8") as f:
        for place in json.load(f)["places"]:  # each has room for its experts, however large its slots are
            assert place["memory_bytes"] == place["all_bytes"] > 0, place
    full = run(*args, "--devices", "vulkan:0", env={"XDG_CACHE_HOME": "/dev/null/x"})
    assert full.stdout == first.stdout and "compiled shaders are not kept" in full.stderr.decode()
    for submission in (3,) if SANITIZED else (1, 3, 7):  # in the prompt; when loading, later
        fails(1, *args, "--devices", "vulkan:0", env={"MOEBIUS_VULKAN_LOSE": str(submission)}, says=["the device was lost"])
    fails(5, *args, "--devices", "vulkan:0", env={"MOEBIUS_VULKAN_WITHOUT": "bufferDeviceAddress"}, says=["bufferDeviceAddress"])
    fails(2, *args, "--devices", "vulkan:0", "--reference", says=["the reference is a CPU device"])


def gpu_is_there():
    about = json.loads(out("devices", "--json"))
    return about["gpus"] and about["gpus"][0]["usable"]


def test_imatrix_is_that_of_the_processor():
    """Sums of a GPU are the reference's but for rounding, whatever experts it holds; a division of experts shows no products."""
    if not gpu_is_there():
        return
    model, files = os.path.join(GOLDEN, "qwen3moe.gguf"), []
    text = tmp("gpu.txt")
    with open(text, "w", encoding="utf-8") as f:
        f.write("It was a dark and stormy night; the rain fell in torrents. " * 10)
    args = ["imatrix", "-m", model, "-f", text, "--ctx", 24, "--chunks", 2, "--kv", "f32"]
    runs = [["--reference"], ["--gpu", 0]] + ([] if SANITIZED else [["--devices", "vulkan:0", "--expert-ram", "40%"]])
    for i, extra in enumerate(runs):
        files.append(tmp(f"gpu{i}.imatrix"))
        run(*args, "-o", files[-1], *extra)
    (_, want), (_, got) = read_gguf(files[0]), read_gguf(files[1])
    assert want.keys() == got.keys() and len(want) > 30
    for name, (ne, sums) in want.items():
        off = math.dist(sums, got[name][1])
        assert got[name][0] == ne and off <= (0 if name.endswith(".counts") else 1e-3 * math.hypot(*sums)), (name, off)
    for path in files[2:]:
        with open(files[1], "rb") as one, open(path, "rb") as other:
            assert one.read() == other.read()
    fails(2, *args, "-o", tmp("no.imatrix"), "--devices", "vulkan:0,cpu:1", says=["expected one device"])


def test_bench_counts_what_the_processor_counts():
    """Bytes and multiply-adds of each operation are the CPU device's, also those that shaders count: which experts,
    positions and states. The speed that a GPU could have comes from these."""
    if not gpu_is_there() or SANITIZED:
        return

    def work(name, devices, **env):
        r = json.loads(out("bench", "-m", os.path.join(GOLDEN, f"{name}.gguf"), *devices, "-p", 24, "-n", 4, "-r", 1,
                           "--texts", 2, "--kv", "f32", "--ops", "--json", env=env))
        return r, [{op: (o["bytes"], o["int8"], o["float"]) for op, o in r[p]["ops"].items()} for p in ("prefill", "decode")]

    cases = [("qwen35moe", ["ATTENTION", "DELTA", "EXPERTS"], {}), ("jamba", ["ATTENTION", "SSM", "EXPERTS"], {}),
             ("kimi_k3", ["ATTENTION", "DELTA", "EXPERTS", "HEADS"], {}),
             ("nemotron_h_latent", ["ATTENTION", "SSM", "EXPERTS"], {}),
             ("glm_dsa", ["ATTENTION", "INDEX", "EXPERTS", "HEADS"], {}), ("deepseek2_latent", ["ATTENTION", "EXPERTS", "HEADS"], {}),
             ("gpt_oss", ["ATTENTION", "EXPERTS"], {}), ("gpt_oss", ["ATTENTION", "EXPERTS"], {"MOEBIUS_VULKAN_TILES": "1"})]
    for name, kinds, env in cases:
        (_, want), (_, got) = work(name, ["--reference"]), work(name, ["--devices", "vulkan:0"], **env)
        for a, b in zip(want, got):
            assert [a[k] for k in kinds] == [b[k] for k in kinds], (name, env, a, b)
            assert a.get("CONV") == b.get("CONV") and all(a[k][1:] == b[k][1:] for k in ("MATMUL", "ROUTE"))
    (_, want), (r, got) = work("q_q4_k", []), work("q_q4_k", ["--devices", "vulkan:0"], MOEBIUS_VULKAN_PRODUCTS="integer")
    assert all(a["MATMUL"] == b["MATMUL"] and a["MATMUL"][1] > 0 for a, b in zip(want, got)), (want, got)
    p, gpu = r["decode"], r["gpu"]
    assert r["roof"]["read_bytes_per_s"] == 0 and p["dispatches_per_tok"] > 0
    s = p["bytes_per_tok"] / (0.8 * gpu["bytes_per_s"]) + p["dispatches_per_tok"] * gpu["dispatch_s"]
    assert abs(p["gpu_tok_per_s"] * s - 1) < 1e-3
    assert abs(p["roof_tok_per_s"] * p["bytes_per_tok"] / gpu["bytes_per_s"] - 1) < 1e-3


def test_drivers_may_lie_anywhere():
    """A driver is found where VK_DRIVER_FILES or XDG_DATA_HOME say, in the sandbox, too."""
    found = glob.glob("/usr/share/vulkan/icd.d/lvp*.json")
    if SANITIZED or not found:
        return
    with open(found[0], encoding="utf-8") as f:
        manifest = json.load(f)
    library = manifest["ICD"]["library_path"]
    os.makedirs(tmp("driver"))
    shutil.copy(library if os.path.isabs(library) else glob.glob(f"/usr/lib/*/{library}")[0], tmp("driver/driver.so"))
    named, found_there = tmp("named/a.json"), tmp("data/vulkan/icd.d/a.json")
    for place, path in (named, tmp("driver/driver.so")), (found_there, "../../../driver/driver.so"):
        os.makedirs(os.path.dirname(place))
        with open(place, "w", encoding="utf-8") as f:
            json.dump(dict(manifest, ICD=dict(manifest["ICD"], library_path=path)), f)
    args = ["generate", "-m", DEMO, "-p", "a", "-n", 2, "--temp", 0]
    for env in (
        {"VK_DRIVER_FILES": named, "VK_ICD_FILENAMES": named},
        {"XDG_DATA_HOME": tmp("data"), "XDG_DATA_DIRS": tmp("none")},
    ):
        assert run(*args, "--devices", "vulkan:0", env=env).stdout == run(*args).stdout


def test_gpu_says_what_it_takes():
    """A card (made up of the software driver) gets what fits; a driver on the processor is taken when asked for alone."""
    args = ["generate", "-m", DEMO, "-p", "Once upon a time", "-n", 6, "--temp", 0, "--cold"]
    fails(2, *args, "--gpu", 0, "--devices", "cpu:1", says=["GPU 0, and devices cpu:1"])
    fails(2, *args, "--gpu", "best", says=["expected auto, none or its number"])
    want = run(*args, "--reference").stdout
    software = {"MOEBIUS_VULKAN_KIND": "software", "MOEBIUS_GPU": "none"}
    card = {"MOEBIUS_VULKAN_KIND": "discrete", "MOEBIUS_GPU": ""}
    for devices, env in (([], software), (["--gpu", "none"], card)):
        quiet = run(*args, *devices, env=env)
        assert quiet.stdout == want and "GPU" not in quiet.stderr.decode(), quiet.stderr
    auto = run(*args, "--gpu", "auto", env=software)
    assert auto.stdout == want and "no GPU: " in auto.stderr.decode()
    for devices in (["--gpu", "none"], ["--devices", "cpu:1"]):
        fails(2, *args, *devices, "--vram", "1G", says=["no GPU among the devices"])
    if not gpu_is_there():
        return
    fails(5, *args, "--gpu", "auto", "--n-cpu-moe", 0, says=["experts of 0 layers", "no GPU"], env=software)
    fails(5, *args, "--gpu", 63, says=["there is no Vulkan device 63", "moebius devices"])
    fails(2, *args, "--gpu", 0, "--reference", says=["the reference is a CPU device"])
    slow = run(*args, env=card)  # what nobody asked for is slower than the processor
    assert slow.stdout == want and "no GPU: products run at" in slow.stderr.decode(), slow.stderr
    for vram, says in (("1G", "computes the whole model"), ("20M", "experts are divided between it and the processor")):
        r = run(*args, "--gpu", 0, "--vram", vram, env=card)
        assert r.stdout == want and says in r.stderr.decode(), r.stderr
    about = json.loads(run("devices", "--json", env=card).stdout)["gpus"][0]
    assert about["auto"] and not about["upload_queue"] and not about["shares_memory"] and 0 < about["budget_bytes"] <= about["memory_bytes"]
    apart = {"MOEBIUS_VULKAN_WITHOUT": "mapped", "MOEBIUS_VULKAN_UPLOADS": "apart"}
    assert json.loads(run("devices", "--json", env=apart).stdout)["gpus"][0]["upload_queue"]
    assert "uploads have a queue of their own" in out("devices", env=apart)
    for share in ("50%", "10%"):
        assert run(*args, "--devices", "vulkan:0", "--expert-ram", share, env=apart).stdout == want
    assert not json.loads(run("devices", "--json", env=software).stdout)["gpus"][0]["auto"]


def test_receipts_say_which_tiers_a_run_had():
    if not gpu_is_there() or SANITIZED:
        return
    env = {"MOEBIUS_VULKAN_KIND": "discrete", "XDG_CACHE_HOME": tmp("tiers"), "MOEBIUS_NO_RECEIPT": ""}
    both = ["--devices", "vulkan:0,cpu:1", "--split", "last:4"]
    run("generate", "-m", DEMO, "-p", "Once", "-n", 40, "--ignore-eos", "--seed", 1, "--cold", "--devices", "vulkan:0", env=env)
    path = tmp("tiers/moebius/receipts.jsonl")
    with open(path, encoding="utf-8") as f:
        kept = json.load(f)
    assert kept["regime"] == "vram" and "decode_ceiling" not in kept, kept

    # Where the card was probed, receipts know what was possible, and plans forecast from them.
    machine = {"name": kept["machine"], "threads": 2, "memory": [{"threads": 2, "bytes_per_s": 1e10}],
               "gpus": [{"name": "a card", "memory_bytes": 1 << 34, "bytes_per_s": 1e11}],
               "drives": [{"name": "a drive", "random_reads": [{"bytes": 1 << 20, "depth": 8, "bytes_per_s": 1e9}]}]}
    with open(tmp("tiers/moebius/machine.json"), "w", encoding="utf-8") as f:
        json.dump(machine, f)
    os.remove(path)
    for args in ["--devices", "vulkan:0"], both, ["--devices", "vulkan:0,vulkan:0", "--split", "stages"], \
            ["--devices", "cpu:1,cpu:1", "--split", "stages"]:
        run("generate", "-m", DEMO, "-p", "Once", "-n", 40, "--ignore-eos", "--seed", 1, "--cold", *args, env=env)
    for args in ["--devices", "vulkan:0"], both, ["--devices", "vulkan:0,cpu:1", "--split", "cache:20%"]:
        run("generate", "-m", DEMO, "-p", "Once", "-n", 40, "--ignore-eos", "--seed", 1, "--cold", *args, "--expert-ram", "50%", env=env)
    with open(path, encoding="utf-8") as f:
        vram, offload, stages, *tiered = [json.loads(line) for line in f]
    assert (vram["regime"], offload["regime"]) == ("vram", "offload"), (vram, offload)
    assert [r["regime"] for r in tiered] == ["tiered"] * 3 and ["decode_beside" in r for r in tiered] == [False, True, True], tiered
    for r in tiered:  # reads of what was not at hand bound them all
        assert r["decode"] < r["decode_ceiling"] and r["decode_reads"] < r["decode_products"] and 0 < r["at"] < 0.6, r
    assert (tiered[0]["decode_ceiling"] > tiered[1]["decode_ceiling"]) == (tiered[0]["at"] < tiered[1]["at"]), tiered
    assert stages["regime"] == "vram" and stages["decode"] < stages["decode_ceiling"], stages
    assert abs(stages["decode_ceiling"] / vram["decode_ceiling"] - 1) < 1e-6 and "--split stages" in stages["settings"], stages
    assert vram["decode"] < vram["decode_ceiling"] and vram["decode_products"] > 0 and "decode_beside" not in vram, vram
    assert offload["decode"] < offload["decode_ceiling"] < vram["decode_ceiling"] and offload["decode_beside"] > 0, offload
    with open(path, "w", encoding="utf-8") as f:
        print(json.dumps(vram), file=f)
    plan = ["plan", "-m", DEMO, "--ctx", 256, "--cold", "--json", "--devices", "vulkan:0", "--depth", vram["ctx"]]
    forecast = json.loads(out(*plan, env=env))["forecast"]["decode"]
    assert abs(forecast["mid"] / vram["decode"] - 1) < 0.05, (forecast, vram)


def test_memory_of_a_card_is_bounded():
    if not gpu_is_there():
        return
    text = tmp("gpu-long.txt")
    with open(text, "w", encoding="utf-8") as f:
        f.write("a cat sat on a mat and " * 12)
    args = ["generate", "-m", DEMO, "-f", text, "-n", 8, "--ctx", 512, "--temp", 0, "--cold", "--ignore-eos", "--devices", "vulkan:0"]
    card = {"MOEBIUS_VULKAN_KIND": "discrete"}
    whole = run(*args, env=card).stdout
    held = {}
    for name, more, env in (("vram", ["--vram", "15M"], {}), ("budget", [], {"MOEBIUS_VULKAN_BUDGET": "15"}),
                            ("refused", [], {"MOEBIUS_VULKAN_HEAP": "15"}))[2 if SANITIZED else 0:]:
        r = run(*args, *more, "--stats-json", tmp("gpu-memory.json"), env={**card, **env})
        assert r.stdout == whole, name
        with open(tmp("gpu-memory.json"), encoding="utf-8") as f:
            d = json.load(f)["devices"][0]
        held[name] = sum(d[k] for k in ("weight_bytes", "expert_bytes", "context_bytes", "work_bytes"))
        assert d["expert_bytes"] < 12e6 and held[name] < 15 << 20, (name, d)
    fails(7, *args, "--vram", "2M", env=card, says=["needs at least", "MiB are free there"])
    fails(7, *args, "--vram", "8M", env=card, says=["MiB"])
    small = ["generate", "-m", golden("qwen3moe")[0], "--tokens", "1,2,3", "-n", 2, "--ctx", 128, "--devices", "vulkan:0"]
    for vram in range(600, 1400, 100):  # too little for the model, its tables, its work space, its context
        said = fails(7, *small, "--vram", f"{vram}K", env=card)
        assert "compute on the CPU" in said or "expected a smaller context, or more memory for the GPU" in said, said


def test_layers_are_divided_between_two_cards():
    """Each card has its layers within its memory; two do so by themselves where the first has no room for the model, and are taken for that."""
    if not gpu_is_there() or SANITIZED:
        return
    card = {"MOEBIUS_VULKAN_KIND": "discrete"}
    args = ["generate", "-m", DEMO, "-p", "Once upon a time", "-n", 6, "--ctx", 64, "--temp", 0, "--cold", "--batch", 32,
            "--devices", "vulkan:0,vulkan:0"]
    want = run(*args[:-2], "--reference").stdout
    for more, says in (["--split", "stages:3,2", "--vram", "10M"], "layers 0 to 2 on vulkan:0"), (["--vram", "5M"], "no room for the model"):
        r = run(*args, *more, "--stats-json", tmp("stages.json"), env=card)
        assert r.stdout == want and says in r.stderr.decode(), r.stderr
        with open(tmp("stages.json"), encoding="utf-8") as f:
            devices = json.load(f)["devices"]
        assert [(d["name"], d["first_layer"], d["n_layer"]) for d in devices] == [("stage 0 (vulkan:0)", 0, 3), ("stage 1 (vulkan:0)", 3, 2)]
        for d in devices:
            held = [d[k] for k in ("weight_bytes", "expert_bytes", "context_bytes", "work_bytes")]
            assert min(held) > 0 and sum(held) <= int(more[-1][:-1]) << 20, d
    two = {**card, "MOEBIUS_VULKAN_COPIES": "2", "MOEBIUS_VULKAN_SPEED": "1000"}
    auto = [*args[:-2], "--gpu", "auto", "--stats-json", tmp("auto.json")]
    together = ["stage 0 (vulkan:0)", "stage 1 (vulkan:1)"]
    for vram, more, env, names in (("26M", [], two, together), ("26M", ["--split", "experts"], two, ["place 0 (vulkan:0)", "place 1 (cpu:2)"]),
                                   ("26M", [], {**two, "MOEBIUS_VULKAN_SPEED": "0.001"}, ["place 0 (cpu:2)"]), ("64M", [], two, ["place 0 (vulkan:0)"])):
        r = run(*auto, "-t", 2, "--vram", vram, *more, env=env)
        with open(tmp("auto.json"), encoding="utf-8") as f:
            assert [d["name"] for d in json.load(f)["devices"]] == names, (names, r.stderr)
        assert r.stdout == want and ("vulkan:0,vulkan:1 together" in r.stderr.decode()) == (names == together), r.stderr
    fails(7, *args, "--split", "stages", "--vram", "1M", env=card,
          says=["stage 0 (vulkan:0): its part of the layers", "needs at least 2.1 MiB", "1.0 MiB are free there"])
    fails(7, *args, "--split", "stages", "--vram", "4M", "--ctx", 512, "--kv", "f32", env=card,
          says=["stage 0 (vulkan:0): this session needs 1.5 MiB of its memory", "the model leaves"])
    fails(2, *args, "--split", "stages", "--car", 0.5, env=card, says=["cache-aware routing with layers on several devices"])


def counts_of_token(name, products):
    """Dispatches, barriers and submissions of a decoded token."""
    counts = []
    for n in (5, 9):
        run("generate", "-m", golden(name)[0], "--tokens", "1,2,3", "-n", n, "--temp", 0, "--devices", "vulkan:0",
            "--ignore-eos", "--stats-json", tmp("counts.json"), env={"MOEBIUS_VULKAN_PRODUCTS": products})
        with open(tmp("counts.json"), encoding="utf-8") as f:
            counts.append(json.load(f)["gpu"])
    return tuple((counts[1][k] - counts[0][k]) / 4 for k in ("n_dispatch", "n_barrier", "n_submit"))


def test_gpu_tokens_take_few_dispatches():
    """What a decoded token takes of a GPU, layer by layer: it must not creep up."""
    if not gpu_is_there():
        return
    # two dispatches before the first layer and one behind the last
    for name, want in (("qwen3moe", (3 + 4 * 7, 3 + 4 * 7, 1)), ("gpt_oss", (3 + 4 * 7, 3 + 4 * 7, 1)),
                       ("qwen35moe", (57, 42, 1)), ("deepseek2", (68, 54, 1))):
        each = counts_of_token(name, "float")
        assert each == want, (name, each, want)
    each = [counts_of_token("q_q4_k", products) for products in ("float", "integer")]  # activations are rounded by the way
    assert each[0] == each[1], each


if SANITIZED:  # the counts are the release build's
    del test_gpu_tokens_take_few_dispatches
run_functions(globals())
