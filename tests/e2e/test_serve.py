#!/usr/bin/env python3
"""`moebius serve` from the outside: answers are those of `moebius generate`, and nothing that clients do harms others.
usage: test_serve.py MOEBIUS DEMO.gguf GOLDEN_DIRECTORY

Each function below is one test; a failed assertion names itself."""
import contextlib
import functools
import glob
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from run_functions import run_functions
from serving import Server as AnyServer, post

MOEBIUS, DEMO, GOLDEN = map(os.path.abspath, sys.argv[1:4])
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STORIES = ["Once upon a time", "The dog", "Lily and Tom went to the park. They saw", "One day,", "Mom said: \"", "é"]


def write(name, text):
    path = os.path.join(TMP.name, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


TEMPLATE = write("template", "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
                 "{% if enable %}on{% endif %}{% if fail %}{{ raise_exception('no, thanks') }}{% endif %}")


def Server(*args, model=DEMO, **kw):
    return AnyServer(MOEBIUS, "-m", model, "--template", TEMPLATE, *args, **kw)


@functools.lru_cache(maxsize=None)
def generated_ids(text, n, model=DEMO):
    out = subprocess.run([MOEBIUS, "generate", "--cold", "-m", model, "-p", text, "-n", str(n), "--temp", "0", "--ids"],
                         capture_output=True, timeout=300, check=True).stdout
    return [int(i) for i in out.replace(b",", b" ").split()]


def ids_of(s, text, n, **more):
    answer = s.json(COMPLETIONS, {"prompt": text, "max_tokens": n, "temperature": 0, "return_tokens": True, **more})
    return answer["choices"][0]["token_ids"]


def chat(text, n=8, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": n, "temperature": 0, **more}


def endless(**more):
    """An answer that takes a while."""
    return {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "temperature": 0, **more}


def in_threads(functions):
    """Their results; raises what one of them raised."""
    results, errors = [None] * len(functions), []

    def call(i):
        try:
            results[i] = functions[i]()
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(functions))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


# ---- the page ----------------------------------------------------------------------------------------------------

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "web")


def test_the_page_is_the_folder_web_with_headers_that_keep_it_to_itself():
    types = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    with Server("--api-key", "secret") as s:  # which the page asks for itself
        for name in sorted(os.listdir(PAGE)):
            status, headers, body = s.ask("GET", "/web/" + name)
            with open(os.path.join(PAGE, name), "rb") as f:
                assert status == 200 and body == f.read(), name
            assert headers["Content-Type"] == types[os.path.splitext(name)[1]] + "; charset=utf-8", name
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'self';") and "frame-ancestors 'none'" in policy, policy
            assert "unsafe" not in policy and headers["X-Content-Type-Options"] == "nosniff", headers
            assert headers["X-Frame-Options"] == "DENY" and headers["Cache-Control"] == "no-cache", headers
            known = s.ask("GET", "/web/" + name, headers={"If-None-Match": headers["ETag"]})
            assert known[0] == 304 and known[2] == b"" and known[1]["ETag"] == headers["ETag"], known[0]
            assert s.ask("GET", "/web/" + name, headers={"If-None-Match": '"other"'})[0] == 200
            head = s.ask("HEAD", "/web/" + name)
            assert head[0] == 200 and int(head[1]["Content-Length"]) == len(body) and head[2] == b""
        front = s.ask("GET", "/")
        assert front[2] == s.ask("GET", "/web/index.html")[2] and "Content-Security-Policy" in front[1]
        for path in "/web/", "/web/none.js", "/web/../index.html", "/web/%2e%2e/meson.build", "/web/index.html/", "/web":
            assert s.ask("GET", path, headers={"x-api-key": "secret"})[0] == 404, path
        assert s.ask("POST", "/web/main.js", "")[0] in (401, 405)
        assert s.ask("GET", "/experts")[0] == 401
        assert s.ask("GET", "/", headers={"Origin": "http://example.com"})[0] == 403
    with Server("--no-page") as s:
        assert s.ask("GET", "/web/main.js")[0] == 404
        assert "Content-Security-Policy" not in s.ask("GET", "/")[1] and b"moebius" in s.ask("GET", "/")[2]


def test_the_page_has_no_inline_script_and_reads_no_markup():
    for name in os.listdir(PAGE):
        with open(os.path.join(PAGE, name), encoding="utf-8") as f:
            text = f.read()
        for word in "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser":
            assert word not in text, f"{name}: {word}"
        if name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*src=)|<style| style=| on\w+=|https?://", text), name
        if name.endswith((".js", ".css")):
            assert not re.search(r"(?:import|from|url\()\s*[\"']?(?:https?:)?//", text), f"{name} loads something from elsewhere"


class Watcher:
    """A client that looks at the experts."""

    def __init__(self, server):
        self.connection = server.connect(timeout=20)
        self.connection.request("GET", "/experts")
        self.response = self.connection.getresponse()
        assert self.response.status == 200 and self.response.headers["Content-Type"] == "text/event-stream"

    def next(self, wanted):
        """The data of the next event with this name."""
        name = None
        while line := self.response.readline():
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: ") and name == wanted:
                return json.loads(line[6:])
        raise AssertionError(f"the stream ended before an event {wanted}")

    def close(self):
        self.response.close()
        self.connection.close()


def n_chosen(picture):
    return sum(map(sum, picture["chosen"]))


def test_experts_are_counted_while_somebody_looks():
    with Server() as s:
        ids_of(s, "Once upon a time", 20)
        w = Watcher(s)
        assert w.next("state") == {"state": "ready"}
        model = w.next("model")
        assert model["places"] == ["place 0 (cpu:%d)" % int(re.search(r"cpu:(\d+)", model["places"][0]).group(1))], model
        layers = model["layers"]
        first = w.next("experts")
        assert n_chosen(first) == 0, "nobody looked before"
        assert [len(row) for row in first["where"]] == [layer["n_expert"] for layer in layers]
        assert set("".join(first["where"])) == {"0"} and first["expert_bytes"] == first["expert_all_bytes"]
        ids = ids_of(s, "One day, a", 30)
        pictures = [w.next("experts")]
        while pictures[-1]["running"]:
            pictures.append(w.next("experts"))
        n_prompt = pictures[-1]["prompt_tokens"] - first["prompt_tokens"]
        n_token = n_prompt + len(ids) - 1  # the last one is not computed
        for i, layer in enumerate(layers):
            n = sum(sum(p["chosen"][i]) for p in pictures)
            n_computed = n_token if i < len(layers) - 1 else len(ids)  # of a prompt the last layer computes one token
            assert n == n_computed * layer["n_used"], (i, n, n_prompt, len(ids))
        assert pictures[-1]["answer_tokens"] - first["answer_tokens"] == len(ids)
        two = Watcher(s)
        assert two.next("model") == model and two.next("experts")["ms"] >= pictures[-1]["ms"]
        two.close()
        w.close()
        s.wait_for_metric("moebius_requests_busy", 0)
        assert s.metric("moebius_clients_left_total") == 0, "who looks leaves when he likes"
        assert s.ask("HEAD", "/experts")[0] == 200


def test_experts_that_are_read_have_no_place():
    with Server("--expert-ram", "60%") as s:
        w = Watcher(s)
        ids_of(s, "Once upon a time", 30)
        picture = w.next("experts")
        while picture["running"] or not picture["answer_tokens"]:
            picture = w.next("experts")
        marks = "".join(picture["where"])
        assert set(marks) == {"0", "-"} and picture["misses"] > 0 and picture["read_bytes"] > 0, picture
        assert picture["expert_bytes"] < picture["expert_all_bytes"]
        w.close()


def test_a_server_ends_at_once_though_somebody_looks():
    with Server() as s:
        watchers = [Watcher(s) for _ in range(3)]
        for w in watchers:
            w.next("experts")
        start = time.monotonic()
        assert s.stop() == 0 and time.monotonic() - start < 3, time.monotonic() - start
        for w in watchers:
            assert b"experts" not in w.response.read()
            w.close()


def test_who_looks_is_told_of_models_that_come_and_go():
    folder = os.path.join(TMP.name, "two")
    os.mkdir(folder)
    for name in "a", "b":
        os.symlink(DEMO, os.path.join(folder, name + ".gguf"))
    with AnyServer(MOEBIUS, "--models", folder, "--template", TEMPLATE) as s:
        w = Watcher(s)
        assert w.next("state") == {"state": "unloaded"}
        for name in "a", "b", "a":
            s.json(COMPLETIONS, {"model": name, "prompt": "Once", "max_tokens": 2})
            assert w.next("model")["model"] == name
            w.next("experts")
        w.close()


