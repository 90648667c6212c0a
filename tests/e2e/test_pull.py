#!/usr/bin/env python3
"""Models by name, from a small hub that does wrong on demand. usage: test_pull.py MOEBIUS DEMO.gguf

Each function below is one test; a failed assertion names itself."""
import hashlib
import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from local_hub import Fault, Hub
from run_functions import run_functions

MOEBIUS, DEMO = map(os.path.abspath, sys.argv[1:3])
MODEL = open(DEMO, "rb").read()
PIECE = 4 << 20
SLACK = 1 << 20  # what may be on its way when a connection is given up
NAME = "hf:them/Demo-GGUF:Q8_0"
NOISE = random.Random(1).randbytes(5 * PIECE + 12345)


class Place:
    """A home of its own, and a hub."""

    def __init__(self, **kw):
        self.folder = tempfile.TemporaryDirectory()
        self.hub = Hub(**kw)
        self.env = {k: v for k, v in os.environ.items() if not re.match(r"(HF_|HUGGING|XDG_|.*_proxy$|.*_PROXY$)", k)}
        self.env.update(HOME=self.path("home"), HF_ENDPOINT=self.hub.url)
        os.mkdir(self.path("home"))
        self.cache = self.path("home/.cache/huggingface/hub")

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def start(self, *args, **kw):
        env = {**self.env, **kw.pop("env", {})}
        return subprocess.Popen([MOEBIUS, *map(str, args)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                cwd=self.folder.name, **kw)

    def run(self, *args, code=0, input=None, **kw):
        with self.start(*args, stdin=subprocess.PIPE, **kw) as p:
            out, err = p.communicate(input, timeout=120)
        out, err = out.decode(errors="replace"), err.decode(errors="replace")
        assert "Sanitizer" not in err, err
        assert p.returncode == code, f"exit {p.returncode}, expected {code}: {args}\n{out}\n{err}"
        return out, err

    def fails(self, code, *args, says=(), **kw):
        err = self.run(*args, code=code, **kw)[1]
        for word in says:
            assert word in err, f"{word!r} is not in {err!r}"
        return err

    def generate(self, model, *args, **kw):
        return self.run("generate", "-m", model, "-p", "Once upon a time", "-n", 4, "--temp", 0, "--cold", *args, **kw)

    def repo(self, name="models--them--Demo-GGUF"):
        return os.path.join(self.cache, name)

    def check_whole(self, content, path):
        """The path is a link to a blob that is named by its checksum, and nothing unfinished lies beside it."""
        sha = hashlib.sha256(content).hexdigest()
        real = os.path.realpath(path)
        assert os.path.islink(path) and os.path.basename(real) == sha, (path, real)
        assert open(real, "rb").read() == content
        assert not [f for f in os.listdir(os.path.dirname(real)) if "incomplete" in f]

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.hub.__exit__()
        self.folder.cleanup()


def demo_place(**kw):
    place = Place(**kw)
    place.hub.add("them/Demo-GGUF", {"Demo-Q8_0.gguf": MODEL})
    return place


def noise_place(content=NOISE):
    """A file of more pieces, of which only the bytes matter: --unchecked."""
    place = Place()
    place.hub.add("them/Noise", {"noise-Q8_0.gguf": content})
    return place


PULL_NOISE = ["pull", "hf:them/Noise", "--unchecked"]


# -- what is fetched, and where it lies -------------------------------------------------------------------------------


def test_a_model_is_fetched_into_the_hubs_own_layout_and_runs_by_its_name():
    with demo_place() as p:
        out, err = p.run("pull", NAME)
        path = out.strip()
        commit = p.hub.commits["them/Demo-GGUF"]
        assert path == f"{p.repo()}/snapshots/{commit}/Demo-Q8_0.gguf", path
        p.check_whole(MODEL, path)
        assert os.readlink(path) == f"../../blobs/{hashlib.sha256(MODEL).hexdigest()}"
        assert open(p.repo() + "/refs/main").read() == commit
        assert p.hub.sent_bytes(MODEL) == len(MODEL)  # the look at its head is no second time
        assert "plan: " in err and " of memory" in err, err
        p.run("pull", NAME)
        assert p.hub.sent_bytes(MODEL) == len(MODEL)
        n = len(p.hub.requests)
        for name in NAME, "hf:them/Demo-GGUF", "hf.co/them/Demo-GGUF:Q8_0", "huggingface.co/them/Demo-GGUF", "hf:them/Demo-GGUF:Demo-Q8_0.gguf", f"hf:them/Demo-GGUF@{commit}:q8_0":
            assert p.generate(name, "--offline")[0] == p.generate(DEMO)[0]
        assert len(p.hub.requests) == n, "what is here needs no network"


def test_what_another_program_fetched_is_found_without_a_network():
    with demo_place() as p:
        sha, commit = hashlib.sha256(MODEL).hexdigest(), "c" * 40
        for folder in "blobs", "refs", f"snapshots/{commit}/sub":
            os.makedirs(f"{p.repo()}/{folder}")
        shutil.copy(DEMO, f"{p.repo()}/blobs/{sha}")
        open(p.repo() + "/refs/main", "w").write(commit)
        os.symlink(f"../../../blobs/{sha}", f"{p.repo()}/snapshots/{commit}/sub/Demo-Q8_0.gguf")
        out = p.run("inspect", "--json", NAME, env={"HF_HUB_OFFLINE": "1"})[0]
        assert json.loads(out)
        assert not p.hub.requests


def test_places_follow_the_hubs_variables():
    sha = hashlib.sha256(MODEL).hexdigest()
    for env, where in [({"HF_HOME": "{}/a"}, "a/hub"), ({"HF_HUB_CACHE": "{}/b"}, "b"),
                       ({"XDG_CACHE_HOME": "{}/c"}, "c/huggingface/hub")]:
        with demo_place() as p:
            p.run("pull", NAME, env={k: v.format(p.folder.name) for k, v in env.items()})
            assert os.path.exists(p.path(f"{where}/models--them--Demo-GGUF/blobs/{sha}")), where
    with demo_place() as p:
        p.fails(2, "pull", NAME, env={"HF_HOME": "relative"}, says=["HF_HOME", "begins with /"])
        p.fails(2, "pull", NAME, env={"HF_ENDPOINT": "ftp://x"}, says=["HF_ENDPOINT", "expected an address"])


def test_a_plan_fetches_nothing():
    with demo_place() as p:
        p.fails(2, "plan", "-m", NAME, says=["not here yet", f"moebius pull {NAME} --plan-only"])
        assert not [f for _, _, files in os.walk(p.cache) for f in files]
        p.run("pull", NAME)
        assert "slots for" in p.run("plan", "-m", NAME)[0]


def test_a_name_that_is_not_here_is_fetched_first_and_offline_it_is_not():
    with demo_place() as p:
        args = ["generate", "-m", NAME, "-p", "Once", "-n", 2, "--cold"]
        p.fails(1, *args, "--offline", says=[NAME, "not here", "--offline"])
        p.fails(1, *args, env={"HF_HUB_OFFLINE": "1"}, says=["HF_HUB_OFFLINE"])
        assert not p.hub.requests
        out, err = p.generate(NAME)
        assert out == p.generate(DEMO)[0] and f"{NAME} is not here: fetching it" in err, err
        p.fails(3, "inspect", "hf:them/Nothing:Q8_0", says=["404", "could not be fetched"])


def test_what_is_wrong_with_other_files_is_said_before_a_model_is_fetched():
    with demo_place() as p:
        p.fails(3, "ppl", "-m", NAME, "-f", "nothing.txt", says=["nothing.txt: No such file"])
        p.fails(3, "serve", "-m", NAME, "--template", "nothing.jinja", says=["nothing.jinja: No such file"])
        p.fails(3, "generate", "-m", NAME, "-p", "x", "--stats-json", "none/stats.json", says=["none"])
        assert not p.hub.requests


def test_an_address_is_fetched_and_known_by_it():
    with demo_place() as p:
        p.hub.blobs["demo.gguf"] = MODEL
        url = p.hub.cdn + "/files/demo.gguf"
        path = p.run("pull", url + "?download=true")[0].strip()
        assert path.startswith(p.path("home/.cache/moebius/downloads/127.0.0.1")), path
        assert open(path, "rb").read() == MODEL
        assert not [f for f in os.listdir(os.path.dirname(path)) if "incomplete" in f]
        assert p.generate(url)[0] == p.generate(DEMO)[0]
        assert "complete" in p.run("list")[0]
        p.run("rm", url, "-y")
        assert not os.path.exists(path)
        hub_url = p.hub.url + "/them/Demo-GGUF/resolve/main/Demo-Q8_0.gguf"  # means hf:
        p.check_whole(MODEL, p.run("pull", hub_url)[0].strip())
        p.fails(2, "pull", p.hub.cdn + "/files/../../demo.gguf", says=["expected an address whose path"])
        p.fails(2, "pull", p.hub.cdn + "/demo.zip", says=[".gguf"])


def test_an_address_of_a_server_without_ranges_is_fetched():
    with demo_place() as p:
        p.hub.blobs["demo.gguf"] = MODEL
        p.hub.faults["demo.gguf"] = [Fault("whole")] * 20
        path = p.run("pull", p.hub.cdn + "/files/demo.gguf", "--retries", 0)[0].strip()
        assert open(path, "rb").read() == MODEL


def test_an_address_that_nobody_answers_is_said_once():
    with Place() as p:
        err = p.fails(1, "pull", "http://127.0.0.1:1/demo.gguf", "--retries", 0, says=["connect"])
        assert err.count("http://127.0.0.1:1/demo.gguf") == 1 and "trying again" not in err, err
        err = p.fails(1, "pull", "http://127.0.0.1:1/demo.gguf", "--retries", 2, says=["connect"])
        lines = [f"no whole answer from 127.0.0.1; trying again ({i} of 2)" for i in (1, 2)]
        assert err.splitlines()[:2] == lines, err
        p.fails(1, "generate", "-m", "http://127.0.0.1:1/demo.gguf", "-p", "x", env={"HF_ENDPOINT": "http://127.0.0.1:1"},
                says=["could not be fetched"])


def test_an_address_whose_file_changed_meanwhile_is_not_mixed_with_the_old_one():
    with demo_place() as p:
        p.hub.blobs["noise.gguf"] = NOISE
        p.hub.faults["noise.gguf"] = [Fault("none"), Fault("cut", PIECE + 5)] + [Fault("status", 503)] * 9
        args = ["pull", p.hub.cdn + "/noise.gguf", "--unchecked", "--retries", 0]
        p.fails(1, *args, says=["503", f"{PIECE + 5} of {len(NOISE)} bytes are kept"])
        p.hub.faults.clear()
        p.hub.blobs["noise.gguf"] = bytes(len(NOISE))
        p.hub.etags["noise.gguf"] = "another"
        err = p.run(*args, code=8)[1]
        assert "has changed" in err, err


def test_a_server_fetches_the_model_of_its_name_before_it_listens():
    with demo_place() as p:
        process = p.start("serve", "-m", NAME, "--port", 0, "--cold")
        log = b""
        while b"listening at" not in log:
            piece = process.stderr.read1(65536)
            log += piece
            if not piece:
                assert b"libmicrohttpd" in log, log
                return
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=30)[1]
        assert process.returncode == 0 and b"fetching it" in log, (log, rest)
        assert log.index(b"fetching it") < log.index(b"listening at")


