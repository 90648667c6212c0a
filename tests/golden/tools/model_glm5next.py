#!/usr/bin/env python3
"""GLM 5.3 Flash (glm5next) in numpy, in double precision: delta nets with a decay for each key dimension, latent attention to runs of
positions that an index chooses, mixed residual streams, experts. Writes the golden files of a tiny model that gen_family.py wrote.

    model_glm5next.py NAME SEED DIRECTORY     of DIRECTORY/NAME.gguf

It says how near to each other the last that was chosen and the first that was not came, of experts and of runs: seeds where they are
nearly equal are of no use.
"""
import sys

import numpy as np

from numpy_model import NumpyModel, softmax, write


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Model(NumpyModel):
    arch, positions = "glm5next", [34, 38, 42, 46]

    def __init__(self, path):
        super().__init__(path)
        self.is_kda = [n == 0 for n in self.get("attention.head_count_kv")]
        self.S = self.get("hyper_connection.count")

    # ---- hyper-connections: x [T][S][D]

    def hc_pre(self, x, p):
        S, eps, T = self.S, self.get("hyper_connection.epsilon"), len(x)
        mix = self.rms(x.reshape(T, -1)) @ self.w[p + "_fn.weight"].T
        scale, base = self.w[p + "_scale.weight"], self.w[p + "_base.weight"]
        pre = sigmoid(mix[:, :S] * scale[0] + base[:S]) + eps
        post = 2 * sigmoid(mix[:, S:2 * S] * scale[1] + base[S:2 * S])
        comb = (mix[:, 2 * S:] * scale[2] + base[2 * S:]).reshape(T, S, S)  # [from][to]
        comb = softmax(comb) + eps
        comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
        for _ in range(1, self.get("hyper_connection.sinkhorn_iterations")):
            comb = comb / (comb.sum(axis=2, keepdims=True) + eps)
            comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
        return np.einsum("ts,tsd->td", pre, x), post, comb

    def hc_post(self, y, x, post, comb):
        return post[:, :, None] * y[:, None, :] + np.einsum("tfo,tfd->tod", comb, x)

    # ---- layers; x [T][D], normed

    def kda(self, x, p):
        T, H, d = len(x), self.n_head, self.get("kda.head_dim")
        k_conv = self.get("ssm.conv_kernel")
        W = lambda n: self.w[p + n + ".weight"]
        parts = []
        for n in "qkv":
            y = x @ W("attn_" + n).T
            taps = W("ssm_conv1d_" + n).reshape(-1, k_conv)  # the last one is of the token itself
            y = np.concatenate([np.zeros((k_conv - 1, y.shape[1])), y])
            y = sum(y[i:i + T] * taps[:, i] for i in range(k_conv))
            parts.append((y * sigmoid(y)).reshape(T, H, d))
        q, k, v = parts
        q, k = (a / np.sqrt((a * a).sum(-1, keepdims=True) + 1e-6) for a in (q, k))
        q = q / np.sqrt(d)
        f = (x @ W("ssm_f_a").T @ W("ssm_f_b").T + self.w[p + "ssm_dt.bias"]).reshape(T, H, d)
        bound = self.get("kda.gate_lower_bound")
        rate = -self.w[p + "ssm_a"].reshape(1, H, 1)  # exp(A_log)
        g = bound * sigmoid(rate * f)
        beta = sigmoid(x @ W("ssm_beta").T)
        state, out = np.zeros((H, d, d)), np.zeros((T, H, d))  # state [head][key][value]
        for t in range(T):
            state = state * np.exp(g[t])[:, :, None]
            delta = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
            state = state + k[t][:, :, None] * delta[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        gate = (x @ W("ssm_g_a").T @ W("ssm_g_b").T).reshape(T, H, d)
        out = self.rms(out, W("ssm_norm")) * sigmoid(gate)
        return out.reshape(T, H * d) @ W("attn_output").T

    def index(self, x, q_low, p):
        """which positions each token attends to [T][T]"""
        T = len(x)
        H, d, pool, top = (self.get("attention.indexer." + n) for n in ("head_count", "key_length", "kpool", "top_k"))
        W = lambda n: self.w[p + n + ".weight"]
        k = x @ W("indexer.attn_k").T
        k = k - k.mean(-1, keepdims=True)
        k = k / np.sqrt((k * k).mean(-1, keepdims=True) + self.get("attention.layer_norm_epsilon")) * W("indexer.k_norm")
        k = k + self.w[p + "indexer.k_norm.bias"]
        logits = x @ W("indexer_compressor_gate").T
        n_run = T // pool
        logits = logits[:n_run * pool].reshape(n_run, pool, d) + W("indexer_compressor_ape")  # [pool][d]
        pooled = (softmax(logits, axis=1) * k[:n_run * pool].reshape(n_run, pool, d)).sum(1)
        q = (q_low @ W("indexer.attn_q_b").T).reshape(T, H, d)
        hw = x @ W("indexer.proj").T / np.sqrt(H)
        s = np.maximum(np.einsum("thd,rd->thr", q, pooled) / np.sqrt(d), 0)
        size = np.einsum("th,thr->tr", np.abs(hw), np.abs(s))
        score = np.einsum("th,thr->tr", hw, s)
        allowed = np.zeros((T, T), bool)
        for t in range(T):
            n = (t + 1) // pool  # runs that are complete at t, the one that ends with t among them
            tail = n * pool      # the tail: positions from here up to t; none if t ends a run
            best = np.argsort(-score[t, :n], kind="stable")
            chosen = best[:top // pool]
            if n > top // pool:
                gap = (score[t, best[top // pool - 1]] - score[t, best[top // pool]]) / size[t, :n].max()
                self.gap_run = min(self.gap_run, gap)
            for r in chosen:
                allowed[t, r * pool:(r + 1) * pool] = True
            allowed[t, tail:t + 1] = True
        return allowed

    def latent_attention(self, x, p):
        T, H, hd, hd_v = len(x), self.n_head, self.get("attention.key_length_mla"), self.get("attention.value_length_mla")
        W = lambda n: self.w[p + n + ".weight"]
        q_low = self.rms(x @ W("attn_q_a").T, W("attn_q_a_norm"))
        q = (q_low @ W("attn_q_b").T).reshape(T, H, hd)
        c = self.rms(x @ W("attn_kv_a_mqa").T, W("attn_kv_a_norm"))
        keys = np.einsum("tl,hlk->thk", c, W("attn_k_b"))      # [head][latent][key]
        values = np.einsum("tl,hvl->thv", c, W("attn_v_b"))    # [head][value][latent]
        allowed = self.index(x, q_low, p)
        s = np.einsum("thk,uhk->htu", q, keys) / np.sqrt(hd)
        s = np.where(allowed[None], s, -np.inf)
        return np.einsum("htu,uhv->thv", softmax(s), values).reshape(T, H * hd_v) @ W("attn_output").T

    def gated(self, x, gate, up, down, limit):
        g, u = x @ gate.T, x @ up.T
        g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
        return (g * sigmoid(g) * u) @ down.T

    def ffn(self, x, p, i):
        W = lambda n: self.w[p + n + ".weight"]
        limit, limit_shared = self.get("swiglu_clamp_exp")[i], self.get("swiglu_clamp_shexp")[i]
        if i < self.get("leading_dense_block_count"):
            return self.gated(x, W("ffn_gate"), W("ffn_up"), W("ffn_down"), limit_shared)
        assert self.get("expert_gating_func") == 2 and self.get("expert_weights_norm")
        probs = sigmoid(x @ W("ffn_gate_inp").T)
        choice, n_used = probs + self.w[p + "exp_probs_b.bias"], self.get("expert_used_count")
        order = np.argsort(-choice, axis=1, kind="stable")
        ranked = np.take_along_axis(choice, order, 1)
        gaps = ranked[:, :n_used] - ranked[:, 1:n_used + 1]
        self.gap_expert = min(self.gap_expert, gaps[:, -1].min())
        self.gap_order = min(self.gap_order, gaps.min())
        used = order[:, :n_used]
        self.topk[i] = used.tolist()
        weights = np.take_along_axis(probs, used, 1)
        weights = weights / weights.sum(1, keepdims=True) * self.get("expert_weights_scale")
        y = self.gated(x, W("ffn_gate_shexp"), W("ffn_up_shexp"), W("ffn_down_shexp"), limit_shared)
        for e in range(self.get("expert_count")):
            t, r = np.nonzero(used == e)
            if len(t):
                y[t] += weights[t, r][:, None] * self.gated(x[t], W("ffn_gate_exps")[e], W("ffn_up_exps")[e], W("ffn_down_exps")[e], limit)
        return y

    def forward(self, tokens):
        """logits [T][n_vocab]; self.hidden [layer][D] of the last token, self.topk, the smallest gaps"""
        self.topk, self.hidden = {}, []
        self.gap_run = self.gap_expert = self.gap_order = np.inf
        x = np.repeat(self.w["token_embd.weight"][tokens][:, None, :], self.S, axis=1)
        for i in range(self.n_layer):
            p = "blk.%d." % i
            y, post, comb = self.hc_pre(x, p + "hc_attn")
            y = self.rms(y, self.w[p + "attn_norm.weight"])
            x = self.hc_post((self.kda if self.is_kda[i] else self.latent_attention)(y, p), x, post, comb)
            y, post, comb = self.hc_pre(x, p + "hc_ffn")
            y = self.rms(y, self.w[p + "ffn_norm.weight"])
            x = self.hc_post(self.ffn(y, p, i), x, post, comb)
            self.hidden.append(x[-1].mean(axis=0))
        return self.rms(x.mean(axis=1), self.w["output_norm.weight"]) @ self.w["output.weight"].T

    def gaps(self):
        return f"least gap of experts {self.gap_expert:.3g} (within the chosen {self.gap_order:.3g}), of runs {self.gap_run:.3g}"


if __name__ == "__main__":
    write(Model, sys.argv[1], int(sys.argv[2]), sys.argv[3])
