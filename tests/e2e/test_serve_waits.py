#!/usr/bin/env python3
"""`moebius serve` while clients wait for a model that takes long to be loaded.
usage: test_serve_waits.py MOEBIUS DEMO.gguf

A load takes as long as a test wants: the template is a FIFO, which each load reads."""
import http.client
import json
import os
import signal
import sys
import tempfile
import threading
import time

from run_functions import run_functions
from serving import Server

MOEBIUS, DEMO = map(os.path.abspath, sys.argv[1:3])
TMP = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PINGS = {CHAT: b": ping\n\n", COMPLETIONS: b": ping\n\n", "/v1/responses": b": ping\n\n",
         "/v1/messages": b'event: ping\ndata: {"type":"ping"}\n\n', "/api/chat": b'"content":""', "/api/generate": b'"response":""'}


class SlowServer(Server):
    """One whose models a and b are there after one call of `load` each."""
    n = 0

    def __init__(self, *args):
        SlowServer.n += 1
        folder = os.path.join(TMP.name, f"models {SlowServer.n}")
        os.mkdir(folder)
        for name in "a", "b":
            os.symlink(DEMO, os.path.join(folder, name + ".gguf"))
        self.fifo = folder + " template"
        os.mkfifo(self.fifo)
        super().__init__(MOEBIUS, "--models", folder, "--template", self.fifo, *args)

    def load(self, name="a", template=TEMPLATE):
        """Lets the load of this model end, which has begun or is to come."""
        self.wait_for_state(name, "loading")
        with open(self.fifo, "w", encoding="utf-8") as f:
            f.write(template)
        self.wait_for_state(name, "ready", "unloaded", "unloading")

    def n_waiting(self, n):
        self.wait_for_metric("moebius_requests_waiting_for_models", n)

    def none_is_busy(self):
        self.wait_for_metric("moebius_requests_busy", 0)

    def state(self, name):
        return self.json("/v1/models/" + name)["state"]

    def wait_for_state(self, name, *wanted, seconds=20):
        until = time.monotonic() + seconds
        while (state := self.state(name)) not in wanted:
            assert time.monotonic() < until, f"model {name} is {state}, expected {wanted}"
            time.sleep(0.02)


def question(path, text="Once upon a time", n=12, **more):
    """The body of a request for a stream."""
    messages = [{"role": "user", "content": text}]
    if path.startswith("/api/"):
        asked = {"messages": messages} if path == "/api/chat" else {"prompt": text, "raw": True}
        return {"model": "a", **asked, "options": {"temperature": 0, "num_predict": n}, **more}
    asked = {CHAT: {"messages": messages, "max_tokens": n}, "/v1/messages": {"messages": messages, "max_tokens": n},
             COMPLETIONS: {"prompt": text, "max_tokens": n}, "/v1/responses": {"input": text, "max_output_tokens": n}}[path]
    return {"model": "a", "temperature": 0, "stream": True, **asked, **more}


class Client(threading.Thread):
    """Asks, and hears the whole answer: its status, its headers, and pieces of its body with the seconds at which they came."""

    def __init__(self, server, path, body):
        super().__init__()
        self.path, self.status, self.headers, self.pieces, self.start_s = path, None, None, [], time.monotonic()
        self.connection = server.connect()
        self.connection.request("POST", path, json.dumps(body))
        self.start()

    def run(self):
        try:
            answer = self.connection.getresponse()
            self.headers, self.headers_s, self.status = answer.headers, time.monotonic() - self.start_s, answer.status
            while piece := answer.read1(65536):
                self.pieces.append((time.monotonic() - self.start_s, piece))
        except (OSError, http.client.HTTPException) as e:
            self.pieces.append((time.monotonic() - self.start_s, repr(e).encode()))

    def wait(self, condition, seconds=20):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, (self.path, self.status, self.pieces)
            time.sleep(0.02)

    def text(self):
        return b"".join(piece for _, piece in self.pieces)

    def whole(self):
        self.join(30)
        assert not self.is_alive(), (self.path, self.pieces)
        return self.text()

    def leave(self):
        self.connection.sock.shutdown(2)
        self.join(10)