# -- choosing ---------------------------------------------------------------------------------------------------------


def test_what_is_meant_is_chosen_by_path_or_quantisation_and_else_what_there_is_is_listed():
    files = ["a-Q4_K_M.gguf", "a-UD-Q4_K_M.gguf", "a-Q4_K_S.gguf", "BF16/a-BF16-00001-of-00002.gguf",
             "BF16/a-BF16-00002-of-00002.gguf", "mmproj-a-F16.gguf", "c-Q2_K-00001-of-00002.gguf"]
    with Place() as p:
        p.hub.add("them/many", {f: f.encode() * 100 for f in files})
        p.hub.page = 3  # the list has pages
        pull = ["pull", "--unchecked"]
        for what, got in [("Q4_K_M", files[0]), ("q4_k_m", files[0]), ("UD-Q4_K_M", files[1]), ("a-Q4_K_S", files[2]),
                          ("bf16", files[3]), (files[4], files[3]), (files[1], files[1])]:
            path = p.run(*pull, "hf:them/many:" + what)[0].strip()
            assert path.endswith("/" + got), (what, path)
        err = p.fails(2, *pull, "hf:them/many", says=["several models; add one of these", "Q4_K_M (0.0 GB)", "UD-Q4_K_M", "BF16"])
        assert "mmproj" not in err, err
        p.fails(2, *pull, "hf:them/many:Q4", says=["no file has that name", "Q4_K_S"])
        p.fails(1, *pull, "hf:them/many:Q2_K", says=["1 of the 2 parts", "missing"])
        p.hub.add("them/empty", {"x.bin": b"1"})
        p.fails(1, *pull, "hf:them/empty", says=["no GGUF file"])


