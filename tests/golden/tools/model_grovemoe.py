#!/usr/bin/env python3
"""GroveMoE (grovemoe) in numpy, in double precision, as a rewrite of its authors' code (arXiv 2508.07785) has it: Qwen3's attention, and experts of which
two share an adjugate, a small expert that gets the same input and the same weight. Writes the golden files of a tiny model that
gen_family.py wrote.

    model_grovemoe.py NAME SEED DIRECTORY     of DIRECTORY/NAME.gguf

It says how near to each other the last expert that was chosen and the first that was not came: seeds where they are nearly equal are of
no use. llama.cpp gives adjugates another input and other weights; with LIKE_LLAMA=1 so does this, to compare all the rest with it.
"""
import os
import sys

import numpy as np

from numpy_model import NumpyModel, softmax, write

LIKE_LLAMA = os.environ.get("LIKE_LLAMA") == "1"


class Model(NumpyModel):
    arch, positions = "grovemoe", list(range(40, 48))

    def __init__(self, path):
        super().__init__(path)
        g = self.get
        self.n_kv, self.hd = g("attention.head_count_kv"), g("attention.key_length")
        self.n_used, self.share = g("expert_used_count"), g("experts_per_group")

    def rope(self, x):
        """x [T][heads][hd], of which element i is paired with i + hd / 2"""
        half = self.hd // 2
        angle = np.arange(len(x))[:, None] * self.get("rope.freq_base") ** (-np.arange(half) / half)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([x[..., :half] * c - x[..., half:] * s, x[..., :half] * s + x[..., half:] * c], -1)

    def attention(self, x, p):
        w, T = self.w, len(x)
        q, k, v = ((x @ w[p + "attn_" + n + ".weight"].T).reshape(T, -1, self.hd) for n in "qkv")
        q, k = self.rope(self.rms(q, w[p + "attn_q_norm.weight"])), self.rope(self.rms(k, w[p + "attn_k_norm.weight"]))
        k, v = (np.repeat(t, self.n_head // self.n_kv, axis=1) for t in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(self.hd)
        scores = np.where(np.tril(np.ones((T, T), bool)), scores, -np.inf)
        return np.einsum("hts,shd->thd", softmax(scores), v).reshape(T, -1) @ w[p + "attn_output.weight"].T

    def experts(self, x, p, suffix, used, weights):
        y = np.zeros_like(x)
        gate, up, down = (self.w[p + "ffn_" + n + suffix + ".weight"] for n in ("gate", "up", "down"))
        for e in range(len(gate)):
            t, r = np.nonzero(used == e)
            a = x[t] @ gate[e].T
            np.add.at(y, t, weights[t, r][:, None] * ((a / (1 + np.exp(-a)) * (x[t] @ up[e].T)) @ down[e].T))
        return y

    def ffn(self, x, p, i):
        scores = softmax(x @ self.w[p + "ffn_gate_inp.weight"].T)
        order = np.argsort(-scores, axis=1, kind="stable")
        used, ranked = order[:, :self.n_used], np.take_along_axis(scores, order, 1)
        self.gap = min(self.gap, (ranked[:, self.n_used - 1] - ranked[:, self.n_used]).min())
        self.topk[i] = used.tolist()
        weights = np.take_along_axis(scores, used, 1)
        weights = weights / weights.sum(1, keepdims=True)
        large = self.experts(x, p, "_exps", used, weights)
        if LIKE_LLAMA:
            weights = np.take_along_axis(scores, used // self.share, 1)
            weights = weights / weights.sum(1, keepdims=True)
            x = large
        return large + self.get("expert_group_scale") * self.experts(x, p, "_chexps", used // self.share, weights)

    def forward(self, tokens):
        self.topk, self.hidden, self.gap = {}, [], np.inf
        x = self.w["token_embd.weight"][tokens].astype(np.float64)
        for i in range(self.n_layer):
            p = "blk.%d." % i
            x = x + self.attention(self.rms(x, self.w[p + "attn_norm.weight"]), p)
            x = x + self.ffn(self.rms(x, self.w[p + "ffn_norm.weight"]), p, i)
            self.hidden.append(x[-1])
        return self.rms(x, self.w["output_norm.weight"]) @ self.w["output.weight"].T

    def gaps(self):
        return f"least gap of experts {self.gap:.3g}"


if __name__ == "__main__":
    write(Model, sys.argv[1], int(sys.argv[2]), sys.argv[3])
