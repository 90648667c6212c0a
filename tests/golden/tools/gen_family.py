#!/usr/bin/env python3
"""Writes a tiny GGUF of one family with random weights, always the same for the same arguments.

    gen_family.py FAMILY OUT.gguf [--seed N] [KEY=VALUE ...]     KEY: one of DEFAULTS, or an option of the family

The golden models of the families below (tests/golden/FAMILY.gguf) were written by it; their logits, hidden states, router
choices and greedy ids come from llama.cpp, those of glm5next and grovemoe from models in numpy. Weights are numbers that F32, F16 and BF16 all hold exactly.
"""
import argparse
import hashlib
import struct

import numpy as np

DEFAULTS = dict(
    n_layer=3, n_embd=32, n_head=4, n_kv=2, hd=8, hd_v=0, n_rot=0, n_ff=48, n_expert=8, n_used=3, n_ff_exp=16, ctx=512, type="F16",
    n_shared=0,       # shared experts, each n_ff_exp wide
    shared_gate=0,    # they stand behind a gate
    n_dense=0,        # leading dense layers
    qk_norm="",       # "head" or "all"
    fused_qkv=0, bias=0, o_bias=0, ffn_bias=0, tie=0, choice_bias=0, fused_gate_up=0,
    fused_shared=0,   # gate and up of the shared experts in ffn_up_shexp
    freq_base=10000.0, eps=1e-5, rope_freqs=0,
    gating=0, groups=0, groups_used=0, wscale=0.0, wnorm=-1,  # keys that are left out when 0 (wnorm: when negative)
    moe_step=0, embedding_scale=0.0, residual_scale=0.0, attention_scale=0.0, logit_scale=0.0,
    yarn_factor=0.0, yarn_orig=64, yarn_log_mul=0.0, temperature_scale=0.0, temperature_length=0,
    grok=0, softcap=0.0, score_scale=0.0, final_softcap=0.0,  # grok: its names of norms; dense branches beside experts where dense_beside
    dense_beside=0,
    arctic=0,  # dense branches as wide as n_embd beside experts that have a norm of their own
    parallel=0, layer_norms=0, clamp=0.0, ffn_norm="ffn_norm",
    norm_bias=0, long_rope=0, attn_factor=0.0,  # norms and the output with biases; two sets of divisors of rope's frequencies
    no_rope=0, window=0, windowed="", n_kv_windowed=0, freq_base_windowed=0.0, value_scale=0.0, sinks=0, post_norms=0,  # sinks: 1 in windowed layers, if there are any, 2 in all
    rope_pattern="",  # which layers are rotated: "1101"
    out_gate="",  # "element" or "head"
    n_rot_windowed=0, n_heads="",  # by layer "4,6,..."
    limits="", shared_limits="",  # of activations in routed and in shared experts, by layer "0,1.5,..."
    recurrent="", n_key_head=2, n_value_head=4, state=8, conv=4,  # which layers are recurrent: "1101"
    latent=0, q_rank=0, index_heads=0, index_dim=64, index_chosen=16, index_types="",  # latent attention, and its index of positions
    latent_windowed=0, hd_windowed=0, hd_v_windowed=0, k_rot_norm=0,  # of latent attention in windowed layers; a norm of the keys' rotated part
    index_block=0, index_local=1,  # an index of blocks of so many positions in layers with experts; blocks that are always taken
    parts="",  # layers of one part each: m a state space, a attention, e experts, d a dense feed-forward part; the latter without gates; x a and e, of nextn
    moe_latent=0, n_ff_exps="", n_useds="",  # the width that experts work in; and by layer "16,0,..."
    compress="", compress_base=0.0, o_groups=0, o_rank=0,  # compressed keys, tokens for each by layer "0,4,..."; what they rotate by; grouped output
    stream_rank=0,  # of gates, where streams are gated
    index_run=0,  # an index of runs of so many positions, in layers of full or of latent attention
    ngram=0, ngram_heads=2, ngram_width=8, ngram_conv=4, ngram_rows=23,  # embeddings of n-grams in front of layer 1: tokens, rows for each length and theirs
    streams=0, sinkhorn=4, stream_magnitude=0.0, hash_layers=0,  # hyper-connections, which mix streams or have a magnitude; leading layers whose experts a table gives by token
    res_block=0, situ=0.0, situ_up=0.0,  # layers whose residuals are banked together; SiTU's bounds
    nextn=0,  # layers behind the last for multi-token prediction; what is listed by layer has one for each of these, too
    min_log_decay=0.0,  # of a decay; then decays, but for kimi_k3's and glm5next's, and gates are not low-rank
    chunk_share=0, n_ff_chunk=8, chunk_scale=0.0,  # small experts beside routed ones, so many of which share one; their width and factor
    dt_rank=0,  # of the steps of selective state spaces
    recurrence="delta",  # "delta": gated delta nets, "kda": those with a decay for each key dimension, "mamba": selective state spaces, "mamba2": state
                         # spaces, "lightning": linear attention with fixed decays, "conv": short convolutions
)

