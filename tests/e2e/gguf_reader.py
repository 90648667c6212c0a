"""Reads the GGUF files of plain tensors that commands write."""
import math
import struct


def read_gguf(path):
    """Metadata of plain values and the tensors {name: (ne, floats)} of a GGUF with F32 and F16 tensors."""
    data, at = open(path, "rb").read(), 0

    def take(form):
        nonlocal at
        v = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return v if len(v) > 1 else v[0]

    def string():
        return take(f"{take('Q')}s").decode()

    def value(kind):
        if kind == 9:
            inner = take("I")
            return [value(inner) for _ in range(take("Q"))]
        return string() if kind == 8 else take("BbHhIif?"[kind] if kind < 8 else {10: "Q", 11: "q", 12: "d"}[kind])

    assert data[:4] == b"GGUF"
    at = 4
    _, n_tensor, n_kv = take("IQQ")
    kv = {}
    for _ in range(n_kv):
        key = string()
        kv[key] = value(take("I"))
    rows = []
    for _ in range(n_tensor):
        name, n_dim = string(), take("I")
        rows.append((name, [take("Q") for _ in range(n_dim)], *take("IQ")))
    base, tensors = -(-at // 32) * 32, {}
    for name, ne, kind, off in rows:
        if kind < 2:
            tensors[name] = ne, struct.unpack_from(f"<{math.prod(ne)}{'fe'[kind]}", data, base + off)
    return kv, tensors
