#!/usr/bin/env python3
"""What a person at a terminal meets: text that can't steer it, colour, Ctrl-C. usage: test_terminal.py MOEBIUS DEMO.gguf GOLDEN_DIRECTORY

Each function below is one test; a failed assertion names itself."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

from run_functions import run_functions

MOEBIUS, DEMO, GOLDEN = map(os.path.abspath, sys.argv[1:4])
TMP = tempfile.TemporaryDirectory()
os.chdir(TMP.name)  # below which chat may save and load
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP.name, "cache")
for name in ("NO_COLOR", "TERM"):
    os.environ.pop(name, None)


def run(*args, stdin=b"", env=None, code=0):
    r = subprocess.run([MOEBIUS, *map(str, args)], input=stdin, capture_output=True, timeout=300,
                       env=dict(os.environ, **(env or {})))
    assert r.returncode == code, f"exit {r.returncode}, expected {code}: {args}\n" + r.stderr.decode(errors="replace")[-2000:]
    return r


def on_terminal(*args, stdin=b"", env=None, code=0):
    """The same with standard output on a terminal and standard error on another, which change no byte."""
    ends, got, readers = [pty.openpty() for _ in range(2)], [b"", b""], []

    def read(i):
        try:
            while piece := os.read(ends[i][0], 65536):
                got[i] += piece
        except OSError:  # the other end is closed
            pass

    for i, (_, slave) in enumerate(ends):
        mode = termios.tcgetattr(slave)
        mode[1] &= ~termios.OPOST
        termios.tcsetattr(slave, termios.TCSANOW, mode)
        readers.append(threading.Thread(target=read, args=(i,)))
    p = subprocess.Popen([MOEBIUS, *map(str, args)], stdin=subprocess.PIPE, stdout=ends[0][1], stderr=ends[1][1],
                         env={**os.environ, "TERM": "xterm", **(env or {})})
    for i in range(2):
        os.close(ends[i][1])
        readers[i].start()
    p.communicate(stdin, timeout=300)
    for i in range(2):
        readers[i].join(20)
        assert not readers[i].is_alive(), f"something holds the terminal on: {args}"
        os.close(ends[i][0])
    assert p.returncode == code, f"exit {p.returncode}, expected {code}: {args}\n{got[1].decode(errors='replace')[-2000:]}"
    return got


def golden(name):
    return os.path.join(GOLDEN, name + ".gguf")


def tmp(name):
    return os.path.join(TMP.name, name)


def shown(data, kept="\n\t"):
    """What a person should see of these bytes."""
    text = ""
    for c in data.decode(errors="surrogateescape"):
        code = ord(c)
        if c in kept:
            text += c
        elif 0xdc80 <= code < 0xdd00:
            text += f"\\x{code - 0xdc00:02x}"
        elif code < 0x20 or code == 0x7f:
            text += {"\n": "\\n", "\t": "\\t"}.get(c, f"\\x{code:02x}")
        elif 0x80 <= code < 0xa0 or 0x202a <= code <= 0x202e or 0x2066 <= code <= 0x2069:
            text += f"\\u{code:04x}"
        else:
            text += c
    return text.encode()


HOSTILE = "\x1b]0;pwned\x07\x1b[31m\x7f\x9b\u202e"


def write_gguf(path, strings, tensors):
    """A GGUF of strings, given as bytes, and tensors of one row of 32 ones, by name."""
    def s(b):
        return struct.pack("<Q", len(b)) + b
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(strings))
    head += b"".join(s(k.encode()) + struct.pack("<I", 8) + s(v) for k, v in strings.items())
    for i, name in enumerate(tensors):
        head += s(name) + struct.pack("<IQIQ", 1, 32, 0, 128 * i)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + struct.pack("<32f", *[1] * 32) * len(tensors))


def test_what_a_file_says_does_not_steer_the_terminal():
    bad, path, ids = HOSTILE.encode() + b"\xff", tmp("hostile.gguf"), tmp("ids.txt")
    open(tmp("raise.jinja"), "wb").write(b"{{ raise_exception('" + HOSTILE.encode() + b"\\nred') }}")
    open(tmp("messages.json"), "w").write("[]")
    model, verified = open(golden("llama_moe"), "rb").read(), tmp("verified.gguf")
    strings = {"general.architecture": b"llama", "general.name": bad, "tokenizer.ggml.model": bad}
    write_gguf(path, strings, [bad, b"output.weight"])
    write_gguf(tmp("arch.gguf"), dict(strings, **{"general.architecture": bad}), [bad])
    # a model that runs and has a tensor that nobody knows: without output.weight the embedding stands for it
    length = struct.pack("<Q", 13)
    renamed = model.replace(length + b"output.weight", length + b"\x1b]0;pwned\x07\x9b\x7f\xff"[:13])
    assert len(renamed) == len(model) and renamed != model
    open(tmp("renamed.gguf"), "wb").write(renamed)
    write_gguf(verified, strings, [bad, b"output.weight"])
    run("verify", verified, "--write")
    data = bytearray(open(verified, "rb").read())
    data[-129] ^= 1  # in the first tensor
    open(verified, "wb").write(data)
    for code, command in ((0, ["inspect", path]), (0, ["inspect", path, "--tensor", bad]), (0, ["inspect", tmp("arch.gguf")]),
                          (0, ["inspect", tmp("renamed.gguf")]), (0, ["generate", "-m", tmp("renamed.gguf"), "--tokens", "1", "-n", "1"]),
                          (5, ["generate", "-m", tmp("arch.gguf"), "--tokens", "1"]), (5, ["tokenize", "-m", path, "x"]),
                          (0, ["quantize", "--force", path, tmp("quantized.gguf"), "--type", "Q8_0", "--rule", ".=Q8_0"]),
                          (4, ["verify", verified]),
                          (4, ["template", "--template", tmp("raise.jinja"), "--messages", tmp("messages.json")])):
        args = [a if isinstance(a, bytes) else a.encode() for a in command]
        r = subprocess.run([MOEBIUS.encode(), *args], capture_output=True, timeout=300)
        said = r.stdout + r.stderr
        assert r.returncode == code, (command, r)
        assert shown(said) == said and b"\\x1b" in said, (command, said)


def test_generated_text_is_made_visible_on_a_terminal_alone():
    model = golden("qwen3moe")
    generate = ["generate", "-m", model, "--tokens", "1,2,3,27,155", "--temp", 2, "--seed", 3, "-n", 200, "--echo", "--ignore-eos"]
    text = run(*generate).stdout
    assert re.search(rb"[\x00-\x08\x0b-\x1f]", text[6:]) and b"\\x" in shown(re.sub(rb"[\x00-\x7f]", b"", text))
    assert on_terminal(*generate)[0] == shown(text)
    assert on_terminal(*generate, "--raw")[0] == text
    # characters of several tokens stay whole, and one that ends the text unfinished shows
    ids = run("tokenize", "-m", model, "-", stdin="\U0001f600 今天\x1b[31m".encode()).stdout.split()
    given = ["generate", "-m", model, "--echo", "-n", 0, "--tokens", b",".join(ids).decode()]
    assert "\U0001f600 今天\\x1b[31m\n".encode() == on_terminal(*given)[0]
    given[-1] = ids[0].decode()
    assert b"\\xf0\n" == on_terminal(*given)[0], ids


def test_other_text_is_made_visible_on_a_terminal_alone():
    text = ("a\tb\n" + HOSTILE + "今天").encode()
    ids = [x.decode() for x in run("tokenize", "-m", DEMO, "-", stdin=text).stdout.split()]
    open(tmp("t.jinja"), "wb").write(b"{{ messages[0].content }}")
    json.dump([{"role": "system", "content": text.decode()}], open(tmp("m.json"), "w"))
    for command, end in ((["detokenize", "-m", DEMO, *ids], b"\n"),
                         (["template", "--template", tmp("t.jinja"), "--messages", tmp("m.json")], b"")):
        assert run(*command).stdout == text + end, command
        assert on_terminal(*command)[0] == shown(text) + end, command
        assert on_terminal(*command, "--raw")[0] == text + end, command
    pieces = run("tokenize", "-m", DEMO, "--pieces", "-", stdin=text + b'\\"').stdout
    assert shown(pieces) == pieces and b'"\\x1b' in pieces and b'"\\\\' in pieces and b'"\\""' in pieces, pieces
    chat = ["chat", "-m", golden("qwen3moe"), "--template", tmp("t.jinja"), "--temp", 2, "--seed", 5, "-n", 60]
    talk = f"/load {tmp('m.json')}\n/system\nHello\n/exit\n".encode()
    piped = run(*chat, stdin=talk).stdout
    assert piped.startswith(text + b"\n") and len(piped) > len(text) + 60 and shown(piped) != piped
    assert on_terminal(*chat, stdin=talk)[0] == shown(piped)
    assert on_terminal(*chat, "--raw", stdin=talk)[0] == piped


def test_style_is_decided_in_one_place():
    open(tmp("think.jinja"), "w").write("{{ messages[0].content }}{{ '<think>' }}")
    generate = ["generate", "-m", DEMO, "--chat", "--template", tmp("think.jinja"), "-p", "Once", "-n", 5, "--temp", 0]
    chat = ["chat", "-m", DEMO, "--template", tmp("think.jinja"), "-n", 5, "--temp", 0]
    for command, stdin in ((generate, b""), (chat, b"Once\n")):
        def styled(*more, **kw):
            out = on_terminal(*command, *more, stdin=stdin, **kw)[0]
            assert (b"\x1b[2m" in out) != (b"[reasoning]\n" in out), out
            return b"\x1b" in out
        assert styled() and styled("--color", "auto")
        assert styled(env={"NO_COLOR": ""})  # empty: as if it were not set (no-color.org)
        assert not styled(env={"NO_COLOR": "1"}) and not styled(env={"TERM": "dumb"}) and not styled(env={"TERM": ""})
        assert not styled("--color", "never")
        assert styled("--color=always", env={"NO_COLOR": "1"})
        piped = run(*command, stdin=stdin)
        assert piped.stdout.startswith(b"[reasoning]\n") and b"\x1b" not in piped.stdout + piped.stderr
        assert run(*command, "--color", "always", stdin=stdin).stdout.startswith(b"\x1b[2m")
        run(*command, "--color", "mauve", code=2)
    # notes go to standard error, whose own kind counts
    assert b"\x1b[2m[stopped at" in on_terminal(*chat, stdin=b"Once\n")[1]
    plain = on_terminal(*chat, "--color", "never", stdin=b"Once\n")[1]
    assert b"[stopped at" in plain and b"\x1b" not in plain
    live = ["generate", "-m", DEMO, "-p", "Once", "-n", 3, "--stats"]
    assert b"\x1b[K" in on_terminal(*live)[1] and b"\x1b" not in on_terminal(*live, env={"TERM": "dumb"})[1]


LONG = "Once upon a time there was a cat. " * 15000  # 150,000 tokens: half a minute, and more with sanitizers
SOON_S = 1 if os.environ.get("MOEBIUS_TEST_BUILD") == "release" else 5


def test_an_interrupt_ends_a_prompt_soon():
    open(tmp("long.txt"), "w").write(LONG)
    for more in ([], ["--expert-ram", "10%"]):
        p = subprocess.Popen([MOEBIUS, "generate", "-m", DEMO, "-f", tmp("long.txt"), "-c", "200000", "-n", "5", "--echo", *more],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdout.read(len(LONG))  # the prompt comes next
        time.sleep(0.2)
        start = time.time()
        p.send_signal(signal.SIGINT)
        said = p.communicate(timeout=60)[1].decode()
        assert time.time() - start < SOON_S, time.time() - start
        n = re.search(r"interrupted after (\d+) of the prompt's 150000 tokens$", said, re.M)
        assert p.returncode == 9 and n and f"prompt {n[1]} tokens" in said, (p.returncode, said)


def test_a_long_prompt_shows_how_far_it_is():
    n = 60 if os.environ.get("MOEBIUS_TEST_BUILD") == "asan" else 250  # more than a second's work
    open(tmp("long.txt"), "w").write(LONG[:34 * n])
    generate = ["generate", "-m", DEMO, "-f", tmp("long.txt"), "-c", 10 * n + 100, "-n", "1", "--reference"]
    said = on_terminal(*generate)[1]
    assert re.search(rb"\rprompt of %d tokens: \d+%%, (\d+ min )?\d+ s left" % (10 * n), said), said[-500:]
    assert b"prompt of" not in on_terminal("generate", "-m", DEMO, "-p", "x", "-n", 1)[1]


def wait_readable(fd):
    """Whether there is something to read within a minute; of a pause of the whole machine a second counts."""
    return any(select.select([fd], [], [], 1)[0] for _ in range(60))


class Chat:
    """A chat at a terminal of its own, 60 columns wide."""

    def __init__(self, *args, state="state", term="xterm", env=None):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        env = {**os.environ, "TERM": term, "XDG_STATE_HOME": tmp(state), "HOME": TMP.name, **(env or {})}
        self.p = subprocess.Popen([MOEBIUS, "chat", "-m", DEMO, "--temp", "0", "-n", "12", *map(str, args)], stdin=slave, stdout=slave,
                                  stderr=slave, env=env, preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)))
        os.close(slave)
        self.hello = self.until("> ")

    def read(self, n):
        """Up to n bytes; none: it has closed the terminal, or says nothing for a minute."""
        try:
            return os.read(self.master, n) if wait_readable(self.master) else b""
        except OSError:
            return b""

    def until(self, words):
        seen = b""
        while not seen.endswith(words.encode()):
            piece = self.read(1)
            assert piece, f"{words!r} does not come: {seen[-2000:]!r}"
            seen += piece
        return seen.decode(errors="replace").replace("\r\n", "\n")

    def say(self, text):
        """What is answered up to the next prompt."""
        os.write(self.master, text.encode() + b"\r")
        return self.until("> ")

    def saved(self):
        self.say("/save said.json")
        return json.load(open(tmp("said.json")))

    def messages(self):
        return [m["content"] for m in self.saved()]

    def end(self):
        os.write(self.master, b"/quit\r")
        while self.read(65536):
            pass
        assert self.p.wait(60) == 0
        os.close(self.master)


def test_an_interrupted_message_is_taken_back_and_not_counted():
    json.dump([{"role": "system", "content": LONG}], open(tmp("long.json"), "w"))
    open(tmp("all.jinja"), "w").write("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    c = Chat("--template", tmp("all.jinja"), "-c", 200000, "-n", 5, "--temp", 0.8, "-s", 7, term="dumb")
    c.say(f"/load {tmp('long.json')}")
    os.write(c.master, b"Hello\r")
    c.until("Hello\r\n")  # the line is taken: an interrupt counts for the answer
    time.sleep(1)
    start = time.time()
    c.p.send_signal(signal.SIGINT)
    c.until("[interrupted]")
    assert time.time() - start < SOON_S
    c.until("> ")
    said = c.say("/stats")
    in_context, = re.search(r"context: (\d+) of", said).groups()
    counted, = re.search(r"prompts: (\d+) tokens evaluated", said).groups()
    assert "answers: 0; 0 tokens" in said and "seed: 7" in said, said
    assert in_context == counted and int(counted) < 150000, (in_context, counted)
    assert [m["role"] for m in c.saved()] == ["system"]
    c.end()


def has_line_editor():
    return b"line editor: libedit" in run("version").stdout


def test_chat_takes_pasted_and_marked_text_as_one_message():
    if not has_line_editor():
        return
    c = Chat()
    assert "context of 512 tokens" in c.hello and "/help" in c.hello
    os.write(c.master, b"\x1b[200~one\rtwo\rthree\r\x1b[201~\r")
    said = c.until("tokens/s]")
    c.until("> ")
    assert re.search(r"\[12 tokens, [\d.]+ tokens/s\]", said), said  # -n
    os.write(c.master, b'"""\ra\\\r')
    assert c.until("... ") and c.until("... ")
    c.say('b"""')
    os.write(c.master, b"x\\\r")
    c.until("... ")
    c.say("y")
    assert "tokens" not in c.say("  \t ")
    said = c.messages()[::2]
    assert said == ["one\ntwo\nthree", "a\\\nb", "x\ny"], said
    os.write(c.master, b"\x1b[200~/etc\r/bin\x1b[201~\r")  # of several lines: no command
    c.until("tokens/s]")
    c.until("> ")
    assert c.messages()[-2] == "/etc\n/bin"
    c.end()


