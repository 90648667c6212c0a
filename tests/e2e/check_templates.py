#!/usr/bin/env python3
"""Compares `moebius template` with Python's jinja2, byte for byte, on a folder of real chat templates.

usage: check_templates.py MOEBIUS FOLDER [--random N] [--seed S] [-v]

jinja2 is set up as Hugging Face's tokenizers do. Every template gets a fixed list of conversations and N random ones;
both must give the same text, or both must refuse. Needs jinja2 (Debian: python3-jinja2)."""
import argparse
import datetime
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

EXTRA = {"bos_token": "<s>", "eos_token": "</s>"}


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Environment(ImmutableSandboxedEnvironment):
    """As transformers has it, but lists may grow: Kimi K2's templates want that."""

    def is_safe_attribute(self, obj, attr, value):
        return isinstance(obj, list) and attr == "append" or super().is_safe_attribute(obj, attr, value)


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.now().strftime(f)
    return env


# ---- conversations --------------------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather at a place.\nNow, or \"later\".",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "A city, e.g. Zürich"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 1}}, "required": ["place"]}}},
    {"type": "function", "function": {
        "name": "search", "description": "Search <the web> & more",
        "parameters": {"type": "object", "properties": {
            "queries": {"type": "array", "items": {"type": "string"}},
            "options": {"type": "object", "properties": {"safe": {"type": "boolean"}, "max": {"type": "number"}}},
            "any": {"type": ["string", "null"]}}, "required": []},
        "return": {"type": "object"}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}]


def call(name, arguments, id=None):
    c = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if id is not None:
        c["id"] = id
    return c


def fixed_cases():
    user, bot = {"role": "user", "content": "Hello, who are you?"}, {"role": "assistant", "content": "I am a program."}
    system = {"role": "system", "content": "You are a helpful assistant.\nBe brief."}
    args = {"place": "Zürich", "days": 2, "deep": {"a": [1, 2.5, None, True], "b": "x\ny"}}
    thought = {"role": "assistant", "reasoning_content": "Let me think.\nTwo lines.", "content": "Done."}
    for name, arguments in (("object", args), ("string", json.dumps(args, ensure_ascii=False))):
        dialogue = [user, {"role": "assistant", "content": "", "tool_calls": [call("get_weather", arguments, "call00001")]},
                    {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"t\": 21.5}"}]
        yield f"tool call, arguments as {name}", {"messages": dialogue, "tools": TOOLS}
        yield f"tool calls, no tools, {name}", {"messages": dialogue}
        two = [system, user, {"role": "assistant", "content": None, "tool_calls": [
            call("get_weather", arguments, "abcdefghi"), call("now", {} if name == "object" else "{}", "123456789")]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "sun"},
            {"role": "tool", "name": "now", "tool_call_id": "123456789", "content": "12:00"},
            {"role": "assistant", "content": "Sunny at noon."}, {"role": "user", "content": "Thanks!"}]
        yield f"two tool calls, {name}", {"messages": two, "tools": TOOLS}
        yield f"reasoning before a call, {name}", {"messages": [user, {
            "role": "assistant", "reasoning_content": "I need the weather.", "content": "Let me see.",
            "tool_calls": [call("get_weather", arguments, "call00001")]},
            {"role": "tool", "tool_call_id": "call00001", "content": "rain"}], "tools": TOOLS}
    yield "single", {"messages": [user]}
    yield "system", {"messages": [system, user]}
    yield "system only", {"messages": [system]}
    yield "developer", {"messages": [{"role": "developer", "content": "Obey."}, user]}
    yield "multi-turn", {"messages": [system, user, bot, {"role": "user", "content": " And now? "}]}
    yield "ends with assistant", {"messages": [user, bot]}
    yield "without generation prompt", {"messages": [user, bot], "add_generation_prompt": False}
    yield "empty", {"messages": []}
    yield "two users", {"messages": [user, user]}
    yield "assistant first", {"messages": [bot, user]}
    yield "unknown role", {"messages": [user, {"role": "ghost", "content": "Boo"}]}
    yield "tools, single", {"messages": [user], "tools": TOOLS}
    yield "tools, system", {"messages": [system, user], "tools": TOOLS}
    yield "no tools", {"messages": [user], "tools": []}
    yield "empty content", {"messages": [{"role": "user", "content": ""}]}
    yield "null content", {"messages": [{"role": "user", "content": None}]}
    yield "no content", {"messages": [{"role": "user"}, {"role": "assistant"}]}
    yield "unicode", {"messages": [{"role": "user", "content": "Grüße, 今天 \U0001f600 é ✓ \u200b‮\u00a0end\u2028"}]}
    yield "white space", {"messages": [{"role": "user", "content": "\n\n  \tx \r\n y  \n"}, {"role": "assistant", "content": " \n ok \n "}, user]}
    yield "markup", {"messages": [{"role": "user", "content": "<b>&amp;</b> {{ x }} {% y %} <|im_end|> 'q' \"Q\" \\"}]}
    yield "parts", {"messages": [{"role": "user", "content": [{"type": "text", "text": "One "}, {"type": "text", "text": "two"}]}]}
    yield "image", {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]}
    yield "parts of all", {"messages": [{"role": "system", "content": [{"type": "text", "text": "Sys"}]},
                                        {"role": "user", "content": [{"type": "text", "text": "Usr"}]},
                                        {"role": "assistant", "content": [{"type": "text", "text": "Bot"}]}, user]}
    yield "reasoning", {"messages": [user, thought, user]}
    yield "reasoning last", {"messages": [user, thought], "add_generation_prompt": False}
    yield "think tags", {"messages": [user, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}, user]}
    yield "think tags cut", {"messages": [user, {"role": "assistant", "content": "hm</think>Yes."}, user]}
    yield "null reasoning", {"messages": [user, {"role": "assistant", "content": "x", "reasoning_content": None}, user]}
    yield "thinking field", {"messages": [user, {"role": "assistant", "content": "x", "thinking": "t", "reasoning": "r"}, user]}
    yield "no thinking", {"messages": [user], "enable_thinking": False}
    yield "thinking", {"messages": [user], "enable_thinking": True, "thinking": True}
    yield "effort", {"messages": [user], "reasoning_effort": "high", "model_identity": "You are Moe."}
    yield "null calls", {"messages": [user, {"role": "assistant", "content": "x", "tool_calls": None}, user]}
    yield "no calls", {"messages": [user, {"role": "assistant", "content": "x", "tool_calls": []}, user]}
    yield "tool result as object", {"messages": [user, {"role": "tool", "content": {"a": [1, 2]}}]}


