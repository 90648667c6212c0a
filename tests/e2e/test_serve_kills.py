#!/usr/bin/env python3
"""`moebius serve` killed at random moments while clients ask it: each next server starts, knows what was kept, and
answers as one that never kept anything.
usage: test_serve_kills.py MOEBIUS DEMO.gguf GOLDEN_DIRECTORY

MOEBIUS_SERVE_KILLS=N sets how often it is killed (8), MOEBIUS_SEED when, and what is asked."""
import http.client
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

from run_functions import run_functions
from serving import Server

MOEBIUS, DEMO, GOLDEN = map(os.path.abspath, sys.argv[1:4])
N_KILLS = int(os.environ.get("MOEBIUS_SERVE_KILLS", "8"))
SEED = int(os.environ.get("MOEBIUS_SEED", "1"))
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
N_CLIENTS, N_ANSWER = 5, 24
TEMPLATE = os.path.join(TMP.name, "template")
with open(TEMPLATE, "w", encoding="utf-8") as f:
    f.write("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n"
            "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>"
            "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
SING = {"type": "function", "function": {"name": "sing", "parameters": {
    "type": "object", "properties": {"song": {"enum": ["la", "lo"]}}, "required": ["song"],
    "additionalProperties": False}}}


def completion(prompt, n=N_ANSWER):
    return {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_tokens": True}


def answer_to(s, prompt, n=N_ANSWER):
    """The ids of the answer, and how many tokens of the prompt were not computed."""
    answer = s.json("/v1/completions", completion(prompt, n))
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class Kept:
    """A folder of prompts that servers of one model keep, one after the other. A rough one is too small for all
    prompts, and loses a part of a file now and then."""

    def __init__(self, name, model, n_vocab, is_rough, rng):
        self.dir, self.model, self.is_rough = os.path.join(TMP.name, name), model, is_rough
        bases = [[rng.randrange(n_vocab) for _ in range(600)] for _ in range(3)]
        self.prompts = [base[:300 + 100 * i] + [rng.randrange(n_vocab) for _ in range(rng.randint(1, 90))]
                        for base in bases for i in range(4)]
        self.n_bytes = 0  # at least these are on disk, unless it is rough
        self.known = {}   # prompt's number: how many of its tokens were there at a server's start
        with self.server(keeps=False) as s:
            start = time.monotonic()
            self.answers = [answer_to(s, p)[0] for p in self.prompts]
            self.took = time.monotonic() - start

    def server(self, keeps=True, **kw):
        keep = ["--cache-dir", self.dir, "--cache-size", "2M" if self.is_rough else "1G"] if keeps else []
        return Server(MOEBIUS, "-m", self.model, "--template", TEMPLATE, "--ctx", "1500", *keep, **kw)

    def damage(self, rng):
        """As if the system had crashed, too: one file loses its end, or bytes of it."""
        files = sorted(os.path.join(at, name) for at, _, names in os.walk(self.dir) for name in names)
        files = [path for path in files if os.path.getsize(path)]
        if not self.is_rough or not files:
            return
        with open(rng.choice(files), "r+b") as f:
            n = os.fstat(f.fileno()).st_size
            if rng.random() < 0.5:
                f.truncate(rng.randrange(n))
            else:
                f.seek(rng.randrange(n))
                f.write(b"\xa5")


class Load:
    """Clients that ask a server until it is killed. What went wrong before that is in `errors`."""

    def __init__(self, kept, server, seed):
        self.kept, self.server, self.is_killed = kept, server, False
        self.errors, self.n_answers = [], 0
        self.threads = [threading.Thread(target=self.run, args=(work, random.Random(seed + i)))
                        for i, work in enumerate([self.complete] * (N_CLIENTS - 2) + [self.leave, self.call])]
        for t in self.threads:
            t.start()

    def run(self, work, rng):
        while not self.is_killed and not self.errors:
            try:
                work(rng)
                self.n_answers += 1
            except (OSError, http.client.HTTPException, json.JSONDecodeError) as e:
                if not self.is_killed:
                    self.errors.append(repr(e))
            except AssertionError as e:
                self.errors.append(str(e))

    def complete(self, rng):
        i, n = rng.randrange(len(self.kept.prompts)), rng.randint(1, N_ANSWER)
        ids, _ = answer_to(self.server, self.kept.prompts[i], n)
        assert ids == self.kept.answers[i][:n], f"prompt {i}: {ids}, expected {self.kept.answers[i][:n]}"

    def leave(self, rng):
        """Without hearing the answer's end, or any of it."""
        c = self.server.connect()
        c.request("POST", "/v1/completions", json.dumps({**completion(rng.choice(self.kept.prompts)), "stream": True}))
        if rng.random() < 0.7:
            c.getresponse().read1(200)
        c.close()

    def call(self, rng):
        """A call, and the turn behind it, for which the server keeps the call's tokens."""
        ask = {"messages": [{"role": "user", "content": f"Sing {rng.randrange(100)} songs."}], "max_tokens": 99,
               "temperature": 0, "tools": [SING], "tool_choice": "required", "parallel_tool_calls": False}
        for _ in range(2):
            choice = self.server.json("/v1/chat/completions", ask)["choices"][0]
            if choice["finish_reason"] == "length":
                return
            message = choice["message"]
            call = message["tool_calls"][0]
            assert json.loads(call["function"]["arguments"])["song"] in ("la", "lo"), message
            ask["messages"] += [message, {"role": "tool", "tool_call_id": call["id"], "content": "ok"}]

    def kill(self):
        self.is_killed = True
        self.server.stop(signal.SIGKILL)
        for t in self.threads:
            t.join()
        assert not self.errors, self.errors


def check_start(kept, s, rng):
    """A new server has what the one before had on disk, and answers from it as if it had computed all."""
    n_bytes = s.metric("moebius_cache_disk_bytes")
    assert kept.is_rough or n_bytes >= kept.n_bytes, f"{n_bytes} bytes are left of {kept.n_bytes}"
    i = rng.randrange(len(kept.prompts))
    ids, n_cached = answer_to(s, kept.prompts[i])
    assert ids == kept.answers[i], f"prompt {i} with {n_cached} tokens kept: {ids}, expected {kept.answers[i]}"
    assert kept.is_rough or n_cached >= kept.known.get(i, 0), f"prompt {i}: {n_cached} tokens, and {kept.known[i]} before"
    kept.known[i] = n_cached
    return n_cached


def run_until_killed(kept, rng):
    """Returns how many answers were heard, and how many tokens the first one did not compute."""
    if rng.random() < 0.15:  # while it starts
        s = kept.server(ready=False)
        time.sleep(rng.uniform(0, 0.3))
        s.stop(signal.SIGKILL)
        return 0, 0
    s = kept.server()
    n_cached = check_start(kept, s, rng)
    load = Load(kept, s, rng.randrange(1 << 30))
    time.sleep(rng.uniform(0.02, 1) * kept.took)
    kept.n_bytes = s.metric("moebius_cache_disk_bytes")
    load.kill()
    return load.n_answers, n_cached


def test_servers_that_are_killed_leave_what_the_next_can_use():
    rng = random.Random(SEED)
    recurrent = os.path.join(GOLDEN, "qwen3next.gguf")
    folders = [Kept(f"{name}-{is_rough}", model, n_vocab, is_rough, rng) for is_rough in (False, True)
               for name, model, n_vocab in (("demo", DEMO, 4096), ("recurrent", recurrent, 100))]
    n_answers = n_warm = 0
    for k in range(N_KILLS):
        kept = folders[k % len(folders)]
        n, n_cached = run_until_killed(kept, rng)
        n_answers += n
        n_warm += n_cached > 0
        kept.damage(rng)
    for kept in folders:
        with kept.server() as s:
            check_start(kept, s, rng)
            for prompt, ids in zip(kept.prompts, kept.answers):
                assert answer_to(s, prompt)[0] == ids
        n_warm += any(kept.known.values())
        shutil.rmtree(kept.dir)
    print(f"killed {N_KILLS} times, {n_answers} answers, {n_warm} warm starts")
    assert n_answers > 0 and n_warm > 0


if __name__ == "__main__":
    run_functions(globals())