def test_names_that_can_not_be_meant_are_refused():
    with Place() as p:
        for name in ["hf:them", "hf:/x", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a/b--c", "hf:a/b:../x", "hf:a/b@../x:Q4",
                     "hf:a/b:x\ny", "hf:a/b:", "nothing"]:
            p.fails(2, "pull", name, says=["expected" if name == "nothing" else name.split("\n")[0]])
        assert not p.hub.requests


# -- what a hub may do wrong ------------------------------------------------------------------------------------------


def test_twenty_cut_connections_cost_no_byte():
    with noise_place() as p:
        cuts = [Fault("cut" if i % 2 else "reset", 700_001 + 13 * i) for i in range(20)]
        p.hub.fail(NOISE, *cuts)
        path = p.run(*PULL_NOISE)[0].strip()
        p.check_whole(NOISE, path)
        # a reset takes bytes with it that were on their way
        assert p.hub.sent_bytes(NOISE) <= len(NOISE) + 10 * SLACK, p.hub.sent_bytes(NOISE) - len(NOISE)
        assert not p.hub.faults[hashlib.sha256(NOISE).hexdigest()]
    with noise_place() as p:
        p.hub.fail(NOISE, *[Fault("cut", 700_001) for i in range(20)])
        p.check_whole(NOISE, p.run(*PULL_NOISE)[0].strip())
        assert p.hub.sent_bytes(NOISE) == len(NOISE)


def test_wrong_answers_are_not_taken_and_asked_for_again():
    faults = [Fault("cut", PIECE), Fault("range"), Fault("whole"), Fault("total"), Fault("length", 5), Fault("status", 503),
              Fault("cut", 0), Fault("endless"), Fault("status", 429)]
    with noise_place() as p:
        p.hub.fail(NOISE, *[f for fault in faults for f in (fault, Fault("cut", 1000))])
        p.check_whole(NOISE, p.run(*PULL_NOISE)[0].strip())
        assert p.hub.faults[hashlib.sha256(NOISE).hexdigest()] == []
        # of wrong answers what lay in a socket's buffers when they were refused; none of it was taken
        assert p.hub.sent_bytes(NOISE) < 4 * len(NOISE)


