#!/usr/bin/env python3
"""Measures a server with OpenAI's interface, any of them: N clients decode together, each its own prompt.

    tools/serve_clients.py http://127.0.0.1:8080 --clients 8 --tokens 128
    tools/serve_clients.py http://127.0.0.1:8080 --clients 8 --tokens 400 --long-prompt 8192

Prints, as one line of JSON: tokens per second of all clients together while all of them decode, the time to the first
token, and the time between tokens (median, 99th percentile, longest). --long-prompt: once all clients decode, another
one sends a prompt of about so many tokens, and the times between tokens meanwhile are listed apart. Needs Python's
standard library only.
"""
import argparse
import http.client
import json
import random
import threading
import time
import urllib.parse

WORDS = ("the a one some every river house morning letter engine garden winter captain stone market window music road "
         "north paper silver friend story light answer ship forest table hand").split()


def words(n, seed):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n))


class Client(threading.Thread):
    """One request: when it was sent, and when each of its tokens came."""

    def __init__(self, url, prompt, n_tokens):
        super().__init__(daemon=True)
        self.url, self.prompt, self.n_tokens = url, prompt, n_tokens
        self.sent = 0.0
        self.came = []
        self.error = None

    def run(self):
        try:
            self.request()
        except Exception as e:  # shown by who waits for it
            self.error = e

    def request(self):
        u = urllib.parse.urlparse(self.url)
        connection = http.client.HTTPConnection(u.hostname, u.port, timeout=600)
        body = {"prompt": self.prompt, "max_tokens": self.n_tokens, "temperature": 0, "stream": True, "ignore_eos": True,
                "cache_prompt": False}
        self.sent = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.read(500)!r}")
        for line in answer:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                self.came.append(time.monotonic())
        connection.close()


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p / 100 * len(values)))] if values else 0.0


def gaps(clients, begin, end):
    return [b - a for c in clients for a, b in zip(c.came, c.came[1:]) if a >= begin and b <= end]


def summary(values):
    return {"n": len(values), "median_ms": round(1e3 * percentile(values, 50), 2),
            "p99_ms": round(1e3 * percentile(values, 99), 2), "longest_ms": round(1e3 * max(values, default=0), 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--prompt", type=int, default=32, help="words of each prompt")
    parser.add_argument("--long-prompt", type=int, default=0, help="tokens, about, of a prompt that comes in meanwhile")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    clients = [Client(args.url, words(args.prompt, args.seed * 1000 + i), args.tokens) for i in range(args.clients)]
    for c in clients:
        c.start()
    intruder = None
    if args.long_prompt:
        while any(len(c.came) < 8 and c.is_alive() for c in clients):
            time.sleep(0.01)
        intruder = Client(args.url, words(args.long_prompt, args.seed), 1)
        intruder.start()
        intruder.join()
    for c in clients:
        c.join()
    for c in clients + ([intruder] if intruder else []):
        if c.error:
            raise SystemExit(f"a request failed: {c.error}")

    begin, end = max(c.came[0] for c in clients), min(c.came[-1] for c in clients)
    n = sum(begin < t <= end for c in clients for t in c.came)
    result = {"clients": args.clients, "tokens_per_s": round(n / (end - begin), 2) if end > begin else None,
              "first_token_ms": summary([c.came[0] - c.sent for c in clients])["median_ms"],
              "between": summary(gaps(clients, begin, intruder.sent if intruder else end))}
    if intruder:
        result["between_with_prompt"] = summary(gaps(clients, intruder.sent, min(end, intruder.came[0])))
        result["prompt_s"] = round(intruder.came[0] - intruder.sent, 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