# ---- answers -----------------------------------------------------------------------------------------------------

def check_answers_alone_and_together(*options):
    with Server(*options) as s:
        for text in STORIES:
            assert ids_of(s, text, 40) == generated_ids(text, 40), text
        jobs = [functools.partial(ids_of, s, STORIES[i % 6], 10 * (1 + i % 4)) for i in range(24)]
        for i, ids in enumerate(in_threads(jobs)):
            assert ids == generated_ids(STORIES[i % 6], 40)[:10 * (1 + i % 4)], STORIES[i % 6]
        assert s.metric("moebius_texts_most") > 1
        assert s.metric('moebius_requests_total{status="200"}') >= 30
        for _ in range(30 if options else 1):  # passes that others disturb say that guesses don't pay
            timings = s.json("/v1/completions", {"prompt": "The dog", "max_tokens": 60, "ignore_eos": True, "logit_bias": {"300": 100}})["timings"]
            if "draft_n" in timings:
                break
        assert ("draft_n" in timings) == bool(options), timings
        assert 0 < timings.get("draft_n_accepted", 1) <= timings.get("draft_n", 1), timings
        assert s.metric("moebius_guesses_right_total") <= s.metric("moebius_guesses_total")


def test_answers_are_those_of_generate_alone_and_together():
    check_answers_alone_and_together()
    check_answers_alone_and_together("--draft", 15)


def test_other_models_answer_as_generate_does():
    for name in "qwen3next", "gpt_oss":
        model = os.path.join(GOLDEN, name + ".gguf")
        with Server(model=model) as s:
            texts = ["a b", "a b c"]
            jobs = [functools.partial(ids_of, s, texts[i % 2], 12) for i in range(4)]
            for i, ids in enumerate(in_threads(jobs)):
                assert ids == generated_ids(texts[i % 2], 12, model), (name, i)


def test_streams_say_what_whole_answers_say():
    with Server() as s:
        whole = s.json(CHAT, chat("Once upon a time", 40))["choices"][0]["message"]["content"]
        events = s.events(CHAT, chat("Once upon a time", 40))
        assert "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"]) == whole
        assert len(events) > 10, "the stream came in few pieces"
        message = chat("Once upon a time", 40)
        answer = s.json("/v1/messages", message)
        assert answer["content"][0]["text"] == whole, answer
        deltas = [e["delta"].get("text", "") for e in s.events("/v1/messages", message)
                  if e["type"] == "content_block_delta"]
        assert "".join(deltas) == whole
        answer = s.json("/v1/responses", {"input": "Once upon a time", "max_output_tokens": 40, "temperature": 0})
        assert answer["output"][0]["content"][0]["text"] == whole, answer
        answer = s.json("/api/chat", {"messages": message["messages"], "stream": False,
                                      "options": {"temperature": 0, "num_predict": 40}})
        assert answer["message"]["content"] == whole, answer
        status, headers, text = s.ask("POST", "/api/generate", {"prompt": "Once upon a time", "raw": True,
                                                                "options": {"temperature": 0, "num_predict": 5}})
        assert status == 200 and headers["Content-Type"].startswith("application/x-ndjson"), headers
        assert json.loads(text.splitlines()[-1])["done"] is True


def test_llama_cpps_completion_says_what_others_say():
    """The own interface of llama.cpp's server, which editors and chat programs use."""
    with Server() as s:
        body = {"prompt": STORIES[0], "n_predict": 12, "temperature": 0, "n_probs": 2, "return_tokens": True}
        whole = s.json("/completion", body)
        assert whole["tokens"] == generated_ids(STORIES[0], 12) and whole["stop"] and whole["stop_type"] == "limit"
        assert whole["tokens_predicted"] == 12 and whole["timings"]["predicted_n"] == 12
        assert [len(t["top_logprobs"]) for t in whole["completion_probabilities"]] == [2] * 12
        events = s.events("/completion", body)
        assert "".join(e["content"] for e in events) == whole["content"]
        assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
        many = s.json("/completion", {**body, "prompt": STORIES[:3], "response_fields": ["tokens", "timings/prompt_n"]})
        assert [set(one) for one in many] == [{"tokens", "timings/prompt_n"}] * 3
        assert [one["tokens"] for one in many] == [generated_ids(text, 12) for text in STORIES[:3]]
        word = s.json("/completion", {**body, "stop": [" a"], "t_max_predict_ms": 60000})
        assert (word["stop_type"], word["stopping_word"]) == ("word", " a"), word


def test_choices_seeds_stops_and_logprobs():
    with Server() as s:
        ask = {"prompt": "Once upon a time", "max_tokens": 20, "seed": 7, "temperature": 1.0}
        two = s.json(COMPLETIONS, {**ask, "seed": None, "random_seed": 7, "n": 2})["choices"]
        assert [c["index"] for c in two] == [0, 1] and two[0]["text"] != two[1]["text"]
        assert s.json(COMPLETIONS, ask)["choices"][0]["text"] == two[0]["text"]
        greedy = s.json(COMPLETIONS, {**ask, "temperature": 0})["choices"][0]
        word = greedy["text"].split()[5]
        stopped = s.json(COMPLETIONS, {**ask, "temperature": 0, "stop": [word]})["choices"][0]
        assert stopped["finish_reason"] == "stop" and stopped["text"] == greedy["text"].split(word)[0]
        probs = s.json(CHAT, chat("The dog", 5, logprobs=True, top_logprobs=3))["choices"][0]["logprobs"]["content"]
        streamed = [e["choices"][0].get("logprobs") for e in s.events(CHAT, chat("The dog", 5, logprobs=True))]
        assert sum(len(p["content"]) for p in streamed if p) == 5 and all(p["refusal"] is None for p in streamed if p), streamed
        assert len(probs) == 5 and all(len(p["top_logprobs"]) == 3 and p["logprob"] <= 0 for p in probs)
        long = chat("The dog and the cat. " * 30, 5, stream_options={"include_usage": True})
        for is_cached in False, True:
            usage = s.events(CHAT, long)[-1]["usage"]
            assert usage["completion_tokens"] == 5
            assert (usage["prompt_tokens_details"]["cached_tokens"] > 64) == is_cached, usage