def test_a_server_that_goes_on_being_wrong_is_left_in_a_sentence_with_a_part_that_resumes():
    for fault, says in [(Fault("range"), "were asked for"), (Fault("whole"), "can't resume"), (Fault("total"), "were asked for"),
                        (Fault("status", 500), "answers 500"), (Fault("status", 416), "416"), (Fault("status", 404), "404")]:
        with noise_place() as p:
            p.hub.fail(NOISE, Fault("cut", PIECE + 7), *[fault] * 20)
            err = p.fails(1 if fault.n == 500 else 3, *PULL_NOISE, "--retries", 2,
                          says=[says, f"{PIECE + 7} of {len(NOISE)} bytes are kept: run the same command again"])
            assert err.count("\n") - err.count("; trying again (") <= 2, err
            p.hub.fail(NOISE)
            before = p.hub.sent_bytes(NOISE)
            p.check_whole(NOISE, p.run(*PULL_NOISE)[0].strip())
            assert p.hub.sent_bytes(NOISE) - before == len(NOISE) - PIECE - 7, says


def test_a_file_that_is_not_what_is_listed_is_never_taken_for_it():
    with noise_place() as p:  # the first answer already says so
        sha = hashlib.sha256(NOISE).hexdigest()
        p.hub.linked[sha] = "0" * 64
        p.fails(8, *PULL_NOISE, says=["another checksum"])
        p.hub.linked.clear()
        p.hub.blobs[sha] = NOISE[:-1] + bytes([NOISE[-1] ^ 1])  # always other bytes
        p.fails(8, *PULL_NOISE, says=["fetched twice", sha, "kept"])
        assert not os.path.exists(f"{p.repo('models--them--Noise')}/blobs/{sha}")
        p.hub.blobs[sha] = NOISE
        p.check_whole(NOISE, p.run(*PULL_NOISE)[0].strip())


def test_a_bit_that_flips_on_its_way_is_found_by_its_piece():
    at = 2 * PIECE + 99
    with noise_place() as p:
        p.hub.fail(NOISE, Fault("flip", at))
        out, err = p.run(*PULL_NOISE)
        p.check_whole(NOISE, out.strip())
        assert "piece 3 of 6 had arrived wrong" in err, err
        # nothing says which piece it is: those before it are looked at, those behind it are not
        assert p.hub.sent_bytes(NOISE) == len(NOISE) + 3 * PIECE


def test_a_bit_that_flips_on_the_drive_costs_its_piece_alone():
    with noise_place() as p:
        p.hub.fail(NOISE, Fault("cut", 4 * PIECE + 1), *[Fault("status", 500)] * 5)
        p.fails(1, *PULL_NOISE, "--retries", 0)
        part = f"{p.repo('models--them--Noise')}/blobs/{hashlib.sha256(NOISE).hexdigest()}.incomplete"
        with open(part, "r+b") as f:
            f.seek(PIECE + 77)
            byte = f.read(1)[0]
            f.seek(PIECE + 77)
            f.write(bytes([byte ^ 64]))
        p.hub.fail(NOISE)
        out, err = p.run(*PULL_NOISE)
        p.check_whole(NOISE, out.strip())
        assert "damaged on the drive" in err, err
        assert p.hub.sent_bytes(NOISE) == len(NOISE) + PIECE


def test_a_part_that_can_not_be_mended_at_once_stays():
    with noise_place() as p:
        n, no_answers = 4 * PIECE + 1, [Fault("status", 500)] * 5
        p.hub.fail(NOISE, Fault("cut", n), *no_answers)
        p.fails(1, *PULL_NOISE, "--retries", 0)
        part = f"{p.repo('models--them--Noise')}/blobs/{hashlib.sha256(NOISE).hexdigest()}.incomplete"
        with open(part, "r+b") as f:  # the first piece is damaged on the drive, and the server can't give it again
            f.write(bytes([NOISE[0] ^ 1]))
        p.hub.fail(NOISE, *no_answers)
        p.fails(1, *PULL_NOISE, "--retries", 0, says=["answers 500", f"{n} of {len(NOISE)} bytes are kept"])
        assert os.path.getsize(part) == n
        p.hub.fail(NOISE)
        p.check_whole(NOISE, p.run(*PULL_NOISE)[0].strip())


def test_redirects_are_followed_and_the_token_goes_to_the_hub_alone():
    with demo_place(token="hf_secret") as p:
        p.fails(3, "pull", NAME, says=["401", "HF_TOKEN"])
        p.fails(3, "pull", NAME, env={"HF_TOKEN": "hf_wrong"}, says=["401", "gives no access"])
        p.fails(2, "pull", NAME, env={"HF_TOKEN": "a b"}, says=["HF_TOKEN"])
        p.fails(2, "pull", NAME, env={"HF_TOKEN": "x" * 512}, says=["HF_TOKEN", "511 bytes"])  # and not a part of it
        p.hub.fail(MODEL, Fault("move", to=f"http://localhost:{p.hub.back.server_port}/cdn/" + hashlib.sha256(MODEL).hexdigest()))
        p.run("pull", NAME, env={"HF_TOKEN": "hf_secret"})
        tokens = {(is_hub, token) for is_hub, _, token in p.hub.requests}
        assert (True, "Bearer hf_secret") in tokens
        assert {token for is_hub, token in tokens if not is_hub} == {None}, tokens
    with demo_place(token="hf_filed") as p:
        os.makedirs(p.path("home/.cache/huggingface"))
        open(p.path("home/.cache/huggingface/token"), "w").write("hf_filed\n")
        p.run("pull", NAME)
        open(p.path("home/.cache/huggingface/token"), "w").write("x" * 600 + "\n")
        p.fails(2, "pull", NAME, says=["/token: expected a token", "511 bytes"])
    with demo_place() as p:  # in a circle, and to what is no web
        sha = hashlib.sha256(MODEL).hexdigest()
        p.hub.fail(MODEL, *[Fault("move", to=f"{p.hub.cdn}/cdn/{sha}")] * 50)
        p.fails(3, "pull", NAME, says=["redirects"])
        for to in "file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1:1/x":
            p.hub.fail(MODEL, Fault("move", to=to))
            p.fails(3, "pull", NAME, "--retries", 0)


