#!/usr/bin/env python3
"""Checks that real chat templates' prompts have the right tokens, whatever stands in the messages.

usage: check_prompts.py MOEBIUS FOLDER [--random N] [--seed S]

Each template of the folder gets a vocabulary of bytes and of the special tokens that its source names, and the
conversations of check_templates.py. A prompt's tokens must be those of its text with special tokens parsed; and when
the texts of all special tokens are written into every message, the prompt's special tokens must be the same as before."""
import argparse
import glob
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

from check_templates import EXTRA, fixed_cases, random_case

SPECIAL = re.compile(r"<[|\uff5c][^<>\s'\"{}]{1,40}[|\uff5c]>|\[/?[A-Z][A-Z_]{2,30}\]|</?s>|<(?:start|end)_of_turn>|\]~!?b\[|\[e~\[")
NORMAL, CONTROL = 1, 3


def byte_names():
    """The printable character for each byte in byte-level vocabularies."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + rest.index(b)) for b in range(256)]


def write_vocab(path, specials):
    def text(s):
        b = s.encode()
        return struct.pack("<Q", len(b)) + b

    tokens = byte_names() + specials
    fields = {
        "general.architecture": struct.pack("<I", 8) + text("llama"),
        "tokenizer.ggml.model": struct.pack("<I", 8) + text("gpt2"),
        "tokenizer.ggml.pre": struct.pack("<I", 8) + text("qwen2"),
        "tokenizer.ggml.tokens": struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(text, tokens)),
        "tokenizer.ggml.token_type": struct.pack("<IIQ", 9, 5, len(tokens)) + struct.pack(
            f"<{len(tokens)}i", *([NORMAL] * 256 + [CONTROL] * len(specials))),
        "tokenizer.ggml.merges": struct.pack("<IIQ", 9, 8, 1) + text("a a"),
    }
    for name, token in EXTRA.items():
        fields[f"tokenizer.ggml.{name}_id"] = struct.pack("<II", 4, tokens.index(token))
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)))
        for key, value in fields.items():
            f.write(text(key) + value)


def changed(value, behind, key=None):
    """The conversation with a text behind every string that is a content."""
    if isinstance(value, dict):
        return {k: changed(v, behind, k) for k, v in value.items()}
    if isinstance(value, list):
        return [changed(v, behind, key) for v in value]
    return value + behind if isinstance(value, str) and key in ("content", "text", "reasoning_content", "description") else value


class Checker:
    def __init__(self, program, template, folder):
        source = open(template, encoding="utf-8", newline="").read()
        self.specials = list(dict.fromkeys(list(EXTRA.values()) + SPECIAL.findall(source)))
        self.program, self.template, self.folder = program, template, folder
        self.vocab = os.path.join(folder, "vocab.gguf")
        write_vocab(self.vocab, self.specials)

    def run(self, *args, stdin=b""):
        r = subprocess.run([self.program, *args], input=stdin, capture_output=True, timeout=60)
        return r.stdout if r.returncode == 0 else None

    def render(self, case, *how):
        args = ["template", "-m", self.vocab, "--template", self.template]
        for name, value in case.items():
            if name in ("messages", "tools"):
                path = os.path.join(self.folder, name + ".json")
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(value, f)
                args += ["--" + name, path]
            elif name == "add_generation_prompt":
                args += [] if value else ["--no-generation-prompt"]
            else:
                args += ["--var", f"{name}={json.dumps(value)}"]
        return self.run(*args, *how)

    def check(self, case):
        """None where the template refuses, else what is wrong, or ""."""
        ids = self.render(case, "--ids")
        if ids is None:
            return None
        text = self.render(case)
        ordinary = not any(s in json.dumps(case, ensure_ascii=False) for s in self.specials)
        if ordinary and ids != self.run("tokenize", "-m", self.vocab, "--no-special", "--parse-special", "-", stdin=text):
            return "other tokens than its text has"
        found = [[i for i in map(int, (self.render(changed(case, behind), "--ids") or b"").split()) if i >= 256]
                 for behind in (" x", " " + "".join(self.specials), " " + "\n".join(s[1:] for s in self.specials))]
        return "" if found[0] == found[1] == found[2] else "special tokens that messages made"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("folder")
    p.add_argument("--random", type=int, default=5)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    n_checked, n_bad = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(glob.glob(os.path.join(a.folder, "*.jinja"))):
            checker, rng = Checker(a.program, path, folder), random.Random(f"{a.seed} {os.path.basename(path)}")
            for name, case in list(fixed_cases()) + [(f"random {i}", random_case(rng)) for i in range(a.random)]:
                wrong = checker.check(case)
                n_checked += wrong is not None
                if wrong:
                    n_bad += 1
                    print(f"{os.path.basename(path)}, {name}: {wrong}")
    print(f"{n_checked} prompts: {n_bad} wrong")
    sys.exit(n_bad > 0 or n_checked == 0)


if __name__ == "__main__":
    main()
