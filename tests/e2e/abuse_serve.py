#!/usr/bin/env python3
"""What clients can do wrong, over and over, to one `moebius serve`: it neither crashes, nor leaks, nor grows, and a client
that behaves gets its right answers all the time.
usage: abuse_serve.py MOEBIUS DEMO.gguf

A part of `make soak`, with a program that has sanitizers. MOEBIUS_ABUSE=N sets how often all of it is done (3), and the
first time is not measured; MOEBIUS_SEED=N chooses what is random, MOEBIUS_ABUSE_OF=bodies,json which functions below."""
import json
import os
import random
import re
import socket
import sys
import tempfile
import threading
import time

from serving import Server as AnyServer, post

MOEBIUS, DEMO = map(os.path.abspath, sys.argv[1:3])
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
ROUNDS = int(os.environ.get("MOEBIUS_ABUSE", "3"))
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
PATHS = [CHAT, COMPLETIONS, MESSAGES, RESPONSES, "/api/chat", "/api/generate", "/tokenize", "/detokenize", "/apply-template",
         "/v1/messages/count_tokens", "/completion", "/infill"]
RANDOM = random.Random(int(os.environ.get("MOEBIUS_SEED", "1")))
GROWTH_BYTES = 64 << 20  # that may come after the first time: what the heap scatters

TEMPLATE = os.path.join(TMP.name, "template")
with open(TEMPLATE, "w", encoding="utf-8") as f:
    f.write("{% for t in tools or [] %}<tools>{{ t.function.name }}</tools>{% endfor %}"
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
            "{% for c in m.tool_calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
            "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\n{% endfor %}<assistant>")

LOOK = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"at": {"enum": ["sky", "sea"]}, "why": {"type": "string", "maxLength": 20}},
    "required": ["at", "why"], "additionalProperties": False}}}


class Server(AnyServer):
    """One whose log is read all the time; else lines of it would be left out."""

    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.pieces = []
        self.reader = threading.Thread(target=self.read_log)
        self.reader.start()

    def read_log(self):
        while piece := self.process.stderr.read1(65536):
            self.pieces.append(piece)

    def stop(self, *args, **kw):
        self.process.terminate()
        self.reader.join(120)
        self.log += b"".join(self.pieces).decode(errors="replace")
        self.process.wait(120)
        return super().stop(*args, **kw)

    def memory(self):
        """Bytes of it that are in memory, as the system counts them."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) << 10

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def wait_for_files(self, n, seconds=60):
        """Waits until the connections of clients that have left are closed."""
        until = time.monotonic() + seconds
        while (found := self.files()) > n:
            assert time.monotonic() < until, f"{found} files are open"
            time.sleep(0.05)

    def wait_until_idle(self):
        for name in "moebius_texts_running", "moebius_texts_waiting", "moebius_requests_busy":
            self.wait_for_metric(name, 0, 120)


class GoodClient(threading.Thread):
    """Asks for what it knows the answer of until it is told to end, on a connection that it keeps."""

    def __init__(self, server):
        super().__init__()
        self.server, self.ends, self.error = server, False, None
        self.n_answers = self.n_busy = 0
        self.known = [(q, self.say(server.connect(600), q)) for q in self.questions()]

    @staticmethod
    def questions():
        message = {"messages": [{"role": "user", "content": "Lily and Tom"}], "max_tokens": 60, "temperature": 0}
        return [(COMPLETIONS, {"prompt": "The dog", "max_tokens": 12, "temperature": 0, "return_tokens": True}),
                (MESSAGES, {**message, "max_tokens": 12}),
                (CHAT, {**message, "tools": [LOOK], "tool_choice": "required", "parallel_tool_calls": False}),
                (CHAT, {**message, "response_format": {"type": "json_schema", "json_schema": {
                    "name": "form", "strict": True, "schema": LOOK["function"]["parameters"]}}}),
                (COMPLETIONS, {"prompt": ["The dog", "Lily and Tom", "The dog ran"], "max_tokens": 0, "echo": True, "logprobs": 2}),
                ("/tokenize", {"content": "Once upon a time"})]

    def say(self, connection, question):
        """What of the answer is always the same."""
        while True:
            status, _, text = self.server.ask("POST", *question, connection=connection)
            if status != 503:
                break
            self.n_busy += 1  # others' bodies fill the memory for bodies, or their texts the queue
            time.sleep(0.2)
        assert status == 200, (question, status, text)
        return re.sub(r'"(id|created|created_at|request_id|tool_call_id)":("[^"]*"|\d+)|"timings":\{[^}]*\}|'
                      r'"(cached_tokens|cache_read_input_tokens|input_tokens)":\d+', "", text.decode())

    def run(self):
        connection = self.server.connect(600)
        try:
            while not self.ends:
                for question, known in self.known:
                    answer = self.say(connection, question)
                    assert answer == known, f"{question}\nwas answered\n{known}\nand then\n{answer}"
                    self.n_answers += 1
        except Exception as e:  # also of the connection: it is told by whom the block belongs to
            self.error = e
        connection.close()

    def check(self):
        if self.error:
            raise self.error


def talk(s, data, wait=True, timeout=120):
    """Sends bytes and reads the answer's beginning; b"" where the server has cut the connection."""
    c = s.socket(timeout)
    try:
        c.sendall(data)
        return c.recv(65536) if wait else b""
    except ConnectionError:
        return b""
    finally:
        c.close()