def test_chat_takes_letters_of_all_languages_in_any_locale():
    if not has_line_editor():
        return
    for lang in ("C", "xx_XX.UTF-8"):  # the second is installed nowhere
        c = Chat(env={"LC_ALL": lang})
        c.say("grüße 你好 ok")
        assert c.messages()[0] == "grüße 你好 ok", lang
        c.end()


def test_chat_says_things_again():
    if not has_line_editor():
        return
    c = Chat()
    assert "written to first.json]" in c.say("/save first.json") and "written to first.json (replaced)]" in c.say("/save first.json")
    assert "/system TEXT sets one" in c.say("/system").replace("\n", " ")
    assert "there is no message yet" in c.say("/retry")
    c.say("Hello there")
    answer = c.messages()[1]
    c.say("/retry")
    assert c.messages() == ["Hello there", answer]  # with temperature 0
    c.say("/edit Another one")
    assert len(c.messages()) == 2 and c.messages()[0] == "Another one"
    os.write(c.master, b"/edit\r")
    c.until("> Another one")
    assert c.say(" of them") and c.messages()[0] == "Another one of them"
    assert "text alone" in c.say("/image cat.png") and "there is no command /fly" in c.say("/fly")
    assert "is set" in c.say("/system Be **kind**, " + "and say why " * 6 + "so.")
    assert "Be **kind**, and say why and say why and say why and say\nwhy" in c.say("/system")
    assert "is set" in c.say("/system Be kind.") and "/clear" in c.say("/help")
    assert "the system message stays" in c.say("/clear") and c.messages() == ["Be kind."]
    assert "messages read from said.json" in c.say("/load said.json")
    os.write(c.master, b"\x03")
    assert "Ctrl-D or /exit" in c.until("> ")
    c.end()