WORDS = ["hello", "", " ", "\n", "x = 1\ny = 2", "Ünï", "今天", "<think>", "</think>", "{\"a\": 1}", "'quoted'", "\"", "\\n",
         "<tool_call>", "a & b", "\U0001f600", "  padded  ", "/no_think", "[1, 2]", "None", "\t", "%s", "{}"]


def random_text(rng):
    return "".join(rng.choice(WORDS) + rng.choice(["", " ", "\n"]) for _ in range(rng.randrange(6)))


def random_value(rng, depth=0):
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind < 6:
        return [None, rng.random() < 0.5, rng.randrange(-1000, 1000), rng.choice([0.1, 1e20, -2.5, 3.0, 1e-7, 123456.789]),
                random_text(rng), rng.choice(WORDS)][kind]
    if kind == 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["a", "b", "type", "name", "Ö", "items", "x y", "get"]): random_value(rng, depth + 1)
            for _ in range(rng.randrange(4))}


def random_content(rng):
    kind = rng.randrange(10)
    if kind == 0:
        return None
    if kind == 1:
        return [{"type": "text", "text": random_text(rng)} for _ in range(rng.randrange(3))]
    return random_text(rng)


def random_schema(rng, depth=0):
    kind = rng.choice(["string", "integer", "number", "boolean", "array", "object"])
    s = {"type": kind}
    if rng.random() < 0.6:
        s["description"] = random_text(rng)
    if kind == "string" and rng.random() < 0.3:
        s["enum"] = [rng.choice(WORDS) for _ in range(3)]
    if rng.random() < 0.2:
        s["default"] = random_value(rng, 2)
    if kind == "array" and depth < 3:
        s["items"] = random_schema(rng, depth + 1)
    if kind == "object" and depth < 3:
        s["properties"] = {rng.choice(["p", "q", "r", "Überschrift"]): random_schema(rng, depth + 1) for _ in range(rng.randrange(3))}
        if rng.random() < 0.5:
            s["required"] = [k for k in s["properties"] if rng.random() < 0.5]
    if rng.random() < 0.1:
        s["nullable"] = True
    return s


