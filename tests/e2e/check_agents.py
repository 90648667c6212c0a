#!/usr/bin/env python3
"""Real agents at work with `moebius serve`: Claude Code, Codex and opencode do a task of several turns with tools.
Run by hand: `make check-agents`, which fetches them to tests/e2e/agents.
usage: check_agents.py MOEBIUS DEMO.gguf [AGENT...]

A small model knows nothing of tasks, so a proxy between agent and server says what is to be called next: it narrows the
schemas of a few tools to the task's arguments, alike in each turn, and adds `tool_choice`; at the end it asks for a
sentence. Meanwhile the server is killed, before a turn and in the middle of an answer. An agent is good if it ends
well, its tools did what was asked, no request was refused, and in each later turn at least 95% of what had been
computed and said before was there.

All of it runs in a network namespace of its own, in which agents reach nothing but this machine."""
import fcntl
import glob
import http.client
import http.server
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from serving import Server

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "agents", "node_modules")
MOEBIUS, DEMO = map(os.path.abspath, sys.argv[1:3])
LEAST_CACHED = 0.95
TIMEOUT = 900  # s, for an agent's task
TEMPLATE = ("{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
            "{% for c in m.tool_calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
            "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
            "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")
TASK = "Write a line to notes.txt, copy the file to copy.txt, and look at the copy."
DONE = "The copy has the line."


# ---- protocols ---------------------------------------------------------------------------------------------------