def test_https_is_checked_and_never_left():
    with tempfile.TemporaryDirectory() as folder:
        cert, key = folder + "/cert.pem", folder + "/key.pem"
        made = shutil.which("openssl") and subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
             "subjectAltName=IP:127.0.0.1", "-out", cert, "-keyout", key], capture_output=True)
        if not made or made.returncode:
            return
        with demo_place(tls=(cert, key)) as p:
            p.fails(3, "pull", NAME, says=["certificate"])
            assert not p.hub.requests, "nothing is asked of whom nobody vouches for"
            p.check_whole(MODEL, p.run("pull", NAME, env={"SSL_CERT_FILE": cert})[0].strip())
            p.run("rm", NAME, "-y")
            p.hub.fail(MODEL, Fault("move", to="http://127.0.0.1:9/x.gguf"))
            p.fails(3, "pull", NAME, env={"SSL_CERT_FILE": cert}, says=["is not https"])


def shown_on_a_terminal(p, *words):
    ours, theirs = pty.openpty()
    process = subprocess.Popen([MOEBIUS, *words], env=p.env, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # the other end is closed
    os.close(ours)
    assert process.wait(timeout=60) == 0, shown
    return shown


def test_on_a_terminal_one_sees_how_far_it_is_how_fast_and_how_long():
    with noise_place() as p:
        p.hub.pace = (1 << 18, 0.02)
        shown = shown_on_a_terminal(p, *PULL_NOISE)
        assert re.search(rb"\d\.\d% of 0\.02 GB, \d+\.\d MB/s, \d+ s left", shown), shown
    with demo_place() as p:
        p.hub.pace = (1 << 18, 0.05)
        shown = shown_on_a_terminal(p, "pull", NAME)
        assert b"% of" in shown and re.search(rb"[\r\n]plan: ", shown), shown


def test_a_file_outside_lfs_is_checked_by_what_git_knows_it_by():
    name, oid = "hf:them/Small:tiny-Q8_0.gguf", hashlib.sha1(b"blob %d\0" % len(MODEL) + MODEL).hexdigest()
    with Place() as p:
        p.hub.add("them/Small", {"tiny-Q8_0.gguf": MODEL}, lfs=False)
        p.hub.fail(MODEL, Fault("cut", 5 * PIECE), Fault("flip", 2 * PIECE + 100))
        path = p.run("pull", name)[0].strip()
        assert os.readlink(path) == f"../../blobs/{oid}" and open(path, "rb").read() == MODEL
        assert not p.hub.faults[hashlib.sha256(MODEL).hexdigest()]
        assert p.generate(name, "--offline")[0] == p.generate(DEMO)[0]
        p.run("rm", "-y", name)
        tree = f"/api/models/them/Small/tree/{p.hub.commits['them/Small']}"
        for wrong, why in ("3" * 40, "its checksum is not what the server lists"), ("3" * 39, "oid: expected 40"), (None, "no checksum is given"):
            p.hub.answers = {tree: json.dumps([{"type": "file", "path": "tiny-Q8_0.gguf", "size": len(MODEL), "oid": wrong}]).encode()}
            p.hub.etags[hashlib.sha256(MODEL).hexdigest()] = ""
            p.fails(8 if wrong == "3" * 40 else 4, "pull", name, says=[why])


def test_names_and_numbers_from_the_server_are_not_trusted():
    good = {"type": "file", "path": "a-Q8_0.gguf", "size": 10, "lfs": {"oid": "0" * 64, "size": 10}}
    paths = ["../../../x.gguf", "/etc/x.gguf", "a/../b.gguf", "a//b.gguf", "./x.gguf", "a\\..\\b.gguf", "x\n.gguf", "x\x1b[2J.gguf",
             "a" * 300 + ".gguf", "\u202ex.gguf", "x/" * 900 + "y.gguf", "x\x00.gguf"]
    bad = [[{**good, "path": path}] for path in paths]
    bad += [[{**good, "size": n}] for n in (-1, 0, 1 << 60, "10", None, 1.5)]
    bad += [[{**good, "lfs": lfs}] for lfs in (None, {}, {"oid": "../" + "0" * 61}, {"oid": "0" * 63}, {"oid": "G" * 64}, 7)]
    bad += [[{**good, "oid": "2" * 40, "lfs": lfs}] for lfs in ({}, 7, {"oid": "2" * 40})]
    bad += [{}, 7, [7], [{}], "x", [{**good, "type": 5}], [[good]]]
    with demo_place() as p:
        commit = p.hub.commits["them/Demo-GGUF"]
        tree, revision = f"/api/models/them/Demo-GGUF/tree/{commit}", "/api/models/them/Demo-GGUF/revision/main"
        for value in [json.dumps(b).encode() for b in bad] + [b"", b"[", b"\xff", b"[" * 100000, b'[{"a":1,"a":2}]']:
            p.hub.answers = {tree: value}
            err = p.run("pull", NAME, code=4)[1]
            assert len(err) < 1000 and all(c.isprintable() or c == "\n" for c in err), err
        for sha in "../../x", "A" * 40, "", None, 5, "0" * 39:
            p.hub.answers = {revision: json.dumps({"sha": sha}).encode()}
            p.fails(4, "pull", NAME, says=["sha: expected 40 hexadecimal digits"])
        p.hub.answers = {revision: b" " * (33 << 20)}
        p.fails(7, "pull", NAME, says=["longer than"])
        left = [os.path.join(d, f) for d, _, files in os.walk(p.folder.name) for f in files]
        assert not left, left


def test_a_missing_part_of_a_split_leaves_the_others_whole():
    parts = [NOISE[:PIECE + 1], NOISE[PIECE + 1:3 * PIECE], NOISE[3 * PIECE:]]
    names = [f"q/n-Q4_0-0000{i + 1}-of-00003.gguf" for i in range(3)]
    with Place() as p:
        p.hub.add("them/split", dict(zip(names, parts)))
        p.hub.fail(parts[1], *[Fault("status", 404)] * 20)
        p.fails(3, "pull", "hf:them/split", "--unchecked", says=["404"])
        assert "1 of 3 files" in p.run("list")[0]
        p.fails(1, "inspect", "hf:them/split", "--no-sandbox", says=["not here"], env={"HF_HUB_OFFLINE": "1"})
        p.hub.fail(parts[1])
        path = p.run("pull", "hf:them/split:Q4_0", "--unchecked")[0].strip()
        for name, part in zip(names, parts):
            p.check_whole(part, os.path.join(path.rsplit("/q/", 1)[0], name))
        assert [p.hub.sent_bytes(part) for part in parts] == [len(part) for part in parts]
        assert path.endswith(names[0]) and "complete" in p.run("list")[0]


def test_a_full_drive_ends_in_a_sentence_and_a_part_that_resumes():
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * PIECE + 1000, 2 * PIECE + 1000))

    with noise_place() as p:
        p.fails(3, *PULL_NOISE, preexec_fn=limit, says=["File too large", "bytes are kept"])
        part = f"{p.repo('models--them--Noise')}/blobs/{hashlib.sha256(NOISE).hexdigest()}.incomplete"
        n_kept = os.path.getsize(part)
        assert 2 * PIECE - SLACK <= n_kept <= 2 * PIECE + 1000, n_kept
        before = p.hub.sent_bytes(NOISE)
        p.check_whole(NOISE, p.run(*PULL_NOISE)[0].strip())
        assert p.hub.sent_bytes(NOISE) - before <= len(NOISE) - n_kept + SLACK


