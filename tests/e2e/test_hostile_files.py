#!/usr/bin/env python3
"""Files made to break the program: each ends in a sentence or well, soon and in little memory.
usage: test_hostile_files.py MOEBIUS

Each function below is one test; a failed assertion names itself."""
import os
import random
import struct
import sys
import tempfile

from run_functions import run_functions

MOEBIUS = sys.argv[1]
TMP = tempfile.TemporaryDirectory()
SANITIZED = "asan" in os.environ.get("MOEBIUS_TEST_BUILD", "")
MAX_SECONDS, MAX_BYTES = 10, 512 << 20  # what grows with the square of a file takes far more
U8, U32, I32, F32, STRING, ARRAY = 0, 4, 5, 6, 8, 9


def tmp(name):
    return os.path.join(TMP.name, name)


def ends(code, *args, says=""):
    """Runs the program: exit status, a word of its standard error, processor time and memory are as expected."""
    errors = tmp("errors")
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        os.environ["XDG_CACHE_HOME"] = tmp("cache")
        os.execv(MOEBIUS, [MOEBIUS, *map(str, args)])
    _, status, usage = os.wait4(pid, 0)
    err = open(errors, errors="replace").read()
    found = os.waitstatus_to_exitcode(status)
    assert found == code, f"exit {found}, expected {code}: {' '.join(map(str, args))}\n{err[-2000:]}"
    assert says in err, f"{says!r} is not in {err!r}"
    seconds, n_bytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    assert seconds < MAX_SECONDS, f"{seconds} s: {' '.join(map(str, args))}"
    assert n_bytes < MAX_BYTES, f"{n_bytes} bytes: {' '.join(map(str, args))}"


def text(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s


def value(kind, v):
    if kind == STRING:
        return text(v)
    if kind == ARRAY:
        return struct.pack("<IQ", v[0], len(v[1])) + b"".join(value(v[0], x) for x in v[1])
    return struct.pack({U8: "<B", U32: "<I", I32: "<i", F32: "<f"}[kind], v)


def write_gguf(path, keys=(), tensors=()):
    """keys: (name, type, value); tensors: (name, ne, type, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text(name) + struct.pack("<I", kind) + value(kind, v) for name, kind, v in keys)
    data = bytearray()
    for name, ne, kind, content in tensors:
        head += text(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, len(data))
        data += content + bytes(-len(content) % 32)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + data)


def test_tokens_made_to_collide_are_read():
    words = []
    for i in range(16):
        first, second = struct.unpack("<QQ", b"%08dabcdefgh" % i)
        words.append((struct.pack("<QQ", first, second), struct.pack("<QQ", first ^ 1 << 63, second ^ (1 << 63 | 1 << 34))))
    tokens = [b"".join(w[i >> k & 1] for k, w in enumerate(words)) for i in range(1 << 16)]
    path = tmp("collide.gguf")
    write_gguf(path, [("tokenizer.ggml.model", STRING, "llama"), ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens))])
    ends(0, "tokenize", "-m", path, "x")


def write_empty_tokens(path, n):
    """n tokens without text: eight zeros each, which take no place on the drive."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + text("tokenizer.ggml.model") + struct.pack("<I", STRING) + text("llama")
    head += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARRAY, STRING, n)
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(len(head) + 8 * n + 64)


def test_millions_of_empty_tokens_are_refused():
    path = tmp("empty.gguf")
    write_empty_tokens(path, 32700000)
    ends(7, "tokenize", "-m", path, "x", says="says 32700000 strings")
    ends(7, "inspect", path, says="says 32700000 strings")
    write_empty_tokens(path, 1 << 21)
    ends(7, "tokenize", "-m", path, "x", says="2097152 entries, expected at most 1048576")


def test_the_largest_vocabulary_is_read():
    """A million special tokens without a text and a million merges that name three new texts each."""
    if SANITIZED:  # whose memory is another
        return
    n, path = 1 << 20, tmp("largest.gguf")
    keys = [("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "qwen2")]
    arrays = [("tokenizer.ggml.tokens", STRING, bytes(8 * n)), ("tokenizer.ggml.token_type", I32, struct.pack("<i", 3) * n),
              ("tokenizer.ggml.merges", STRING, b"".join(text(b"%x %x" % (i, i + (1 << 24))) for i in range(n)))]
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys) + len(arrays)))
        f.write(b"".join(text(name) + struct.pack("<I", kind) + value(kind, v) for name, kind, v in keys))
        for name, kind, content in arrays:
            f.write(text(name) + struct.pack("<IIQ", ARRAY, kind, n) + content)
    ends(0, "tokenize", "-m", path, "x")


def test_overlong_tokens_are_refused():
    path = tmp("long.gguf")
    for n, code in ((4096, 0), (4097, 7)):
        write_gguf(path, [("tokenizer.ggml.model", STRING, "llama"), ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b" * n]))])
        ends(code, "tokenize", "-m", path, "x", says="token 1 has 4097 bytes, expected at most 4096" if code else "")


def test_a_million_arrays_of_a_byte_are_refused():
    n, path = 1 << 20, tmp("nested.gguf")
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, ARRAY, n))
        f.write(struct.pack("<IQB", U8, 1, 0) * n)
    ends(7, "inspect", "--tensor", "x", path, says="says 1048576 arrays")