class Chat:
    """What the proxy adds to requests of OpenAI's chat, and reads of their answers."""
    path = "/v1/chat/completions"

    @staticmethod
    def schemas(body):
        """The tools' names, and the objects that hold their schemas under the key."""
        return {t["function"]["name"]: (t["function"], "parameters") for t in body.get("tools", [])}

    @staticmethod
    def n_results(body):
        return sum(m["role"] == "tool" for m in body["messages"])

    @staticmethod
    def force(body, name):
        body.update(tool_choice={"type": "function", "function": {"name": name}}, parallel_tool_calls=False)

    @staticmethod
    def usage(event):
        """Tokens of the prompt, of these not computed, of the answer; None: the event doesn't tell."""
        u = event.get("usage")
        return u and (u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"], u["completion_tokens"])


class Responses(Chat):
    path = "/v1/responses"

    @staticmethod
    def schemas(body):
        return {t["name"]: (t, "parameters") for t in body.get("tools", []) if t["type"] == "function"}

    @staticmethod
    def n_results(body):
        return sum(item.get("type") == "function_call_output" for item in body["input"])

    @staticmethod
    def force(body, name):
        body.update(tool_choice={"type": "function", "name": name}, parallel_tool_calls=False)

    @staticmethod
    def usage(event):
        u = event["type"] == "response.completed" and event["response"]["usage"]
        return u and (u["input_tokens"], u["input_tokens_details"]["cached_tokens"], u["output_tokens"])


class Messages(Chat):
    path = "/v1/messages"

    @staticmethod
    def schemas(body):
        return {t["name"]: (t, "input_schema") for t in body.get("tools", [])}

    @staticmethod
    def n_results(body):
        blocks = [b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"]]
        return sum(b["type"] == "tool_result" for b in blocks)

    @staticmethod
    def force(body, name):
        body["tool_choice"] = {"type": "tool", "name": name, "disable_parallel_tool_use": True}

    @staticmethod
    def usage(event):
        u = event["type"] in ("message_delta", "message") and event["usage"]
        cached = u and u["cache_read_input_tokens"]
        return u and (u["input_tokens"] + cached, cached, u["output_tokens"])


# ---- the proxy ---------------------------------------------------------------------------------------------------

class Proxy(http.server.ThreadingHTTPServer):
    """Between an agent and the server. `steps`: the calls of the task, (tool, arguments)."""
    daemon_threads = True

    def __init__(self, protocol, steps, server, start):
        super().__init__(("127.0.0.1", 0), Handler)
        self.protocol, self.steps, self.server, self.start = protocol, steps, server, start
        self.turns, self.refused, self.n_kills = [], [], 0
        self.kills = {(1, "before"), (2, "within")}  # of which turn, when
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def kill(self, turn, when):
        """kill -9, and another server with the same folder; whether it was to be now."""
        with self.lock:
            if (turn, when) not in self.kills:
                return False
            self.kills.remove((turn, when))
            self.server.stop(signal.SIGKILL)
            self.server = self.start()
            self.n_kills += 1
            return True

    def shape(self, body):
        """Adds to a request what its answer must be; returns which turn of the task it is, None: of no task."""
        schemas = self.protocol.schemas(body)
        if self.steps[0][0] not in schemas:
            body["max_tokens"] = 16  # a title for the conversation, for example
            return None
        for name, arguments in self.steps:
            if name in schemas:  # else it is to be loaded first
                tool, key = schemas[name]
                properties = {k: {"enum": [v]} for k, v in arguments.items()}
                tool[key] = {"type": "object", "properties": properties, "required": list(arguments),
                             "additionalProperties": False}
        turn = self.protocol.n_results(body)
        if turn < len(self.steps):
            self.protocol.force(body, self.steps[turn][0])
        else:
            body["guided_choice"] = [DONE]
        body["temperature"] = 0
        return turn


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def forward(self):
        proxy, turn = self.server, None
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.split("?")[0] == proxy.protocol.path:
            body = json.loads(text)
            turn = proxy.shape(body)
            text = json.dumps(body)
        proxy.kill(turn, "before")
        server = http.client.HTTPConnection("127.0.0.1", proxy.server.port, timeout=600)
        server.request(self.command, self.path, text, {k: v for k, v in self.headers.items() if k.lower() not in (
            "host", "content-length", "connection", "accept-encoding", "transfer-encoding")})
        answer = server.getresponse()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"] or "text/plain")
        self.send_header("Connection", "close")
        self.end_headers()
        self.pass_on(answer, turn)
        self.close_connection = True
        server.close()

    do_GET = do_POST = do_HEAD = forward

    def pass_on(self, answer, turn):
        """Piece by piece, as a stream must come."""
        proxy, all_of_it = self.server, b""
        try:
            while piece := answer.read1(65536):
                all_of_it += piece
                self.wfile.write(piece)
                self.wfile.flush()
                if proxy.kill(turn, "within"):
                    return
        except (http.client.HTTPException, ConnectionError) as e:
            proxy.refused.append(f"{self.path}: broken off: {e!r}")
        if answer.status >= 400 and self.command != "HEAD":
            proxy.refused.append(f"{self.command} {self.path}: {answer.status}: {all_of_it[:1000]!r}")
        elif turn is not None:
            self.note(turn, all_of_it)

    def note(self, turn, text):
        lines = [line.removeprefix("data: ") for line in text.decode().splitlines()]  # of a stream, or a whole answer
        events = json_lines(lines)
        usages = [u for u in map(self.server.protocol.usage, events) if u]
        self.server.refused += [json.dumps(e)[:1000] for e in events
                                if e.get("error") or e.get("type") in ("error", "response.failed")]
        if usages:
            self.server.turns.append((turn, *usages[-1]))


# ---- agents ------------------------------------------------------------------------------------------------------

def binary(pattern):
    """The program in the package of this platform; of several the one that asks least of the processor."""
    found = sorted(glob.glob(os.path.join(HERE, pattern)))
    assert found, f"{pattern} is not in {HERE}: make check-agents fetches it"
    return found[-1]


def json_lines(lines):
    return [json.loads(line) for line in lines if line.startswith("{")]


class ClaudeCode:
    protocol = Messages

    @staticmethod
    def steps(work):
        return [("Write", {"file_path": f"{work}/notes.txt", "content": "a line\n"}),
                ("Bash", {"command": "cp notes.txt copy.txt", "description": "Copy the notes"}),
                ("ToolSearch", {"query": "select:CronList", "max_results": 1}), ("CronList", {}),
                ("Read", {"file_path": f"{work}/copy.txt"})]

    @staticmethod
    def command(home, url):
        program = binary("@anthropic-ai/claude-code-*/claude")
        return [program, "-p", TASK, "--output-format", "stream-json", "--verbose", "--permission-mode", "acceptEdits",
                "--allowedTools", "Write,Bash,ToolSearch,CronList,Read"], {
            "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}

    @staticmethod
    def check(output):
        result = [e for e in output if e["type"] == "result"][-1]
        assert not result["is_error"] and result["subtype"] == "success", result
        assert result["result"] == DONE, result
        blocks = [b for e in output if e["type"] == "user" for b in e["message"]["content"]]
        results = [b for b in blocks if b["type"] == "tool_result"]
        assert len(results) == 5 and not any(b.get("is_error") for b in results), results
        assert "a line" in json.dumps(results[-1]["content"]), results


class Codex:
    protocol = Responses

    @staticmethod
    def steps(work):
        return [("exec_command", {"cmd": "echo 'a line' >> notes.txt; cp notes.txt copy.txt; cat copy.txt"})] * 3

    @staticmethod
    def command(home, url):
        settings = os.path.join(home, "codex")
        os.mkdir(settings)
        with open(os.path.join(settings, "config.toml"), "w", encoding="utf-8") as f:
            f.write('model = "demo"\nmodel_provider = "moebius"\ncheck_for_update_on_startup = false\n'
                    f'[model_providers.moebius]\nname = "moebius"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
                    '[analytics]\nenabled = false\n')
        program = binary("@openai/codex-*/vendor/*/bin/codex")
        return [program, "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
                TASK], {"CODEX_HOME": settings}

    @staticmethod
    def check(output):
        assert output[-1]["type"] == "turn.completed", output[-1]
        items = [e["item"] for e in output if e["type"] == "item.completed"]
        commands = [i for i in items if i["type"] == "command_execution"]
        assert [i["exit_code"] for i in commands] == [0, 0, 0], commands
        assert commands[-1]["aggregated_output"] == "a line\n" * 3, commands
        assert [i["text"] for i in items if i["type"] == "agent_message"] == [DONE], items


class Opencode:
    protocol = Chat

    @staticmethod
    def steps(work):
        return [("write", {"content": "a line\n", "filePath": f"{work}/notes.txt"}),
                ("bash", {"command": "cp notes.txt copy.txt"}), ("read", {"filePath": f"{work}/copy.txt"})]

    @staticmethod
    def command(home, url):
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "moebius", "options": {"baseURL": url + "/v1"},
                    "models": {"demo": {"name": "demo"}}}
        settings = {"model": "moebius/demo", "small_model": "moebius/demo", "autoupdate": False, "share": "disabled",
                    "provider": {"moebius": provider}}
        return [binary("opencode-*/bin/opencode"), "run", "--format", "json", "--auto", TASK], {
            "OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1"}

    @staticmethod
    def check(output):
        calls = [e["part"] for e in output if e["type"] == "tool_use"]
        assert [(c["tool"], c["state"]["status"]) for c in calls] == [
            (tool, "completed") for tool in ("write", "bash", "read")], calls
        assert "a line" in calls[-1]["state"]["output"], calls
        assert [e["part"]["text"] for e in output if e["type"] == "text"] == [DONE], output


AGENTS = {"claude": ClaudeCode, "codex": Codex, "opencode": Opencode}


# ---- a task ------------------------------------------------------------------------------------------------------

def check_cached(turns):
    """A turn begins with all that the one before computed and said, and of that nearly all was there."""
    for (_, prompt, _, answer), (turn, _, cached, _) in zip(turns, turns[1:]):
        share = cached / (prompt + answer)
        print(f"    turn {turn + 1}: {cached} of {prompt + answer} tokens were there, {100 * share:.1f}%")
        assert share >= LEAST_CACHED, turns


def run_task(agent, tmp):
    home, work, template = (os.path.join(tmp, name) for name in ("home", "work", "template"))
    os.mkdir(home)
    os.mkdir(work)
    with open(template, "w", encoding="utf-8") as f:
        f.write(TEMPLATE)
    env = {"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8"}

    def start():
        return Server(MOEBIUS, "-m", DEMO, "--template", template, "--ctx", "200000",
                      "--cache-dir", os.path.join(tmp, "kept"), env=env)

    proxy = Proxy(agent.protocol, agent.steps(work), start(), start)
    try:
        command, more = agent.command(home, proxy.url)
        r = subprocess.run(command, cwd=work, env={**env, **more}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=TIMEOUT, check=False, text=True)
        said = f"{r.stdout[-3000:]}\n{r.stderr[-3000:]}\n{proxy.refused}\n{proxy.turns}"
        assert r.returncode == 0, f"exit {r.returncode}: {said}"
        assert not proxy.refused, said
        agent.check(json_lines(r.stdout.splitlines()))
        assert not proxy.kills and [t[0] for t in proxy.turns] == list(range(len(proxy.steps) + 1)), said
        for name in "notes.txt", "copy.txt":
            with open(os.path.join(work, name), encoding="utf-8") as f:
                assert f.read().splitlines()[0] == "a line", name
        check_cached(proxy.turns)
    finally:
        proxy.shutdown()
        proxy.server.stop()
        print("\n".join("    " + line for line in proxy.server.log.splitlines() if "POST" not in line))


def main():
    failed = 0
    names = sys.argv[3:] or list(AGENTS)
    for name in names:
        start = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as tmp:
                run_task(AGENTS[name], tmp)
            print(f"good {name}, {time.monotonic() - start:.0f} s", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL {name}", flush=True)
            traceback.print_exc(file=sys.stdout)
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


def raise_loopback():
    """In a new network namespace it is down."""
    request, is_up, name = 0x8914, 1, b"lo"  # SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, request, struct.pack("16sH14x", name, is_up))


if __name__ == "__main__":
    if os.environ.pop("MOEBIUS_OWN_NETWORK", None):
        raise_loopback()
        sys.exit(main())
    os.execvpe("unshare", ["unshare", "-rn", sys.executable, *sys.argv], {**os.environ, "MOEBIUS_OWN_NETWORK": "1"})
