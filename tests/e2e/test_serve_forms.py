#!/usr/bin/env python3
"""`moebius serve`: answers in a form that the client asks for, calls that it forces, and histories that come back.
usage: test_serve_forms.py MOEBIUS DEMO.gguf

Each function below is one test; a failed assertion names itself."""
import json
import os
import re
import signal
import struct
import sys
import tempfile

from run_functions import run_functions
from serving import Server as AnyServer

MOEBIUS, DEMO = map(os.path.abspath, sys.argv[1:3])
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

# Turns as the demo model's few special tokens allow, calls as Hermes and Qwen write them, spaces in their own way.
TEMPLATE = os.path.join(TMP.name, "template")
with open(TEMPLATE, "w", encoding="utf-8") as f:
    f.write("{% for t in tools or [] %}<tools>{{ t.function.name }}</tools>{% endfor %}"
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
            "{% for c in m.tool_calls %}<tool_call>\n{\"name\" : \"{{ c.function.name }}\", \"arguments\" : "
            "{{ c.function.arguments | tojson }} }\n</tool_call>{% endfor %}"
            "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")

LOOK = {"type": "function", "function": {"name": "look", "description": "", "parameters": {
    "type": "object", "properties": {"at": {"enum": ["sky", "sea"]}, "times": {"enum": [1, 2]}},
    "required": ["at", "times"], "additionalProperties": False}}}
SING = {"type": "function", "function": {"name": "sing", "parameters": {
    "type": "object", "properties": {"song": {"enum": ["la", "lo"]}}, "required": ["song"],
    "additionalProperties": False}}}
FORM = {"type": "object", "properties": {"name": {"enum": ["Tom", "Lily"]}, "old": {"type": "boolean"}},
        "required": ["name", "old"], "additionalProperties": False}


def Server(*args, **kw):
    return AnyServer(MOEBIUS, "-m", DEMO, "--template", TEMPLATE, *args, **kw)


