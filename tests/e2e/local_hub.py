"""A small hub on 127.0.0.1 that stands in for the real one, and does wrong on demand.

Two servers: the hub itself, which knows repositories and demands a token if it is told to, and another host, which it
redirects to for the bytes of files. Each request for bytes may meet a fault; what is sent, and to whom tokens were shown,
is counted.

usage, by itself: local_hub.py OWNER/REPO NAME FILE: a hub that has FILE under that name; prints its address, ends with its input."""
import hashlib
import http.server
import json
import re
import socket
import ssl
import struct
import sys
import threading
import urllib.parse


class Fault:
    """What goes wrong with one answer. kind: cut (after n bytes), reset (the same, with a reset), status (n), whole (the range
    is ignored), range (of other bytes), length (n more are said than sent), total (of another size), flip (the byte at n
    of the file), hang (until the test ends), endless (a body of an error without an end), move (redirects to `to`)."""

    def __init__(self, kind, n=0, to=None):
        self.kind, self.n, self.to = kind, n, to


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def json(self, value, **headers):
        self.answer(200, value if isinstance(value, bytes) else json.dumps(value).encode(), **headers)

    def do_GET(self):
        with self.hub.lock:
            self.hub.requests.append((self.server is self.hub.front, self.path, self.headers.get("Authorization")))
        try:
            if self.server is self.hub.front:
                self.front()
            else:
                self.bytes_of(urllib.parse.unquote(self.path).rsplit("/", 1)[-1].split("?")[0])
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # -- the hub --------------------------------------------------------------------------------------------------

    def front(self):
        hub, url = self.hub, urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        if hub.token and self.headers.get("Authorization") != "Bearer " + hub.token:
            return self.answer(401)
        if path in hub.answers:
            return self.json(hub.answers[path])
        if m := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            return self.json({"id": m[1], "sha": hub.commits[m[1]]}) if m[1] in hub.repos else self.answer(404)
        if m := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([0-9a-f]{40})", path):
            return self.tree(m[1], m[2], urllib.parse.parse_qs(url.query)) if m[1] in hub.repos else self.answer(404)
        if m := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            content = hub.repos.get(m[1], {}).get(m[3])
            if content is None:
                return self.answer(404)
            sha = hub.sha[m[1], m[3]]
            if (m[1], m[3]) in hub.git:
                return self.answer(307, Location=f"{hub.cdn}/cdn/{sha}")
            return self.answer(302, Location=f"{hub.cdn}/cdn/{sha}?signed=1", X_Repo_Commit=hub.commits[m[1]],
                               X_Linked_Etag=f'"{hub.linked.get(sha, sha)}"', X_Linked_Size=len(content))
        return self.answer(404)

    def tree(self, repo, commit, query):
        """A page of the list of files, with a link to the next."""
        entries = [{"type": "directory", "path": "BF16", "size": 0, "oid": "0" * 40},
                   {"type": "file", "path": "README.md", "size": 10, "oid": "1" * 40}]
        for path, content in self.hub.repos[repo].items():
            entry = {"type": "file", "path": path, "size": len(content), "oid": self.hub.git.get((repo, path), "2" * 40)}
            if (repo, path) not in self.hub.git:
                entry["lfs"] = {"oid": self.hub.sha[repo, path], "size": len(content), "pointerSize": 135}
            entries.append(entry)
        begin, n = int(query.get("cursor", ["0"])[0]), self.hub.page
        more = {"Link": f'<{self.hub.url}/api/models/{repo}/tree/{commit}?recursive=1&cursor={begin + n}>; rel="next"'}
        return self.json(entries[begin:begin + n], **(more if begin + n < len(entries) else {}))

    # -- the other host -------------------------------------------------------------------------------------------

    def bytes_of(self, name):
        hub = self.hub
        with hub.lock:
            content = hub.blobs.get(name)
            fault = hub.faults.get(name, []).pop(0) if hub.faults.get(name) else Fault("none")
        if content is None:
            return self.answer(404)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), int(wanted[2])) if wanted else (0, len(content) - 1)
        last, total = min(last, len(content) - 1), len(content)
        if first >= len(content):
            return self.answer(416)
        status = 206 if wanted else 200
        if fault.kind == "status":
            return self.answer(fault.n, b"no")
        if fault.kind == "move":
            return self.answer(302, Location=fault.to)
        if fault.kind == "hang":
            return hub.ended.wait()
        if fault.kind == "endless":
            return self.endless()
        if fault.kind == "whole":
            status, first, last = 200, 0, len(content) - 1
        if fault.kind == "range":
            first, last = max(0, first - 7), max(0, last - 7)
        if fault.kind == "total":
            total += 1
        body = bytearray(content[first:last + 1])
        if fault.kind == "flip" and first <= fault.n <= last:
            body[fault.n - first] ^= 4
        elif fault.kind == "flip":
            with hub.lock:
                hub.faults[name].insert(0, fault)
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
        self.send_header("Content-Length", str(len(body) + (fault.n if fault.kind == "length" else 0)))
        self.send_header("ETag", f'"{hub.etags.get(name, name[:32])}"')
        self.end_headers()
        if fault.kind in ("cut", "reset"):
            body = body[:fault.n]
        self.send_all(name, body)
        if fault.kind in ("cut", "reset", "length"):
            self.hang_up(fault.kind == "reset")

    def send_all(self, name, body):
        pace = self.hub.pace
        step = pace[0] if pace else 1 << 16
        for i in range(0, len(body), step):
            self.wfile.write(body[i:i + step])
            with self.hub.lock:
                self.hub.sent[name] = self.hub.sent.get(name, 0) + len(body[i:i + step])
            if pace:
                self.hub.ended.wait(pace[1])

    def endless(self):
        self.send_response(500)
        self.end_headers()
        while not self.hub.ended.is_set():
            self.wfile.write(b"x" * 65536)

    def hang_up(self, by_reset):
        self.close_connection = True
        if by_reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_WR)