def test_more_tensor_types_than_there_can_be_are_refused():
    path = tmp("types.gguf")
    write_gguf(path, [("general.architecture", STRING, "llama")],
               [(f"t{i}", [1000 + i], 0x41414141 + i, b"") for i in range(1700)])
    ends(7, "inspect", path, says="more than 256 types")


def test_more_layers_than_there_can_be_are_refused():
    path = tmp("layers.gguf")
    keys = [("general.architecture", STRING, "llama"), ("llama.block_count", U32, 4097), ("llama.context_length", U32, 8),
            ("llama.embedding_length", U32, 32), ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5)]
    write_gguf(path, keys)
    for args in (["inspect", path], ["generate", "-m", path, "--tokens", "1"]):
        ends(7 if args[0] == "inspect" else 4, *args)
    tokens = [("tokenizer.ggml.model", STRING, "llama"), ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b", "c"]))]
    write_gguf(path, keys + tokens)
    ends(7, "generate", "-m", path, "--tokens", "1", says='"llama.block_count" is 4097, expected at most 4096')


def test_a_tensor_of_four_dimensions_has_as_many_importances():
    source, weights, name = tmp("source.gguf"), tmp("weights.gguf"), "blk.0.ffn_down_exps.weight"
    write_gguf(source, [("general.architecture", STRING, "llama"), ("llama.block_count", U32, 1)],
               [(name, [256, 1, 2, 4096], 0, struct.pack("<256f", *range(256)) * (2 * 4096))])
    for n in (1, 2, 8192):
        write_gguf(weights, [("general.type", STRING, "imatrix")],
                   [(name + ".in_sum2", [256, n], 0, struct.pack("<f", 1) * (256 * n)),
                    (name + ".counts", [1, n], 0, struct.pack("<f", 5) * n)])
        ends(4 if n == 2 else 0, "quantize", "--force", source, tmp("o.gguf"), "--type", "Q8_0", "--pure", "--imatrix", weights,
             says="has 512 numbers of type 0, expected F32, 256 for each of 1 or 8192 matrices" if n == 2 else "")


def test_overlong_rows_are_not_quantised():
    path = tmp("row.gguf")
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 1 << 31, 0, 0)
    with open(path, "wb") as f:  # 8 GB that take no place
        f.write(head)
        f.truncate(64 + (8 << 30))
    ends(7, "quantize", "--force", path, tmp("o.gguf"), "--type", "Q8_0", says="rows of 2147483648 weights, expected at most")


def model_of_many_experts(path, n_expert, n_used, n_embd=64):
    rnd = random.Random(1)

    def matrix(name, ne):
        n = 1
        for x in ne:
            n *= x
        return name, ne, 1, struct.pack(f"<{n}e", *(rnd.uniform(-.1, .1) for _ in range(n)))

    def ones(name):
        return name, [n_embd], 0, struct.pack("<f", 1) * n_embd
    a, b = "llama.", "blk.0."
    keys = [("general.architecture", STRING, "llama"), (a + "context_length", U32, 4096), (a + "embedding_length", U32, n_embd),
            (a + "block_count", U32, 1), (a + "feed_forward_length", U32, 1), (a + "attention.head_count", U32, 4),
            (a + "attention.layer_norm_rms_epsilon", F32, 1e-5), (a + "expert_count", U32, n_expert),
            (a + "expert_used_count", U32, n_used), ("tokenizer.ggml.model", STRING, "llama"),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, ["<unk>", "<s>", "</s>"] + [f"t{i}" for i in range(61)]))]
    tensors = [matrix("token_embd.weight", [n_embd, 64]), ones("output_norm.weight"), ones(b + "attn_norm.weight"),
               ones(b + "ffn_norm.weight"), matrix(b + "ffn_gate_inp.weight", [n_embd, n_expert])]
    tensors += [matrix(f"{b}attn_{x}.weight", [n_embd, n_embd]) for x in ("q", "k", "v", "output")]
    tensors += [matrix(f"{b}ffn_{x}_exps.weight", ne) for x, ne in
                (("gate", [n_embd, 1, n_expert]), ("up", [n_embd, 1, n_expert]), ("down", [1, n_embd, n_expert]))]
    write_gguf(path, keys, tensors)


def test_a_model_that_chooses_thousands_of_experts_is_profiled():
    model, trace, words = tmp("many.gguf"), tmp("many.trace"), tmp("words.txt")
    model_of_many_experts(model, 4096, 3000)
    open(words, "w").write("t1 t2 t3")
    ends(0, "profile", "-m", model, "-f", words, "-t", 2)
    ends(0, "trace", "-m", model, "-f", words, "-o", trace, "-t", 2)
    ends(0, "trace", "replay", trace, "--budgets", 80)


def test_a_trace_of_absurd_layers_is_refused():
    path, n = tmp("absurd.trace"), 4000
    with open(path, "w") as f:
        f.write(f"moebius trace 1\nmodel 0123456789abcdef\nlayers {n} tokens 1\n" + "65536 1 1 0\n" * n + "0 " * n)
    ends(7, "trace", "replay", path, says="4000 layers of up to 65536 experts")
    n = 16  # and the most that is not
    with open(path, "w") as f:
        f.write(f"moebius trace 1\nmodel 0123456789abcdef\nlayers {n} tokens 1\n" + "65536 1 1 0\n" * n + "0 " * n)
    ends(0, "trace", "replay", path, "--budgets", 50)


run_functions(globals())
