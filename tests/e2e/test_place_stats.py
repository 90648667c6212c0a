#!/usr/bin/env python3
"""What is told of experts on several devices: figures of a run, by place and layer; the division, beforehand; and whose
experts a text chooses. usage: test_place_stats.py MOEBIUS DEMO.gguf GOLDEN_DIRECTORY

Each function below is one test; a failed assertion names itself."""
import csv
import json
import os
import re
import sys
import tempfile

from run_functions import program_runner, run_functions

MOEBIUS, DEMO, GOLDEN = map(os.path.abspath, sys.argv[1:4])
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
N_LAYER, N_EXPERT, N_USED, N_EMBD = 5, 24, 2, 256
TEXT = "Once upon a time there was a little dog"

run, fails = program_runner(MOEBIUS)


def tmp(name):
    return os.path.join(TMP.name, name)


def text_file():
    with open(tmp("text.txt"), "w") as f:
        f.write((TEXT + ".\n") * 5)
    return tmp("text.txt")


def generate(*args, n=9):
    """The statistics of a run, and what it said."""
    stats = [] if "--stats=layer" in args else ["--stats"]
    r = run("generate", "-m", DEMO, "-p", TEXT, "--temp", 0, "-n", n, "--cold", *stats, "--stats-json", tmp("stats.json"), *args)
    with open(tmp("stats.json")) as f:
        return json.load(f), r.stderr.decode()


def sums(layers):
    return {k: sum(layer[k] for layer in layers) for k in layers[0] if k != "expert_us"}


def division(*args):
    return json.loads(run("inspect", DEMO, "--json", *args).stdout)["places"]


def test_places_add_up():
    """Every row is computed once, and what goes out and comes back are these rows."""
    stats, said = generate("--devices", "cpu:1,cpu:1,cpu:1", "--split", "random:4")
    n_prompt, n_decoded = stats["prefill"]["n_tok"], stats["decode"]["n_tok"]
    n_row = (n_prompt + n_decoded) * (N_LAYER - 1) + 1 + n_decoded  # the last layer computes what has logits
    places = stats["places"]
    assert [p["name"] for p in places] == [f"place {i} (cpu:1)" for i in range(3)], places
    assert sum(p["n_expert"] for p in places) == N_LAYER * N_EXPERT
    assert sum(p["memory_bytes"] for p in places) == stats["experts"]["memory_bytes"]
    assert sum(p["all_layers"]["n_row"] for p in places) == n_row * N_USED
    for i, p in enumerate(places):
        a = p["all_layers"]
        assert len(p["layers"]) == N_LAYER
        for key, value in sums(p["layers"]).items():
            assert abs(value - a[key]) < 1e-6, (key, value, a)
        assert a["n_found"] > 0 and a["n_read"] == 0 and a["n_substituted"] == 0, a
        assert a["compute_s"] > 0 and a["expert_us"] > 0 and p["bytes_per_s"] > 0, p
        assert a["from_bytes"] == (a["n_row"] * N_EMBD * 4 if i else 0), a
        assert (a["to_bytes"] > 0) == (i > 0) == (a["finish_wait_s"] > 0), a
        assert f"place {i} (cpu:1): {p['n_expert']} experts" in said, said