def test_prompts_are_not_computed_again_after_a_kill():
    cache = os.path.join(TMP.name, "prompts")
    ask = {"prompt": "The dog and the cat. " * 50, "max_tokens": 5, "temperature": 0, "return_tokens": True}
    with Server("--cache-dir", cache) as s:
        first = s.json(COMPLETIONS, ask)
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        until = time.monotonic() + 20
        while not s.metric("moebius_cache_disk_bytes"):
            assert time.monotonic() < until, "nothing is kept on disk"
            time.sleep(0.05)
        s.process.kill()
        s.process.wait()
        s.process.returncode = 0
    with Server("--cache-dir", cache) as s:
        second = s.json(COMPLETIONS, ask)
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 200, second["usage"]
        assert second["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]


def test_what_is_nested_deeply_needs_no_large_stack_of_the_system():
    """A thread that has too little of one ends the server."""
    little = write("little-stack", f'#!/bin/sh\nulimit -s 512\nexec "{MOEBIUS}" "$@"\n')
    os.chmod(little, 0o700)
    with AnyServer(little, "-m", DEMO, "--template", TEMPLATE) as s:
        for depth in 100, 500, 1000, 1500:
            for begin, end in ('{"allOf": [', "]}"), ('{"not": ', "}"), ('{"properties": {"a": ', '}, "required": ["a"]}'):
                schema = begin * depth + "{}" + end * depth
                body = '{"prompt": "a", "max_tokens": 2, "guided_json": ' + schema + "}"
                assert s.ask("POST", COMPLETIONS, body)[0] in (200, 400), (begin, depth)


def test_prompts_that_can_not_be_kept_on_disk_are_told():
    """And what is damaged there; answers are the same."""
    cache = os.path.join(TMP.name, "prompts on a bad drive")
    ask = {"prompt": "The dog and the cat. " * 50, "max_tokens": 5, "temperature": 0, "return_tokens": True}
    with Server("--cache-dir", cache) as s:
        first = s.json(COMPLETIONS, ask)
        until = time.monotonic() + 20
        while not s.metric("moebius_cache_disk_bytes"):
            assert time.monotonic() < until, "nothing is kept on disk"
            time.sleep(0.05)
        resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))  # as when the drive is full
        s.json(COMPLETIONS, dict(ask, prompt="The cat and the dog. " * 50))
        assert s.wait_for("warning.*the state of texts is not written for a minute: .*File too large", 20), s.log
    for part in glob.glob(os.path.join(cache, "*.part")):
        with open(part, "r+b") as f:
            f.seek(os.path.getsize(part) // 2)
            f.write(b"damaged")
    with Server("--cache-dir", cache) as s:
        assert s.json(COMPLETIONS, ask)["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]
        assert s.wait_for("warning.*the state of a text is left out: ", 20), s.log


def test_characters_come_whole():
    with Server() as s:
        ask = {"prompt": "é", "max_tokens": 60, "temperature": 2.0, "seed": 3, "top_k": 0, "top_p": 1, "min_p": 0}
        whole = s.json(COMPLETIONS, ask)["choices"][0]["text"]
        pieces = [e["choices"][0]["text"] for e in s.events(COMPLETIONS, ask)]
        assert "".join(pieces) == whole


def test_tokens_templates_and_counts():
    with Server("--var", "enable=true") as s:
        ids = s.json("/tokenize", {"content": "Once upon a time"})["tokens"]
        assert s.json("/detokenize", {"tokens": ids})["content"] == "Once upon a time"
        for token in 1e300, 1.0, "1", None, -1, 1 << 40:
            refused = s.json("/detokenize", {"tokens": [1, token]}, status=400)["error"]
            assert refused["message"].startswith("tokens: token 1 is ") and refused["param"] == "tokens", (token, refused)
        assert s.json("/detokenize", {"tokens": []})["content"] == ""
        pieces = s.json("/tokenize", {"content": "Once upon", "with_pieces": True})["tokens"]
        assert "".join(p["piece"] for p in pieces) == "Once upon"
        pieces = s.json("/tokenize", {"content": "\u20ac", "with_pieces": True})["tokens"]
        assert [p["piece"] for p in pieces] == [[byte] for byte in "\u20ac".encode()], pieces
        messages = {"messages": [{"role": "user", "content": "hello"}]}
        assert s.json("/apply-template", messages)["prompt"] == "<user>hello\non"
        off = {**messages, "chat_template_kwargs": {"enable": False}}
        assert s.json("/apply-template", off)["prompt"] == "<user>hello\n"
        own = {"messages": [{"role": "user", "content": "other"}], "add_generation_prompt": False, "bos_token": "x", "enable": True}
        assert s.json("/apply-template", {**messages, "chat_template_kwargs": own})["prompt"] == "<user>hello\non"
        assert s.wait_for("chat_template_kwargs.messages: ignored")
        n = s.json("/v1/messages/count_tokens", {**messages, "model": "x"})["input_tokens"]
        assert n == s.json(CHAT, {**messages, "max_tokens": 1})["usage"]["prompt_tokens"]
        counted = s.json("/v1/responses/input_tokens", {"input": "hello"})
        assert counted == {"object": "response.input_tokens", "input_tokens": n}, counted
        for path in "/apply-template", "/v1/messages/count_tokens":
            assert "messages" in s.json(path, {"messages": 5}, status=400)["error"]["message"], path
        refused = s.json(CHAT, {**messages, "chat_template_kwargs": {"fail": True}}, status=400)
        assert "no, thanks" in refused["error"]["message"]


def test_items_can_be_referred_to():
    """As clients do that suppose that responses are stored."""
    ask = {"input": [{"role": "user", "content": "Once upon a time"}], "max_output_tokens": 12, "temperature": 0}
    with Server() as s:
        item = s.json("/v1/responses", ask)["output"][0]
        told = s.events("/v1/responses", ask)[-1]["response"]["output"][0]
        assert told["content"] == item["content"] and told["id"] != item["id"]

        def goes_on(*items, **kw):
            return s.json("/v1/responses", {**ask, "input": [*ask["input"], *items, {"role": "user", "content": "Go on"}]}, **kw)
        whole = goes_on(item)
        for reference in {"type": "item_reference", "id": item["id"]}, {"id": told["id"]}, {"type": "item_reference", "id": told["id"]}:
            got = goes_on(reference)
            assert got["output"][0]["content"] == whole["output"][0]["content"], (got, whole)
            assert got["usage"]["input_tokens"] == whole["usage"]["input_tokens"], (got, whole)
        short = goes_on({"type": "item_reference", "id": "rs_gone"})
        assert short["usage"]["input_tokens"] < whole["usage"]["input_tokens"] and s.wait_for("reasoning that is not here any more")
        ask["store"] = False
        lost = {"type": "item_reference", "id": s.json("/v1/responses", ask)["output"][0]["id"]}
        assert "item_reference" in goes_on(lost, status=400)["error"]["message"]


def test_special_tokens_of_a_text_are_read_and_those_of_a_message_are_not():
    with Server(model=os.path.join(GOLDEN, "deepseek2.gguf")) as s:
        def n_prompt(path, **body):
            return s.json(path, {"max_tokens": 1, **body})["usage"]["prompt_tokens"]
        bos, eos = (s.json("/detokenize", {"tokens": [id]})["content"] for id in (509, 510))
        n = n_prompt(COMPLETIONS, prompt="The dog")
        assert n_prompt(COMPLETIONS, prompt=bos + "The dog") == n, "the token that begins a text comes once"
        assert n_prompt(COMPLETIONS, prompt="The dog" + eos) == n + 1
        raw = {"prompt": bos + "The dog" + eos, "raw": True, "stream": False, "options": {"num_predict": 1}}
        assert s.json("/api/generate", raw)["prompt_eval_count"] == n + 1
        assert n_prompt(CHAT, **chat("The dog" + eos)) > n_prompt(CHAT, **chat("The dog")) + 1


def test_penalties_count_the_prompt():
    text, options = "The cat was red. The cat was big. The cat was", ["--temp", "0", "--repeat-penalty", "1.6", "-n", "20", "--ids"]
    out = subprocess.run([MOEBIUS, "generate", "--cold", "-m", DEMO, "-p", text, *options], capture_output=True, check=True).stdout
    with Server() as s:
        assert ids_of(s, text, 20, repeat_penalty=1.6) == [int(i) for i in out.replace(b",", b" ").split()]


def test_an_answer_goes_on_behind_its_reasoning():
    template = write("thinks", "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
                     "{% if add_generation_prompt %}<assistant>{% if not off %}<think>\n{% endif %}{% endif %}")
    begun = {"role": "assistant", "content": "It is", "reasoning_content": "Let me see.\n"}
    ask = {"messages": [{"role": "user", "content": "Hello."}, begun], "continue_final_message": True}
    with AnyServer(MOEBIUS, "-m", DEMO, "--template", template) as s:
        assert s.json("/apply-template", ask)["prompt"] == "<user>Hello.\n<assistant><think>\nLet me see.\n</think>\n\nIt is"
        message = s.json(CHAT, {**ask, "max_tokens": 4, "temperature": 0})["choices"][0]["message"]
        assert message["content"] and "reasoning_content" not in message, message
        off = {**ask, "chat_template_kwargs": {"off": True}}
        assert s.json("/apply-template", off)["prompt"] == "<user>Hello.\n<assistant>It is"
        del begun["reasoning_content"]
        assert s.json("/apply-template", ask)["prompt"] == "<user>Hello.\n<assistant><think>\n\n</think>\n\nIt is"


def test_how_much_to_reason_is_said_in_the_template_s_words():
    """As Hy3 has them; what the client says itself stays, and so does what the server was started with."""
    template = write("efforts", "{% set e = reasoning_effort or 'no_think' %}{% if e not in ['no_think', 'low', 'high'] %}"
                     "{{ raise_exception('no such effort') }}{% endif %}{{ e }}{% for m in messages %}{{ m.content }}{% endfor %}")
    ask = {"messages": [{"role": "user", "content": "!"}]}

    def prompt(**more):
        return s.json("/apply-template", {**ask, **more})["prompt"]

    with AnyServer(MOEBIUS, "-m", DEMO, "--template", template) as s:
        assert prompt() == "no_think!" and prompt(reasoning_effort="low") == "low!"
        assert prompt(reasoning_effort="medium") == prompt(reasoning_effort="max") == "high!"
        assert prompt(reasoning_effort="none") == prompt(enable_thinking=False) == "no_think!"
        assert prompt(enable_thinking=True) == "high!"
        assert prompt(enable_thinking=True, chat_template_kwargs={"reasoning_effort": "low"}) == "low!"
        s.json("/apply-template", {**ask, "chat_template_kwargs": {"reasoning_effort": "medium"}}, status=400)
    with AnyServer(MOEBIUS, "-m", DEMO, "--template", template, "--var", 'reasoning_effort="low"') as s:
        assert prompt() == prompt(enable_thinking=True) == "low!" and prompt(reasoning_effort="high") == "high!"


def test_clients_are_told_of_no_folders():
    """Neither where a model has no template, nor where it can't be loaded or read; the log has them."""
    folder = folder_of_models("of nobody else", broken=b"GGUF")
    path = os.path.join(folder, "whole.gguf")
    shutil.copy(DEMO, path)
    with AnyServer(MOEBIUS, "--models", folder, "--expert-ram", "25%", "--cold", "--prefetch", "off") as s:
        messages = {"model": "whole", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        for route in CHAT, "/v1/messages", "/v1/messages/count_tokens", "/apply-template", "/api/chat", "/v1/responses":
            code, _, text = s.ask("POST", route, {**messages, "input": "hi"})
            assert code == 400 and b"whole.gguf has no chat template" in text, (route, text)
            assert b"of nobody" not in text, text
        assert s.wait_for(f"{path} has no chat template")
        refused = s.json(COMPLETIONS, {"model": "broken", "prompt": "a"}, status=400)["error"]
        assert refused["message"].startswith("model: broken.gguf") and refused["param"] == "model", refused
        for code, _, text in s.ask("POST", COMPLETIONS, {"model": "broken", "prompt": "a"}), s.ask("GET", "/plan/broken"), \
                s.ask("GET", "/models"):
            assert b"broken" in text and b"of nobody" not in text, text
        s.json(COMPLETIONS, {"model": "whole", "prompt": "a", "max_tokens": 1})
        os.truncate(path, 1 << 20)
        for route in COMPLETIONS, "/api/generate":
            code, _, text = s.ask("POST", route, {"model": "whole", "prompt": "Lily and Tom went", "max_tokens": 50})
            assert b"whole.gguf" in text and b"error" in text and b"of nobody" not in text, text
        assert s.wait_for(f"answer [^ ]*: .*{path}"), s.log


# ---- what the server says of itself ------------------------------------------------------------------------------

def test_facts():
    with Server("--alias", "tiny", "--ctx", "300") as s:
        assert s.json("/health") == s.json("/v1/health") == {"status": "ok"}
        m = s.json("/v1/models")["data"][0]
        assert m["id"] == "tiny" and m["context_length"] == m["meta"]["n_ctx"] == m["max_input_tokens"] == 300
        assert s.json("/v1/models/tiny")["id"] == "tiny"
        assert "tiny" not in s.json("/v1/models/other", status=404)["error"]["message"]
        assert "tiny%00" in s.json("/v1/models/tiny%00", status=404)["error"]["message"]
        assert s.json("/v1/models/tin%79")["id"] == "tiny" and s.ask("GET", "/health%00")[0] == 404
        props = s.json("/props")
        defaults = props["default_generation_settings"]
        assert defaults["n_ctx"] == 300 and defaults["params"]["top_p"] == 0.95 and defaults["params"]["n_predict"] == -1
        assert props["bos_token"] == "" and props["eos_token"] == "<|endoftext|>" and "messages" in props["chat_template"]
        assert props["endpoint_metrics"] and not props["endpoint_props"]
        assert len(s.json("/slots")) == 8
        assert s.json("/api/tags")["models"][0]["name"] == "tiny" and "version" in s.json("/api/version")
        shown = s.json("/api/show", {"model": "tiny"})
        assert shown["capabilities"] == ["completion", "tools"] and shown["parameters"] == "num_ctx 300", shown
        running = s.json("/api/ps")["models"][0]
        assert running["context_length"] == 300 and running["size_vram"] == 0 and int(running["expires_at"][:4]) > 2100, running
        loaded = s.json("/api/chat", {"model": "tiny"})
        assert loaded["message"]["content"] == "" and loaded["done"] and loaded["done_reason"] == "load" and loaded["created_at"]
        assert s.json("/api/generate", {"model": "tiny"})["response"] == ""
        assert b"moebius" in s.ask("GET", "/")[2]
        assert s.json("/v1/embeddings", {"input": "x"}, status=501)["error"]["message"]
        assert "no embeddings" in s.json("/api/embed", {"input": "x"}, status=501)["error"]
        status, headers, text = s.ask("HEAD", "/v1/models")
        assert status == 200 and not text and int(headers["Content-Length"]) > 100
        assert s.json(CHAT, chat("hi", model="gpt-5"))["model"] == "tiny"
        for line in s.ask("GET", "/metrics")[2].decode().splitlines():
            assert line.startswith("# ") or re.fullmatch(r'[a-zA-Z_:]+(\{\w+="[\w.]+"\})? [-+.\de]+', line), line


def test_metrics_know_places():
    with Server("--devices", "cpu:1,cpu:1", "--split", "cache:25%") as s:
        s.json(CHAT, chat("hi", max_tokens=4))
        found = dict(re.findall(r"moebius_place_(\S+) (\S+)", s.ask("GET", "/metrics")[2].decode()))
        assert all(float(found[f'{key}{{place="{i}"}}']) > 0 for key in ("rows_total", "compute_seconds_total") for i in (0, 1))
        assert float(found['missed_total{place="0"}']) == float(found['found_total{place="1"}']) > 0, found
        assert float(found['moved_bytes_total{place="0"}']) > 0 == float(found['moved_bytes_total{place="1"}']), found
    with Server() as s:
        assert b"moebius_place_" not in s.ask("GET", "/metrics")[2]


def test_paths_and_methods_that_lead_nowhere():
    with Server() as s:
        assert "error" in s.json("/v1/nothing", {}, status=404)
        status, headers, text = s.ask("GET", CHAT)
        assert status == 405 and "POST" in headers["Allow"] and json.loads(text)["error"]["message"]
        assert s.ask("DELETE", "/v1/models")[0] == 405
        assert s.json("/v1/messages/nothing", {}, status=404)["type"] == "error"
        assert isinstance(s.json("/api/nothing", {}, status=404)["error"], str)
        for path, better in ("/chat/completions", CHAT), ("/v1/v1/messages", "/v1/messages"), ("/v1/api/chat", "/api/chat"):
            told = s.json(path, {}, status=404)["error"]
            assert f"at {better}:" in (told if isinstance(told, str) else told["message"]), told


# ---- what is refused ---------------------------------------------------------------------------------------------

def test_bodies_that_are_refused():
    with Server("--max-body", "1M") as s:
        for body, word in (b"", "empty"), (b"{", "JSON"), (b"[]", "object"), (b'{"a":"\xff"}', "decode"), \
                (b"[" * 10000, "depth"), (b'{"a":' * 10000, "depth"), (b'{"a":1,"a":2}', "duplicate"):
            message = s.json(CHAT, body, status=400)["error"]["message"]
            assert word in message, (body[:20], message)
        for body, word in (chat("hi", temperature="hot"), "temperature"), \
                ({**chat("hi"), "n": 1000}, "n"), ({"prompt": 5}, "messages"), (chat("hi", logit_bias={"9999999": 1}), "logit_bias"):
            error = s.json(CHAT, body, status=400)["error"]
            assert word in error["message"] and error["param"] == word, error
        for path, body, says in ("/tokenize", {"content": "a", "model": 5}, "model: 5; expected a text"), \
                ("/tokenize", {"content": "a", "with_pieces": 1}, "with_pieces: 1; expected true or false"), \
                ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}, "add_special_tokens: \"no\"; expected"), \
                ("/detokenize", {"tokens": [1], "model": "a\0"}, "model: \"a\"; expected a text without zero bytes"), \
                ("/api/show", {"model": 5}, "model: 5; expected a text"), ("/api/show", {"name": []}, "name: an empty list;"), \
                ("/api/generate", {"prompt": "a", "raw": 1}, "raw: 1; expected true or false"), \
                (CHAT, {"messages": [{"role": "assistant", "content": "a", "prefix": "yes"}]}, "messages[0].prefix: \"yes\"; expected"), \
                (CHAT, chat("a", response_format={"type": "json_schema", "json_schema": {"strict": 1, "schema": {}}}),
                 "response_format.json_schema.strict: 1; expected true or false"), \
                (CHAT, chat("a", structured_outputs={"json_object": "x"}), "structured_outputs.json_object: \"x\"; expected"):
            error = s.json(path, body, status=400)["error"]
            assert says in (error if isinstance(error, str) else error["message"]), (says, error)
        assert "max_tokens" in s.json("/v1/messages", {"messages": [], "max_tokens": -5}, status=400)["error"]["message"]
        for n in 2147483647, (1 << 63) - 1, 1 << 64:
            assert s.json(COMPLETIONS, {"prompt": "x", "max_tokens": n, "seed": (1 << 64) - 1, "stop": " "})
        assert s.json(COMPLETIONS, {"prompt": [10**6]}, status=400)
        ask = {**chat("hi", 2), "thread": {"type": "create"}}
        assert s.json("/v1/messages", ask)["content"]
        lost = s.json("/v1/messages", {**ask, "thread": {"type": "continue", "previous_message_id": "msg_1"}}, status=404)["error"]
        assert lost["type"] == "not_found_error" and lost["details"] == {"error_code": "thread_not_found"}, lost
        assert s.json("/v1/messages", {**ask, "thread": {"type": "end"}}, status=400)["error"]["message"].startswith("thread.type:")
        long = s.json(CHAT, chat("word " * 2000), status=400)["error"]
        assert long["code"] == "context_length_exceeded", long
        long = s.json("/v1/messages", {**chat("word " * 2000)}, status=400)["error"]
        assert "prompt is too long" in long["message"], long
        assert ids_of(s, "The dog", 10) == generated_ids("The dog", 10)


def test_a_body_of_two_lengths_is_no_second_request():
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with Server() as s:
        for path in b"POST /v1/completions", b"GET /health":
            for header in b"Content-Length: 0\r\nContent-Length: %d" % len(hidden), b"Content-Length: 5\r\nTransfer-Encoding: chunked":
                with s.socket() as c:
                    c.sendall(path + b" HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n" +
                              (b"0\r\n\r\n" if b"chunked" in header else b"") + hidden)
                    answer = c.makefile("rb").read()  # to the end
                assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1, answer


def test_long_bodies():
    with Server("--max-body", "1M") as s:
        def send(n, expect=""):
            c = s.socket()
            c.sendall(post(CHAT, b"", n, expect))
            piece, sent = b"x" * (1 << 20), 0
            try:
                while not expect and sent < n:
                    c.sendall(piece)
                    sent += len(piece)
                answer = c.recv(65536)
            except ConnectionError:
                answer = b""
            c.close()
            return answer, sent
        answer, _ = send(3 << 20)
        assert answer.startswith(b"HTTP/1.1 413 ") and b"1048576" in answer, answer
        assert send(100 << 20, "Expect: 100-continue\r\n")[0].startswith(b"HTTP/1.1 413 ")
        answer, sent = send(100 << 20)
        assert not answer and sent < 64 << 20, "the server reads on and on"
        assert s.json("/health")


def test_bodies_of_many_values():
    with Server() as s:
        few = b'{"a": "\\",[{' + b"," * 1200000 + b'", "x": [' + b"0," * 900000 + b"0]}"
        assert b"messages: missing" in s.ask("POST", CHAT, few)[2]
        status, _, text = s.ask("POST", CHAT, b'{"x": [' + b"[]," * 340000 + b"[" * 330000)
        assert status == 400 and b"more than 1000000 values" in text, text


def test_keys():
    file = write("keys", "# two\nfirst-key\n\n  second-key  \n")
    with Server("--api-key-file", file) as s:
        assert s.json("/health") and s.ask("GET", "/")[0] == 200
        status, headers, text = s.ask("GET", "/v1/models")
        assert status == 401 and headers["WWW-Authenticate"] == "Bearer" and b"key" in text
        for key in "first-ke", "first-keys", "", "# two":
            assert s.ask("POST", CHAT, chat("hi"), {"Authorization": "Bearer " + key})[0] == 401, key
        assert s.json("/v1/models", headers={"Authorization": "Bearer first-key"})
        assert s.json("/v1/messages", chat("hi"), headers={"x-api-key": "second-key"})
        assert s.json("/v1/messages", chat("hi"), status=401)["error"]["type"] == "authentication_error"
        os.rename(write("keys.new", "third-key\n"), file)
        s.process.send_signal(signal.SIGHUP)
        assert s.wait_for("keys were read again"), s.log
        assert s.ask("GET", "/v1/models", None, {"x-api-key": "first-key"})[0] == 401
        assert s.json("/v1/models", headers={"x-api-key": "third-key"})
        write("keys", "# none\n")
        s.process.send_signal(signal.SIGHUP)
        assert s.wait_for("keys stay as they are"), s.log
        assert s.json("/v1/models", headers={"x-api-key": "third-key"})
        assert "third-key" not in s.log and "first-key" not in s.log


def test_hosts_and_origins():
    with Server() as s:
        for host in "localhost", "localhost:99", "127.0.0.1:8080", "[::1]:80", "a.localhost":
            assert s.ask("GET", "/health", None, {"Host": host})[0] == 200, host
        for host in "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8080", "":
            assert s.ask("GET", "/health", None, {"Host": host})[0] in (400, 403), host
        assert s.ask("GET", "/v1/models", None, {"Origin": "https://evil.example"})[0] == 403
        own = {"Origin": f"http://127.0.0.1:{s.port}", "Host": f"127.0.0.1:{s.port}"}
        status, headers, _ = s.ask("GET", "/v1/models", None, own)
        assert status == 200 and "Access-Control-Allow-Origin" not in headers
    with Server("--cors", "https://good.example") as s:
        status, headers, _ = s.ask("OPTIONS", CHAT, None, {"Origin": "https://good.example"})
        assert status == 204 and headers["Access-Control-Allow-Origin"] == "https://good.example"
        assert "POST" in headers["Access-Control-Allow-Methods"] and headers["Access-Control-Allow-Headers"]
        headers = s.ask("POST", CHAT, chat("hi"), {"Origin": "https://good.example"})[1]
        assert headers["Access-Control-Allow-Origin"] == "https://good.example"
        assert s.ask("OPTIONS", CHAT, None, {"Origin": "https://evil.example"})[0] == 403
    assert "OPTIONS /v1/chat/completions 403" in s.log and " 204, " not in s.log, s.log


# ---- clients that misbehave ---------------------------------------------------------------------------------------

def test_a_client_that_leaves_ends_its_text():
    with Server("--ctx", "100000", "--texts", "1") as s:
        for stream in True, False:
            before = s.metric('moebius_texts_ended_total{end="cancelled"}')
            c = s.socket()
            c.sendall(post(COMPLETIONS, json.dumps(endless(max_tokens=50000, stream=stream))))
            if stream:
                assert c.recv(100).startswith(b"HTTP/1.1 200")
            s.wait_for_metric("moebius_texts_running", 1)
            c.close()
            s.wait_for_metric('moebius_texts_ended_total{end="cancelled"}', before + 1, 5)
            s.wait_for_metric("moebius_requests_busy", 0)
        assert s.metric("moebius_clients_left_total") == 2
        assert ids_of(s, "The dog", 10) == generated_ids("The dog", 10)
        assert s.wait_for(r"completions 499, .*the client left"), s.log


def test_a_lost_gpu_fails_each_text_and_the_server_stays():
    gpus = json.loads(subprocess.run([MOEBIUS, "devices", "--json"], capture_output=True, check=True).stdout)["gpus"]
    if not gpus or not gpus[0]["usable"]:
        return
    with Server("--devices", "vulkan:0", env={**os.environ, "MOEBIUS_VULKAN_LOSE": "30", "MOEBIUS_VULKAN_PRODUCTS": "float"}) as s:
        for status, _, text in in_threads([lambda: s.ask("POST", COMPLETIONS, endless())] * 3):
            assert status == 500 and b"the device was lost" in text, text
        assert s.ask("POST", COMPLETIONS, endless())[0] == 500
        assert s.ask("GET", "/health")[0] == 200
        s.stop()
        assert s.log.count("was lost: nothing is computed there") == 1, s.log


def test_the_queue_has_a_bound():
    with Server("--ctx", "100000", "--texts", "1", "--queue", "1") as s:
        sockets = [s.socket() for _ in range(2)]
        for i, c in enumerate(sockets):
            c.sendall(post(COMPLETIONS, json.dumps(endless(max_tokens=50000, stream=True))))
            s.wait_for_metric("moebius_texts_waiting", i)
            s.wait_for_metric("moebius_texts_running", 1)
        status, headers, text = s.ask("POST", CHAT, chat("hi"))
        assert status == 503 and int(headers["Retry-After"]) >= 1 and json.loads(text)["error"]["message"]
        assert s.ask("POST", "/v1/messages", chat("hi", stream=True))[0] in (503, 529)
        assert s.metric("moebius_texts_refused_total") == 2
        for c in sockets:
            c.close()
        s.wait_for_metric("moebius_texts_running", 0)
        assert s.json(CHAT, chat("hi"))


def test_a_key_that_floods_leaves_room_for_others():
    keys = write("two-keys", "first-key\nsecond-key\n")
    with Server("--api-key-file", keys, "--per-key", "2", "--ctx", "100000") as s:
        first, second = {"Authorization": "Bearer first-key"}, {"x-api-key": "second-key"}
        sockets = [s.socket() for _ in range(2)]
        for c in sockets:
            c.sendall(post(COMPLETIONS, json.dumps(endless(max_tokens=50000, stream=True)), headers="x-api-key: first-key\r\n"))
            assert c.recv(100).startswith(b"HTTP/1.1 200")
        assert s.json(CHAT, {**chat("hi"), "n": 3}, status=400, headers=first)["error"]["param"] == "n"
        for path in CHAT, "/v1/messages":
            status, headers, text = s.ask("POST", path, chat("hi", stream=True), first)
            assert status == 429 and int(headers["Retry-After"]) >= 1, (status, text)
            assert json.loads(text)["error"]["type"] == "rate_limit_error", text
        sockets[0].close()
        until = time.monotonic() + 10
        while s.ask("POST", CHAT, chat("hi"), first)[0] != 200:
            assert time.monotonic() < until, "an answer that is over still counts"
            time.sleep(0.05)
        two = {**chat("hi"), "n": 2}
        assert s.ask("POST", CHAT, two, first)[0] == 429
        assert s.ask("POST", CHAT, two, second)[0] == 200, "the other key has its own"
        sockets[1].close()


def test_slow_and_half_clients_harm_nobody():
    with Server("--timeout", "2", "--ctx", "100000") as s:
        half = s.socket()
        half.sendall(post(CHAT, b"{", 100))
        nothing = s.socket()
        trickle = s.socket()
        deaf = s.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(post(COMPLETIONS, json.dumps(endless(max_tokens=90000, stream=True, n=8, logprobs=5))))
        start = time.monotonic()
        closed = False
        while time.monotonic() - start < 10 and not closed:
            try:
                trickle.sendall(b"G")
                trickle.setblocking(False)
                closed = trickle.recv(10) == b""
            except BlockingIOError:
                pass
            except ConnectionError:
                closed = True
            trickle.setblocking(True)
            assert ids_of(s, "The dog", 5) == generated_ids("The dog", 5)
            time.sleep(0.1)
        assert closed and time.monotonic() - start > 1.5, "a client that sends byte by byte stays"
        for c in half, nothing:
            c.close()
        s.wait_for_metric("moebius_requests_busy", 0, 15)
        s.wait_for_metric("moebius_texts_running", 0, 15)
        deaf.close()
        trickle.close()


def test_many_connections_and_requests():
    with Server() as s:
        idle = [s.socket() for _ in range(100)]
        c = s.connect()
        for _ in range(1000):
            assert s.ask("GET", "/health", connection=c)[0] == 200
        for i in range(100):
            assert s.ask("POST", CHAT, b'{"messages": 5}', connection=c)[0] == 400
        for i in idle:
            i.close()
        garbage = s.socket()
        garbage.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500) + b"\r\n\r\n")
        assert b"200" not in garbage.recv(1000)[:15]
        headers = s.socket()
        headers.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 200000)
        try:
            assert headers.recv(1000)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 413", b"")
        except ConnectionError:
            pass
        assert s.json("/health")


