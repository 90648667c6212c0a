#!/usr/bin/env python3
"""The answers of `moebius batch` are those of `moebius generate` alone, whatever else happens.
usage: test_batch_command.py MOEBIUS DEMO.gguf GOLDEN_DIRECTORY

MOEBIUS_BATCH_KILLS=N sets how often a run is killed at a random moment (5), MOEBIUS_BATCH_REQUESTS=N of how many requests
(60), MOEBIUS_SEED which moments. Each function below is one test; a failed assertion names itself."""
import codecs
import fcntl
import functools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

from run_functions import program_runner, run_functions

MOEBIUS, DEMO, GOLDEN = map(os.path.abspath, sys.argv[1:4])
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
SEED = int(os.environ.get("MOEBIUS_SEED", "1"))
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if enable %}on{% endif %}"
STORIES = ["Once upon a time", "The dog", "Lily and Tom went to the park. They saw", "One day,", "Mom said: \"", "é"]

# a U+FFFD for each byte that belongs to no character, as the program writes it
codecs.register_error("each", lambda e: ("\ufffd", e.start + 1))


def tmp(name):
    return os.path.join(TMP.name, name)


def write(name, text):
    with open(tmp(name), "w", encoding="utf-8") as f:
        f.write(text)
    return tmp(name)