def expect(answer, *statuses):
    found = re.match(rb"HTTP/1.1 (\d+) ", answer)
    assert found and int(found.group(1)) in statuses, (statuses, answer[:500])


def is_refused(s, path, body, *statuses):
    """A refusal that is JSON; 503 where the server is busy."""
    status, _, text = s.ask("POST", path, body)
    assert status in (*statuses, 503), (path, status, text[:500], body[:200])
    json.loads(text)


def story(**more):
    return json.dumps({"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "temperature": 0, **more})


# ---- what clients do ---------------------------------------------------------------------------------------------

def connections(s):
    """As many as there may be: silent ones, half a request, a whole one. Those that are too many are closed."""
    sockets = []
    for i in range(300):
        try:
            c = s.socket(120)
            c.sendall([b"", b"POST /v1/chat", post(CHAT, b'{"messages":', 100), post(COMPLETIONS, story(max_tokens=5))][i % 4])
            sockets.append(c)
        except ConnectionError:
            pass
    time.sleep(0.5)
    for c in sockets:
        c.close()


def slow_writers(s):
    """Byte by byte, longer than the server waits."""
    data = post(CHAT, json.dumps({"messages": [{"role": "user", "content": "x" * 5000}]}))
    sockets = [s.socket() for _ in range(60)]
    at, closed = 0, set()
    until = time.monotonic() + 60
    while len(closed) < len(sockets) and time.monotonic() < until:
        for c in sockets:
            try:
                if c not in closed:
                    c.sendall(data[at % len(data):][:1])
                    c.setblocking(False)
                    if c.recv(10) == b"":
                        closed.add(c)
            except BlockingIOError:
                pass
            except ConnectionError:
                closed.add(c)
            c.setblocking(True)
        at += 1
        time.sleep(0.05)
    assert len(closed) == len(sockets), f"{len(sockets) - len(closed)} clients that send byte by byte stay"


def slow_readers(s):
    """Streams and whole answers that nobody reads, or a few bytes at a time."""
    sockets = []
    for i in range(40):
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        c.sendall(post(COMPLETIONS, story(stream=i % 4 != 0, n=4, logprobs=5, max_tokens=200)))
        sockets.append(c)
    for _ in range(20):
        for c in sockets[::2]:
            c.settimeout(0.01)
            try:
                c.recv(50)
            except OSError:
                pass
        time.sleep(0.1)
    for c in sockets:
        c.close()


def halves(s):
    """Requests that end anywhere."""
    whole = post(CHAT, json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}))
    for _ in range(400):
        talk(s, whole[:RANDOM.randrange(len(whole))], wait=False)