def test_clients_that_vanish_leave_room_for_others():
    with Server("--connections", "16", "--timeout", "3600") as s:
        beginnings = [b"GET /health HTTP/1.1\r\nHost: localhost\r\n", post(CHAT, b"{", 100), b"",
                      post(COMPLETIONS, json.dumps(endless(max_tokens=60, stream=True))), post(CHAT, b"{")]
        for i in range(100):
            c = s.socket()
            c.sendall(beginnings[i % len(beginnings)])
            time.sleep(0.003 * (i % 3))
            c.close()
        assert ids_of(s, "The dog", 5) == generated_ids("The dog", 5)
        s.wait_for_metric("moebius_requests_busy", 0)


# ---- operation ---------------------------------------------------------------------------------------------------

def test_sigterm_lets_answers_end():
    s = Server("--ctx", "100000")
    c = s.socket()
    c.sendall(post(COMPLETIONS, json.dumps(endless(max_tokens=300, stream=True))))
    assert c.recv(100).startswith(b"HTTP/1.1 200")
    start = time.monotonic()
    code = s.stop()
    text = b""
    while piece := c.recv(65536):
        text += piece
    assert code == 0 and b"data: [DONE]" in text and text.endswith(b"0\r\n\r\n"), (code, text[-300:], s.log)
    assert time.monotonic() - start < 5.5