FAMILIES = dict(
    bailingmoe=dict(n_shared=2, wscale=1.5, wnorm=1),
    bailingmoe2=dict(n_shared=1, n_dense=1, fused_qkv=1, qk_norm="head", n_rot=4, gating=2, choice_bias=1, groups=4, groups_used=2,
                     wscale=2.5, wnorm=1),
    bailingmoe3=dict(n_layer=5, n_shared=1, n_dense=1, gating=2, choice_bias=1, groups=4, groups_used=2, wscale=2.5, wnorm=1, recurrence="kda",
                     recurrent="11011", state=24, min_log_decay=-5.0, latent=16, q_rank=24, hd=12, hd_v=8, n_rot=4, out_gate="head",
                     limits="0,0.5,0,0.8,1.2", shared_limits="0.9,0,0.6,1.1,0.4"),
    arctic=dict(arctic=1, n_ff=16),
    deepseek=dict(n_shared=2, n_dense=1, wscale=1.0),
    dots1=dict(n_kv=4, n_shared=2, n_dense=1, qk_norm="head", gating=2, choice_bias=1, wscale=2.5, wnorm=1),
    dots3note=dict(n_layer=5, n_heads="4,6,4,6,6", n_shared=1, n_dense=1, gating=2, choice_bias=1, wscale=2.5, wnorm=1, latent=16, q_rank=24, hd=12, hd_v=8,
                   n_rot=4, index_heads=12, index_types="10100", window=9, windowed="01011", latent_windowed=24, hd_windowed=16, hd_v_windowed=12,
                   freq_base_windowed=500.0, k_rot_norm=1, out_gate="head"),
    ernie4_5_moe=dict(arch="ernie4_5-moe", n_shared=1, n_dense=1, choice_bias=1, moe_step=1, tie=1),
    granitemoe=dict(n_shared=1, tie=1, n_ff=16, embedding_scale=3.0, residual_scale=0.7, attention_scale=0.25, logit_scale=0.5),
    granite_swa=dict(n_layer=4, n_shared=1, tie=1, n_ff=16, embedding_scale=3.0, residual_scale=0.7, attention_scale=0.25, logit_scale=0.5, window=9,
                     windowed="0111", sinks=2, fused_gate_up=1, fused_shared=1, rope_pattern="0111"),
    maple=dict(n_layer=4, qk_norm="head", n_rot=4, window=9, windowed="1101", limits="0.5,0.8,0.6,1.1"),
    grovemoe=dict(qk_norm="head", chunk_share=2, n_ff_chunk=12, chunk_scale=0.4),
    hunyuan_moe=dict(arch="hunyuan-moe", n_shared=1, qk_norm="head", n_ff=16, tie=1),
    minimax_01=dict(arch="minimax-01", n_layer=5, n_ff=16, hd=12, n_rot=6, residual_scale=1.7, recurrence="lightning", recurrent="11011"),
    minimax_m2=dict(arch="minimax-m2", n_ff=16, qk_norm="all", hd=12, n_rot=6, gating=2, choice_bias=1),
    minimax_m3=dict(arch="minimax-m3", n_layer=4, hd=32, n_rot=8, n_shared=1, n_dense=1, qk_norm="head", gating=2, choice_bias=1, wscale=2.0, wnorm=1,
                    index_heads=2, index_dim=32, index_chosen=2, index_block=64),
    granite=dict(n_expert=0, tie=1, embedding_scale=3.0, residual_scale=0.7, attention_scale=0.25, logit_scale=0.5),
    ernie4_5=dict(n_expert=0),
    hunyuan_dense=dict(arch="hunyuan-dense", n_expert=0, qk_norm="head"),
    qwen2=dict(n_expert=0, bias=1),
    llama4=dict(n_layer=5, n_used=1, n_shared=1, moe_step=2),
    qwen35=dict(n_expert=0, n_layer=4, recurrent="1101", qk_norm="head", n_rot=4),
    qwen4exp=dict(n_layer=4, recurrent="1110", qk_norm="head", hd=16, n_rot=4, n_shared=1, shared_gate=1, streams=4, stream_rank=6,
                  index_heads=3, index_dim=32, index_chosen=16, index_run=4, ngram=3),
    afmoe=dict(n_layer=4, n_expert=6, n_shared=1, n_dense=1, qk_norm="head", gating=2, choice_bias=1, wscale=2.5, wnorm=1, window=9,
               out_gate="element", post_norms=1),
    exaone_moe=dict(arch="exaone-moe", n_layer=4, n_shared=1, n_dense=1, qk_norm="head", gating=2, choice_bias=1, wscale=2.5,
                    wnorm=1, window=9),
    hy_v3=dict(n_shared=1, n_dense=1, qk_norm="head", choice_bias=1, wscale=1.5, wnorm=1),
    laguna=dict(n_layer=6, n_shared=1, n_dense=1, qk_norm="head", choice_bias=1, wscale=2.5, wnorm=1, window=9, out_gate="head", n_heads="4,6,6,6,4,6",
                n_rot=4, n_rot_windowed=8, freq_base_windowed=500.0, yarn_factor=4.0, yarn_orig=16),
    laguna_full=dict(arch="laguna", n_shared=1, n_dense=2, qk_norm="head", choice_bias=1, wscale=2.5, wnorm=1, out_gate="element", n_rot=4,
                     yarn_factor=4.0, yarn_orig=16),
    mellum=dict(n_layer=4, qk_norm="head", window=9, windowed="1101", yarn_factor=4.0, yarn_orig=16),
    mimo2=dict(n_layer=4, n_expert=6, n_dense=1, choice_bias=1, hd=12, hd_v=8, n_rot=4, window=9, windowed="0110", n_kv_windowed=1,
               freq_base_windowed=500.0, value_scale=0.7, sinks=1),
    granitehybrid=dict(n_layer=4, n_shared=1, tie=1, n_ff=16, embedding_scale=3.0, residual_scale=0.7, attention_scale=0.25, logit_scale=0.5,
                       no_rope=1, recurrence="mamba2", recurrent="1101", n_value_head=8, state=16),
    jamba=dict(n_layer=7, moe_step=2, n_ff=16, recurrence="mamba", recurrent="1101101", state=24, dt_rank=6),
    lfm2=dict(n_expert=0, n_layer=4, tie=1, qk_norm="head", recurrence="conv", recurrent="1101", conv=3),
    lfm2moe=dict(n_layer=4, n_dense=1, tie=1, qk_norm="head", gating=2, choice_bias=1, recurrence="conv", recurrent="1101", conv=3),
    deepseek32=dict(n_layer=4, n_shared=1, n_dense=1, gating=2, choice_bias=1, groups=4, groups_used=2, wscale=2.5, wnorm=1, latent=16, q_rank=24,
                    hd=12, hd_v=8, n_rot=4, index_heads=12, yarn_factor=4.0, yarn_orig=64, yarn_log_mul=0.1),
    glm_dsa=dict(arch="glm-dsa", n_layer=4, n_shared=1, n_dense=1, gating=2, choice_bias=1, wscale=2.5, wnorm=1, latent=16, q_rank=24, hd=12,
                 hd_v=8, n_rot=4, index_heads=12, index_types="1010"),
    nemotron_h=dict(n_expert=0, n_layer=5, parts="mdmad", hd=12, recurrence="mamba2", n_value_head=8, state=16),
    nemotron_h_moe=dict(n_layer=7, parts="memeaem", n_ff_exp=40, n_shared=1, choice_bias=1, wscale=2.5, wnorm=1, recurrence="mamba2",
                        n_value_head=8, state=16),
    nemotron_h_latent=dict(arch="nemotron_h_moe", n_layer=7, parts="memamee", n_shared=2, n_ff_exps="0,40,0,0,0,24,56", n_useds="0,3,0,0,0,4,2",
                           choice_bias=1, groups=4, groups_used=2, wscale=2.5, wnorm=1, moe_latent=20, recurrence="mamba2", n_value_head=8, state=16),
    step35=dict(n_layer=5, n_shared=1, n_dense=1, qk_norm="head", choice_bias=1, wscale=2.5, wnorm=1, window=9, windowed="01101", out_gate="head",
                n_heads="4,6,6,4,6", freq_base_windowed=500.0, rope_freqs=1, limits="0,0.5,0,0.8,1.2", shared_limits="0.9,0,0.6,1.1,0.4"),
    kimi_linear=dict(arch="kimi-linear", n_layer=5, n_shared=1, n_dense=1, gating=2, choice_bias=1, wscale=2.5, recurrence="kda", recurrent="11011",
                     state=24, latent=16, hd=12, hd_v=8, n_rot=4),
    kimi_k3=dict(arch="kimi-k3", n_layer=6, n_shared=1, n_dense=1, gating=2, choice_bias=1, wscale=2.5, wnorm=1, recurrence="kda", recurrent="101101",
                 state=24, min_log_decay=-5.0, latent=16, q_rank=24, hd=12, hd_v=8, n_rot=4, out_gate="element", moe_latent=20, res_block=2, situ=2.0,
                 situ_up=1.5),
    deepseek4=dict(n_layer=5, n_kv=1, hd=32, n_rot=8, window=9, sinks=1, q_rank=24, n_shared=1, gating=4, choice_bias=1, wscale=1.5, wnorm=1, index_heads=12,
                   compress="0,4,128,4,0", compress_base=500.0, o_groups=2, o_rank=12, streams=4, hash_layers=2, limits="1.5,0.5,2,0.8,1.2",
                   shared_limits="1.5,0.5,2,0.8,1.2", yarn_factor=4.0, yarn_orig=64),
    glm5next=dict(n_layer=5, n_shared=1, n_dense=1, gating=2, choice_bias=1, wscale=2.5, wnorm=1, recurrence="kda", recurrent="10110", state=24,
                  min_log_decay=-5.0, latent=16, q_rank=24, hd=12, hd_v=8, index_heads=12, index_chosen=12, index_run=4, streams=4,
                  limits="1.5,0.5,2,0.8,1.2", shared_limits="0.9,0.7,0.6,1.1,0.4"),
    hy_v4=dict(n_layer=5, n_shared=1, n_dense=1, gating=2, choice_bias=1, wscale=2.5, wnorm=1, latent=16, q_rank=24, hd=12, hd_v=8, n_rot=4, sinks=2,
               out_gate="element", index_heads=12, index_types="10110", streams=4, stream_magnitude=1.5, limits="0,0.5,0,0.8,1.2"),
    phimoe=dict(bias=1, o_bias=1, norm_bias=1, n_ff=16, long_rope=1, yarn_orig=64, attn_factor=1.2),
    smallthinker=dict(n_layer=5, gating=2, window=4096),
    grok=dict(grok=1, dense_beside=1, softcap=4.0, score_scale=0.3, final_softcap=9.0, embedding_scale=1.5, logit_scale=0.7, yarn_factor=4.0,
              yarn_orig=16, n_ff=24),
    dbrx=dict(fused_qkv=1, layer_norms=1, clamp=1.5, ffn_norm="attn_output_norm", n_ff=16),
    cohere2moe=dict(n_layer=5, n_shared=1, n_dense=1, tie=1, gating=2, wnorm=1, window=9, windowed="01110", layer_norms=1, parallel=1,
                    logit_scale=0.6),
    mistral4=dict(n_shared=1, n_dense=1, wnorm=1, wscale=1.0, latent=16, q_rank=24, hd=16, n_rot=8, hd_v=8, yarn_factor=4.0, yarn_orig=16,
                  yarn_log_mul=0.1, temperature_scale=0.1, temperature_length=8),
    mistral3=dict(n_expert=0, yarn_factor=4.0, yarn_orig=16, yarn_log_mul=1.0, temperature_scale=0.1),
)