def test_a_drive_with_too_little_room_is_known_before():
    with noise_place() as p:
        folder = p.path("small")
        os.mkdir(folder)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], capture_output=True).returncode:
            return  # only root may
        try:
            p.fails(3, *PULL_NOISE, env={"HF_HUB_CACHE": folder}, says=["needs 0.02 GB more", "0.01 GB are free"])
            assert p.hub.sent_bytes(NOISE) == 0
        finally:
            subprocess.run(["umount", folder], check=True)


def test_kill_9_loses_nothing_that_was_there():
    with noise_place() as p:
        p.hub.pace = (1 << 18, 0.02)
        part = f"{p.repo('models--them--Noise')}/blobs/{hashlib.sha256(NOISE).hexdigest()}.incomplete"
        for wanted in PIECE // 2, 2 * PIECE + 7, 4 * PIECE:
            process = p.start(*PULL_NOISE)
            until = time.monotonic() + 60
            while not (os.path.exists(part) and os.path.getsize(part) >= wanted):
                assert time.monotonic() < until and process.poll() is None, "the part does not grow"
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        p.hub.pace = None
        p.check_whole(NOISE, p.run(*PULL_NOISE)[0].strip())
        assert p.hub.sent_bytes(NOISE) <= len(NOISE) + PIECE, p.hub.sent_bytes(NOISE) - len(NOISE)


def test_an_interrupt_ends_in_a_sentence():
    with noise_place() as p:
        p.hub.pace = (1 << 18, 0.02)
        process = p.start(*PULL_NOISE)
        while p.hub.sent_bytes(NOISE) < PIECE:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=30)[1].decode()
        assert process.returncode == 9 and "interrupted" in err and "bytes are kept" in err, (process.returncode, err)