def said(path, text):
    """What a stream says, and how it ends."""
    lines = text.decode().splitlines()
    if path.startswith("/api/"):
        found = [json.loads(line) for line in lines]
        return "".join(e["message"]["content"] if path == "/api/chat" else e["response"] for e in found), found[-1]["done_reason"]
    found = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    if path == "/v1/messages":
        return "".join(e["delta"]["text"] for e in found if e["type"] == "content_block_delta"), found[-1]["type"]
    if path == "/v1/responses":
        return "".join(e["delta"] for e in found if e["type"] == "response.output_text.delta"), found[-1]["type"]
    choices = [e["choices"][0] for e in found]
    return "".join(c["delta"].get("content", "") if path == CHAT else c["text"] for c in choices), choices[-1]["finish_reason"]


def error_of(path, text):
    """The sentence of the error with which a stream ends."""
    lines = text.decode().strip().splitlines()
    last = json.loads(lines[-1] if path.startswith("/api/") else lines[-1][6:])
    if path == "/v1/responses":
        assert last["type"] == "response.failed" and b"event: response.created\n" in text, text
        return last["response"]["error"]["message"]
    if path == "/v1/messages":
        assert last["type"] == "error" and lines[-2] == "event: error", text
    return last["error"] if path.startswith("/api/") else last["error"]["message"]


def test_a_prompt_that_is_too_long_is_told_in_the_stream_beside_ticks():
    """Tokenising takes longer than a tick, so that ThreadSanitizer sees both."""
    body = {"input": "word " * 100000, "stream": True, "max_output_tokens": 2}
    with SlowServer() as s:
        threading.Thread(target=s.load).start()
        status, _, text = s.ask("POST", "/v1/responses", {**body, "model": "a"})
        assert status == 200 and "prompt is too long" in error_of("/v1/responses", text), (status, text[-500:])


def test_streams_hear_pings_while_their_model_is_loaded_and_then_the_answer():
    with SlowServer("--ctx", "100") as s:
        clients = [Client(s, path, question(path)) for path in PINGS]
        long = [Client(s, path, question(path, "Once upon a time. " * 100)) for path in PINGS]
        whole = Client(s, CHAT, question(CHAT, stream=False))
        leaver = Client(s, CHAT, question(CHAT))
        leaver.wait(lambda: leaver.pieces)  # it has heard that all is well
        leaver.leave()
        s.n_waiting(2 * len(PINGS) + 1)
        for c in clients:
            c.wait(lambda c=c: c.text().count(PINGS[c.path]) == 2)
            assert c.status == 200 and 4.5 < c.headers_s < 9, (c.path, c.headers_s)
            times = [0, *(at for at, _ in c.pieces)]
            assert max(b - a for a, b in zip(times, times[1:])) < 9, (c.path, times)
        assert whole.status is None and s.state("a") == "loading"
        s.load()
        for c in clients:
            assert said(c.path, c.whole()) == said(c.path, s.ask("POST", c.path, question(c.path))[2]), c.text()
        assert said(CHAT, clients[0].text())[0] == json.loads(whole.whole())["choices"][0]["message"]["content"]
        for c in long:  # what is known late is told where it can be
            assert "prompt is too long" in error_of(c.path, c.whole()) and c.status == 200, c.text()
        assert b"context_length_exceeded" in long[0].text()
        s.none_is_busy()
        assert s.wait_for("the client left"), s.log