U32, F32, BOOL, STRING, ARRAY, I32, U64 = 4, 6, 7, 8, 9, 5, 10
TYPES = dict(F32=0, F16=1, I32=26)


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def value(kind, v):
    return {U32: lambda: struct.pack("<I", v), I32: lambda: struct.pack("<i", v), F32: lambda: struct.pack("<f", v),
            BOOL: lambda: struct.pack("<?", v), U64: lambda: struct.pack("<Q", v), STRING: lambda: text(v)}[kind]()


class Model:
    def __init__(self, name, seed, options):
        self.c = dict(DEFAULTS, arch=name, **{k: v for k, v in FAMILIES[name].items() if k not in DEFAULTS and k != "arch"})
        self.c.update(FAMILIES[name])
        self.c.update(options)
        self.name, self.seed, self.keys, self.tensors = name, seed, [], []

    # ---- metadata

    def key(self, key, kind, v):
        self.keys.append(text(key.replace("%", self.c["arch"])) + struct.pack("<I", kind) + value(kind, v))

    def array(self, key, kind, items):
        self.keys.append(text(key.replace("%", self.c["arch"])) + struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(value(kind, v) for v in items))

    def optional(self, key, kind, v):
        if v:
            self.key(key, kind, v)

    # ---- tensors; ne: row length first

    def random(self, name, ne, std, mean=0.0):
        digest = hashlib.sha256(("%d/%s/%s" % (self.seed, self.name, name)).encode()).digest()
        r = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
        x = r.standard_normal(int(np.prod(ne)), dtype=np.float32) * np.float32(std) + np.float32(mean)
        top = (x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)  # to what BF16 holds
        return top.view(np.float32).astype(np.float16).astype(np.float32)      # and F16

    def matrix(self, name, ne, gain, dtype=None):
        self.tensors.append((name, ne, dtype or self.c["type"], self.random(name, ne, gain / np.sqrt(ne[0]))))

    def vector(self, name, ne, std, mean=0.0):
        self.tensors.append((name, ne, "F32", self.random(name, ne, std, mean)))

    def table(self, name, n, n_row, end):
        """rows of n different numbers below end"""
        r = self.random(name, [end, n_row], 1).reshape(n_row, end)
        self.tensors.append((name, [n, n_row], "I32", np.argsort(r, axis=1)[:, :n].ravel()))

    def write(self, path):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys)) + b"".join(self.keys)
        body = b""
        for name, ne, dtype, x in self.tensors:
            head += text(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne)
            head += struct.pack("<IQ", TYPES[dtype], len(body))
            body += x.astype(dict(F32=np.float32, F16=np.float16, I32=np.int32)[dtype]).tobytes()
            body += bytes(-len(body) % 32)
        with open(path, "wb") as f:
            f.write(head + bytes(-len(head) % 32) + body)


def add_tokenizer(m):
    """characters, without merges: enough to load, and to read what is generated"""
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581"] + [chr(c) for c in range(33, 127)]
    m.key("tokenizer.ggml.model", STRING, "llama")
    m.array("tokenizer.ggml.tokens", STRING, tokens)
    m.array("tokenizer.ggml.scores", F32, [0.0] * 4 + [-float(i) for i in range(len(tokens) - 4)])
    m.array("tokenizer.ggml.token_type", I32, [2, 3, 3, 6] + [1] * (len(tokens) - 4))
    m.key("tokenizer.ggml.bos_token_id", U32, 1)
    m.key("tokenizer.ggml.eos_token_id", U32, 2)
    m.key("tokenizer.ggml.unknown_token_id", U32, 0)
    return len(tokens)


def part(c, layer):
    return c["parts"][layer] if c["parts"] else ""


def is_recurrent(c, layer):
    return part(c, layer) == "m" or c["recurrent"] != "" and c["recurrent"][layer] == "1"


def n_ssm_inner(c):
    return 2 * c["n_embd"] if c["recurrence"] in ("mamba", "mamba2") else c["n_value_head"] * c["state"]


def n_head(c, layer):
    return int(c["n_heads"].split(",")[layer]) if c["n_heads"] else c["n_head"]


def n_kv(c, layer):
    if c["recurrence"] not in ("delta", "lightning") and is_recurrent(c, layer) or part(c, layer) in ("e", "d"):
        return 0
    if c["latent"]:
        return 1
    return c["n_kv_windowed"] or c["n_kv"] if c["windowed"] and c["windowed"][layer] == "1" else c["n_kv"]