def requests_file(name, requests):
    return write(name, "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in requests))


run_program, fails_program = program_runner(MOEBIUS, timeout=600)


def run(*args, model=DEMO, **kw):
    return run_program(*args, "-m", model, **kw)


def fails(code, *args, model=DEMO, **kw):
    return fails_program(code, *args, "-m", model, **kw)


def lines(path):
    """The answers in a file, each complete, by id."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    assert text.endswith("\n") or not text
    answers = [json.loads(line) for line in text.splitlines()]
    assert len({json.dumps([a["id"], a.get("line")]) for a in answers}) == len(answers), "an id comes twice"
    return {a["id"]: a for a in answers}


def batch(requests, *args, name="requests", model=DEMO, code=0, **kw):
    """Answers by id, and what the program said."""
    source, out = requests_file(name + ".jsonl", requests), tmp(name + ".out")
    if os.path.exists(out):
        os.remove(out)
    r = run("batch", "-i", source, "-o", out, *args, model=model, code=code, **kw)
    return lines(out), r.stderr.decode()


@functools.lru_cache(maxsize=None)
def generate(model, args):
    return subprocess.run([MOEBIUS, "generate", "-m", model, *args], capture_output=True, timeout=300, check=True).stdout


def alone(request, model=DEMO, more=()):
    """What generate says to a request: its ids and its text."""
    args = [*more, "-n", str(request.get("max_tokens", 256))]
    for name, value in request.items():
        if name in ("top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "seed", "temperature"):
            args += ["--" + name.replace("temperature", "temp").replace("_", "-"), str(value)]
    for stop in [request["stop"]] if isinstance(request.get("stop"), str) else request.get("stop") or []:
        args += ["--stop", stop]
    if request.get("ignore_eos"):
        args.append("--ignore-eos")
    if "messages" in request:
        (message,) = request["messages"]
        args += ["--chat", "--template", tmp("t.jinja"), "-p", message["content"]]
    elif "tokens" in request:
        args += ["--tokens", ",".join(map(str, request["tokens"]))]
    else:
        args += ["-p", request["prompt"]]
    ids = [int(i) for i in generate(model, (*args, "--ids")).split()]
    return ids, generate(model, tuple(args))[:-1].decode(errors="each")


def check_answer(request, answer, model=DEMO, more=()):
    ids, text = alone(request, model, more)
    assert answer["ids"] == ids and answer["text"] == text, f"{request}: {answer}, alone {ids} {text!r}"
    usage, limit = answer["usage"], request.get("max_tokens", 256)
    assert answer["finish_reason"] in ("stop", "length") and usage["completion_tokens"] == len(ids)
    assert answer["finish_reason"] == "length" if len(ids) == limit and "stop" not in request else True
    assert "line" not in answer and "error" not in answer and usage["cached_tokens"] <= usage["prompt_tokens"]


def check_answers(requests, answers, model=DEMO, more=()):
    assert set(answers) == {r["id"] for r in requests}
    for r in requests:
        check_answer(r, answers[r["id"]], model, more)


def some_requests(n, seed=SEED, longest=60):
    """Of all kinds, which the demo model can answer."""
    rng = random.Random(seed)
    requests = []
    for i in range(n):
        r = {"id": rng.choice([f"text-{i}", i + 100000, f"ü {i}"]), "max_tokens": rng.choice([0, 1, 2, 7, rng.randint(3, longest)])}
        kind = rng.random()
        if kind < 0.15:
            r["tokens"] = [rng.randrange(256, 4096) for _ in range(rng.choice([1, 5, 63, 64, 65, 200]))]
        elif kind < 0.25:
            r["prompt"] = "Once upon a time there was a little girl who lived near the sea. " * rng.randint(1, 20)
        else:
            r["prompt"] = rng.choice(STORIES)
        if rng.random() < 0.3:
            r["temperature"] = 0
        else:
            r.update(seed=rng.randrange(1 << 40), temperature=rng.choice([0.5, 0.8, 1, 1.5]))
        for name, values in {"top_k": [0, 1, 40], "top_p": [0.5, 1], "min_p": [0, 0.2], "repeat_penalty": [1.2], "stop": [
                "the", ["girl", "dog", "."], "no such text"], "ignore_eos": [True, False], "repeat_last_n": [8]}.items():
            if rng.random() < 0.2:
                r[name] = rng.choice(values)
        requests.append(r)
    return requests


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_answers_are_those_of_each_request_alone():
    requests = some_requests(24)
    for options in (["--texts", 1], ["--texts", 3, "-b", 64], [], ["--texts", 64, "-t", 1],
                    ["--texts", 5, "--expert-ram", "50%", "--io", "pread"]):
        answers, err = batch(requests, *options)
        check_answers(requests, answers)
        assert "24 answered |" in err, err


def test_layers_of_all_kinds():
    """Windows, recurrent layers, latent attention and the types of the caches."""
    rng = random.Random(SEED)
    for name, more in (("gpt_oss", []), ("qwen3next", []), ("deepseek2_latent", []), ("qwen3moe", ["--kv", "f32"]), ("gemma4", [])):
        model = os.path.join(GOLDEN, name + ".gguf")
        start = [rng.randrange(5, 300) for _ in range(150)]
        requests = [{"id": i, "tokens": start[:rng.choice([3, 70, 130, 150])] + [rng.randrange(5, 300) for _ in range(rng.randint(1, 80))],
                     "max_tokens": rng.randint(1, 50), "seed": i, "ignore_eos": True} for i in range(7)]
        answers, _ = batch(requests, "--texts", 4, "-b", 64, *more, model=model)
        check_answers(requests, answers, model, tuple(more))


def test_requests_take_what_they_dont_say_from_the_command_line():
    requests = [{"id": "all", "prompt": "The dog"}, {"id": "none", "prompt": "The dog", "max_tokens": 20, "temperature": 1.5,
                 "top_k": 10, "seed": 9, "stop": [], "ignore_eos": False}, {"id": "null", "prompt": "The dog", "top_k": None}]
    given = ["-n", 15, "--temp", 0.7, "--top-k", 3, "--seed", 5, "--stop", ".", "--ignore-eos"]
    answers, _ = batch(requests, *given)
    said = {"prompt": "The dog", "max_tokens": 15, "temperature": 0.7, "top_k": 3, "seed": 5, "stop": ".", "ignore_eos": True}
    for name in "all", "null":
        check_answer(said, answers[name])
        assert answers[name]["seed"] == 5
    check_answer(requests[1], answers["none"])


def test_all_ways_to_choose_tokens():
    """A field for each option, and an object of biases."""
    requests, base = [], {"prompt": "Once upon a time", "max_tokens": 40, "seed": 3, "ignore_eos": True}
    ways = [{"presence_penalty": 1.5, "frequency_penalty": 0.5, "repeat_last_n": -1}, {"typical_p": 0.5}, {"typical": 0.5},
            {"xtc_probability": 0.5, "xtc_threshold": 0.05}, {"mirostat": 2, "mirostat_ent": 3, "mirostat_lr": 0.2},
            {"dry_multiplier": 2, "dry_base": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": 50, "dry_sequence_breaker": [".", ","]}]
    for i, way in enumerate(ways):
        requests.append(dict(base, id=i, **way))
    answers, err = batch(requests)
    assert "warning" not in err
    for r, way in zip(requests, ways):
        more = []
        for name, value in way.items():
            for v in value if isinstance(value, list) else [value]:
                more += ["--" + name.replace("_", "-"), str(v)]
        check_answer(dict(base), answers[r["id"]], more=tuple(m for m in more))
    plain, biased = alone(dict(base)), dict(base, id="bias", logit_bias={"44": -100, "309": 2.5})
    answers, _ = batch([biased, dict(base, id="default"), dict(base, id="none", logit_bias={}), dict(base, id="bad", logit_bias={"x": 1}),
                        dict(base, id="list", logit_bias=[1])], "--logit-bias", "44-1")
    check_answer(dict(base), answers["bias"], more=("--logit-bias", "44-100,309+2.5"))
    check_answer(dict(base), answers["default"], more=("--logit-bias", "44-1"))
    assert answers["none"]["ids"] == plain[0] and 44 not in answers["bias"]["ids"] and 44 in plain[0]
    assert "logit_bias: expected" in answers["bad"]["error"] and "logit_bias: expected" in answers["list"]["error"]


def test_answers_have_the_form_that_a_request_asks_for():
    schema = {"type": "object", "properties": {"name": {"enum": ["Tom", "Lily"]}, "old": {"type": "boolean"}},
              "required": ["name", "old"], "additionalProperties": False}
    unique = {"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "minItems": 2, "maxItems": 2}
    chat = {"messages": [{"role": "user", "content": "Hello."}]}
    requests = [{"id": f"grammar{i}", "prompt": "Once", "grammar": 'root ::= "a"{7} | "b"{3}', "temperature": 1, "seed": i}
                for i in range(8)]
    requests += [{"id": "schema", **chat, "json_schema": schema}, {"id": "free", "prompt": "The dog", "response_format": {"type": "text"}},
                 {"id": "format", "prompt": "A", "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
                 {"id": "lenient", "prompt": "A", "response_format": {"type": "json_schema", "json_schema": {
                     "schema": unique, "strict": False}}}]
    out = tmp("forms")
    run("batch", "--cold", "-i", requests_file("forms.jsonl", requests), "-o", out, "-n", 80, "--temp", 0,
        "--template", write("template", TEMPLATE))
    answers = lines(out)
    assert {answers[f"grammar{i}"]["text"] for i in range(8)} <= {"aaaaaaa", "bbb"}, answers
    for name in "schema", "format":
        value = json.loads(answers[name]["text"])
        assert set(value) == {"name", "old"} and value["name"] in ("Tom", "Lily"), answers[name]
    assert json.loads(answers["lenient"]["text"]) == [1, 1], answers["lenient"]
    alone = run("generate", "--cold", "-p", "The dog", "-n", 80, "--temp", 0, "--ids").stdout
    assert answers["free"]["ids"] == [int(i) for i in alone.replace(b",", b" ").split()]


def test_guesses_change_no_answer():
    """Of texts that say two tokens alone many guesses are right, of others few."""
    requests = some_requests(16, SEED + 1)
    requests += [{"id": f"two-{i}", "prompt": "The dog", "max_tokens": 90, "seed": i, "ignore_eos": True,
                  "logit_bias": {"300": 100, "309": 100}} for i in range(4)]
    requests += [{"id": f"one-{i}", "prompt": "The dog", "max_tokens": 60 + i, "ignore_eos": True, "logit_bias": {"300": 100}} for i in range(2)]
    requests += [{"id": f"form-{i}", "prompt": "The dog", "max_tokens": 60, "seed": i, "json_schema": {"type": "array", "items": {"enum": [
        "a dog", "a dog and a cat"]}}} for i in range(3)]
    want, err = batch(requests)
    assert "guesses" not in err
    n_guess = 0
    for texts, more in ((1, []), (6, ["-b", 16]), (30, ["--expert-ram", "50%"])):
        got, err = batch(requests, "--texts", texts, "--draft", 15, *more)
        for name, answer in want.items():
            assert (got[name]["ids"], got[name]["finish_reason"]) == (answer["ids"], answer["finish_reason"]), (texts, name)
        found = re.search(r", (\d+) of (\d+) guesses right \|", err)
        n_guess += int(found[2]) if found else 0
        assert not found or int(found[1]) <= int(found[2])
    assert n_guess > 0


def test_a_seed_that_was_chosen_is_told():
    request = {"id": 1, "prompt": "Once upon a time", "max_tokens": 20, "temperature": 1}
    answers, _ = batch([request])
    check_answer(dict(request, seed=answers[1]["seed"]), answers[1])
    assert "seed" not in batch([dict(request, temperature=0)])[0][1]


def test_messages_go_through_the_template():
    write("t.jinja", TEMPLATE)
    requests = [{"id": i, "messages": [{"role": "user", "content": text}], "max_tokens": 12, "seed": i, "stop": "e"}
                for i, text in enumerate(STORIES)]
    answers, _ = batch(requests, "--template", tmp("t.jinja"))
    check_answers(requests, answers)
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    answers, _ = batch([{"id": 0, "messages": talk, "max_tokens": 9, "temperature": 0}], "--template", tmp("t.jinja"), "--var", "enable=true")
    ids, _ = alone({"prompt": "<system>Be kind.\n<user>Hi\non", "max_tokens": 9, "temperature": 0})
    assert answers[0]["ids"] == ids
    assert "no chat template" in batch(requests[:1])[0][0]["error"]
    fails(3, "batch", "-i", tmp("requests.jsonl"), "-o", tmp("o"), "--template", tmp("nowhere"), says=["nowhere"])


def test_reasoning_is_told_apart():
    write("think.jinja", TEMPLATE + "<think>")
    request = {"id": 0, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "temperature": 0}
    answers, _ = batch([request], "--template", tmp("think.jinja"))
    assert answers[0]["text"] == "" and answers[0]["reasoning"]
    request["messages"][0]["content"] = "H\0i"
    answers, _ = batch([request], "--template", tmp("think.jinja"))
    assert answers[0]["text"] == "" and answers[0]["reasoning"]


def test_stop_strings_cut_the_text():
    request = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0}
    whole = alone(request)[1]
    words = [whole[10:13], whole[20:40], whole[5:]]
    requests = [dict(request, id=i, stop=stop) for i, stop in enumerate([*words, words, [words[1], "xyz"], whole + "!"])]
    answers, _ = batch(requests)
    check_answers(requests, answers)
    for i, end in enumerate([10, 20, 5, 10, 20, len(whole)]):  # of several the one that is whole first
        assert answers[i]["text"] == whole[:end]
        assert answers[i]["finish_reason"] == ("stop" if end < len(whole) else "length")


def test_beginnings_are_shared():
    start = "Once upon a time there was a little girl who lived near the sea with her dog and her cat. " * 6
    requests = [{"id": i, "prompt": start + "The end." * i, "max_tokens": 20, "seed": i} for i in range(12)]
    for texts in 1, 4, 12:
        answers, err = batch(requests, "--texts", texts)
        check_answers(requests, answers)
        n_prompt = answers[0]["usage"]["prompt_tokens"]
        cached = [answers[i]["usage"]["cached_tokens"] for i in range(12)]
        assert cached[0] == 0 and min(cached[1:]) >= n_prompt - 2, (texts, cached)
        assert f"{sum(cached)} more shared" in err
    same = [{"id": i, "prompt": start, "max_tokens": 20, "seed": i} for i in range(5)]
    for texts in 1, 5:  # at the same time all of it is shared; later, where there are no logits after it, all but the last token
        answers, _ = batch(same, "--texts", texts)
        check_answers(same, answers)
        assert answers[4]["usage"]["cached_tokens"] == answers[4]["usage"]["prompt_tokens"] - (texts == 1)


# ---- requests that can't be answered -----------------------------------------------------------------------------------


def test_a_line_that_is_no_request_takes_no_id():
    lines = ['{"id": 2, "prompt": "a", "max_tokens": 1}', "nonsense", '{"id": 4, "prompt": "a"', '{"id": 3, "prompt": "a", "max_tokens": 1}',
             '{"id": 4, "prompt": "a", "max_tokens": 1}']
    for _ in range(2):  # and again, when all is done
        with open(tmp("ids.jsonl"), "w") as f:
            f.write("\n".join(lines) + "\n")
        run("batch", "-i", tmp("ids.jsonl"), "-o", tmp("ids.out"))
        with open(tmp("ids.out")) as f:
            answers = [json.loads(line) for line in f]
        good = sorted(a["id"] for a in answers if a["finish_reason"] != "error")
        wrong = {a["line"]: a["error"] for a in answers if a["finish_reason"] == "error"}
        assert good == [2, 3, 4] and set(wrong) == {2, 3} and all("expected a JSON object" in e for e in wrong.values()), answers


def test_bad_requests_are_answered_with_a_sentence():
    good = {"id": "good", "prompt": "The dog", "max_tokens": 3, "seed": 1}
    bad = {
        "nonsense": "expected a JSON object",
        "[1]": "expected a JSON object, not a list",
        '{"id": 1, "prompt": "a"': "expected a JSON object",
        '{"prompt": "a", "prompt": "b"}': "duplicate",
        '{"prompt": "\ud83d"}'.encode("utf-8", "surrogatepass").decode("latin-1"): None,
        '{"id": {}, "prompt": "a"}': "id: expected a text or a whole number",
        '{"id": 1.5, "prompt": "a"}': "id: expected a text or a whole number",
        '{}': "expected one of prompt, messages and tokens",
        '{"prompt": "a", "tokens": [1]}': "expected one of prompt, messages and tokens",
        '{"prompt": 5}': "prompt: expected a text",
        '{"messages": "a"}': "messages: expected a list of objects with role and content",
        '{"messages": [{"content": "a"}]}': "messages: expected a list of objects with role and content",
        '{"tokens": "1,2"}': "tokens: expected a list of whole numbers",
        '{"tokens": [1, 2.5]}': "tokens: expected a list of whole numbers",
        '{"tokens": [1, 4096]}': "token 1 is 4096: expected 0 to 4095",
        '{"tokens": [-1]}': "token 0 is -1: expected 0 to 4095",
        '{"tokens": []}': "the prompt is empty",
        '{"prompt": "a", "temperature": "hot"}': "temperature: expected a number",
        '{"prompt": "a", "temperature": 101}': "temperature 101: expected 0 to 100",
        '{"prompt": "a", "top_k": 1.5}': "top_k 1.5: expected a whole number",
        '{"prompt": "a", "seed": 99999999999999999999}': "expected a whole number",
        '{"prompt": "a", "max_tokens": -2}': "max_tokens -2: expected -1 to",
        '{"prompt": "a", "ignore_eos": 1}': "ignore_eos: expected true or false",
        '{"prompt": "a", "grammar": 5}': "grammar: expected a grammar in GBNF",
        '{"prompt": "a", "grammar": "root ::= ("}': "grammar: grammar, line 1",
        '{"prompt": "a", "json_schema": "x"}': "json_schema: expected a JSON schema",
        '{"prompt": "a", "json_schema": {"type": 5}}': "json_schema: schema",
        '{"prompt": "a", "json_schema": {"uniqueItems": true}}': "uniqueItems",
        '{"prompt": "a", "json_schema": {}, "grammar": "root ::= \\"a\\""}': "a second form for the answer",
        '{"prompt": "a", "response_format": {"type": "x"}}': "response_format.type: expected text",
        '{"prompt": "a", "response_format": {"type": "json_schema"}}': "response_format.json_schema.schema: expected",
        '{"prompt": "a", "stop": 1}': "stop: expected a text",
        '{"prompt": "a", "stop": ["a", null]}': "stop: expected a text",
        '{"prompt": "a", "stop": "a\\u0000b"}': "stop: expected a text",
        '{"prompt": "a", "stop": [' + ",".join(['"a"'] * 17) + "]}": "stop: at most 16",
        json.dumps({"prompt": "word " * 1000}): "tokens, the context 512: shorten it",
        json.dumps(good): 'the id "good" is also that of line 1',
    }
    answers, err = batch([good, *bad, ""])
    check_answer(good, answers["good"]) if "error" not in answers["good"] else None
    with open(tmp("requests.out"), encoding="utf-8") as f:
        by_line = {a["line"]: a for a in map(json.loads, f) if "line" in a}
    for number, (line, says) in enumerate(bad.items(), 2):
        if says is None:
            continue
        answer = by_line[number]
        assert says in answer["error"] and answer["finish_reason"] == "error", (line, answer)
        assert "text" not in answer and answer["id"] == ("good" if "also" in says else number), answer
    assert f", {len(by_line)} could not be" in err
    before = open(tmp("requests.out")).read()
    err = run("batch", "-i", tmp("requests.jsonl"), "-o", tmp("requests.out")).stderr.decode()
    assert open(tmp("requests.out")).read() == before and f"0 answered, {len(bad) + 1} done before" in err, err


def test_of_two_requests_with_one_id_the_first_is_answered():
    """Whichever of the two lines an earlier run has written."""
    first, other = {"id": "a", "prompt": "The dog", "max_tokens": 3, "seed": 1}, {"id": "b", "prompt": "a", "max_tokens": 1, "seed": 1}
    source, out = requests_file("twice.jsonl", [first, other, dict(first, seed=2)]), tmp("twice.out")
    run("batch", "-i", source, "-o", out)
    with open(out, encoding="utf-8") as f:
        whole = f.readlines()
    assert len(whole) == 3 and sum('"line":3' in line for line in whole) == 1
    for kept in range(3):
        with open(out, "w", encoding="utf-8") as f:
            f.writelines(whole[:kept] + whole[kept + 1:])
        run("batch", "-i", source, "-o", out)
        with open(out, encoding="utf-8") as f:
            again = f.readlines()
        assert sorted(again) == sorted(whole), (whole, again)
    check_answer(first, next(json.loads(line) for line in whole if '"a"' in line and "line" not in line))


def test_the_context_is_a_limit():
    n_ctx = 40
    requests = [{"id": n, "tokens": [300] * n, "max_tokens": 60, "ignore_eos": True, "seed": 1} for n in (1, 39, 40, 41)]
    answers, _ = batch(requests, "-c", n_ctx)
    assert answers.pop(41)["error"] == "the prompt has 41 tokens, the context 40: shorten it or raise --ctx"
    check_answers(requests[:3], answers, more=("--ctx", str(n_ctx)))
    assert [len(answers[n]["ids"]) for n in (1, 39, 40)] == [40, 2, 1]
    assert all(a["finish_reason"] == "length" for a in answers.values())
    endless = [{"id": 0, "prompt": "Once", "max_tokens": -1, "ignore_eos": True, "temperature": 0}]
    answers, _ = batch(endless)
    check_answers(endless, answers)
    assert answers[0]["usage"]["prompt_tokens"] + len(answers[0]["ids"]) == 513  # the last one is not computed


def test_texts_wait_for_memory():
    """Caches of 512 tokens, a few texts at once: of the others those that came last wait and are computed again."""
    requests = [{"id": i, "prompt": STORIES[i % 3] + " " * (i % 5), "max_tokens": 200, "seed": i, "ignore_eos": True} for i in range(10)]
    answers, _ = batch(requests[:2], "--state", 1)
    need = float(re.match(r"a context of 512 tokens needs ([\d.]+) MiB of state, and there are 0.0 MiB", answers[0]["error"])[1])
    assert answers[0]["error"] == answers[1]["error"]
    need = round((need + 0.1) * 2**20)
    answers, err = batch(requests, "--state", need)
    check_answers(requests, answers)
    assert re.search(r"waited for memory \d+ times", err), err
    answers, err = batch(requests, "--state", need, "--texts", 1)
    check_answers(requests, answers)
    assert "waited" not in err


def test_names_that_mean_nothing_are_warned_of_once():
    requests = [{"id": i, "prompt": "a", "max_tokens": 1, "model": "x", "top-k": 1, "x\u001by": 2} for i in range(4)]
    _, err = batch(requests)
    for name in "model", "top-k", "x\\x1by":
        assert err.count(f'"{name}"') == 1, err
    assert err.count("warning") == 3


# ---- going on ----------------------------------------------------------------------------------------------------------


def test_a_run_that_was_killed_goes_on():
    n = int(os.environ.get("MOEBIUS_BATCH_REQUESTS", "60"))
    n_kills = int(os.environ.get("MOEBIUS_BATCH_KILLS", "5"))
    rng = random.Random(SEED)
    requests = some_requests(n, SEED + 1)
    source, out = requests_file("killed.jsonl", requests), tmp("killed.out")
    start = time.time()
    check = batch(requests, "--texts", 8, name="whole")[0]
    took = time.time() - start
    n_torn = n_killed = 0
    for _ in range(n_kills):
        p = subprocess.Popen([MOEBIUS, "batch", "-m", DEMO, "-i", source, "-o", out, "--texts", str(rng.choice([1, 8, 32]))],
                             stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.2, 1.5) * took / n_kills)
        p.kill()
        n_killed += p.wait() == -signal.SIGKILL
        if os.path.exists(out) and rng.random() < 0.5:  # as if it had been killed while it wrote
            text = open(out, "rb").read()
            n_torn += bool(text)
            cut = rng.randint(0, min(len(text), 100))
            open(out, "wb").write(text[:len(text) - cut])
    run("batch", "-i", source, "-o", out)
    answers = lines(out)
    assert len(answers) == n
    for r in requests:
        a, b = answers[r["id"]], check[r["id"]]
        assert (a["ids"], a["text"], a["finish_reason"]) == (b["ids"], b["text"], b["finish_reason"])
    check_answers(requests, answers)
    print(f"killed {n_killed} times, cut off {n_torn} times")
    assert n_killed > 0


def test_a_torn_line_is_cut_off_and_nothing_else():
    requests = some_requests(4)
    whole, _ = batch(requests, name="torn")
    source, out = tmp("torn.jsonl"), tmp("torn.out")
    text = open(out, "rb").read()
    third = text.index(b"\n", text.index(b"\n") + 1) + 1
    for end in (third + 1, third + 5, third + 30, text.index(b"\n", third), len(text) - 1, third, 0):
        open(out, "wb").write(text[:end])
        err = run("batch", "-i", source, "-o", out).stderr.decode()
        assert open(out, "rb").read()[:third] == text[:third] or end == 0
        assert {k: v["ids"] for k, v in lines(out).items()} == {k: v["ids"] for k, v in whole.items()}
        assert f"{text[:end].count(10)} done before" in err or end == 0, (end, err)
    for foreign in (b"a letter to somebody", b'{"id": "a"}\n', text[:third] + b"\n" + text[third:], b"\0" * 50, text + b"x", b"\n"):
        open(out, "wb").write(foreign)
        fails(4, "batch", "-i", source, "-o", out, says=[out, "is no answer of an earlier run"])
        assert open(out, "rb").read() == foreign


def test_an_interrupted_run_goes_on():
    requests = [dict(r, max_tokens=400, ignore_eos=True) for r in some_requests(30, SEED + 2)]
    source, out = requests_file("interrupted.jsonl", requests), tmp("interrupted.out")
    args = ["batch", "-m", DEMO, "-i", source, "-o", out, "--texts", "2"]
    p = subprocess.Popen([MOEBIUS, *args], stderr=subprocess.PIPE)
    while not os.path.exists(out) or not os.path.getsize(out):
        time.sleep(0.01)
    p.send_signal(signal.SIGINT)
    err = p.communicate(timeout=60)[1].decode()
    n = len(lines(out))
    assert p.returncode == 9 and 0 < n < 30, (p.returncode, n, err)
    assert f"interrupted: {n} of 30 requests are done; run the same command again to continue" in err, err
    err = run("batch", "-i", source, "-o", out, "-n", 1).stderr.decode()
    assert f"{out}: {n} requests are done; continuing with the rest" in err and f"{30 - n} answered, {n} done before" in err, err
    assert len(lines(out)) == 30


def test_two_runs_dont_write_to_one_file():
    source, out = requests_file("held.jsonl", some_requests(2)), tmp("held.out")
    with open(out, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fails(3, "batch", "-i", source, "-o", out, says=["another moebius is at work on it"])
    run("batch", "-i", source, "-o", out)


# ---- files -------------------------------------------------------------------------------------------------------------


def test_standard_input_and_output():
    requests = some_requests(5)
    text = "".join(json.dumps(r) + "\r\n" for r in requests).encode()
    r = run("batch", "-i", "-", "-o", "-", input=text[:-2])
    check_answers(requests, {a["id"]: a for a in map(json.loads, r.stdout.splitlines())})
    r = run("batch", "-i", "-", "-o", "-", input=b"")
    assert r.stdout == b"" and b"0 answered" in r.stderr


def test_answers_come_while_the_input_is_open():
    """A program that asks one thing after the other waits for no other text."""
    p = subprocess.Popen([MOEBIUS, "batch", "-m", DEMO, "-i", "-", "-o", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL)
    for request in some_requests(3):
        p.stdin.write(json.dumps(request).encode() + b"\n")
        p.stdin.flush()
        check_answer(request, json.loads(p.stdout.readline()))
    p.stdin.close()
    assert p.wait(timeout=60) == 0 and p.stdout.read() == b""
    p.stdout.close()


def test_an_interrupt_ends_waiting_for_input():
    p = subprocess.Popen([MOEBIUS, "batch", "-m", DEMO, "-i", "-", "-o", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdin.write(b'{"id": 1, "prompt": "a", "max_tokens": 1}\n')
    p.stdin.flush()
    p.stdout.readline()
    p.send_signal(signal.SIGINT)
    assert p.wait(timeout=60) == 9
    assert b"interrupted: 1 requests are done; only a run whose output is a file can be continued" in p.communicate()[1]


def test_full_disks():
    source = requests_file("full.jsonl", some_requests(30))
    fails(3, "batch", "-i", source, "-o", "/dev/full", says=["/dev/full", "No space left on device"])
    with open("/dev/full", "w") as full:
        r = subprocess.run([MOEBIUS, "batch", "-m", DEMO, "-i", source, "-o", "-"], stdout=full, stderr=subprocess.PIPE, check=False)
        assert r.returncode == 3 and b"No space left on device" in r.stderr

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))
    out = tmp("full.out")
    fails(3, "batch", "-i", source, "-o", out, "--cold", says=[out, "File too large"], preexec_fn=limit)
    n = len(lines(out))  # whole ones
    assert 0 < n < 30
    run("batch", "-i", source, "-o", out)
    assert len(lines(out)) == 30


def test_outputs_through_links_and_elsewhere():
    os.mkdir(tmp("elsewhere"))
    requests = some_requests(2)
    source, link = requests_file("elsewhere/in.jsonl", requests), tmp("link.out")
    open(tmp("elsewhere/out"), "w").close()
    os.symlink(tmp("elsewhere/out"), link)
    run("batch", "-i", source, "-o", link, cwd="/")
    assert os.path.islink(link)
    check_answers(requests, lines(tmp("elsewhere/out")))
    fails(3, "batch", "-i", tmp("nowhere"), "-o", link, says=["nowhere: No such file"])
    fails(3, "batch", "-i", source, "-o", tmp("no/where"), says=["where"])
    fails(3, "batch", "-i", TMP.name, "-o", tmp("of-a-folder"), says=[TMP.name])
    assert not os.path.exists(tmp("of-a-folder")), "an output was begun"
    fails(2, "batch", "-o", link, says=["-i FILE"])
    fails(2, "batch", "-i", source, says=["-o FILE"])


def test_statistics():
    requests = [{"id": i, "prompt": "The dog", "max_tokens": 10, "ignore_eos": True} for i in range(3)]
    batch(requests, "--stats-json", tmp("stats.json"))
    with open(tmp("stats.json"), encoding="utf-8") as f:
        stats = json.load(f)
    assert stats["decode"]["n_tok"] == 30 and stats["prefill"]["n_tok"] == 6 and stats["decode"]["s"] > 0


run_functions(globals())