def test_chat_remembers_what_was_said_before():
    if not has_line_editor():
        return
    first = Chat(state="kept")
    first.say("A first message")
    first.end()
    path = tmp("kept/moebius/chat_history")
    assert os.stat(path).st_mode & 0o777 == 0o600 and os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    assert open(path).read() == '"A first message"\n"/quit"\n'
    open(path, "a").write("damaged\n")
    second = Chat(state="kept")
    os.write(second.master, b"\x1b[A\x1b[A")  # up, over /quit
    second.until("A first message")
    assert "tokens/s" in second.say("") and second.messages()[0] == "A first message"
    second.end()
    n = len(open(path).read())
    third = Chat("--no-history", state="kept")
    third.say("Secret")
    third.end()
    assert len(open(path).read()) == n and not os.path.exists(tmp("none/moebius"))
    open(path, "w").write("".join(f'"message {i} {"x" * 100}"\n' for i in range(10000)))
    Chat(state="kept").end()
    kept = open(path).read().splitlines()
    assert os.path.getsize(path) <= 1 << 19 and kept[-2].startswith('"message 9999 ') and all(json.loads(line) for line in kept)
    os.chmod(tmp("kept/moebius"), 0o700)
    os.remove(path)
    os.symlink(tmp("elsewhere"), path)  # nobody's file is written to through a link
    Chat(state="kept").end()
    assert not os.path.exists(tmp("elsewhere"))