def test_a_model_that_cannot_be_loaded_fails_soon_as_a_status_and_late_as_an_event():
    with SlowServer() as s:
        soon = [Client(s, path, question(path)) for path in PINGS]
        s.n_waiting(len(soon))
        s.load(template="{% broken")
        for c in soon:
            assert b"chat template" in c.whole() and c.status == 400, (c.path, c.status, c.text())
        late = [Client(s, path, question(path)) for path in PINGS]
        for c in late:
            c.wait(lambda c=c: c.pieces)
        s.load(template="{% broken")
        for c in late:
            assert "chat template" in error_of(c.path, c.whole()) and c.status == 200, (c.path, c.text())
        again, too_long = Client(s, CHAT, question(CHAT)), Client(s, CHAT, question(CHAT, "Once. " * 100000))
        s.n_waiting(2)
        s.load()
        assert again.whole() and again.status == 200
        assert b"context_length_exceeded" in too_long.whole() and too_long.status == 400, too_long.text()[:2000]


def test_who_waits_takes_nothing_from_others():
    with SlowServer() as s:
        waiting = [Client(s, CHAT, question(CHAT)) for _ in range(40)]
        more = [("/tokenize", {"model": "a", "content": "Once"}), ("/api/show", {"model": "a"}),
                ("/v1/messages/count_tokens", question("/v1/messages")), ("/apply-template", question(CHAT))]
        waiting += [Client(s, path, body) for path, body in 5 * more]
        s.n_waiting(60)
        assert s.json("/health") == {"status": "ok"} and s.state("a") == "loading"
        assert "a is being loaded" in s.json("/models/load", {"model": "b"}, status=409)["error"]["message"]  # a worker says so
        for c in waiting[::2]:
            c.leave()
        s.n_waiting(30)
        s.load()
        answers = {c.path: c.whole() for c in waiting[1::2]}
        assert all(c.status == 200 for c in waiting[1::2])
        said_once = said(CHAT, answers[CHAT])
        assert all(said(CHAT, c.text()) == said_once for c in waiting[1:40:2]) and said_once[1] == "length"
        s.none_is_busy()
        s.json("/models/unload", {"model": "a"})  # nobody has it any more
        s.wait_for_state("a", "unloaded")


def test_no_more_wait_than_could_be_answered():
    with SlowServer("--texts", "1", "--queue", "2") as s:
        waiting = [Client(s, CHAT, question(CHAT)) for _ in range(3)]
        s.n_waiting(3)
        for path in CHAT, "/v1/messages", "/tokenize":
            status, headers, text = s.ask("POST", path, {**question(CHAT), "content": "x"})
            assert status == 503 and headers["Retry-After"] == "2" and b"3 requests wait for models already" in text, (path, text)
        waiting[1].leave()
        s.n_waiting(2)
        waiting[1] = Client(s, CHAT, question(CHAT))
        s.load()
        assert all(c.whole() and c.status == 200 for c in waiting)


def test_each_of_two_wanted_models_serves_all_who_wait_for_it():
    with SlowServer() as s:
        waiting = [Client(s, CHAT, question(CHAT, model="ab"[i % 2])) for i in range(8)]
        s.n_waiting(8)
        first = "a" if s.state("a") == "loading" else "b"
        waiting += [Client(s, CHAT, question(CHAT, model="ab"[i % 2])) for i in range(8)]
        s.n_waiting(16)
        s.load(first)
        s.load("b" if first == "a" else "a")  # there is no third time
        for c in waiting:
            assert c.whole() and c.status == 200, c.text()
        assert s.state(first) == "unloaded"


def test_a_server_that_ends_tells_who_waits():
    with SlowServer() as s:
        streams = [Client(s, path, question(path)) for path in PINGS]
        for c in streams:
            c.wait(lambda c=c: c.pieces)
        others = [Client(s, CHAT, question(CHAT)), Client(s, "/tokenize", {"model": "b", "content": "x"})]
        s.n_waiting(len(PINGS) + 2)
        start = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        for c in streams:
            assert "the server is ending" in error_of(c.path, c.whole()), c.text()
        for c in others:
            assert b"the server is ending" in c.whole() and c.status == 503 and c.headers["Retry-After"], c.text()
        assert time.monotonic() - start < 4, "who waited was told late"
        s.process.wait(8 - (time.monotonic() - start))  # though the load can't be interrupted


if __name__ == "__main__":
    run_functions(globals())