def ratios(c):
    return [int(r) for r in c["compress"].split(",")]


def n_block(c):
    return c["n_layer"] + c["nextn"]


def add_metadata(m):
    c = m.c
    m.key("general.architecture", STRING, c["arch"])
    m.key("general.name", STRING, "tiny %s, seed %d" % (m.name, m.seed))
    for key, v in (("block_count", n_block(c)), ("context_length", c["ctx"]), ("embedding_length", c["n_embd"])):
        m.key("%." + key, U32, v)
    m.optional("%.nextn_predict_layers", U32, c["nextn"])
    if not c["parts"]:
        m.key("%.feed_forward_length", U32, c["n_ff"])
    if c["n_heads"]:
        m.array("%.attention.head_count", I32, [n_head(c, i) for i in range(n_block(c))])
    else:
        m.key("%.attention.head_count", U32, c["n_head"])
    if c["parts"]:
        m.array("%.feed_forward_length", I32, [c["n_ff"] if kind in "ed" else 0 for kind in c["parts"]])
        m.key("%.attention.layer_norm_epsilon", F32, c["eps"])
    if c["windowed"]:
        m.array("%.attention.head_count_kv", I32, [n_kv(c, i) for i in range(n_block(c))])
        m.array("%.attention.sliding_window_pattern", I32, [int(w) for w in c["windowed"]])
    elif c["recurrence"] not in ("delta", "lightning"):
        m.array("%.attention.head_count_kv", I32, [n_kv(c, i) for i in range(n_block(c))])
    else:
        m.key("%.attention.head_count_kv", U32, n_kv(c, 0))
    if c["compress"]:
        m.key("%.attention.output_group_count", U32, c["o_groups"])
        m.key("%.attention.output_lora_rank", U32, c["o_rank"])
        m.key("%.attention.compress_rope_freq_base", F32, c["compress_base"])
        m.array("%.attention.compress_ratios", I32, ratios(c))
        m.key("%.attention.q_lora_rank", U32, c["q_rank"])
        for key, v in (("head_count", "index_heads"), ("key_length", "index_dim"), ("top_k", "index_chosen")):
            m.key("%.attention.indexer." + key, U32, c[v])
        m.key("%.hash_layer_count", U32, c["hash_layers"])
    if c["streams"]:
        m.key("%.hyper_connection.count", U32, c["streams"])
        if c["stream_rank"]:
            m.key("%.hyper_connection.low_rank", U32, c["stream_rank"])
        elif c["stream_magnitude"]:
            m.key("%.hyper_connection.magnitude", F32, c["stream_magnitude"])
        else:
            m.key("%.hyper_connection.sinkhorn_iterations", U32, c["sinkhorn"])
        if not c["stream_rank"]:
            m.key("%.hyper_connection.epsilon", F32, 1e-6)
    if c["ngram"]:
        add_ngram_metadata(m)
    if c["index_run"] and not c["latent"]:
        for key, v in (("head_count", "index_heads"), ("key_length", "index_dim"), ("top_k", "index_chosen")):
            m.key("%.attention.indexer." + key, U32, c[v])
        m.array("%.attention.compress_ratios", U32, [0 if is_recurrent(c, i) else c["index_run"] for i in range(c["n_layer"])])
    if c["latent"]:
        for key, v in (("key_length", c["latent"] + c["n_rot"]), ("value_length", c["latent"]), ("key_length_mla", c["hd"]), ("value_length_mla", c["hd_v"]),
                       ("kv_lora_rank", c["latent"]), ("q_lora_rank", c["q_rank"]), ("indexer.head_count", c["index_heads"]),
                       ("indexer.key_length", c["index_heads"] and c["index_dim"]), ("indexer.top_k", c["index_heads"] and c["index_chosen"]),
                       ("indexer.kpool", c["index_run"])):
            m.optional("%.attention." + key, U32, v)
        m.optional("%.attention.layer_norm_epsilon", F32, c["index_run"] and 1e-6)  # of the index's keys
        windowed = c["latent_windowed"]
        for key, v in (("key_length", windowed and windowed + c["n_rot"]), ("value_length", windowed), ("kv_lora_rank", windowed),
                       ("key_length_mla", c["hd_windowed"]), ("value_length_mla", c["hd_v_windowed"])):
            m.optional("%.attention." + key + "_swa", U32, v)
        if c["index_types"]:
            m.array("%.attention.indexer.types", BOOL, [t == "1" for t in c["index_types"]])
    else:
        if c["index_block"]:
            for key, v in (("head_count", "index_heads"), ("key_length", "index_dim"), ("top_k", "index_chosen"), ("block_size", "index_block"),
                           ("local_blocks", "index_local")):
                m.key("%.attention.indexer." + key, U32, c[v])
        m.key("%.attention.key_length", U32, c["hd"])
        m.key("%.attention.value_length", U32, c["hd_v"] or c["hd"])
    m.optional("%.rope.freq_base_swa", F32, c["freq_base_windowed"])
    m.optional("%.rope.dimension_count_swa", U32, c["n_rot_windowed"])
    m.optional("%.attention.value_scale", F32, c["value_scale"])
    m.key("%.rope.dimension_count", U32, c["n_rot"] or (0 if c["latent"] else c["hd"]))
    m.key("%.rope.freq_base", F32, c["freq_base"])
    m.key("%.attention.layer_norm_epsilon" if c["layer_norms"] else "%.attention.layer_norm_rms_epsilon", F32, c["eps"])
    m.optional("%.attention.clamp_kqv", F32, c["clamp"])
    if c["n_expert"]:
        m.key("%.expert_count", U32, c["n_expert"])
        for key, one, all in (("expert_used_count", c["n_used"], c["n_useds"]), ("expert_feed_forward_length", c["n_ff_exp"], c["n_ff_exps"])):
            if all:
                m.array("%." + key, I32, [int(v) for v in all.split(",")])
            else:
                m.key("%." + key, U32, one)
        m.optional("%.expert_latent_length" if c["res_block"] else "%.moe_latent_size", U32, c["moe_latent"])
        m.optional("%.expert_shared_count", U32, c["n_shared"])
        if m.name in ("ernie4_5_moe", "exaone_moe", "hy_v3", "qwen4exp", "granitemoe", "granite_swa", "granitehybrid", "hunyuan_moe", "laguna", "laguna_full", "step35") or c["parts"]:  # the width of all shared experts together
            m.key("%.expert_shared_feed_forward_length", U32, c["n_shared"] * c["n_ff_exp"])
        m.optional("%.leading_dense_block_count", U32, c["n_dense"])
        m.optional("%.expert_gating_func", U32, c["gating"])
        if c["chunk_share"]:
            m.key("%.expert_chunk_feed_forward_length", U32, c["n_ff_chunk"])
            m.key("%.experts_per_group", U32, c["chunk_share"])
            m.key("%.expert_group_scale", F32, c["chunk_scale"])
        m.optional("%.expert_group_count", U32, c["groups"])
        m.optional("%.expert_group_used_count", U32, c["groups_used"])
        m.optional("%.expert_weights_scale", F32, c["wscale"])
        m.optional("%.interleave_moe_layer_step", U32, c["moe_step"])
        for key, of_layers in (("exp", c["limits"]), ("shexp", c["shared_limits"])):
            if of_layers:
                m.array("%.swiglu_clamp_" + key, F32, [float(v) for v in of_layers.split(",")])
        if c["wnorm"] >= 0:
            m.key("%.expert_weights_norm", BOOL, bool(c["wnorm"]))
    for key in ("embedding_scale", "residual_scale", "logit_scale"):
        m.optional("%." + key, F32, c[key])
    m.optional("%.attention.scale", F32, c["attention_scale"])
    m.optional("%.attention.output_scale", F32, c["score_scale"])
    m.optional("%.attn_logit_softcapping", F32, c["softcap"])
    m.optional("%.final_logit_softcapping", F32, c["final_softcap"])
    m.optional("%.attention.temperature_scale", F32, c["temperature_scale"])
    m.optional("%.attention.temperature_length", U32, c["temperature_length"])
    m.optional("%.attention.sliding_window", U32, c["window"])
    if c["rope_pattern"]:
        m.array("%.attention.rope_pattern", BOOL, [r == "1" for r in c["rope_pattern"]])
    if c["no_rope"]:
        m.key("%.rope.scaling.finetuned", BOOL, False)
    if c["recurrent"] and c["recurrence"] == "delta":
        m.array("%.attention.recurrent_layers", BOOL, [r == "1" for r in c["recurrent"]])
        m.array("%.rope.dimension_sections", I32, [1, 1, 0, 0])
    if c["recurrence"] == "lightning":
        m.array("%.attention.recurrent_layers", BOOL, [r == "1" for r in c["recurrent"]])
    elif c["recurrent"] and c["recurrence"] == "conv":
        m.key("%.shortconv.l_cache", U32, c["conv"])
    elif c["recurrent"] and c["recurrence"] == "kda":
        m.key("%.ssm.conv_kernel", U32, c["conv"])
        m.key("%.kda.head_dim", U32, c["state"])
        m.optional("%.kda.gate_lower_bound", F32, c["min_log_decay"])
    elif c["recurrent"] or c["parts"]:
        for key, v in (("conv_kernel", c["conv"]), ("state_size", c["state"]), ("group_count", c["n_key_head"]),
                       ("time_step_rank", c["dt_rank"] or c["n_value_head"]), ("inner_size", n_ssm_inner(c))):
            if key != "group_count" or not c["dt_rank"]:
                m.key("%.ssm." + key, U32, v)
    m.optional("%.attn_res.block_size", U32, c["res_block"])
    m.optional("%.activation.situ_beta", F32, c["situ"])
    m.optional("%.activation.situ_linear_beta", F32, c["situ_up"])
    if c["long_rope"]:
        m.key("%.rope.scaling.original_context_length", U32, c["yarn_orig"])
        m.key("%.rope.scaling.attn_factor", F32, c["attn_factor"])
    if c["yarn_factor"]:
        m.key("%.rope.scaling.type", STRING, "yarn")
        m.key("%.rope.scaling.factor", F32, c["yarn_factor"])
        m.key("%.rope.scaling.original_context_length", U32, c["yarn_orig"])
        m.optional("%.rope.scaling.yarn_log_multiplier", F32, c["yarn_log_mul"])