def test_sigterm_cancels_what_takes_too_long():
    s = Server("--ctx", "1000000")
    c = s.socket()
    c.sendall(post(COMPLETIONS, json.dumps(endless(max_tokens=900000, stream=True))))
    assert c.recv(100).startswith(b"HTTP/1.1 200")
    other = s.socket()
    other.sendall(post(COMPLETIONS, json.dumps(endless(max_tokens=900000))))
    s.wait_for_metric("moebius_texts_running", 2)
    drain = threading.Thread(target=lambda: [None for _ in iter(lambda: c.recv(65536), b"")])
    drain.start()
    start = time.monotonic()
    assert s.stop() == 0, s.log
    assert 4.5 < time.monotonic() - start < 9
    drain.join()
    assert b" 503 " in other.recv(1000)[:20]


def test_a_second_signal_ends_at_once():
    s = Server("--ctx", "1000000")
    c = s.socket()
    c.sendall(post(COMPLETIONS, json.dumps(endless(max_tokens=900000, stream=True))))
    assert c.recv(100).startswith(b"HTTP/1.1 200")
    start = time.monotonic()
    s.process.send_signal(signal.SIGINT)
    assert s.wait_for("ending"), s.log
    try:
        s.socket()
        assert False, "a server that is ending takes connections"
    except ConnectionRefusedError:
        pass
    s.process.send_signal(signal.SIGINT)
    assert s.process.wait(5) == 128 + signal.SIGINT and time.monotonic() - start < 3
    s.process.stderr.close()