def test_answers_are_readable_in_chat():
    open(tmp("md.gbnf"), "w").write('root ::= "# A title\\n- **bold** and `code`, and then so many words that they do not fit in a line\\n"')
    shown = "\x1b[1mA title\x1b[0m\n\u2022 \x1b[0m\x1b[1mbold\x1b[0m and \x1b[0m\x1b[36mcode\x1b[0m,"
    as_it_is = "# A title\n- **bold** and `code`, and then so many words that they do not fit in a line"
    for args, term, styled in (([], "xterm", True), (["--plain"], "xterm", False), (["--color", "never"], "xterm", False), ([], "dumb", False)):
        c = Chat("--grammar-file", tmp("md.gbnf"), "-n", "80", *args, term=term)
        said = c.say("Go")
        lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", line) for line in said.split("\n")]
        assert (shown in said) == styled and (as_it_is in " ".join(lines).replace("title -", "title\n-")) == (not styled), (args, said)
        assert ("\x1b[0m" in said) == styled or "--plain" in args, (args, said)
        assert all(len(line) < 60 for line in lines), (args, lines)
        c.end()
    c = Chat("--grammar-file", tmp("md.gbnf"), "-n", "80", "--raw")  # which breaks no line
    assert as_it_is in c.say("Go").replace("\r", "")
    c.end()