def random_case(rng):
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": rng.choice(["system", "system", "developer"]), "content": random_content(rng)})
    for _ in range(rng.randrange(1, 5)):
        messages.append({"role": "user", "content": random_content(rng)})
        m = {"role": "assistant", "content": random_content(rng)}
        if rng.random() < 0.4:
            m[rng.choice(["reasoning_content", "reasoning_content", "reasoning", "thinking"])] = random_content(rng)
        if rng.random() < 0.4:
            calls = []
            for i in range(rng.randrange(1, 3)):
                a = {rng.choice("abcd"): random_value(rng) for _ in range(rng.randrange(3))}
                calls.append(call(rng.choice(["get_weather", "search"]), a if rng.random() < 0.7 else json.dumps(a),
                                  rng.choice([f"call0000{i}", None])))
            m["tool_calls"] = calls
            messages.append(m)
            for c in calls:
                t = {"role": "tool", "content": random_content(rng), "name": c["function"]["name"]}
                if "id" in c:
                    t["tool_call_id"] = c["id"]
                messages.append(t)
            if rng.random() < 0.7:
                messages.append({"role": "assistant", "content": random_content(rng)})
        else:
            messages.append(m)
    if rng.random() < 0.6:
        messages.pop()
    case = {"messages": messages}
    if rng.random() < 0.4:
        case["tools"] = [{"type": "function", "function": {"name": f"f{i}", "description": random_text(rng), "parameters": {
            "type": "object", "properties": {f"p{k}": random_schema(rng) for k in range(rng.randrange(4))},
            "required": ["p0"]}}} for i in range(rng.randrange(1, 3))]
    for name, values in (("add_generation_prompt", [False]), ("enable_thinking", [True, False]), ("thinking", [True, False]),
                         ("reasoning_effort", ["low", "high"]), ("preserve_thinking", [True])):
        if rng.random() < 0.25:
            case[name] = rng.choice(values)
    return case


# ---- comparing ------------------------------------------------------------------------------------------------------

def ours(program, path, case, folder):
    args = [program, "template", "--template", path]
    for name, value in dict(EXTRA, **case).items():
        if name in ("messages", "tools"):
            file = os.path.join(folder, name + ".json")
            with open(file, "w", encoding="utf-8") as f:
                json.dump(value, f, ensure_ascii=False)
            args += ["--" + name, file]
        elif name == "add_generation_prompt":
            args += [] if value else ["--no-generation-prompt"]
        else:
            args += ["--var", f"{name}={json.dumps(value)}"]
    r = subprocess.run(args, capture_output=True, timeout=60)
    if r.returncode in (0, 4, 7):
        return (r.stdout, None) if r.returncode == 0 else (None, r.stderr.decode().strip())
    sys.exit(f"{' '.join(args)}: exit {r.returncode}\n{r.stderr.decode()}")


def theirs(template, case):
    try:
        text = template.render(**dict({"tools": None, "documents": None, "add_generation_prompt": True}, **EXTRA, **case))
        return text.encode(), None
    except Exception as e:  # whatever a template may raise
        return None, f"{type(e).__name__}: {e}"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("folder")
    p.add_argument("--random", type=int, default=20)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("-v", action="store_true")
    a = p.parse_args()
    env, n_case, n_text, bad, unparsed = environment(), 0, 0, 0, []
    paths = sorted(glob.glob(os.path.join(a.folder, "*.jinja")))
    if not paths:
        sys.exit(f"{a.folder}: no *.jinja")
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            source = open(path, encoding="utf-8", newline="").read()
            rng, failed = random.Random(f"{a.seed} {os.path.basename(path)}"), 0
            try:
                template = env.from_string(source)
            except jinja2.TemplateError as e:
                unparsed.append(f"{os.path.basename(path)}: {e}")
                continue
            cases = list(fixed_cases()) + [(f"random {i}", random_case(rng)) for i in range(a.random)]
            for name, case in cases:
                want, why = theirs(template, case)
                got, why_not = ours(a.program, path, case, folder)
                n_case += 1
                n_text += want is not None
                if got == want:
                    continue
                failed += 1
                if failed <= 3 or a.v:
                    print(f"{os.path.basename(path)}, {name}:\n  jinja2:  {want if want is not None else why}\n"
                          f"  moebius: {got if got is not None else why_not}")
            bad += failed
    for line in unparsed:
        print(f"jinja2 can't read {line}")
    print(f"{len(paths) - len(unparsed)} templates, {n_case} conversations, {n_text} of them with a text: {bad} differences")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