def refused(*args, **kw):
    r = subprocess.run([MOEBIUS, "serve", *args], stderr=subprocess.PIPE, timeout=60, **kw)
    assert r.returncode, r
    return r.stderr.decode()


def test_what_can_not_start_says_why():
    with Server() as s:
        assert f"port {s.port} of 127.0.0.1 is in use" in refused("-m", DEMO, "--port", str(s.port))
    assert "-m FILE" in refused()
    assert "nowhere.gguf" in refused("-m", "nowhere.gguf", "--port", "0")
    assert "has no key" in refused("-m", DEMO, "--port", "0", "--api-key-file", write("empty", "\n"))
    assert "--host" in refused("-m", DEMO, "--host", "no.such.name.invalid")
    assert "--draft and --car" in refused("-m", DEMO, "--port", "0", "--draft", "3", "--car", "0.5")
    for origin in "example.org", "https://example.org/", "":
        assert "expected an origin" in refused("-m", DEMO, "--port", "0", "--cors", origin)
    for template in "gone", write("bad.jinja", "{% if %}"):
        assert template in refused("-m", DEMO, "--port", "0", "--template", template)


def test_log_lines_for_machines():
    with Server("--log-json") as s:
        s.json(CHAT, chat("secret words", made_up_field=1))
        assert s.wait_for('"path":"/v1/chat/completions"')
        assert s.ask("GET", "/a%ff%0a")[0] == 404
        time.sleep(0.1)
        s.stop()
        lines = [json.loads(line) for line in s.log.splitlines()]
        assert lines[0]["message"].startswith("plan: ") and lines[0]["level"] == "info" and lines[0]["time"], lines[0]
        assert [x["status"] for x in lines if x.get("path") == "/a\ufffd\n"] == [404], s.log
        call = [x for x in lines if x.get("path") == CHAT][0]
        assert call["status"] == 200 and call["answer_tokens"] == 8 and call["prompt_tokens"] > 0
        assert any("made_up_field" in x.get("message", "") for x in lines), s.log
        assert "secret" not in s.log