def chat(text="Hello.", n=120, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": n, "temperature": 0, **more}


def content(s, **more):
    choice = s.json(CHAT, chat(**more))["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    return choice["message"]["content"]


def schema_format(schema, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": strict}}


def is_form(text):
    value = json.loads(text)
    return set(value) == {"name", "old"} and value["name"] in ("Tom", "Lily") and isinstance(value["old"], bool)


# ---- forms -------------------------------------------------------------------------------------------------------

def test_answers_have_the_form_of_a_schema():
    with Server() as s:
        assert is_form(content(s, response_format=schema_format(FORM)))
        for seed in range(8):
            assert is_form(content(s, response_format=schema_format(FORM), temperature=1.5, seed=seed)), seed
        said = "".join(e["choices"][0]["delta"].get("content", "")
                       for e in s.events(CHAT, chat(response_format=schema_format(FORM))) if e["choices"])
        assert is_form(said), said
        text = s.json("/v1/responses", {"input": "Hello.", "temperature": 0, "max_output_tokens": 120, "text": {
            "format": {"type": "json_schema", "name": "form", "schema": FORM, "strict": True}}})
        assert is_form(text["output"][0]["content"][0]["text"]), text


def test_answers_follow_grammars_and_expressions():
    with Server() as s:
        assert content(s, grammar='root ::= "yes" | "no" " " [0-9]') in ["yes"] + [f"no {i}" for i in range(10)]
        assert re.fullmatch("[a-c]{3}-[0-9]{2}", content(s, guided_regex="[a-c]{3}-[0-9]{2}"))
        assert content(s, guided_choice=["red", "green"]) in ("red", "green")
        answer = s.json(COMPLETIONS, {"prompt": "Once", "max_tokens": 60, "temperature": 0, "grammar": 'root ::= "a"{7}'})
        assert answer["choices"][0]["text"] == "aaaaaaa", answer


def test_what_cannot_be_enforced_is_named():
    unique = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with Server() as s:
        message = s.json(CHAT, chat(response_format=schema_format(unique)), status=400)["error"]["message"]
        assert "response_format" in message and "uniqueItems" in message, message
        s.json(CHAT, chat(n=4, response_format=schema_format(unique, strict=False)))
        assert s.wait_for("uniqueItems"), s.log
        message = s.json(CHAT, chat(response_format=schema_format({"type": "nothing"})), status=400)["error"]["message"]
        assert "response_format" in message and "type" in message, message
        message = s.json(CHAT, chat(grammar="root ::= ("), status=400)["error"]["message"]
        assert message.startswith("grammar:"), message


def thinking_template():
    think = TEMPLATE + ".think"
    with open(think, "w", encoding="utf-8") as f:
        f.write("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<think>")
    return think


def test_reasoning_has_the_budget_of_the_request_or_of_the_server():
    with AnyServer(MOEBIUS, "-m", DEMO, "--template", thinking_template(), "--reasoning-budget", "5") as s:
        def answer(**more):
            got = s.json(CHAT, chat("Hi", max_tokens=40, temperature=0, ignore_eos=True, **more))
            return got["usage"]["completion_tokens_details"]["reasoning_tokens"], got["choices"][0]["message"]["content"]

        default, content = answer()
        assert 5 <= default < 12 and content, default
        assert 12 <= answer(reasoning_budget=12)[0] < 19
        unbounded, content = answer(reasoning_budget=-1)
        assert unbounded == 40 and not content


def test_zero_bytes_in_messages_hide_no_reasoning():
    with AnyServer(MOEBIUS, "-m", DEMO, "--template", thinking_template()) as s:
        message = s.json(CHAT, chat("H\0i", n=9))["choices"][0]["message"]
        assert message["content"] == "" and message["reasoning_content"], message
        assert s.json("/apply-template", chat("H\0i"))["prompt"] == "<user>H\0i\n<think>"


# ---- calls -------------------------------------------------------------------------------------------------------

def calls_of(s, **more):
    choice = s.json(CHAT, chat(tools=[LOOK, SING], **more))["choices"][0]
    assert choice["finish_reason"] == "tool_calls", choice
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in choice["message"]["tool_calls"]]


def is_good_call(call):
    name, arguments = call
    if name == "sing":
        return set(arguments) == {"song"} and arguments["song"] in ("la", "lo")
    return name == "look" and set(arguments) == {"at", "times"} and arguments["at"] in ("sky", "sea") and \
        arguments["times"] in (1, 2)


def test_calls_can_be_forced():
    with Server() as s:
        for seed in range(6):
            calls = calls_of(s, tool_choice="required", parallel_tool_calls=False, temperature=1.2, seed=seed)
            assert len(calls) == 1 and is_good_call(calls[0]), calls
        name = {"type": "function", "function": {"name": "sing"}}
        assert all(c[0] == "sing" and is_good_call(c) for c in calls_of(s, tool_choice=name, parallel_tool_calls=False))
        message = chat()["messages"]
        tools = [{"name": "look", "input_schema": LOOK["function"]["parameters"]}]
        answer = s.json("/v1/messages", {"messages": message, "max_tokens": 120, "temperature": 0, "tools": tools,
                                         "tool_choice": {"type": "any", "disable_parallel_tool_use": True}})
        assert answer["stop_reason"] == "tool_use", answer
        call = [b for b in answer["content"] if b["type"] == "tool_use"][0]
        assert is_good_call((call["name"], call["input"])), call
        answer = s.json("/api/chat", {"messages": message, "stream": False, "options": {"num_predict": 120, "temperature": 0},
                                      "tools": [LOOK], "tool_choice": "required", "parallel_tool_calls": False})
        [call] = [c["function"] for c in answer["message"]["tool_calls"]]
        assert is_good_call((call["name"], call["arguments"])), answer


def test_without_a_call_the_content_obeys_the_schema():
    kinds = set()
    with Server() as s:
        for seed in range(24):
            ask = chat(tools=[LOOK, SING], response_format=schema_format(FORM), temperature=2, top_k=0, top_p=1, min_p=0,
                       seed=seed)
            choice = s.json(CHAT, {**ask, "parallel_tool_calls": False})["choices"][0]
            kinds.add(choice["finish_reason"])
            if choice["finish_reason"] == "stop":
                assert is_form(choice["message"]["content"]), choice
            else:
                call = choice["message"]["tool_calls"][0]["function"]
                assert is_good_call((call["name"], json.loads(call["arguments"]))), choice
                assert not choice["message"]["content"], choice
        assert kinds == {"stop", "tool_calls"}, kinds
        # with a call that is required there is no content, and a schema that can't be enforced is refused beside tools, too
        assert calls_of(s, tool_choice="required", response_format=schema_format(FORM), parallel_tool_calls=False)
        assert s.wait_for("response_format: not enforced where a call is required"), s.log
        unique = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
        message = s.json(CHAT, chat(tools=[LOOK], response_format=schema_format(unique)), status=400)["error"]["message"]
        assert "response_format" in message and "uniqueItems" in message, message


def test_a_grammar_beside_tools_is_the_clients_own():
    with Server() as s:
        assert content(s, tools=[LOOK], guided_regex="(ab){3}") == "ababab"
        call = r'"<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": \"moon\"}}</tool_call>"'
        message = s.json(CHAT, chat(tools=[LOOK], grammar="root ::= " + call))["choices"][0]["message"]
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"at": "moon"}, message


def test_a_call_that_is_cut_is_not_whole():
    call = r'"<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": \"one two three four five six seven eight nine\"}}</tool_call>"'
    ask = {"messages": chat()["messages"], "max_tokens": 45, "temperature": 0, "grammar": "root ::= " + call}
    with Server() as s:
        choice = s.json(CHAT, {**ask, "tools": [LOOK]})["choices"][0]
        arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
        assert choice["finish_reason"] == "length" and arguments.startswith('{"at":"one') and "}" not in arguments, choice
        tool = {"name": "look", "input_schema": LOOK["function"]["parameters"]}
        answer = s.json("/v1/messages", {**ask, "tools": [tool]})
        assert answer["stop_reason"] == "max_tokens" and answer["content"] == [], answer


def test_expressions_that_are_too_much_are_the_clients_fault():
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"type": "string", "pattern": "^((a?){1000}){10}$"}}, "required": ["a"],
        "additionalProperties": False}}}
    with Server() as s:
        error = s.json(CHAT, chat(tools=[tool], tool_choice="required"), status=400)["error"]
        assert "too many ways" in error["message"], error
        tool["function"]["parameters"]["properties"]["a"]["pattern"] = r"^[\s\S]{1,65535}$"
        s.json(CHAT, chat(n=4, tools=[tool, LOOK]))
        assert s.wait_for("pattern at .*/a/pattern is not enforced"), s.log