def test_an_interrupt_in_a_pause_is_one():
    with Place() as p:
        for url in "http://127.0.0.1:1/demo.gguf", "hf:them/Demo-GGUF:Q8_0":
            process = p.start("pull", url, env={"HF_ENDPOINT": "http://127.0.0.1:1"})
            while b"(4 of 8)" not in process.stderr.readline():  # the next pause is of 1.6 s
                pass
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            err = process.communicate(timeout=30)[1].decode()
            assert process.returncode == 9 and err == "moebius pull: interrupted\n", (process.returncode, err)


def test_two_at_once_fetch_it_once():
    with noise_place() as p:
        p.hub.pace = (1 << 20, 0.02)
        both = [p.start(*PULL_NOISE) for _ in range(2)]
        for process in both:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
        p.check_whole(NOISE, out.decode().strip())
        assert p.hub.sent_bytes(NOISE) == len(NOISE)


def test_a_part_of_another_program_is_gone_on_with():
    with noise_place() as p:
        sha = hashlib.sha256(NOISE).hexdigest()
        os.makedirs(p.repo("models--them--Noise") + "/blobs")
        open(f"{p.repo('models--them--Noise')}/blobs/{sha}.incomplete", "wb").write(NOISE[:3 * PIECE + 11])
        assert "a part" in p.run("list")[0]
        p.check_whole(NOISE, p.run(*PULL_NOISE)[0].strip())
        assert p.hub.sent_bytes(NOISE) == len(NOISE) - 3 * PIECE - 11


def test_a_part_of_holes_is_filled():
    """As of a program that writes a file's pieces in any order."""
    with noise_place() as p:
        sha = hashlib.sha256(NOISE).hexdigest()
        os.makedirs(p.repo("models--them--Noise") + "/blobs")
        with open(f"{p.repo('models--them--Noise')}/blobs/{sha}.incomplete", "wb") as f:
            f.write(NOISE[:PIECE])
            f.truncate(len(NOISE))
        p.check_whole(NOISE, p.run(*PULL_NOISE)[0].strip())
        assert p.hub.sent_bytes(NOISE) == len(NOISE)


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_plan_only_reads_the_head_and_says_what_the_model_is():
    with demo_place() as p:
        out, err = p.run("pull", NAME, "--plan-only")
        assert p.hub.sent_bytes(MODEL) <= PIECE + SLACK, p.hub.sent_bytes(MODEL)
        assert "qwen3moe" in out or "llama" in out, out
        assert "0.03 GB in 1 file" in err and "GB are free in" in err and "no plan" not in err, err
        assert "slots for 120 of 120 experts" in out and "a run would use --threads" in out, out
        assert not [f for f in os.listdir(p.cache) if f.startswith(".plan")]
        assert "%" in p.run("list")[0]
        before = p.hub.sent_bytes(MODEL)
        assert "plan: " in p.run("pull", NAME)[1]
        assert p.hub.sent_bytes(MODEL) - before <= len(MODEL) - PIECE, "the head is kept"


def test_what_this_build_can_not_run_is_not_fetched():
    other = MODEL.replace(b"general.architecture\x08\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00qwen3moe",
                          b"general.architecture\x08\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00qwen3moX")
    assert other != MODEL
    with noise_place() as p:
        p.fails(4, "pull", "hf:them/Noise", says=["is no GGUF file", "--unchecked"])
        assert p.hub.sent_bytes(NOISE) <= PIECE + SLACK
        p.hub.add("them/other", {"x.gguf": other})
        p.fails(5, "pull", "hf:them/other", says=["architecture", "--unchecked"])
        assert p.hub.sent_bytes(other) <= 2 * len(other)
        p.check_whole(other, p.run("pull", "hf:them/other", "--unchecked")[0].strip())


# -- list, rm, alias --------------------------------------------------------------------------------------------------


def test_list_says_what_is_here_and_rm_takes_it_away():
    with demo_place() as p:
        assert "pull" in p.run("list")[1]
        p.run("pull", NAME)
        first = p.hub.commits["them/Demo-GGUF"]
        p.hub.add("them/Demo-GGUF", {"other-Q4_0.gguf": NOISE})
        p.run("pull", "hf:them/Demo-GGUF:Q4_0", "--unchecked")
        p.run("pull", NAME)  # the same bytes in two snapshots
        models = json.loads(p.run("list", "--json")[0])["models"]
        names = {m["name"]: m for m in models}
        assert set(names) == {NAME, "hf:them/Demo-GGUF:Q4_0", f"hf:them/Demo-GGUF@{first}:Q8_0"}, names
        assert names[NAME]["size_bytes"] == len(MODEL) and names[NAME]["complete"] and names[NAME]["files"] == 1
        assert os.path.realpath(names[NAME]["path"]).endswith(hashlib.sha256(MODEL).hexdigest())
        blob = os.path.realpath(names[NAME]["path"])
        p.fails(9, "rm", NAME, input=b"n\n", says=["[y/N]", "nothing was removed"])
        p.fails(9, "rm", NAME, input=b"", says=["nothing was removed"])
        p.run("rm", f"hf:them/Demo-GGUF@{first}:Q8_0", "-y")
        assert os.path.exists(blob), "another snapshot has it, too"
        p.run("rm", NAME, input=b"y\n")
        assert not os.path.exists(blob)
        p.fails(2, "rm", NAME, "-y", says=["nothing of it here"])
        open(p.repo() + "/blobs/" + "f" * 40, "w").write("another program's")
        p.run("rm", "hf:them/Demo-GGUF", "-y")
        left = [f for _, _, files in os.walk(p.cache) for f in files]
        assert left == ["f" * 40], left
        os.remove(p.repo() + "/blobs/" + "f" * 40)
        p.fails(2, "rm", "/etc/passwd", "-y", says=["expected a name"])