def test_a_log_that_nobody_reads_holds_nobody_up():
    for more, lost in ((), r"^warning: nobody read the log: \d+ of its"), (("--log-json",), r'^{"level":"warning","message":"nobody read'):
        with Server(*more) as s:
            with contextlib.closing(s.connect(timeout=20)) as c:  # its pipe has room for 64 KiB
                for _ in range(1000):
                    assert s.ask("GET", "/" + 99 * "nothing", connection=c)[0] == 404
                    if more:
                        break
                for _ in range(3 if more else 0):
                    assert s.ask("GET", "/" + 50000 * "n", connection=c)[0] == 404
            assert len(ids_of(s, "The dog", 4)) == 4
            assert s.wait_for("GET") and not re.search(lost, s.log, re.M), s.log[-200:]
            s.ask("GET", "/nothing")
            assert s.wait_for("(?m)" + lost), s.log[-200:]


def test_a_socket_of_systemd():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]

    fd = listener.fileno()
    # LISTEN_PID must be the server's own number, which a shell knows before it becomes the server
    command = f'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&{fd}'
    p = subprocess.Popen(["sh", "-c", command, "sh", MOEBIUS, "serve", "--cold", "-m", DEMO], pass_fds=(fd,),
                         stderr=subprocess.PIPE)
    listener.close()
    s = AnyServer.__new__(AnyServer)
    s.process, s.log, s.port = p, "", port
    assert s.wait_for("listening at"), s.log
    assert s.json("/health")
    assert s.stop() == 0


def test_several_models_are_loaded_when_asked_for():
    folder = os.path.join(TMP.name, "models")
    os.mkdir(folder)
    os.symlink(DEMO, os.path.join(folder, "demo.gguf"))
    for name in "qwen3next", "gpt_oss":
        shutil.copy(os.path.join(GOLDEN, name + ".gguf"), folder)
    with AnyServer(MOEBIUS, "--models", folder, "--idle", "1") as s:
        assert [m["id"] for m in s.json("/v1/models")["data"]] == ["demo", "gpt_oss", "qwen3next"]

        def ask(name, text):
            path = DEMO if name == "demo" else os.path.join(GOLDEN, name + ".gguf")
            assert ids_of(s, text, 6, model=name) == generated_ids(text, 6, path), name

        in_threads([functools.partial(ask, n, "a b") for n in ["demo", "gpt_oss", "qwen3next"] * 4])
        message = s.json(COMPLETIONS, {"model": "other", "prompt": "x"}, status=404)["error"]["message"]
        assert "other" in message
        until = time.monotonic() + 10
        while any(m["state"] != "unloaded" for m in s.json("/v1/models")["data"]):
            assert time.monotonic() < until, "the model stays"
            time.sleep(0.1)
        ask("demo", "The dog")
        assert s.json("/api/generate", {"model": "demo:latest", "prompt": "x", "raw": True, "stream": False})["model"] == "demo"
        s.json("/api/generate", {"model": "demo:other", "prompt": "x"}, status=404)
        s.json(COMPLETIONS, {"model": "demo:latest", "prompt": "x"}, status=404)


# ---- models that come and go when told to ------------------------------------------------------------------------

def folder_of_models(name, **files):
    """A folder with a file for each name: links to DEMO (None), or these bytes."""
    folder = os.path.join(TMP.name, name)
    os.mkdir(folder)
    for model, content in files.items():
        path = os.path.join(folder, model + ".gguf")
        if content is None:
            os.symlink(DEMO, path)
        else:
            with open(path, "wb") as f:
                f.write(content)
    return folder


def status(s, name):
    [m] = [m for m in s.json("/models")["data"] if m["id"] == name]
    return m["status"]


def wait_for_status(s, name, value, seconds=20):
    until = time.monotonic() + seconds
    while status(s, name)["value"] != value:
        assert time.monotonic() < until, f"{name} is {status(s, name)}, expected {value}"
        time.sleep(0.02)
    return status(s, name)


def change(s, what, name, code=200, **more):
    answer = s.json("/models/" + what, {"model": name, **more}, status=code)
    assert code != 200 or answer == {"success": True}, answer
    return code == 200 or answer["error"]["message"]