class Hub:
    """A hub that runs until the block ends. tls: (certificate, key) of 127.0.0.1, and it speaks https."""

    def __init__(self, token=None, tls=None):
        self.repos, self.commits, self.sha, self.blobs, self.git = {}, {}, {}, {}, {}
        self.faults, self.sent, self.requests, self.answers, self.linked, self.etags = {}, {}, [], {}, {}, {}
        self.token, self.page, self.pace = token, 1000, None
        self.lock, self.ended = threading.Lock(), threading.Event()
        handler = type("OfHub", (Handler,), {"hub": self})
        self.front, self.back = (http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2))
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            for server in self.front, self.back:  # the handshake is the matter of each connection's thread
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self.url, self.cdn = (f"http{'s' if tls else ''}://127.0.0.1:{s.server_port}" for s in (self.front, self.back))
        for server in self.front, self.back:
            server.daemon_threads = True
            server.handle_error = lambda *args: None
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def add(self, repo, files, lfs=True):
        """Files as the repository's next commit has them: {path: bytes}. lfs: these are in LFS."""
        for path, content in ({} if lfs else files).items():
            oid = self.git[repo, path] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            self.etags[hashlib.sha256(content).hexdigest()] = oid
        files = {**self.repos.get(repo, {}), **files}
        self.repos[repo] = files
        for path, content in files.items():
            sha = self.sha[repo, path] = hashlib.sha256(content).hexdigest()
            self.blobs[sha] = content
        state = json.dumps(sorted((p, self.sha[repo, p]) for p in files))
        self.commits[repo] = hashlib.sha1((repo + state).encode()).hexdigest()

    def fail(self, content, *faults):
        """The next requests for these bytes meet these faults, one each."""
        self.faults[hashlib.sha256(content).hexdigest()] = list(faults)

    def sent_bytes(self, content):
        with self.lock:
            return self.sent.get(hashlib.sha256(content).hexdigest(), 0)

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.ended.set()
        for server in self.front, self.back:
            server.shutdown()
            server.server_close()


def main(repo, name, path):
    with Hub() as hub, open(path, "rb") as f:
        hub.add(repo, {name: f.read()})
        print(hub.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
