#!/usr/bin/env python3
"""`moebius serve` as those ask it who measure models: what evaluation harnesses send, and what they read of the answers.
usage: test_serve_evals.py MOEBIUS DEMO.gguf GOLDEN_DIRECTORY

Log-probabilities are compared with those of `moebius logits`, answers with `moebius generate`. Each function below is one
test; a failed assertion names itself."""
import array
import concurrent.futures
import functools
import math
import os
import subprocess
import sys
import tempfile

from run_functions import run_functions
from serving import Server as AnyServer

MOEBIUS, DEMO, GOLDEN = map(os.path.abspath, sys.argv[1:4])
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CONTEXTS = ["Once upon a time, there was a little girl named Lily. She liked to play outside in the park",
            "Tom had a big red ball. One day, he went to"]
CONTINUATIONS = [" with her friends.", " and the dog", " sky sky", " the park"]
LLAMA = os.path.join(GOLDEN, "llama_moe.gguf")  # its texts begin with a token


def Server(*args, model=DEMO, **kw):
    return AnyServer(MOEBIUS, "-m", model, *args, **kw)


def run(*args):
    return subprocess.run([MOEBIUS, *map(str, args)], capture_output=True, timeout=300, check=True).stdout


# ---- the measure -------------------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=None)
def reference(ids, model=DEMO):
    """Of each token but the first one: its log-probability by the logits after those before it, and the likeliest."""
    path = os.path.join(TMP.name, "logits")
    run("logits", "--cold", "-m", model, "--tokens", ",".join(map(str, ids)), "-o", path)
    values = array.array("f")
    with open(path, "rb") as f:
        values.frombytes(f.read())
    n_vocab = len(values) // len(ids)
    found = []
    for i, token in enumerate(ids[1:]):
        row = values[i * n_vocab:(i + 1) * n_vocab]
        most = max(row)
        log_sum = math.log(sum(math.exp(x - most) for x in row))
        found.append((row[token] - most - log_sum, row.index(most)))
    return found


def near(a, b):
    return abs(a - b) < 1e-9


# ---- lm-evaluation-harness ---------------------------------------------------------------------------------------

