"""What tests of `moebius serve` share: a server that listens at a free port, and asking it."""
import http.client
import json
import re
import select
import signal
import socket
import subprocess
import time


class Server:
    """A running server; ends with the block."""

    def __init__(self, program, *args, env=None, ready=True):
        self.process = subprocess.Popen([program, "serve", "--port", "0", "--cold", *map(str, args)],
                                        stderr=subprocess.PIPE, env=env)
        self.log, self.port = "", None
        if ready:
            found = self.wait_for(r"listening at http://\S+:(\d+)")
            assert found, f"the server did not start: {self.log}"
            self.port = int(found.group(1))

    def wait_for(self, pattern, seconds=60):
        """Reads the log until there is a line like this; None: it ended, or took too long."""
        until = time.monotonic() + seconds
        while not (found := re.search(pattern, self.log)):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stderr], [], [], left)[0]:
                return None
            piece = self.process.stderr.read1(65536)
            if not piece:
                return re.search(pattern, self.log)
            self.log += piece.decode(errors="replace")
        return found

    def stop(self, number=signal.SIGTERM, seconds=20):
        """The exit code; all of the log is there."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.log += self.process.communicate(timeout=seconds)[1].decode(errors="replace")
        assert "Sanitizer" not in self.log, self.log
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *why):
        code = self.stop()
        assert why[0] or code == 0, f"exit {code}: {self.log}"

    # -- asking -------------------------------------------------------------------------------------------------

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def socket(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, method, path, body=None, headers=None, connection=None):
        """(status, headers, body as bytes)"""
        own = connection or self.connect()
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        own.request(method, path, body=body, headers=headers or {})
        r = own.getresponse()
        answer = r.status, r.headers, r.read()
        if not connection:
            own.close()
        return answer

    def json(self, path, body=None, status=200, **kw):
        got, _, text = self.ask("GET" if body is None else "POST", path, body, **kw)
        assert got == status, f"{path}: {got}, expected {status}: {text[:2000]}"
        return json.loads(text)

    def events(self, path, body):
        """The JSON of a stream's events."""
        status, headers, text = self.ask("POST", path, {**body, "stream": True})
        assert status == 200, text
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        found = [line[6:] for line in text.decode().splitlines() if line.startswith("data: ")]
        return [json.loads(e) for e in found if e != "[DONE]"]

    def metric(self, name):
        text = self.ask("GET", "/metrics")[2].decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
        assert found, f"{name} is not in\n{text}"
        return float(found.group(1))

    def wait_for_metric(self, name, value, seconds=20):
        until = time.monotonic() + seconds
        while self.metric(name) != value:
            assert time.monotonic() < until, f"{name} is {self.metric(name)}, expected {value}"
            time.sleep(0.02)


def post(path, body, length=None, headers=""):
    """The bytes of a request; `length` in place of the true one."""
    if isinstance(body, str):
        body = body.encode()
    n = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {n}\r\n{headers}\r\n".encode() + body
