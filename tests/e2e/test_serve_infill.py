#!/usr/bin/env python3
"""`moebius serve` for editors: what belongs between two texts, by llama.cpp's /infill and the `suffix` of others.
usage: test_serve_infill.py MOEBIUS DEMO.gguf

Each function below is one test; a failed assertion names itself."""
import os
import struct
import sys
import tempfile
import time

from run_functions import run_functions
from serving import Server as AnyServer

MOEBIUS, DEMO = map(os.path.abspath, sys.argv[1:3])
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
MARKS = {"fim_pre": 300, "fim_suf": 301, "fim_mid": 302, "fim_rep": 303, "fim_sep": 304}  # any tokens will do
PREFIX, SUFFIX = "Once upon a time, there was a", " named Lily. She liked to play.\n"


def marked(marks):
    """The demo model, whose file says which tokens mark what is to be filled in."""
    with open(DEMO, "rb") as f:
        data = f.read()
    version, n_tensor, n_kv = struct.unpack_from("<IQQ", data, 4)
    at, sizes = 24, {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def skip_value(kind):
        nonlocal at
        if kind == 9:
            kind, n = take("I"), take("Q")
            for _ in range(n):
                skip_value(kind)
        else:
            n = take("Q") if kind == 8 else sizes[kind]  # in this order: `at` moves
            at += n

    for _ in range(n_kv):
        skip_value(8)
        skip_value(take("I"))
    end_of_keys = at
    for _ in range(n_tensor):
        skip_value(8)
        n_dim = take("I")
        at += 8 * n_dim + 12
    keys = b"".join(struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, token)
                    for name, token in ((f"tokenizer.ggml.{m}_token_id".encode(), t) for m, t in marks.items()))
    head = struct.pack("<IQQ", version, n_tensor, n_kv + len(marks)) + data[24:end_of_keys] + keys + data[end_of_keys:at]
    path = os.path.join(TMP.name, f"marked{len(marks)}.gguf")
    with open(path, "wb") as f:
        f.write(b"GGUF" + head + bytes(-(4 + len(head)) % 32) + data[-(-at // 32) * 32:])
    return path


def Server(*args, marks=None, **kw):
    return AnyServer(MOEBIUS, "-m", marked(MARKS if marks is None else marks) if marks != {} else DEMO, *args, **kw)


def ids_of(s, text):
    return s.json("/tokenize", {"content": text})["tokens"]


def gap(s, prefix=PREFIX, suffix=SUFFIX):
    return [300, *ids_of(s, prefix), 301, *ids_of(s, suffix), 302]


def answered(s, ids, n=8):
    """What follows these tokens."""
    answer = s.json("/completion", {"prompt": ids, "n_predict": n, "temperature": 0, "return_tokens": True})
    assert answer["tokens_evaluated"] == len(ids)
    return answer["tokens"]


def infill(s, n=8, **more):
    """As llama.vim and llama.vscode ask."""
    return s.json("/infill", {"input_prefix": PREFIX, "input_suffix": SUFFIX, "prompt": "", "n_predict": n, "n_indent": 0,
                              "top_k": 40, "top_p": 0.99, "temperature": 0, "stream": False, "cache_prompt": True,
                              "samplers": ["top_k", "top_p", "infill"], "return_tokens": True, "t_max_prompt_ms": 500,
                              "t_max_predict_ms": 60000, **more})


def test_marks_stand_before_the_parts():
    with Server() as s:
        assert infill(s)["tokens"] == answered(s, gap(s))
        assert infill(s, prompt=" little", input_suffix="")["tokens"] == answered(s, gap(s, PREFIX + " little", ""))
        chosen = infill(s, response_fields=["content", "timings/prompt_n", "truncated", "tokens_cached"])
        assert set(chosen) == {"content", "timings/prompt_n", "truncated", "tokens_cached"}
        warm = infill(s, n=0, input_prefix="", input_suffix="", response_fields=[""])  # of files that are told early
        assert warm == {}, warm


def test_other_files_stand_before_as_far_as_there_is_room():
    files = [{"filename": f"{name}.txt", "text": text, "time": [1, 2]}
             for name, text in (("a", "The dog ran. " * 9), ("b", "A cat sat."), ("c", "<|endoftext|>"))]
    with Server() as s:
        def before(chosen):
            ids = [303, *ids_of(s, "myproject\n")] if chosen else []
            for file in chosen:  # special tokens of files are text
                content = s.json("/tokenize", {"content": file["filename"] + "\n" + file["text"],
                                               "parse_special": False})["tokens"]
                ids += [304, *content]
            return ids + ([304, *ids_of(s, "filename\n")] if chosen else [])

        assert infill(s, input_extra=files)["tokens"] == answered(s, before(files) + gap(s))
        assert infill(s, input_extra=[{"text": "x"}])["tokens"] == \
            answered(s, before([{"filename": "tmp", "text": "x"}]) + gap(s))
        many = files[:1] * 30 + files
        room = 512 - 8 - 32 - (len(gap(s)) - 3)  # the context, the answer, and what stands around the files
        frame = len(before([])) + len(before(files[:1])) - len(ids_of(s, f"a.txt\n{files[0]['text']}")) - 1
        n = max(n for n in range(34) if len(before(many[-n:] if n else [])) - frame <= room)
        answer = infill(s, input_extra=many)
        assert 3 < n < 30 and answer["tokens"] == answered(s, before(many[-n:]) + gap(s)), n
    with Server(marks=dict(list(MARKS.items())[:3])) as s:  # without marks for files
        ids = ids_of(s, "\n\n--- snippet ---\n\nA cat sat.")
        assert infill(s, input_extra=files[1:2])["tokens"] == answered(s, ids + gap(s))


def test_long_texts_are_cut_away_from_the_gap():
    with Server("-c", 200) as s:
        whole = ids_of(s, "The dog ran to the park. " * 60)
        answer = infill(s, input_prefix="The dog ran to the park. " * 60, input_suffix="The dog ran to the park. " * 60)
        room = 200 - 8 - 32
        assert answer["tokens_evaluated"] == room + 3
        assert answer["tokens"] == answered(s, [300, *whole[-(room - room // 4):], 301, *whole[:room // 4], 302])


def test_completions_and_ollama_have_a_suffix():
    with Server() as s:
        body = {"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 8, "temperature": 0, "return_tokens": True}
        wanted = answered(s, gap(s))
        assert s.json("/v1/completions", body)["choices"][0]["token_ids"] == wanted
        many = s.json("/v1/completions", {**body, "prompt": [PREFIX, "The"]})["choices"]
        assert [c["token_ids"] for c in many] == [wanted, answered(s, gap(s, "The"))]
        text = infill(s)["content"]
        options = {"num_predict": 8, "temperature": 0}
        told = s.json("/api/generate", {"prompt": PREFIX, "suffix": SUFFIX, "stream": False, "options": options})
        assert told["response"] == text, (told, text)
    with Server(marks={}) as s:
        for path in "/infill", "/v1/completions":
            answer = s.json(path, {"prompt": "a", "input_suffix": "b", "suffix": "b"}, status=400)
            assert "has no marks" in answer["error"]["message"] and answer["error"]["param"] == "suffix", answer
        assert s.json("/v1/completions", {"prompt": "a", "suffix": "", "max_tokens": 1})["choices"]


def test_an_answer_of_lines_may_be_bounded_in_time():
    with Server() as s:
        start = time.monotonic()
        body = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "temperature": 1, "seed": 1, "grammar": 'root ::= "a\\n"+'}
        answer = s.json("/completion", {**body, "t_max_predict_ms": 1})
        assert answer["stop_type"] == "limit" and "a\n" in answer["content"]
        assert answer["tokens_predicted"] < 400 and time.monotonic() - start < 30, answer["tokens_predicted"]
        line = s.json("/completion", {**body, "n_predict": 40, "grammar": 'root ::= "a"+', "t_max_predict_ms": 1})
        assert "a" * 20 in line["content"]  # there is no line yet


if __name__ == "__main__":
    run_functions(globals())