class Harness:
    """What its local-completions does, with the server's tokenizer (tokenizer_backend=remote)."""

    def __init__(self, server, batch_size=1, concurrent=1, max_length=512):
        self.server, self.batch_size, self.concurrent, self.max_length = server, batch_size, concurrent, max_length - 1

    def ask(self, path, body=None):
        return self.server.json(path, body, headers={"Authorization": "Bearer ", "Content-Type": "application/json"})

    def encode(self, text):
        return self.ask("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def decode(self, ids):
        return self.ask("/detokenize", {"tokens": ids})["prompt"]

    def prefix_token(self):
        info = self.ask("/tokenizer_info")
        return self.encode(info["bos_token"] or info["eos_token"])[0]

    def score(self, pairs):
        """(log-likelihood, whether each token is the likeliest) of each (context's ids, continuation's ids)"""
        def score_batch(batch):
            inputs = [(context + more)[-self.max_length:] for context, more in batch]
            answer = self.ask(COMPLETIONS, {"model": "x", "prompt": inputs, "temperature": 0, "max_tokens": 1,
                                            "logprobs": 1, "seed": 1234, "echo": True})
            assert len(answer["choices"]) == len(batch)
            found = []
            for choice, (context, more) in zip(sorted(answer["choices"], key=lambda c: c["index"]), batch):
                n_context = len(context) - max(0, len(context) + len(more) - self.max_length)
                logprobs = choice["logprobs"]["token_logprobs"][n_context:-1]
                tops = choice["logprobs"]["top_logprobs"][n_context:-1]
                found.append((sum(logprobs), all(p == max(top.values()) for p, top in zip(logprobs, tops))))
            return found

        batches = [pairs[i:i + self.batch_size] for i in range(0, len(pairs), self.batch_size)]
        with concurrent.futures.ThreadPoolExecutor(self.concurrent) as pool:
            return [x for found in pool.map(score_batch, batches) for x in found]

    def loglikelihood(self, pairs):
        encoded = []
        for context, more in pairs:
            if not context:
                encoded.append(([self.prefix_token()], self.encode(more)))
                continue
            both, alone = self.encode(context + more), self.encode(context)
            encoded.append((both[:len(alone)], both[len(alone):]))
        return encoded, self.score(encoded)

    def rolling(self, text):
        """Windows that predict each token once, the first one from the prefix token; the later ones begin early."""
        ids, n = self.encode(text), self.max_length - 1
        windows = [([self.prefix_token()], ids[:n])]
        for at in range(n, len(ids), n):
            predicted = ids[at:at + n]
            context = ids[at + len(predicted) - n - 1:at]
            windows.append((context, predicted))
        return windows, sum(x for x, _ in self.score(windows))

    def generate(self, prompts, until, n, tokens=True):
        found = []
        for i in range(0, len(prompts), self.batch_size):
            batch = prompts[i:i + self.batch_size]
            prompt = [self.encode(p) for p in batch] if tokens else batch if self.batch_size > 1 else batch[0]
            answer = self.ask(COMPLETIONS, {"prompt": prompt, "model": "x", "max_tokens": n, "temperature": 0,
                                            "stop": until + ["<|endoftext|>"], "seed": 1234})
            texts = [None] * len(answer["choices"])
            for choice in answer["choices"]:
                texts[choice["index"]] = choice["text"]
            found += texts
        return found


def check_scores(encoded, scores, model=DEMO):
    for (context, more), (sum_of_logprobs, is_greedy) in zip(encoded, scores):
        wanted = reference(tuple(context + more), model)[len(context) - 1:]
        assert near(sum_of_logprobs, sum(x for x, _ in wanted)), (context, more, sum_of_logprobs, wanted)
        assert is_greedy == all(token == likeliest for token, (_, likeliest) in zip(more, wanted)), (context, more)


def test_log_likelihoods_are_those_of_the_logits():
    pairs = [(context, more) for context in CONTEXTS for more in CONTINUATIONS] + [("", "Once upon a time")]
    found = []
    for batch_size, concurrent_requests, args in (1, 1, ()), (4, 1, ("-b", 8)), (16, 1, ()), (1, 6, ("--texts", 4)):
        with Server(*args) as s:
            encoded, scores = Harness(s, batch_size, concurrent_requests).loglikelihood(pairs)
            check_scores(encoded, scores)
            found.append(scores)
    assert all(scores == found[0] for scores in found), "equal to the bit, however they are batched"
    assert any(is_greedy for _, is_greedy in found[0]) and not all(is_greedy for _, is_greedy in found[0])


def test_rolling_log_likelihoods_are_those_of_the_logits():
    text = " ".join(CONTEXTS * 3) + " " + "The dog ran to the big tree and saw a cat. " * 4
    for max_length in 512, 40:
        with Server() as s:
            windows, total = Harness(s, 3, max_length=max_length).rolling(text)
            assert max_length > 40 or len(windows) > 3
            wanted = sum(x for context, more in windows
                         for x, _ in reference(tuple(context + more))[len(context) - 1:])
            assert near(total, wanted), (total, wanted)


def test_what_is_generated_is_what_generate_says():
    prompts = [*CONTEXTS, "The cat", "One day,"]
    with Server("--texts", 3) as s:
        whole = [run("generate", "--cold", "-m", DEMO, "-p", p, "-n", 24, "--temp", 0).decode()[:-1] for p in prompts]
        whole = [text[len(p):] if text.startswith(p) else text for text, p in zip(whole, prompts)]
        for batch_size in 1, 3:
            h = Harness(s, batch_size)
            for tokens in True, False:
                assert h.generate(prompts, [], 24, tokens) == whole
                stops = [".", " and", "\n\n"]
                wanted = [text[:min([text.find(stop) for stop in stops if stop in text], default=None)]
                          for text in whole]
                assert h.generate(prompts, stops, 24, tokens) == wanted


def test_the_tokenizer_is_offered_as_clients_look_for_it():
    with Server() as s:
        info = s.json("/tokenizer_info")
        assert info["eos_token"] == "<|endoftext|>" and not info["add_bos_token"] and info["model_max_length"] == 512
        assert info["chat_template"] is None and s.json("/props")["chat_template"] == ""
        answer = s.json("/tokenize", {"prompt": CONTEXTS[0], "add_special_tokens": False})
        assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 512
        assert answer["tokens"] == s.json("/tokenize", {"content": CONTEXTS[0]})["tokens"]
        assert Harness(s).decode(answer["tokens"]) == CONTEXTS[0]
        assert s.json("/tokenize", {"prompt": CONTEXTS[0], "content": None})["tokens"] == answer["tokens"]
        assert len(Harness(s).encode("<|endoftext|>")) == 1
        assert "prompt: expected a string" in str(s.json("/tokenize", {"prompt": [1]}, status=400))
        assert "content: expected a string" in str(s.json("/tokenize", {}, status=400))
    with Server(model=LLAMA) as s:
        info = s.json("/tokenizer_info")
        assert info["add_bos_token"] and len(Harness(s).encode(info["bos_token"])) == 1
        ids = [s.json("/tokenize", {"prompt": "A", **more})["tokens"] for more in ({}, {"add_special_tokens": False})]
        assert ids[0] == Harness(s).encode(info["bos_token"]) + ids[1], ids


def test_chats_are_answered_as_the_harness_asks():
    template = os.path.join(TMP.name, "template")
    with open(template, "w", encoding="utf-8") as f:
        f.write("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}")
    with Server("--template", template) as s:
        with open(template, encoding="utf-8") as f:
            assert s.json("/props")["chat_template"] == s.json("/tokenizer_info")["chat_template"] == f.read()
        for more in {}, {"type": "text"}:  # what older versions put beside the content
            answer = Harness(s).ask(CHAT, {
                "messages": [{"role": "system", "content": "Be brief.", **more}, {"role": "user", "content": "Hi", **more}],
                "model": "x", "max_tokens": 5, "temperature": 0, "stop": ["Q:", "</s>", "<|im_end|>", "<|endoftext|>"],
                "seed": 1234})
            assert len(answer["choices"]) == 1 and isinstance(answer["choices"][0]["message"]["content"], str)


# ---- other clients -----------------------------------------------------------------------------------------------

def check_lists(choice, prompt):
    """The lists belong together, and lead to the places in the text."""
    lists, text = choice["logprobs"], choice["text"]
    n = len(lists["tokens"])
    assert [len(lists[name]) for name in ("token_logprobs", "top_logprobs", "text_offset")] == [n] * 3
    assert text.startswith(prompt) and lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
    for token, offset, end in zip(lists["tokens"], lists["text_offset"], lists["text_offset"][1:] + [len(text)]):
        piece = text[offset:end]
        assert piece == token or "\ufffd" in token or offset == 0, (token, piece)
    return lists


def test_prompts_of_text_are_scored_by_their_offsets():
    """lm-evaluation-harness's gguf: texts, and the continuation is found by where its tokens begin."""
    for model in DEMO, LLAMA:
        with Server(model=model) as s:
            context, more = CONTEXTS[1], " the pärk é"
            answer = s.json(COMPLETIONS, {"prompt": context + more, "logprobs": 10, "temperature": 0.0, "max_tokens": 1,
                                          "echo": True})
            lists = check_lists(answer["choices"][0], context + more)
            first = next(i for i, offset in enumerate(lists["text_offset"]) if offset >= len(context))
            ids = s.json("/tokenize", {"prompt": context + more})["tokens"]
            assert len(lists["tokens"]) == len(ids) + 1 and answer["usage"]["prompt_tokens"] == len(ids)
            assert len(s.json("/tokenize", {"prompt": context})["tokens"]) == first
            wanted = [x for x, _ in reference(tuple(ids), model)][first - 1:]
            assert all(map(near, lists["token_logprobs"][first:-1], wanted)), (lists, wanted)
            assert all(10 <= len(top) <= 11 or "\ufffd" in top for top in lists["top_logprobs"][1:])


def test_a_prompt_may_be_scored_without_an_answer():
    """HELM: max_tokens 0, and best_of as large as the number of likeliest tokens."""
    with Server("-c", 64) as s:
        body = {"model": "x", "prompt": CONTEXTS[0], "temperature": 0.0, "n": 1, "max_tokens": 0, "best_of": 5,
                "logprobs": 5, "stop": None, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "echo": True}
        answer = s.json(COMPLETIONS, body)
        choice, ids = answer["choices"][0], s.json("/tokenize", {"content": CONTEXTS[0]})["tokens"]
        lists = check_lists(choice, CONTEXTS[0])
        assert choice["text"] == CONTEXTS[0] and choice["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 0
        assert all(map(near, lists["token_logprobs"][1:], (x for x, _ in reference(tuple(ids)))))
        ids = (ids * 9)[:64]  # all of the context
        lists = s.json(COMPLETIONS, {**body, "prompt": ids})["choices"][0]["logprobs"]
        assert len(lists["tokens"]) == 64
        s.json(COMPLETIONS, {**body, "prompt": ids, "max_tokens": 1}, status=400)
        assert s.json(COMPLETIONS, {**body, "prompt": ids[:1]})["choices"][0]["logprobs"]["token_logprobs"] == [None]
        assert s.json(COMPLETIONS, {**body, "temperature": 0.5})["choices"] == [choice]


def test_the_likeliest_of_several_answers_can_be_had():
    with Server("-c", 64) as s:
        body = {"prompt": CONTEXTS[:2], "temperature": 1.5, "seed": 3, "max_tokens": 8, "logprobs": 0}
        answer = s.json(COMPLETIONS, {**body, "n": 5})
        def mean(choice):
            scores = choice["logprobs"]["token_logprobs"]
            return sum(scores) / len(scores)
        wanted = [sorted(answer["choices"][i:i + 5], key=mean, reverse=True)[:2] for i in (0, 5)]
        wanted = [{**c, "index": i} for i, c in enumerate(sum(wanted, []))]
        best = s.json(COMPLETIONS, {**body, "n": 2, "best_of": 5})
        assert best["choices"] == wanted and best["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
        plain = s.json(COMPLETIONS, {**body, "logprobs": None, "n": 2, "best_of": 5, "echo": True})["choices"]
        assert [c["text"] for c in plain] == [CONTEXTS[i // 2] + c["text"] for i, c in enumerate(wanted)]
        assert all(c["logprobs"] is None and "token_ids" not in c for c in plain)
        said = s.json(COMPLETIONS, {**body, "best_of": 2, "stream": True}, status=400)["error"]
        assert said["param"] == "best_of" and "stream" in said["message"]


def test_streams_have_the_prompts_scores_first():
    with Server() as s:
        body = {"prompt": CONTEXTS, "max_tokens": 3, "temperature": 0, "logprobs": 2, "echo": True, "n": 2}
        whole = s.json(COMPLETIONS, body)["choices"]
        pieces = [{"text": "", "logprobs": {}} for _ in range(4)]
        for event in s.events(COMPLETIONS, body):
            for choice in event["choices"]:
                piece = pieces[choice["index"]]
                piece["text"] += choice["text"]
                for name, values in (choice["logprobs"] or {}).items():
                    piece["logprobs"].setdefault(name, []).extend(values)
        assert len(whole) == 4
        for i, (choice, piece) in enumerate(zip(whole, pieces)):
            assert choice["index"] == i and choice["text"].startswith(CONTEXTS[i // 2])
            check_lists(choice, CONTEXTS[i // 2])
            assert (piece["text"], piece["logprobs"]) == (choice["text"], choice["logprobs"])


# ---- many prompts ------------------------------------------------------------------------------------------------

def test_a_batch_may_be_longer_than_the_queue():
    with Server("--texts", 2, "--queue", 1) as s:
        ids = s.json("/tokenize", {"content": CONTEXTS[0]})["tokens"]
        answer = s.json(COMPLETIONS, {"prompt": [ids[:5 + i] for i in range(12)], "max_tokens": 2, "temperature": 0,
                                      "return_tokens": True})
        assert [c["index"] for c in answer["choices"]] == list(range(12))
        assert answer["usage"]["prompt_tokens"] == sum(range(5, 17)), answer["usage"]
        assert answer["usage"]["completion_tokens"] == 24
        for i, choice in enumerate(answer["choices"]):
            alone = s.json(COMPLETIONS, {"prompt": ids[:5 + i], "max_tokens": 2, "temperature": 0, "return_tokens": True})
            assert choice["token_ids"] == alone["choices"][0]["token_ids"]


def test_what_prompts_have_in_common_is_scored_once():
    with Server("--texts", 4) as s:
        ids = s.json("/tokenize", {"content": " ".join(CONTEXTS * 4)})["tokens"]
        assert len(ids) > 128
        body = {"max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
        first = s.json(COMPLETIONS, {**body, "prompt": [ids + [20 + i] for i in range(4)]})
        usage = first["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 3 * (len(ids) - 1), usage
        again = s.json(COMPLETIONS, {**body, "prompt": ids + [21]})
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids)
        assert again["choices"][0]["logprobs"] == first["choices"][1]["logprobs"]


def test_an_error_in_one_prompt_is_the_requests():
    with Server() as s:
        for prompt, sentence in (([[1], [99999]], "prompt[1]: token 0 is 99999"), (["a", ""], "prompt[1]: empty"),
                                 ([[1], [1, 2], [1] * 600], "prompt[2]: prompt is too long: 600 tokens > 511 maximum"),
                                 ([[1], []], "prompt[1]: an empty list")):
            for stream in False, True:
                answer = s.json(COMPLETIONS, {"prompt": prompt, "max_tokens": 1, "stream": stream}, status=400)
                assert answer["error"]["message"].startswith(sentence), answer
                assert answer["error"]["param"] == sentence[:9]
    keys = os.path.join(TMP.name, "keys")
    with open(keys, "w", encoding="utf-8") as f:
        f.write("secret\n")
    with Server("--api-key-file", keys, "--per-key", 3) as s:
        answer = s.json(COMPLETIONS, {"prompt": [[1], [2]], "n": 2, "max_tokens": 1}, status=400,
                        headers={"Authorization": "Bearer secret"})
        assert "4 answers; expected at most 3" in answer["error"]["message"], answer


if __name__ == "__main__":
    run_functions(globals())