def add_ngram_metadata(m):
    c, n_head = m.c, (m.c["ngram"] - 1) * m.c["ngram_heads"]
    m.array("%.ple.layers", U32, [1])
    for key, v in (("ngram_size", c["ngram"]), ("heads_per_ngram", c["ngram_heads"]), ("conv_kernel", c["ngram_conv"]), ("eos_token_id", 2)):
        m.key("%.ple." + key, U32, v)
    m.key("%.embedding_length_per_layer_input", U32, c["ngram_width"])
    m.array("%.ple.layer_multipliers", U64, [23703703703701, 17000000000023, 9100000000003][:c["ngram"]])
    m.array("%.ple.head_offsets", U64, [i * c["ngram_rows"] for i in range(n_head)])
    m.array("%.ple.head_vocab_sizes", U64, [c["ngram_rows"] - i for i in range(n_head)])


def add_norm(m, name):
    m.vector(name + ".weight", [m.c["n_embd"]], 0.15, 1)
    if m.c["norm_bias"]:
        m.vector(name + ".bias", [m.c["n_embd"]], 0.3)


def add_attention(m, p, i):
    c = m.c
    hd_v = c["hd_v"] or c["hd"]
    n_q, n_k, n_v, n_embd = n_head(c, i) * c["hd"], n_kv(c, i) * c["hd"], n_kv(c, i) * hd_v, c["n_embd"]
    if not c["stream_rank"]:
        add_norm(m, p + "attn_norm")
    n_q_row = 2 * n_q if c["recurrent"] and c["recurrence"] == "delta" else n_q  # each head's rows, then those of its gate
    parts = [("attn_qkv", n_q_row + n_k + n_v)] if c["fused_qkv"] else [("attn_q", n_q_row), ("attn_k", n_k), ("attn_v", n_v)]
    for name, n in parts:
        m.matrix(p + name + ".weight", [n_embd, n], 1.3)
        if c["bias"]:
            m.vector(p + name + ".bias", [n], 0.4)
    if c["out_gate"]:
        m.matrix(p + "attn_gate.weight", [n_embd, n_head(c, i) if c["out_gate"] == "head" else n_q], 1.3)
    m.matrix(p + "attn_output.weight", [n_head(c, i) * hd_v, n_embd], 2)
    if c["sinks"] == 2 or c["sinks"] and (not c["windowed"] or c["windowed"][i] == "1"):
        m.vector(p + "attn_sinks.weight", [c["n_head"]], 1, 0.5)
    if c["o_bias"]:
        m.vector(p + "attn_output.bias", [n_embd], 0.2)
    if c["qk_norm"]:
        m.vector(p + "attn_q_norm.weight", [n_q if c["qk_norm"] == "all" else c["hd"]], 0.15, 1.25)
        m.vector(p + "attn_k_norm.weight", [n_k if c["qk_norm"] == "all" else c["hd"]], 0.15, 1.25)
    if c["index_block"] and is_moe(c, i) or c["index_run"]:
        for name, n in (("q", c["index_heads"]), ("k", 1)):
            m.matrix(p + "indexer." + name + "_proj.weight", [n_embd, n * c["index_dim"]], 1.5, "F32")
            m.vector(p + "indexer." + name + "_norm.weight", [c["index_dim"]], 0.15, 1.25)