def test_a_line_below_tells_how_experts_are_read():
    open(tmp("long.gbnf"), "w").write("root ::= [a-z ]{1500,3000}")  # tokens enough for more than half a second
    for args, there in ((["--expert-ram", "10%", "--cold"], True), (["--expert-ram", "10%", "--cold", "--plain"], False), ([], False)):
        c = Chat("-n", "480", "--grammar-file", tmp("long.gbnf"), "--threads", "1", *args)
        assert ("of experts found in memory | " in c.say("Go on")) == there, args
        c.end()


def test_a_text_can_be_repeated_by_its_seed():
    args = ["generate", "-m", DEMO, "-p", "Once", "-n", 24, "--temp", 1.2]
    first, second = run(*args), run(*args)
    assert first.stdout != second.stdout
    for r in (first, second):
        assert run(*args, "--seed", re.search(rb"\| seed (\d+)", r.stderr)[1].decode()).stdout == r.stdout
    assert b"seed" not in run(*args, "--temp", 0).stderr


def test_statistics_are_of_what_was_done():
    said = run("generate", "-m", DEMO, "--tokens", "1,2,4096", "-n", 1, code=2).stderr
    assert b"token 2 is 4096" in said and b"prompt 3" not in said, said
    assert b"prompt 3 tokens, " in run("generate", "-m", DEMO, "--tokens", "1,2,3", "-n", 1).stderr