def test_tools_that_are_loaded_later_leave_the_beginning_as_it_was():
    def tool(t, **more):
        return {"name": t["function"]["name"], "input_schema": t["function"]["parameters"], **more}

    search = {"name": "search", "input_schema": {"type": "object", "properties": {"query": {"enum": ["sing"]}},
                                                 "required": ["query"], "additionalProperties": False}}
    ask = {"max_tokens": 100, "temperature": 0, "tools": [tool(LOOK), search],
           "messages": [{"role": "user", "content": "Once upon a time there was a little girl. " * 15}]}

    def force(name):
        answer = s.json("/v1/messages", {**ask, "tool_choice": {"type": "tool", "name": name,
                                                                "disable_parallel_tool_use": True}})
        return answer["content"][-1], answer["usage"]

    with Server() as s:
        call, before = force("search")
        ask["tools"].insert(0, tool(SING, defer_loading=True))
        s.json("/v1/messages", {**ask, "tool_choice": {"type": "tool", "name": "sing"}}, status=400)  # not yet there
        ask["messages"] += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": [
                {"type": "tool_reference", "tool_name": "sing"}]}]}]
        call, usage = force("sing")
        assert is_good_call((call["name"], call["input"])), call
        assert usage["cache_read_input_tokens"] >= before["input_tokens"] + before["output_tokens"] - 1, (before, usage)