def bodies(s):
    """100 MB, announced and not, in chunks, and as many of the longest that are taken as fill the server's memory."""
    def send(head, piece, n):
        c = s.socket()
        try:
            c.sendall(head)
            for _ in range(n):
                c.sendall(piece)
            return c.recv(65536)
        except (ConnectionError, TimeoutError):
            return b""
        finally:
            c.close()

    block = b"x" * (1 << 20)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n".encode()
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    for answer in (send(post(CHAT, b"", 100 << 20), block, 100),
                   send(chunked, b"100000\r\n" + block + b"\r\n", 100)):
        assert b" 200 " not in answer[:20], answer
    expect(send(post(CHAT, b"", 100 << 20, "Expect: 100-continue\r\n"), b"", 0), 413)
    threads = [threading.Thread(target=send, args=(post(CHAT, b"", (30 << 20) + 1), block, 30)) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    long = '{"prompt": "' + "once upon a time " * 1000000 + '"}'
    is_refused(s, COMPLETIONS, long, 400)
    is_refused(s, "/v1/messages", '{"max_tokens": 5, "messages": [' + '{"role":"user","content":"a"},' * 100000 +
               '{"role":"user","content":"a"}]}', 200, 400)


def json_depth(s):
    """JSON 10,000 deep, and as deep as it is read in each place that is walked."""
    for path in PATHS:
        for text in b"[" * 10000, b'{"a":' * 10000, b'[{"a":' * 5000 + b"1" + b"}]" * 5000:
            is_refused(s, path, text, 400)
            is_refused(s, path, b'{"messages": ' + text + b"}", 400)
    for n in 500, 2000:
        lists = "[" * n + "]" * n
        objects = '{"a":' * n + "1" + "}" * n
        schema = '{"type":"object","properties":{"a":' * (n // 2 - 10) + '{"type":"string"}' + "}}" * (n // 2 - 10)
        any_of = '{"anyOf":[' * (n // 2 - 10) + '{"type":"string"}' + "]}" * (n // 2 - 10)
        for deep in lists, objects, schema, any_of:
            message = '"max_tokens": 2, "messages": [{"role": "user", "content": "a"}]'
            for text in (f'{{"max_tokens": 2, "messages": {deep}}}', f'{{"max_tokens": 2, "messages": [{{"content": {deep}, "role": "user"}}]}}',
                         f'{{{message}, "chat_template_kwargs": {{"x": {deep}}}}}',
                         f'{{{message}, "response_format": {{"type": "json_schema", "json_schema": {{"schema": {deep}}}}}}}',
                         f'{{{message}, "tools": [{{"type": "function", "function": {{"name": "f", "parameters": {deep}}}}}]}}',
                         f'{{{message}, "tools": {deep}}}', f'{{{message}, "stop": {deep}}}', f'{{{message}, "x": {deep}}}'):
                is_refused(s, CHAT, text, 200, 400)
    calls = json.dumps("[" * 2000), json.dumps('{"a":' * 2000 + "1" + "}" * 2000)
    for arguments in calls:
        is_refused(s, CHAT, '{"max_tokens": 2, "messages": [{"role": "assistant", "tool_calls": [{"id": "x", "function": '
                   f'{{"name": "f", "arguments": {arguments}}}}}]}}]}}', 200, 400)
    for n in 150, 1000, 20000:
        for field, text in ("grammar", "root ::= " + "(" * n + '"a"' + ")" * n), ("regex", "(" * n + "a" + ")" * n), \
                ("regex", "a" + "{1,2}" * n), ("grammar", 'root ::= "a"' + "?" * n):
            is_refused(s, COMPLETIONS, json.dumps({"prompt": "x", "max_tokens": 3, field: text}), 200, 400)


def utf8(s):
    """Bytes that are no characters, in each part of a request."""
    for _ in range(200):
        junk = bytes(RANDOM.randrange(1, 256) for _ in range(RANDOM.randrange(1, 30)))
        broken = RANDOM.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", junk])
        for body in b'{"prompt": "' + broken + b'"}', b'{"max_tokens": 2, "prompt": "a", "' + broken + b'": 1}', broken, \
                b'{"prompt": "\\ud800' + broken + b'", "max_tokens": 2}':
            expect(talk(s, post(COMPLETIONS, body)), 200, 400, 503)
        line = broken.replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")
        talk(s, b"POST /v1/" + line + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        talk(s, b"GET /health HTTP/1.1\r\nHost: " + line + b"\r\nX-" + line + b": " + line + b"\r\n\r\n")
        talk(s, b"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + line + b"\r\n\r\n")


def in_a_row(s):
    """10,000 requests on one connection."""
    c = s.connect(600)
    asked = [("GET", "/health", None, 200), ("POST", CHAT, b'{"messages": 5}', 400), ("GET", "/v1/models", None, 200),
             ("POST", "/tokenize", b'{"content": "The dog"}', 200), ("GET", "/nothing", None, 404),
             ("POST", COMPLETIONS, b'{"prompt": "The", "max_tokens": 1}', 200), ("PUT", CHAT, b"{}", 405),
             ("POST", "/apply-template", b'{"messages": [{"role": "user", "content": "a"}]}', 200),
             ("POST", MESSAGES, b"{", 400), ("GET", "/metrics", None, 200)]
    for i in range(10000):
        method, path, body, status = asked[i % len(asked)]
        got = s.ask(method, path, body, connection=c)[0]
        assert got == status or got == 503, (method, path, got)
    c.close()


def vanish(s):
    """Clients that leave while their prompt is computed, in mid-stream, and before they hear anything."""
    for i in range(200):
        c = s.socket()
        prompt = " ".join(RANDOM.choice(["dog", "cat", "boat", "tree", "Lily"]) for _ in range(RANDOM.choice([2, 1500])))
        c.sendall(post(COMPLETIONS, story(prompt=prompt, stream=i % 3 > 0, n=1 + i % 2, return_progress=True)))
        if i % 3 == 2:
            c.settimeout(2)
            try:
                c.recv(RANDOM.choice([10, 1000]))
            except OSError:
                pass
        time.sleep(RANDOM.choice([0, 0.002, 0.05]))
        if i % 5 == 0:  # with a reset in place of an end
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        c.close()


def mangle(value, depth=0):
    """The same with something wrong in it."""
    wrong = [None, 5, -1, "", "x", [], {}, [[]], {"a": {}}, True, "{", '{"at": "sky"', "\u0000", "</tool_call>", 1e300]
    if RANDOM.random() < 0.15 * depth:
        return RANDOM.choice(wrong)
    if isinstance(value, dict):
        keys = list(value)
        changed = {k: v for k, v in value.items() if RANDOM.random() > 0.05}
        key = RANDOM.choice(keys) if keys else "x"
        changed[key] = mangle(value.get(key), depth + 1)
        return changed
    if isinstance(value, list) and value:
        changed = list(value)
        i = RANDOM.randrange(len(value))
        changed[i] = mangle(value[i], depth + 1)
        return changed + changed[:1] if RANDOM.random() < 0.1 else changed
    return RANDOM.choice(wrong)


def bad_histories(s):
    """1,000 requests whose calls of tools and their results are malformed, in each protocol."""
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky", "why": "it"}'}}
    user = {"role": "user", "content": "Hello"}
    look = LOOK["function"]
    requests = [
        (CHAT, {"messages": [user, {"role": "assistant", "content": None, "tool_calls": [call]},
                             {"role": "tool", "tool_call_id": "c1", "content": "blue"}], "tools": [LOOK]}),
        ("/api/chat", {"messages": [user, {"role": "assistant", "tool_calls": [
            {"function": {"name": "look", "arguments": {"at": "sky"}}}]}, {"role": "tool", "content": "blue"}],
            "tools": [LOOK], "stream": False, "options": {"num_predict": 2}}),
        (MESSAGES, {"messages": [user, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "so", "signature": ""},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sky"}}]}, {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "blue"}]}]}],
            "tools": [{"name": "look", "input_schema": look["parameters"]}]}),
        (RESPONSES, {"input": [user, {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                               {"type": "custom_tool_call", "call_id": "c2", "name": "free", "input": "x"},
                               {"type": "function_call_output", "call_id": "c1", "output": "blue"}],
                     "tools": [{"type": "function", **look}, {"type": "custom", "name": "free"}], "max_output_tokens": 2}),
    ]
    c = s.connect(600)
    for i in range(1000):
        path, body = requests[i % 4]
        body = {"max_tokens": 2, **{k: mangle(v) if k in ("messages", "input", "tools") else v for k, v in body.items()}}
        status, _, text = s.ask("POST", path, body, connection=c)
        assert status in (200, 400, 503), (path, status, text, body)
    c.close()


def damaged_call():
    """What a model may write for a call: cut, with bytes lost, said twice, or in the wrong place."""
    text = '<tool_call>\n{"name": "look", "arguments": {"at": "sky", "why": "it\\n"}}\n</tool_call>'
    for _ in range(RANDOM.randrange(1, 6)):
        i, j = sorted(RANDOM.randrange(len(text) + 1) for _ in range(2))
        wrong = RANDOM.choice(["", "{", "}", '"', "\\", ",", ":", "[", "</tool_call>", "<tool_call>", "\n", "null", "1e", "\u00e9"])
        text = RANDOM.choice([text[:i] + wrong + text[i:], text[:i] + wrong + text[i + 1:], text[:j], text[:i] + text[i:j] + text[i:]])
    return text[:400] or "<tool_call>"


def bad_calls(s):
    """1,000 malformed calls, which a grammar makes the model write, and 500 that end anywhere, as their answers' length is
    bounded: the client gets JSON, and of a call that is cut the arguments as far as they go."""
    jobs = [{"tool_choice": "required", "max_tokens": 1 + i % 50, "temperature": 1.5, "seed": i} for i in range(500)]
    for _ in range(1000):
        literal = damaged_call().replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        jobs.append({"grammar": f'root ::= "{literal}"', "max_tokens": 600, "temperature": 0})

    def work():
        c = s.connect(600)
        while jobs:
            status, _, text = s.ask("POST", CHAT, {"messages": [{"role": "user", "content": "Look."}], "tools": [LOOK],
                                                   **jobs.pop()}, connection=c)
            if status == 503:
                continue
            assert status == 200, (status, text)
            choice = json.loads(text)["choices"][0]
            for call in choice["message"].get("tool_calls") or []:
                assert call["function"]["name"] == "look", call
                assert choice["finish_reason"] == "length" or json.loads(call["function"]["arguments"]) is not None, choice

    workers(work, 8)


def workers(work, n):
    """n threads do the work; what one of them raises is raised."""
    errors = []

    def guarded():
        try:
            work()
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


# ---- the run -----------------------------------------------------------------------------------------------------

ALL = [connections, slow_writers, slow_readers, halves, bodies, json_depth, utf8, in_a_row, vanish, bad_histories, bad_calls]


def main():
    wanted = os.environ.get("MOEBIUS_ABUSE_OF", "")
    abuses = [f for f in ALL if not wanted or f.__name__ in wanted.split(",")]
    env = {**os.environ,
           "ASAN_OPTIONS": "handle_sigill=1:quarantine_size_mb=16:allocator_release_to_os_interval_ms=500:" + os.environ.get("ASAN_OPTIONS", "")}
    args = ["-m", DEMO, "--template", TEMPLATE, "--timeout", "5", "--ctx", "4096", "--state", "64M",
            "--cache-dir", os.path.join(TMP.name, "prefixes"), "--cache-size", "256M"]
    sizes = []
    with Server(MOEBIUS, *args, env=env) as s:
        good, n_files = GoodClient(s), s.files()
        good.start()
        try:
            for turn in range(ROUNDS):
                for abuse in abuses:
                    start, n = time.monotonic(), good.n_answers
                    abuse(s)
                    s.wait_for_files(n_files + 4)
                    good.check()
                    print(f"{turn + 1} {abuse.__name__}: {time.monotonic() - start:.0f} s, {good.n_answers - n} right answers "
                          f"beside it, {s.memory() >> 20} MiB, {s.threads()} threads, {s.files()} files", flush=True)
                time.sleep(5)  # the server gives memory back now and then
                good.check()
                sizes.append(s.memory())
        finally:
            good.ends = True
            good.join()
        good.check()
        s.wait_until_idle()
        s.wait_for_files(n_files)
    print(f"{good.n_answers} right answers, {good.n_busy} times busy; MiB:", *(n >> 20 for n in sizes))
    assert max(sizes) - sizes[0] < GROWTH_BYTES, "the server grows"
    print(f"{len(abuses)} passed, 0 failed")


if __name__ == "__main__":
    main()
