"""What the models in numpy share: reading a tiny model that gen_family.py wrote, and writing its golden files, in double precision."""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "e2e"))
from gguf_reader import read_gguf

N_GREEDY = 16


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


class NumpyModel:
    """A family says `arch`, the `positions` whose logits are kept, and has forward(tokens): logits [T][n_vocab]; it leaves self.hidden
    [layer][D] of the last token and self.topk, and gaps() tells how near choices came."""
    def __init__(self, path):
        self.kv, tensors = read_gguf(path)
        self.w = {name: np.array(x).reshape(ne[::-1]) for name, (ne, x) in tensors.items()}
        assert self.kv["general.architecture"] == self.arch
        g = self.get
        self.n_layer, self.n_embd, self.n_head = g("block_count"), g("embedding_length"), g("attention.head_count")
        self.eps = g("attention.layer_norm_rms_epsilon")
        self.n_vocab = self.w["token_embd.weight"].shape[0]

    def get(self, key):
        return self.kv[f"{self.arch}.{key}"]

    def rms(self, x, weight=1.0):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * weight

    def greedy(self, tokens, n):
        tokens, ids, margins = list(tokens), [], []
        for _ in range(n):
            last = self.forward(tokens)[-1]
            best = np.argsort(-last, kind="stable")[:2]
            ids.append(int(best[0]))
            margins.append(float(last[best[0]] - last[best[1]]))
            tokens.append(ids[-1])
        return ids, margins


def text(seed, n):
    rng = np.random.Generator(np.random.PCG64(seed))
    return [1] + [int(x) for x in rng.integers(3, 97, n - 1)]


def write(kind, name, seed, out):
    m = kind(f"{out}/{name}.gguf")
    toks = text(seed, m.positions[-1] + 1)
    ids, margins = m.greedy(toks, N_GREEDY)
    m.forward(toks + ids[:-1])
    print(f"seed {seed}: with the greedy tokens: {m.gaps()}; margins >= {min(margins):.4f}")
    logits = m.forward(toks)
    logits[m.positions].astype("<f4").tofile(f"{out}/{name}.exact.f32")
    np.array(m.hidden).astype("<f4").tofile(f"{out}/{name}.hidden.f32")
    j = dict(name=name, model=name + ".gguf", arch=m.arch, generator=dict(tool="tools/gen_family.py", family=m.arch, seed=seed, options={}),
             oracle=f"tools/model_{m.arch}.py: numpy, float64", n_vocab=m.n_vocab, n_layer=m.n_layer, n_embd=m.n_embd, tokens=toks,
             positions=m.positions, exact=name + ".exact.f32", hidden=name + ".hidden.f32", ids=ids,
             margins=[round(v, 6) for v in margins], topk={str(i): v for i, v in m.topk.items()}, tokenize=[])
    with open(f"{out}/{name}.json", "w", encoding="utf-8") as f:
        f.write(json.dumps(j))