def test_replicas_make_the_places_even():
    """With all experts at both places each of a token's two experts is computed at one of them."""
    one, _ = generate("--devices", "cpu:1,cpu:1")
    all_, said = generate("--devices", "cpu:1,cpu:1", "--replicas", "100%", "--deterministic")
    few, _ = generate("--devices", "cpu:1,cpu:1", "--replicas", "20%")
    assert [p["n_replica"] for p in one["places"]] == [0, 0]
    assert all(p["all_layers"]["n_replica_row"] == 0 for p in one["places"])
    n_expert = N_LAYER * N_EXPERT
    assert [(p["n_expert"], p["n_replica"]) for p in all_["places"]] == [(n_expert, n_expert)] * 2
    assert [p["n_replica"] for p in few["places"]] == [n_expert // 5] * 2
    assert sum(p["memory_bytes"] for p in all_["places"]) == 2 * sum(p["memory_bytes"] for p in one["places"])
    n_rows = [sum(p["all_layers"]["n_row"] for p in x["places"]) for x in (one, few, all_)]
    assert len(set(n_rows)) == 1, n_rows
    a, b = (p["all_layers"] for p in all_["places"])
    assert a["n_row"] == a["n_replica_row"] and b["n_row"] == b["n_replica_row"], (a, b)
    assert a["n_call"] == b["n_call"] and a["n_row"] == b["n_row"], (a, b)
    assert [layer["n_row"] for layer in all_["places"][0]["layers"]] == \
           [layer["n_row"] for layer in all_["places"][1]["layers"]], all_
    for x in few["places"]:
        assert 0 < x["all_layers"]["n_replica_row"] < x["all_layers"]["n_row"], x
    assert "120 are replicas, 100.0% of rows" in said, said


def test_replicas_have_what_memory_is_left():
    stats, said = generate("--devices", "cpu:1,cpu:1", "--replicas", "50%", "--expert-ram", "30M")
    assert "as memory leaves no room for more" in said, said
    assert 0 < stats["places"][0]["n_replica"] < N_LAYER * N_EXPERT // 2
    assert all(p["memory_bytes"] == p["all_bytes"] for p in stats["places"]), stats["places"]
    fails(2, "generate", "-m", DEMO, "-p", "a", "-t", 1, "--replicas", "10%", says=["expected several"])


def read_by_places():
    stats, _ = generate("--devices", "cpu:1,cpu:1", "--expert-ram", "30%")
    places = [p["all_layers"] for p in stats["places"]]
    for p in stats["places"]:
        assert p["memory_bytes"] < p["all_bytes"] and p["all_layers"]["n_read"] > 0, p
    assert sum(p["n_found"] + p["n_read"] for p in places) == stats["experts"]["n_hit"] + stats["experts"]["n_miss"]
    assert sum(p["n_read"] for p in places) == stats["experts"]["n_miss"]
    return places


def test_what_is_read_is_counted_where_it_is_read():
    waited = [False, False]
    for _ in range(10):  # what is read may be there before anybody waits for it
        waited = [before or p["read_wait_s"] > 0 for before, p in zip(waited, read_by_places())]
        if all(waited):
            return
    assert False, waited


def test_a_cache_tells_what_it_found_and_moved():
    stats, said = generate("--devices", "cpu:1,cpu:1", "--split", "cache:25%", "--stats=layer", n=40)
    cache, other = stats["places"]
    a, b = cache["all_layers"], other["all_layers"]
    n_slot = N_LAYER * N_EXPERT // 4
    assert (cache["cache"], other["cache"]) == ("on", None)
    assert (cache["n_expert"], other["n_expert"]) == (n_slot, N_LAYER * N_EXPERT)
    assert cache["memory_bytes"] == cache["all_bytes"] // 4 and other["memory_bytes"] == other["all_bytes"]
    assert stats["experts"]["memory_bytes"] == cache["memory_bytes"] + other["memory_bytes"]
    assert stats["experts"]["all_bytes"] == other["all_bytes"]
    assert a["n_missed"] == b["n_found"] > 0 and a["n_found"] > 0 and a["n_read"] == b["n_read"] == 0, (a, b)
    assert a["n_moved"] > n_slot and a["moved_bytes"] == a["n_moved"] * cache["memory_bytes"] // n_slot, a
    assert a["move_s"] > 0 and b["n_moved"] == b["n_missed"] == b["move_s"] == 0, (a, b)
    for key, value in sums(cache["layers"]).items():
        assert abs(value - a[key]) < 1e-6, (key, value, a)
    share = 100 * a["n_found"] / (a["n_found"] + a["n_missed"])
    assert f"cache on, {share:.1f}% of {a['n_found'] + a['n_missed']} found | {a['n_moved']} moved" in said, said
    assert sum(map(int, re.findall(r"(\d+) missed", said))) == a["n_missed"]


def test_one_device_is_one_place():
    stats, said = generate("-t", 1, "--expert-ram", "30%", "--car", "0.5")
    assert len(stats["places"]) == 1 and stats["places"][0]["n_expert"] == N_LAYER * N_EXPERT
    a = stats["places"][0]["all_layers"]
    assert a["n_found"] == stats["experts"]["n_hit"] and a["n_read"] == stats["experts"]["n_miss"]
    assert a["n_substituted"] == stats["car"]["n_substituted"] > 0
    assert abs(a["read_wait_s"] - stats["experts"]["stall_s"]) < 1e-6 and a["to_bytes"] == 0
    assert "place 0" not in said


def test_layers_are_shown_token_by_token():
    stats, said = generate("--devices", "cpu:1,cpu:1", "--expert-ram", "30%", "--stats=layer", n=4)
    blocks = re.split(r"(?:^|\n)(?:prompt of \d+|.*?token \d+)\n", said)
    assert f"prompt of {stats['prefill']['n_tok']}\n" in said and "token 1\n" in said and "token 3\n" in said, said
    assert re.search(r"place 1: .* rows, .* us an expert.*was waited for .* there, .* back\n", said), said
    found, read = [0, 0], [0, 0]
    for layer in re.findall(r"  MoE layer \d+ \|.*", said):
        for place, n_found, n_read in re.findall(r"place (\d): (\d+) found, (\d+) read", layer):
            found[int(place)] += int(n_found)
            read[int(place)] += int(n_read)
    assert said.count("  MoE layer ") == N_LAYER * 4 and len(blocks) == 5, said
    for i, p in enumerate(stats["places"]):
        assert (found[i], read[i]) == (p["all_layers"]["n_found"], p["all_layers"]["n_read"]), (found, read, p)
    _, said = generate(n=2)
    assert "MoE layer 0" not in said
    fails(2, "generate", "-m", DEMO, "-p", "a", "--stats=token", says=["--stats token: expected layer"])


def test_inspect_tells_the_division_beforehand():
    for args in (["--split", "experts:1,3"], ["--split", "layers"], ["--split", "random:5"], []):
        args = ["--devices", "cpu:1,cpu:2", *args]
        places, stats = division(*args), generate(*args, n=1)[0]["places"]
        assert [p["n_thread"] for p in places] == [1, 2]
        for p, s in zip(places, stats):
            assert (p["n_expert"], p["bytes"]) == (s["n_expert"], s["all_bytes"]), (args, p, s)
            assert sum(len(layer["experts"]) for layer in p["layers"]) == p["n_expert"]
        for layer in range(N_LAYER):
            both = places[0]["layers"][layer]["experts"] + places[1]["layers"][layer]["experts"]
            assert sorted(both) == list(range(N_EXPERT)), both
    args = ["--devices", "cpu:1,cpu:2", "--replicas", "25%"]
    places, stats = division(*args), generate(*args, n=1)[0]["places"]
    assert [(p["n_expert"], p["n_replica"], p["bytes"]) for p in places] == \
           [(s["n_expert"], s["n_replica"], s["all_bytes"]) for s in stats], (places, stats)
    assert places[0]["n_replica"] == N_LAYER * N_EXPERT // 4
    said = run("inspect", DEMO, *args).stdout.decode()
    assert "30 of them replicas" in said, said
    shares = division("--devices", "cpu:1,cpu:2", "--split", "experts:1,3")
    assert all(len(layer["experts"]) == N_EXPERT // 4 for layer in shares[0]["layers"])
    cache = division("--devices", "cpu:1,cpu:2", "--split", "cache:25%")
    assert [(p["is_cache"], p["n_expert"]) for p in cache] == [(True, 0), (False, N_LAYER * N_EXPERT)]
    said = run("inspect", DEMO, "--devices", "cpu:1,cpu:1", "--split", "cache").stdout.decode()
    assert "place 0 (cpu:1): a cache" in said and re.search(r"layer 0: place 1: 0-23", said), said
    said = run("inspect", DEMO, "--devices", "cpu:1,cpu:1", "--split", "layers").stdout.decode()
    assert re.search(r"layer 0: place 0: 0-23 \| place 1: none", said), said


def test_a_division_goes_by_earlier_usage():
    run("generate", "-m", DEMO, "-p", TEXT, "-n", 200, "--expert-ram", "50%", "--ignore-eos", "--usage", tmp("usage"))
    before, after = (division("--devices", "cpu:3,cpu:1", *args) for args in ([], ["--usage", tmp("usage")]))
    assert before[0]["n_expert"] == 90 and before[0]["layers"] != after[0]["layers"]
    with open(tmp("usage")) as f:
        counts = [list(map(int, line.split())) for line in f.read().splitlines()[3:]]
    for layer, count in zip(after[0]["layers"], counts):  # the hottest are where there are most threads
        assert count.index(max(count)) in layer["experts"], (layer, count)


def test_profile_and_trace_know_places():
    args = ["-m", DEMO, "-f", text_file(), "--devices", "cpu:1,cpu:1", "--split", "experts:1,2", "--cold"]
    said = run("profile", *args, "--csv", tmp("places.csv")).stdout.decode()
    with open(tmp("places.csv")) as f:
        rows = list(csv.DictReader(f))
    want = division("--devices", "cpu:1,cpu:1", "--split", "experts:1,2")
    count = [0, 0]
    for row in rows:
        place = int(row["places"])
        assert int(row["expert"]) in want[place]["layers"][int(row["layer"])]["experts"], row
        count[place] += int(row["count"])
    shares = f"choices by place: place 0 {100 * count[0] / sum(count):.1f}%, place 1 {100 * count[1] / sum(count):.1f}%"
    assert shares in said, said
    assert shares in run("trace", *args, "-o", tmp("places.trace")).stderr.decode()
    run("trace", "replay", tmp("places.trace"))
    for budgets in "0", "15,x", "15,,25", "101", "":
        r = run("trace", "replay", tmp("places.trace"), "--budgets", budgets, code=2)
        assert r.stdout == b"" and b"expected percentages" in r.stderr, (budgets, r)
    fails(2, "trace", "replay", tmp("places.trace"), "-t", 1, says=["--threads: trace replay takes no such option"])
    fails(2, "trace", *args, "-o", tmp("x.trace"), "--budgets", "15", says=["--budgets: expected with replay"])
    run("profile", "-m", DEMO, "-f", text_file(), "-t", 1, "--csv", tmp("one.csv"))
    with open(tmp("one.csv")) as f:
        assert f.readline() == "layer,expert,count,rate\n"


def test_the_picture_of_a_profile_has_room_for_its_title():
    run("profile", "-m", DEMO, "-f", text_file(), "-t", 1, "--svg", tmp("one.svg"))
    with open(tmp("one.svg")) as f:
        svg = f.read()
    width, left, title = re.search(r'width="(\d+)".*?<text x="(\d+)" y="20">(.*?)</text>', svg, re.S).groups()
    assert int(width) >= int(left) + 6 * len(title), (width, title)  # 6 units a character, of 11 units' height


def test_what_can_not_be_divided_is_refused():
    fails(2, "inspect", DEMO, "--split", "layers", says=["expected --devices"])
    fails(2, "inspect", DEMO, "--replicas", "10%", says=["expected --devices"])
    fails(2, "inspect", DEMO, "--devices", "cpu:1,cpu:0", says=["expected cpu:THREADS"])
    fails(2, "inspect", DEMO, "--devices", "cpu:1,cpu:1", "--split", "experts:1", says=["1 shares for 2 devices"])
    fails(2, "inspect", DEMO, "--devices", "cpu:1", "--split", "layers", says=["one device"])
    fails(3, "inspect", DEMO, "--devices", "cpu:1,cpu:1", "--usage", tmp("none"), says=["expected a file of counts"])
    fails(2, "inspect", os.path.join(GOLDEN, "qwen3.gguf"), "--devices", "cpu:1,cpu:1", says=["no routed experts"])


run_functions(globals())