def add_latent_attention(m, p, i):
    c = m.c
    windowed = "_windowed" if c["latent_windowed"] and c["windowed"][i] == "1" else ""
    n_embd, n_head_i, rank, latent, hd, hd_v = c["n_embd"], n_head(c, i), c["q_rank"], c["latent" + windowed], c["hd" + windowed], c["hd_v" + windowed]
    nope = hd - c["n_rot"]
    m.vector(p + "attn_norm.weight", [n_embd], 0.15, 1)
    if rank:
        m.matrix(p + "attn_q_a.weight", [n_embd, rank], 1.2)
        m.vector(p + "attn_q_a_norm.weight", [rank], 0.15, 1)
        m.matrix(p + "attn_q_b.weight", [rank, n_head_i * hd], 1.5)
    else:
        m.matrix(p + "attn_q.weight", [n_embd, n_head_i * hd], 1.5)
    m.matrix(p + "attn_kv_a_mqa.weight", [n_embd, latent + c["n_rot"]], 1.2)
    m.vector(p + "attn_kv_a_norm.weight", [latent], 0.15, 1)
    if c["k_rot_norm"]:
        m.vector(p + "attn_k_norm.weight", [c["n_rot"]], 0.15, 1.25)
    m.matrix(p + "attn_k_b.weight", [nope, latent, n_head_i], 1.5)
    m.matrix(p + "attn_v_b.weight", [latent, hd_v, n_head_i], 1.2)
    if c["out_gate"]:
        m.matrix(p + "attn_gate.weight", [n_embd, n_head_i if c["out_gate"] == "head" else n_head_i * hd_v], 1.3)
    m.matrix(p + "attn_output.weight", [n_head_i * hd_v, n_embd], 2)
    if c["sinks"]:
        m.vector(p + "attn_sinks.weight", [n_head_i], 1, 0.5)
    if c["index_heads"] and (not c["index_types"] or c["index_types"][i] == "1"):
        m.matrix(p + "indexer.attn_q_b.weight", [rank, c["index_heads"] * c["index_dim"]], 1.5)
        m.matrix(p + "indexer.attn_k.weight", [n_embd, c["index_dim"]], 1.5)
        m.matrix(p + "indexer.proj.weight", [n_embd, c["index_heads"]], 1.5)
        m.vector(p + "indexer.k_norm.weight", [c["index_dim"]], 0.15, 1)
        m.vector(p + "indexer.k_norm.bias", [c["index_dim"]], 0.3)
        if c["index_run"]:
            m.matrix(p + "indexer_compressor_gate.weight", [n_embd, c["index_dim"]], 1.5, "F32")
            m.vector(p + "indexer_compressor_ape.weight", [c["index_dim"], c["index_run"]], 0.5)


def add_compressor(m, p, dim, ratio):
    c, n = m.c, dim * (2 if ratio == 4 else 1)
    m.matrix(p + "_kv.weight", [c["n_embd"], n], 1.5)
    m.matrix(p + "_gate.weight", [c["n_embd"], n], 1.5)
    m.vector(p + "_ape.weight", [n, ratio], 0.5)
    m.vector(p + "_norm.weight", [dim], 0.15, 1.25)