def test_rm_takes_what_is_meant_best_and_all_parts_of_a_set():
    with Place() as p:
        p.hub.add("them/Two", {"Two-Q4_K_M.gguf": NOISE, "Two-UD-Q4_K_M.gguf": NOISE[:1000]})
        for what in "Two-Q4_K_M.gguf", "UD-Q4_K_M":
            p.run("pull", f"hf:them/Two:{what}", "--unchecked")
        assert f"{len(NOISE) / 1e9:.2f} GB removed" in "".join(p.run("rm", "hf:them/Two:Q4_K_M", "-y"))
        assert [m["name"] for m in json.loads(p.run("list", "--json")[0])["models"]] == ["hf:them/Two:UD-Q4_K_M"]
        p.fails(4, "inspect", "hf:them/Two:Q4_K_M", says=["no model here is Q4_K_M itself: taking Two-UD-Q4_K_M.gguf"])
        assert "taking" not in p.fails(4, "inspect", "hf:them/Two:ud-q4_k_m")
        for i in range(1, 4):
            p.hub.blobs[f"s-0000{i}-of-00003.gguf"] = NOISE
        urls = [p.hub.cdn + f"/files/s-0000{i}-of-00003.gguf" for i in range(1, 4)]
        p.run("pull", urls[1], "--unchecked")
        [split] = [m for m in json.loads(p.run("list", "--json")[0])["models"] if "s-00001-of" in m["name"]]
        assert split["name"] == urls[0], split  # with the scheme by which it came
        assert split["files"] == split["whole_files"] == 3 and split["size_bytes"] == 3 * len(NOISE), split
        assert not any("s-00002-of" in m["name"] for m in json.loads(p.run("list", "--json")[0])["models"])
        p.run("rm", urls[0], "-y")
        p.fails(2, "rm", urls[2], "-y", says=["nothing of it here"])


def test_rm_takes_a_part_by_its_name():
    with noise_place() as p:
        p.hub.fail(NOISE, Fault("cut", PIECE), *[Fault("status", 500)] * 3)
        p.fails(1, *PULL_NOISE, "--retries", 0)
        assert "hf:them/Noise:noise-Q8_0.gguf" in p.run("list")[0]
        p.fails(2, "rm", "hf:them/Noise:Q4_0", "-y")
        p.run("rm", "hf:them/Noise:Q8_0", "-y")
        assert not [f for _, _, files in os.walk(p.cache) for f in files]


def test_aliases_stand_for_names_and_files():
    with demo_place() as p:
        p.run("alias", "demo", NAME)
        os.symlink(DEMO, p.path("here.gguf"))
        p.run("alias", "file", "here.gguf")
        assert p.run("alias")[0] == f"demo = {NAME}\nfile = {p.folder.name}/here.gguf\n"
        assert p.run("alias", "demo")[0] == f"demo = {NAME}\n"
        for name in "demo", "file":
            assert p.generate(name)[0] == p.generate(DEMO)[0]
        assert json.loads(p.run("list", "--json")[0])["aliases"]["demo"] == NAME
        os.symlink(DEMO, p.path("demo"))  # a file of that name goes first
        assert p.run("tokenize", "-m", "demo", "sea", env={"HF_HUB_OFFLINE": "1"})[0]
        p.run("alias", "demo", "--remove")
        for name in "llama3", "qwen3:30b", "them/Demo-GGUF":
            p.fails(3, "chat", name, says=[f"{name}: no file and no alias of that name; a model of the Hub is named hf:OWNER/REPO:Q4_K_M"])
        p.fails(3, "chat", "gone.gguf", says=["gone.gguf: No such file"])
        p.fails(2, "alias", "demo", says=["no alias demo"])
        p.fails(2, "alias", "demo", "--remove", says=["no alias demo"])
        for name, target in ("../x", NAME), ("-x", NAME), ("a b", NAME), ("", NAME), ("hf:a/b", NAME), ("x", "hf:bad"), ("x", "gone.gguf"), ("x", "/gone.gguf"):
            p.fails(2, "alias", "--", name, target)
        open(p.path("home/.config/moebius/aliases"), "w").write("x\n")
        p.fails(4, "alias", says=["line 1", "expected NAME TARGET"])


def test_known_models_are_listed_with_their_status():
    with Place() as p:
        out = p.run("list", "--known")[0]
        known = json.loads(p.run("list", "--known", "--json")[0])["known"]
        built = json.loads(p.run("version", "--json")[0])["architectures"]
        names = {k["architecture"] for k in known}
        assert names == set(built) - {"glm5-next", "gpt_oss", "openai-moe"}, names ^ set(built)
        assert {k["status"] for k in known} <= {"exact at toy size", "run with published weights", "experimental"}
        assert all(k["architecture"] in out and k["models"] in out for k in known)


run_functions(globals())