def test_names_that_are_nearly_right_are_suggested():
    def says(*args):
        return run(*args, code=2).stderr.decode()
    for word, meant in (("genrate", "generate"), ("tokenise", "tokenize"), ("insp", "inspect"), ("caht", "chat")):
        assert f"no command {word}: did you mean {meant}?\n" in says(word) and says("help", word) == says(word)
    assert says("fly") == "moebius: there is no command fly\n`moebius help` lists the commands.\n"
    assert "did you mean" not in says("")
    assert "--image: models are run with text alone here\n" in says("generate", "--image", "a.png")
    assert "--models-dir: here it is --models\n" in says("serve", "--models-dir", "x")
    assert says("\x1b[31m").startswith("moebius: there is no command \\x1b[31m\n")
    assert ": did you mean blk.0.attn_q.weight, " in says("inspect", DEMO, "--tensor", "blk.0.attn_q.wieght")
    assert "did you mean blk.0.attn_q.weight, blk.0.attn_q_norm.weight?\n" in says("inspect", DEMO, "--tensor", "blk.0.attn_q")
    assert "--json lists them all" in says("inspect", DEMO, "--tensor", "nosuch")
    types = says("quantize", "--force", DEMO, tmp("o.gguf"), "--type", "Q4_KK")
    assert " Q4_K_M " in types and " IQ4_KT\n" in types and "MOE_Q4_K;" in types
    types = says("quantize", "--force", DEMO, tmp("o.gguf"), "--type", "Q4_K_M", "--pure")
    assert "Q4_K_S" not in types and " IQ4_KT\n" in types
    assert " IQ4_KT\n" in says("quantize", "--force", DEMO, tmp("o.gguf"), "--type", "Q4_K", "--rule", "attn=Q9")


def test_version_and_help_are_at_hand():
    version = run("version").stdout
    for args in (["-V"], ["--version"], ["generate", "--version"], ["inspect", "-V"], ["chat", "-n", 3, "-V", "--wings"]):
        assert run(*args).stdout == version, args
    assert run("help", "help").stdout == run("help").stdout == run("--help").stdout


def test_a_number_missing_among_tokens_is_refused():
    for given, missing in (("1,,2", 2), (",1", 1), ("1,2,", 3), (",", 1), ("1 , ,2", 2)):
        for args in (["generate", "-m", DEMO, "-n", 1, "--tokens", given], ["detokenize", "-m", DEMO, given]):
            assert f"number {missing} is missing".encode() in run(*args, code=2).stderr, args
    text = run("detokenize", "-m", DEMO, "97,98").stdout
    assert text == run("detokenize", "-m", DEMO, "97,", "98").stdout == run("detokenize", "-m", DEMO, "-", stdin=b" 97\t, 98\n").stdout
    assert run("detokenize", "-m", DEMO, "-", stdin=b" \n").stdout == b"\n"


def test_nothing_is_complained_about_where_sys_is_missing():
    def hidden(*command):
        script = 'mount -t tmpfs none /sys && exec "$@"'
        return subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", *command], capture_output=True)
    if shutil.which("unshare") is None or hidden("true").returncode != 0:
        print("not permitted to hide /sys: that is not tested")
        return
    command = ["generate", "-m", DEMO, "-p", "Once", "-n", "3", "--temp", "0"]
    r = hidden(MOEBIUS, *command)
    assert r.returncode == 0 and r.stdout == run(*command).stdout
    plan, speed = r.stderr.splitlines()
    assert plan.startswith(b"plan: ") and speed.startswith(b"prompt "), r.stderr


run_functions(globals(), limit_s=120)