def add_compressed_attention(m, p, i):
    c, ratio = m.c, ratios(m.c)[i]
    n_embd, n_head, hd, rank = c["n_embd"], c["n_head"], c["hd"], c["q_rank"]
    m.vector(p + "attn_norm.weight", [n_embd], 0.15, 1)
    m.vector(p + "attn_sinks.weight", [n_head], 1, 0.5)
    m.matrix(p + "attn_q_a.weight", [n_embd, rank], 1.2)
    m.vector(p + "attn_q_a_norm.weight", [rank], 0.15, 1)
    m.matrix(p + "attn_q_b.weight", [rank, n_head * hd], 1.5)
    m.matrix(p + "attn_kv.weight", [n_embd, hd], 1.2)
    m.vector(p + "attn_kv_a_norm.weight", [hd], 0.15, 1.25)
    m.matrix(p + "attn_output_a.weight", [n_head * hd // c["o_groups"], c["o_groups"] * c["o_rank"]], 1.5)
    m.matrix(p + "attn_output_b.weight", [c["o_groups"] * c["o_rank"], n_embd], 2)
    if ratio:
        add_compressor(m, p + "attn_compressor", hd, ratio)
    if ratio == 4:
        m.matrix(p + "indexer.attn_q_b.weight", [rank, c["index_heads"] * c["index_dim"]], 1.5)
        m.matrix(p + "indexer.proj.weight", [n_embd, c["index_heads"]], 1.5)
        add_compressor(m, p + "indexer_compressor", c["index_dim"], ratio)


def add_hyper_connection(m, p, n_mix, n_scale):
    n = m.c["streams"] * m.c["n_embd"]
    m.matrix(p + "_fn.weight", [n, n_mix], 1.5, "F32")
    m.vector(p + "_base.weight", [n_mix], 0.7)
    m.vector(p + "_scale.weight", [n_scale], 0.3, 1)


def add_stream_gates(m, p, has_mix):
    n, rank = m.c["streams"] * m.c["n_embd"], m.c["stream_rank"]
    m.vector(p + "_norm.weight", [n], 0.15, 1)
    m.matrix(p + "_down.weight", [n, rank], 4)
    m.matrix(p + "_up.weight", [rank, n], 2)
    if has_mix:
        m.matrix(p + "_inject.weight", [n, m.c["streams"]], 4)


def add_ngrams(m, p):
    c, n_embd, n = m.c, m.c["n_embd"], m.c["streams"] * m.c["n_embd"]
    n_head = (c["ngram"] - 1) * c["ngram_heads"]
    m.matrix("per_layer_token_embd.weight", [c["ngram_width"], n_head * c["ngram_rows"] + 5], np.sqrt(c["ngram_width"]))
    m.matrix(p + "ple_key.weight", [n_head * c["ngram_width"], n], 1.2)
    m.matrix(p + "ple_value.weight", [n_head * c["ngram_width"], n_embd], 1.2)
    for part in ("key", "query", "conv"):
        m.vector(p + "ple_norm_" + part + ".weight", [n], 0.15, 1)
    m.vector(p + "ple_conv1d.weight", [c["ngram_conv"], n], 0.5)


def add_delta_net(m, p):
    c = m.c
    n_embd, n_head, n_v = c["n_embd"], c["n_value_head"], c["n_value_head"] * c["state"]
    n_mixed = 2 * c["n_key_head"] * c["state"] + n_v
    if not c["stream_rank"]:
        m.vector(p + "attn_norm.weight", [n_embd], 0.15, 1)
    m.matrix(p + "attn_qkv.weight", [n_embd, n_mixed], 1.2)
    m.matrix(p + "attn_gate.weight", [n_embd, n_v], 1.2)
    m.matrix(p + "ssm_beta.weight", [n_embd, n_head], 1.3)
    m.matrix(p + "ssm_alpha.weight", [n_embd, n_head], 1.3)
    m.vector(p + "ssm_conv1d.weight", [c["conv"], n_mixed], 0.5)
    m.vector(p + "ssm_dt.bias", [n_head], 1, -1)
    m.vector(p + "ssm_a", [n_head], 0.1, -0.5)
    m.vector(p + "ssm_norm.weight", [c["state"]], 0.15, 1)
    m.matrix(p + "ssm_out.weight", [n_v, n_embd], 2)


def add_kda(m, p):
    c = m.c
    n_embd, n_head, dim, n = c["n_embd"], c["n_head"], c["state"], c["n_head"] * c["state"]
    m.vector(p + "attn_norm.weight", [n_embd], 0.15, 1)
    for part in "qkv":
        m.matrix(p + "attn_" + part + ".weight", [n_embd, n], 1.2)
        m.vector(p + "ssm_conv1d_" + part + ".weight", [c["conv"], 1, n, 1], 0.5)
    is_k3 = c["arch"] == "kimi-k3"
    is_full = c["min_log_decay"] and not is_k3 and m.name != "glm5next"
    for part in "f" if is_k3 else "fg":  # the decays and the output's gate
        m.matrix(p + "ssm_" + part + "_a.weight", [n_embd, n if is_full else dim], 1.2)
        if not is_full:
            m.matrix(p + "ssm_" + part + "_b.weight", [dim, n], 1.3)
    if is_k3:
        m.matrix(p + "ssm_g.weight", [n_embd, n], 1.2)
    m.matrix(p + "ssm_beta.weight", [n_embd, n_head], 1.3)
    m.vector(p + "ssm_dt.bias", [n], 1, -1)
    m.vector(p + "ssm_a", [n_head] if is_k3 or m.name == "glm5next" else [1, n_head] if is_full else [1, n_head, 1, 1], 0.1, 1 if is_full else -0.5)
    m.vector(p + "ssm_norm.weight", [dim], 0.15, 1)
    m.matrix(p + "attn_output.weight", [n, n_embd], 2)


def add_mamba(m, p):
    c = m.c
    n_embd, n_inner, state, rank = c["n_embd"], n_ssm_inner(c), c["state"], c["dt_rank"]
    m.vector(p + "attn_norm.weight", [n_embd], 0.15, 1)
    m.matrix(p + "ssm_in.weight", [n_embd, 2 * n_inner], 1.2)
    m.vector(p + "ssm_conv1d.weight", [c["conv"], n_inner], 0.5)
    m.vector(p + "ssm_conv1d.bias", [n_inner], 0.2)
    m.matrix(p + "ssm_x.weight", [n_inner, rank + 2 * state], 1.5)
    for part, n in (("dt", rank), ("b", state), ("c", state)):
        m.vector(p + "ssm_" + part + "_norm.weight", [n], 0.15, 1)
    m.matrix(p + "ssm_dt.weight", [rank, n_inner], 1.3)
    m.vector(p + "ssm_dt.bias", [n_inner], 1, -1)
    m.vector(p + "ssm_a", [state, n_inner], 0.1, -0.5)
    m.vector(p + "ssm_d", [n_inner], 0.3, 1)
    m.matrix(p + "ssm_out.weight", [n_inner, n_embd], 1)


def add_mamba2(m, p):
    c = m.c
    n_embd, n_head, n_inner = c["n_embd"], c["n_value_head"], n_ssm_inner(c)
    n_mixed = n_inner + 2 * c["n_key_head"] * c["state"]
    m.vector(p + "attn_norm.weight", [n_embd], 0.15, 1)
    m.matrix(p + "ssm_in.weight", [n_embd, n_inner + n_mixed + n_head], 1.2)
    m.vector(p + "ssm_conv1d.weight", [c["conv"], n_mixed], 0.5)
    m.vector(p + "ssm_conv1d.bias", [n_mixed], 0.2)
    m.vector(p + "ssm_dt.bias", [n_head], 1, -1)
    m.vector(p + "ssm_a", [1, n_head], 0.1, -0.5)
    m.vector(p + "ssm_d", [1, n_head], 0.3, 1)
    m.vector(p + "ssm_norm.weight", [n_inner // c["n_key_head"], c["n_key_head"]], 0.15, 1)
    m.matrix(p + "ssm_out.weight", [n_inner, n_embd], 2)


def add_lightning(m, p):
    n_embd, n = m.c["n_embd"], m.c["n_head"] * m.c["hd"]
    m.vector(p + "attn_norm.weight", [n_embd], 0.15, 1)
    m.vector(p + "attn_norm_2.weight", [n], 0.15, 1)
    m.matrix(p + "attn_qkv.weight", [n_embd, 3 * n], 1.2)
    m.matrix(p + "attn_gate.weight", [n_embd, n], 1.2)
    m.matrix(p + "attn_output.weight", [n, n_embd], 2)


def add_short_conv(m, p):
    n_embd = m.c["n_embd"]
    m.vector(p + "attn_norm.weight", [n_embd], 0.15, 1)
    m.matrix(p + "shortconv.in_proj.weight", [n_embd, 3 * n_embd], 1.2)
    m.vector(p + "shortconv.conv.weight", [m.c["conv"], n_embd], 0.5)
    m.matrix(p + "shortconv.out_proj.weight", [n_embd, n_embd], 2)


def add_ungated(m, p, suffix, n_embd, n_ff, gain, n_expert=0):
    tail = [n_expert] if n_expert else []
    m.matrix(p + "ffn_up" + suffix + ".weight", [n_embd, n_ff] + tail, 1.4)
    m.matrix(p + "ffn_down" + suffix + ".weight", [n_ff, n_embd] + tail, gain)


def add_gated(m, p, suffix, n_ff, gain, n_expert=0):
    n_embd, tail = m.c["moe_latent"] if n_expert and m.c["moe_latent"] else m.c["n_embd"], [n_expert] if n_expert else []
    if n_expert and m.c["fused_gate_up"]:
        m.matrix(p + "ffn_gate_up" + suffix + ".weight", [n_embd, 2 * n_ff] + tail, 1.2)
    elif suffix == "_shexp" and m.c["fused_shared"]:
        m.matrix(p + "ffn_up_shexp.weight", [n_embd, 2 * n_ff], 1.2)
    else:
        m.matrix(p + "ffn_gate" + suffix + ".weight", [n_embd, n_ff] + tail, 1.4)
        m.matrix(p + "ffn_up" + suffix + ".weight", [n_embd, n_ff] + tail, 1)
    m.matrix(p + "ffn_down" + suffix + ".weight", [n_ff, n_embd] + tail, gain)
    if m.c["ffn_bias"] and not suffix:
        for name, n in (("gate", n_ff), ("up", n_ff), ("down", n_embd)):
            m.vector(p + "ffn_" + name + ".bias", [n], 0.2)


def is_moe(c, layer):
    if layer >= c["n_layer"] and c["arch"] == "mimo2":
        return False
    return c["n_expert"] and layer >= c["n_dense"] and (layer + 1) % (c["moe_step"] or 1) == 0


def add_router(m, p, i):
    c = m.c
    m.matrix(p + "ffn_gate_inp.weight", [c["n_embd"], c["n_expert"]], 2, "F32")
    if i < c["hash_layers"]:
        m.table(p + "ffn_gate_tid2eid.weight", c["n_used"], m.n_vocab, c["n_expert"])
    elif c["choice_bias"]:
        m.vector(p + ("exp_probs_b" if m.name == "hy_v3" else "exp_probs_b.bias"), [c["n_expert"]], 0.15)


def add_part(m, i):
    c, p, kind = m.c, "blk.%d." % i, part(m.c, i)
    if kind in "max":
        (add_mamba2(m, p) if kind == "m" else add_attention(m, p, i))
        if kind != "x":
            return
        add_nextn(m, p)
    m.vector(p + ("post_attention_norm.weight" if kind == "x" else "attn_norm.weight"), [c["n_embd"]], 0.15, 1)
    if kind == "d":
        add_ungated(m, p, "", c["n_embd"], c["n_ff"], 2)
        return
    n_ff, width = int(c["n_ff_exps"].split(",")[i]) if c["n_ff_exps"] else c["n_ff_exp"], c["moe_latent"] or c["n_embd"]
    add_router(m, p, i)
    if c["moe_latent"]:
        m.matrix(p + "ffn_latent_down.weight", [c["n_embd"], width], 1.2)
        m.matrix(p + "ffn_latent_up.weight", [width, c["n_embd"]], 1.2)
    add_ungated(m, p, "_exps", width, n_ff, 3, c["n_expert"])
    add_ungated(m, p, "_shexp", c["n_embd"], c["n_shared"] * c["n_ff_exp"], 1.5)


def add_nextn(m, p):
    n_embd = m.c["n_embd"]
    m.matrix(p + "nextn.eh_proj.weight", [2 * n_embd, n_embd], np.sqrt(n_embd))
    for name in ("nextn.enorm", "nextn.hnorm", "layer_output_norm" if m.name == "bailingmoe3" else "nextn.shared_head_norm"):
        m.vector(p + name + ".weight", [n_embd], 0.15, 1)


def add_layer(m, i):
    c, p = m.c, "blk.%d." % i
    if i >= c["n_layer"]:
        add_nextn(m, p)
    is_qwen = c["recurrent"] != "" and c["recurrence"] == "delta"
    if is_recurrent(c, i):
        {"delta": add_delta_net, "kda": add_kda, "mamba": add_mamba, "mamba2": add_mamba2, "lightning": add_lightning, "conv": add_short_conv}[c["recurrence"]](m, p)
    elif c["compress"]:
        add_compressed_attention(m, p, i)
    elif c["latent"]:
        add_latent_attention(m, p, i)
    else:
        add_attention(m, p, i)
    if not c["parallel"] and not c["stream_rank"]:
        add_norm(m, p + ("post_attention_norm" if is_qwen else c["ffn_norm"]))
    if c["ngram"] and i == 1:
        add_ngrams(m, p)
    for part in ("attn", "ffn") if c["stream_rank"] else ():
        add_stream_gates(m, p + "hc_" + part, True)
    for part in ("attn", "ffn") if c["streams"] and not c["stream_rank"] else ():
        n = 2 if c["stream_magnitude"] else 2 + c["streams"]
        add_hyper_connection(m, p + "hc_" + part, n * c["streams"], min(n, 3))
    for part in ("attn", "ffn") if c["res_block"] else ():
        m.vector(p + part + "_res_score.weight", [c["n_embd"]], 0.3)
    if c["post_norms"]:
        m.vector(p + "post_attention_norm.weight", [c["n_embd"]], 0.15, 1.5)
        m.vector(p + "post_ffw_norm.weight", [c["n_embd"]], 0.15, 1.5)
    if c["grok"]:
        m.vector(p + "attn_output_norm.weight", [c["n_embd"]], 0.15, 1.5)
        m.vector(p + ("post_ffw_norm" if c["dense_beside"] else "layer_output_norm") + ".weight", [c["n_embd"]], 0.15, 1.5)
    if not is_moe(c, i) or c["dense_beside"]:
        add_gated(m, p, "", c["n_ff"], 2)
    if not is_moe(c, i):
        return
    if c["arctic"]:
        add_norm(m, p + "ffn_norm_exps")
        add_gated(m, p, "", c["n_embd"], 2)
    add_router(m, p, i)
    if c["moe_latent"]:
        m.matrix(p + "ffn_routed_down.weight", [c["n_embd"], c["moe_latent"]], 1.2)
        m.matrix(p + "ffn_routed_up.weight", [c["moe_latent"], c["n_embd"]], 1.2)
        m.vector(p + "ffn_routed_norm.weight", [c["moe_latent"]], 0.15, 1)
    add_gated(m, p, "_exps", c["n_ff_exp"], 3, c["n_expert"])
    if c["chunk_share"]:
        add_gated(m, p, "_chexps", c["n_ff_chunk"], 3, c["n_expert"] // c["chunk_share"])
    if c["n_shared"]:
        add_gated(m, p, "_shexp", c["n_shared"] * c["n_ff_exp"], 1.5)
    if c["shared_gate"]:
        m.vector(p + "ffn_gate_inp_shexp.weight", [c["n_embd"]], 2 / np.sqrt(c["n_embd"]))


def has_short_convs(m):
    return m.c["recurrence"] == "conv"


def build(name, seed, options):
    m = Model(name, seed, options)
    add_metadata(m)
    m.n_vocab = n_vocab = add_tokenizer(m)
    # rows of unit variance; tied ones are smaller, and a larger norm spreads the logits again
    m.matrix("token_embd.weight", [m.c["n_embd"], n_vocab], 1.5 if m.c["tie"] else np.sqrt(m.c["n_embd"]))
    if not m.c["stream_rank"]:
        m.vector("token_embd_norm.weight" if has_short_convs(m) else "output_norm.weight", [m.c["n_embd"]], 0.15, 2.5 if m.c["tie"] else 1)
    if not m.c["tie"]:
        m.matrix("output.weight", [m.c["n_embd"], n_vocab], 4)
    if m.c["stream_rank"]:
        add_stream_gates(m, "output_hc", False)
    elif m.c["streams"] and m.name != "glm5next":
        add_hyper_connection(m, "output_hc", m.c["streams"], 1)
    if m.c["res_block"]:
        m.vector("output_res_score.weight", [m.c["n_embd"]], 0.3)
    if m.c["norm_bias"]:
        m.vector("output_norm.bias", [m.c["n_embd"]], 0.3)
        m.vector("output.bias", [n_vocab], 0.5)
    if m.c["long_rope"]:
        for name, mean in (("long", 4), ("short", 1.5)):
            m.vector("rope_factors_" + name + ".weight", [m.c["hd"] // 2], 0.3, mean)
    if m.c["rope_freqs"]:
        m.vector("rope_freqs.weight", [(m.c["n_rot"] or m.c["hd"]) // 2], 0.5, 2)
    for i in range(n_block(m.c)):
        (add_part if m.c["parts"] else add_layer)(m, i)
    return m


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("family", choices=FAMILIES)
    a.add_argument("out")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("options", nargs="*", metavar="KEY=VALUE")
    a = a.parse_intermixed_args()
    options = {k: type(DEFAULTS[k])(v) for k, v in (o.split("=", 1) for o in a.options)}
    build(a.family, a.seed, options).write(a.out)


if __name__ == "__main__":
    main()