def test_tools_that_are_not_there_cannot_be_forced():
    with Server() as s:
        name = {"type": "function", "function": {"name": "dance"}}
        message = s.json(CHAT, chat(tools=[LOOK], tool_choice=name), status=400)["error"]["message"]
        assert "dance" in message, message


# ---- histories ---------------------------------------------------------------------------------------------------

def converse(s, n_turns, messages, rewrite=lambda m: m):
    """Turns of one forced call each. Returns, for each turn but the first, the tokens of its prompt that were not
    computed, and those that the turns before had computed or said."""
    shares, before = [], 0
    for _ in range(n_turns):
        answer = s.json(CHAT, {"messages": messages, "max_tokens": 100, "temperature": 0, "tools": [SING],
                               "tool_choice": "required", "parallel_tool_calls": False})
        choice, usage = answer["choices"][0], answer["usage"]
        assert choice["finish_reason"] == "tool_calls", choice
        if before:
            shares.append((usage["prompt_tokens_details"]["cached_tokens"], before))
        before = usage["prompt_tokens"] + usage["completion_tokens"]
        messages.append(rewrite(choice["message"]))
        messages.append({"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "ok"})
    return shares


def test_calls_come_back_as_the_tokens_that_were_sampled():
    with Server() as s:
        for cached, before in converse(s, 3, chat()["messages"]):
            assert cached >= before - 1, (cached, before)

    def change(message):
        message = json.loads(json.dumps(message))
        message["content"] = "I sing."
        return message

    with Server() as s:
        for cached, before in converse(s, 2, chat()["messages"], change):
            assert cached < before - 1, "an answer that the client changed was put back"


def test_calls_come_back_after_a_kill():
    folder = os.path.join(TMP.name, "kept")
    messages = chat("Sing, please, and sing again, as you did when we went to the park with Lily and her small red boat. "
                    "She was so happy then, and we all want to hear it.")["messages"]
    s = Server("--cache-dir", folder)
    shares = converse(s, 2, messages)
    assert all(cached >= before - 1 for cached, before in shares), shares
    s.stop(signal.SIGKILL)
    with Server("--cache-dir", folder) as s:
        answer = s.json(CHAT, {"messages": messages, "max_tokens": 1, "temperature": 0, "tools": [SING]})
        details = answer["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] >= shares[-1][1] // 64 * 64, (details, shares)


# ---- templates ---------------------------------------------------------------------------------------------------

def add_template(path, text):
    """Writes the demo model with a chat template of these bytes. As many as the alignment asks for are spaces."""
    key = b"tokenizer.chat_template"
    text += b" " * (-(8 + len(key) + 4 + 8 + len(text)) % 32)
    with open(DEMO, "rb") as f:
        magic, version, n_tensor, n_kv = struct.unpack("<4sIQQ", f.read(24))
        rest = f.read()
    with open(path, "wb") as f:
        f.write(struct.pack("<4sIQQ", magic, version, n_tensor, n_kv + 1))
        f.write(struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(text)) + text + rest)


def test_a_template_that_is_no_text_is_shown_as_far_as_it_is():
    model = os.path.join(TMP.name, "no-text.gguf")
    add_template(model, b"{{ messages }}\xff")
    with AnyServer(MOEBIUS, "-m", model) as s:
        for shown in s.json("/api/show", {"model": "no-text"})["template"], s.json("/tokenizer_info")["chat_template"]:
            assert shown.rstrip() == "{{ messages }}\ufffd", shown
    os.remove(model)


if __name__ == "__main__":
    run_functions(globals())