def resident_bytes(s):
    with open(f"/proc/{s.process.pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_models_are_loaded_and_unloaded_when_told_to():
    with open(DEMO, "rb") as f:
        broken = f.read(100000)
    folder = folder_of_models("told", a=None, b=None, broken=broken)
    os.symlink(DEMO, os.path.join(folder.encode(), b"\xff.gguf"))  # no UTF-8
    with AnyServer(MOEBIUS, "--models", folder, "--api-key", "secret") as s:
        for path in "/models", "/plan", "/receipts":
            assert s.ask("GET", path)[0] == 401, path
        assert s.ask("POST", "/models/load", {"model": "a"})[0] == 401
    with AnyServer(MOEBIUS, "--models", folder) as s:
        assert s.json("/models") == s.json("/v1/models")
        assert [status(s, name) for name in ("a", "b", "broken")] == 3 * [{"value": "unloaded"}]
        assert "not loaded" in change(s, "unload", "a", 400)
        before = resident_bytes(s)
        change(s, "load", "\\xff")
        wait_for_status(s, "\\xff", "loaded")
        assert s.json("/props")["model_path"] == "\ufffd.gguf"
        for name in "a", "b", "a":
            change(s, "load", name)
            wait_for_status(s, name, "loaded")
            assert s.json("/props")["model_alias"] == name
            change(s, "load", name)  # is there
            assert [status(s, x)["value"] for x in "ab"].count("loaded") == 1
        assert ids_of(s, "The dog", 4, model="a") == generated_ids("The dog", 4)
        change(s, "unload", "a", when_done=True)
        wait_for_status(s, "a", "unloaded")
        assert "chat_template" not in s.json("/props")
        if os.environ.get("MOEBIUS_TEST_BUILD") == "release":  # the model's 30 MB are given back
            assert resident_bytes(s) - before < 15e6, (before, resident_bytes(s))
        assert ids_of(s, "The dog", 4, model="a") == generated_ids("The dog", 4)  # comes back when it is asked
        assert ids_of(s, "The dog", 4, model="\\xff") == generated_ids("The dog", 4)
        change(s, "load", "broken")
        until = time.monotonic() + 20
        while not status(s, "broken").get("failed"):
            assert time.monotonic() < until, status(s, "broken")
        assert "broken.gguf: key" in status(s, "broken")["error"]
        for body, says in ({"model": "none"}, "no model none"), ({"model": 3}, "model: expected"), ({}, "model: expected"), \
                ({"model": "a", "when_done": "yes"}, "when_done: expected"), ({"model": "a\0"}, "model: expected"):
            for path in "/models/load", "/models/unload":
                got, _, text = s.ask("POST", path, body)
                assert got in (400, 404) and says in json.loads(text)["error"]["message"], (body, text)
        assert s.ask("GET", "/models/load")[0] == 405 and s.ask("POST", "/models", {})[0] == 405
        assert s.ask("POST", "/models/load", "[1]")[0] == s.ask("POST", "/models/unload", "")[0] == 400


def test_a_model_with_answers_goes_after_them_or_not_at_all():
    folder = folder_of_models("busy", a=None, b=None)
    with AnyServer(MOEBIUS, "--models", folder, "--ctx", "100000") as s:
        got = {}
        talker = s.connect()
        talker.request("POST", COMPLETIONS, json.dumps(endless(model="a", prompt="Once", max_tokens=90000, stream=True)))
        answer = talker.getresponse()
        answer.read(1)
        assert "1 answer under way" in change(s, "unload", "a", 409)
        change(s, "load", "b")  # waits until a has gone
        assert status(s, "b") == {"value": "loading", "waits": True}
        assert "model b is being loaded" in change(s, "load", "a", 409)
        change(s, "unload", "b")  # waits no more
        assert status(s, "b") == {"value": "unloaded"}
        change(s, "unload", "a", when_done=True)
        assert status(s, "a") == {"value": "unloading"}
        change(s, "load", "a")  # stays after all
        assert status(s, "a") == {"value": "loaded"}
        change(s, "unload", "a", when_done=True)
        late = threading.Thread(target=lambda: got.update(late=ids_of(s, "The dog", 4, model="a")))
        late.start()  # comes too late for this time, and is answered after the next load
        time.sleep(0.2)
        assert "late" not in got and status(s, "a") == {"value": "unloading"}
        talker.sock.shutdown(socket.SHUT_RDWR)  # the client leaves, and its answer ends
        talker.close()
        late.join(20)
        assert got["late"] == generated_ids("The dog", 4)
        change(s, "unload", "a", when_done=True)  # it may have been told before it has ended
        wait_for_status(s, "a", "unloaded")


def test_a_model_that_requests_wait_for_is_loaded():
    folder = folder_of_models("waited", a=None, b=None)
    with AnyServer(MOEBIUS, "--models", folder, "--ctx", "100000") as s:
        got = {}
        talker = s.connect()
        talker.request("POST", COMPLETIONS, json.dumps(endless(model="a", prompt="Once", max_tokens=90000, stream=True)))
        talker.getresponse().read(1)
        waiter = threading.Thread(target=lambda: got.update(waiter=ids_of(s, "The dog", 4, model="b")))
        waiter.start()
        s.wait_for_metric("moebius_requests_waiting_for_models", 1)
        assert "1 request waits for model b" in change(s, "unload", "b", 409)
        assert status(s, "b") == {"value": "loading", "waits": True}
        talker.sock.shutdown(socket.SHUT_RDWR)
        talker.close()
        waiter.join(20)
        assert got["waiter"] == generated_ids("The dog", 4)


def test_who_has_left_waits_for_no_model():
    folder = folder_of_models("left", a=None, b=None)
    with AnyServer(MOEBIUS, "--models", folder, "--ctx", "100000") as s:
        talker = s.connect()
        talker.request("POST", COMPLETIONS, json.dumps(endless(model="a", prompt="Once", max_tokens=90000, stream=True)))
        talker.getresponse().read(1)
        waiting = []
        for _ in range(20):  # more than there are workers
            waiting.append(s.connect())
            waiting[-1].request("POST", COMPLETIONS, json.dumps(dict(model="b", prompt="x", max_tokens=4)))
        wait_for_status(s, "b", "loading")
        for c in waiting:
            c.sock.shutdown(socket.SHUT_RDWR)
            c.close()
        wait_for_status(s, "b", "unloaded")
        assert s.json("/tokenize", {"model": "a", "content": "Once"}, connection=s.connect(20))["tokens"]
        talker.sock.shutdown(socket.SHUT_RDWR)
        talker.close()


def test_loading_tells_how_far_it_is():
    with Server() as s:
        name = s.json("/models")["data"][0]["id"]
        seen = []
        for _ in range(10):
            change(s, "unload", name)
            wait_for_status(s, name, "unloaded")
            change(s, "load", name)
            while (now := status(s, name))["value"] != "loaded":
                assert now["value"] == "loading", now
                seen.append(now.get("progress", 0))
        assert all(0 <= p <= 1 for p in seen) and seen, seen


def test_answers_are_right_while_models_come_and_go_and_plans_are_made():
    folder = folder_of_models("restless", a=None, b=None)
    over = threading.Event()

    def answer():
        for i in range(6):
            text = STORIES[i % len(STORIES)]
            assert ids_of(s, text, 12, model="ab"[i % 2]) == generated_ids(text, 12)

    def disturb():
        for i in range(10**6):
            if over.is_set():
                return
            got, _, text = s.ask("POST", "/models/" + ("load", "unload")[i % 2], {"model": "ab"[i // 2 % 2], "when_done": True})
            assert got in (200, 400, 409), text
            assert s.json("/plan/a")["plan"] and s.json("/models")["data"][1]["id"] == "b"
            s.json("/receipts")

    with AnyServer(MOEBIUS, "--models", folder, "--expert-ram", "60%") as s:
        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            in_threads([answer] * 4)
        finally:
            over.set()
            disturber.join()
        until = time.monotonic() + 20
        while s.ask("POST", "/models/load", {"model": "a"})[0] == 409:  # b may be on its way
            assert time.monotonic() < until, s.json("/models")
        wait_for_status(s, "a", "loaded")


def test_models_of_the_list_are_served_when_that_is_asked_for():
    repo = os.path.join(TMP.name, "hub", "models--them--Demo-GGUF")
    os.makedirs(os.path.join(repo, "blobs"))
    os.makedirs(os.path.join(repo, "refs"))
    with open(os.path.join(repo, "refs", "main"), "w", encoding="ascii") as f:
        f.write("1" * 40)
    snapshot = os.path.join(repo, "snapshots", "1" * 40)
    os.makedirs(snapshot)
    shutil.copy(DEMO, os.path.join(repo, "blobs", "2" * 64))
    os.symlink(os.path.join("..", "..", "blobs", "2" * 64), os.path.join(snapshot, "Demo-Q8_0.gguf"))
    env = {**os.environ, "HF_HUB_CACHE": os.path.join(TMP.name, "hub")}
    listed = subprocess.run([MOEBIUS, "list", "--json"], env=env, capture_output=True, check=True).stdout
    [name] = [m["name"] for m in json.loads(listed)["models"]]
    with Server(env=env) as s:  # not unless it is said
        assert len(s.json("/models")["data"]) == 1
    with Server("--models-listed", "--alias", "first", env=env) as s:
        assert [m["id"] for m in s.json("/models")["data"]] == ["first", name]
        assert ids_of(s, "The dog", 4, model=name) == generated_ids("The dog", 4)
        assert s.json("/plan/" + name.replace("/", "%2F"))["model"] == name
    with AnyServer(MOEBIUS, "--models-listed", env=env) as s:
        assert ids_of(s, "The dog", 4, model=name) == generated_ids("The dog", 4)
    assert "--store" in refused("--models-listed", "-m", DEMO, "--store", TMP.name)
    env["HF_HUB_CACHE"] = TMP.name
    out = subprocess.run([MOEBIUS, "serve", "--models-listed", "--port", "0"], env=env, capture_output=True, timeout=60)
    assert out.returncode == 2 and b"no whole model here" in out.stderr, out


# ---- plans and receipts ------------------------------------------------------------------------------------------

def test_plans_say_what_a_model_takes_and_what_it_took():
    folder = folder_of_models("planned", a=None, broken=b"GGUF")
    with AnyServer(MOEBIUS, "--models", folder) as s:
        p = s.json("/plan")
        assert p["model"] == "a" and p["now"] is None and p["error"] is None
        assert {row["what"] for row in p["plan"]["memory"]["map"]} == {"program", "weights", "texts", "activations", "experts"}
        assert p["plan"]["settings"]["texts"] == 8
        assert sum(row["bytes"] for row in p["plan"]["memory"]["map"]) == p["plan"]["memory"]["ram_bytes"]
        p = s.json("/plan/broken")
        assert p["plan"] is None and "broken.gguf" in p["error"]
        assert "no model other" in s.json("/plan/other", status=404)["error"]["message"]
        ids_of(s, "Once", 200, model="a", ignore_eos=True)
        before = {row["what"]: row["bytes"] for row in s.json("/plan/a")["plan"]["memory"]["map"]}
        now = s.json("/plan/a")["now"]
        [held] = now["devices"]
        assert held["weights"] == before["weights"] and held["experts"] == before["experts"] and held["where"] == "ram"
        assert 0 < held["texts"] and sum(held[k] for k in ("weights", "experts", "texts", "activations")) < now["resident_bytes"]
        assert now["decode"] > 0 and now["decode_texts"] == 1 and now["drive_bytes"] == 0
        assert s.ask("HEAD", "/plan")[0] == 200
    with Server("--expert-ram", "60%") as s:
        ids_of(s, "Once", 4)
        now = s.json("/plan")["now"]
        assert now["drive_bytes"] > 0 and now["devices"][0]["experts"] > 0, now


def test_receipts_are_those_of_the_servers_models():
    cache = os.path.join(TMP.name, "receipts")
    env = {**os.environ, "XDG_CACHE_HOME": cache}
    env.pop("MOEBIUS_NO_RECEIPT", None)
    os.makedirs(os.path.join(cache, "moebius"))
    base = {"time": 1, "machine": "m", "method": "bench", "regime": "ram", "arch": "qwen3moe"}
    lines = [{**base, "model": os.path.basename(DEMO), "decode": 100.0},
             {**base, "model": "secret-model.gguf", "decode": 50.0}]
    with open(os.path.join(cache, "moebius", "receipts.jsonl"), "w", encoding="ascii") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    with Server("--alias", "tiny", env=env) as s:
        [r] = s.json("/receipts")["receipts"]
        assert r["id"] == "tiny" and r["model"] == os.path.basename(DEMO)
        assert "secret" not in s.ask("GET", "/receipts")[2].decode()


if __name__ == "__main__":
    run_functions(globals())
