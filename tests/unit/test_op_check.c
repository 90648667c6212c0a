/* Malformed operations are named before a device sees them. */
#include "device_fixture.h"

#include <math.h>

enum { M = 5, N_EMBD = 64, N_FF = 32, N_HEAD = 4, N_HEAD_KV = 2, DIM = 32, N_EXPERT = 8, N_USED = 2, N_VOCAB = 48 };
enum { N_TAP = 4, BUFFER_FLOATS = 1 << 16 };

/* What the operations work on: all tensors begin at the same place of one buffer, as nothing runs. */
struct operands {
    struct tensor floats;
    struct weight *w[3]; /* [n_row][k]: [N_VOCAB][N_EMBD], [N_EXPERT][N_EMBD], [N_HEAD * 32][16] */
    struct slot_pool *slots;
};

static struct weight *zeros(struct fixture *f, int64_t k, int64_t n_row)
{
    float *x = calloc((size_t)(k * n_row), sizeof *x);
    struct weight *w = weight_from(f, QUANT_F32, k, n_row, x);
    free(x);
    return w;
}

static struct operands open_operands(struct fixture *f)
{
    const struct quant_info *type = quant_info(QUANT_F32);
    const struct slot_pool_desc d = {.type = {type, type, type}, .n_embd = N_EMBD, .n_ff = N_FF, .n_slot = 2};
    struct err e;
    struct operands o = {.floats = tensor_f32(f, BUFFER_FLOATS, 1, 1, NULL),
                         .w = {zeros(f, N_EMBD, N_VOCAB), zeros(f, N_EMBD, N_EXPERT), zeros(f, 16, N_HEAD * 32)}};
    assert_int_equal(backend_slot_pool_create(f->device, &d, &o.slots, &e), ERR_OK);
    return o;
}

static void close_operands(struct fixture *f, struct operands *o)
{
    backend_buffer_close(f->device, &o->floats.buffer);
    for (int i = 0; i < 3; i++)
        backend_weight_close(f->device, &o->w[i]);
    backend_slot_pool_close(f->device, &o->slots);
}

static struct tensor shape(const struct operands *o, enum elem_type type, int64_t ne0, int64_t ne1, int64_t ne2)
{
    return (struct tensor){.buffer = o->floats.buffer, .type = type, .ne = {ne0, ne1, ne2}};
}

static struct tensor rows(const struct operands *o, int64_t n)
{
    return shape(o, ELEM_F32, n, M, 1);
}

static struct tensor ints(const struct operands *o, int64_t n)
{
    return shape(o, ELEM_I32, n, 1, 1);
}

static struct tensor vec(const struct operands *o, int64_t n)
{
    return shape(o, ELEM_F32, n, 1, 1);
}

static struct paged state(const struct operands *o, int64_t ne0, int64_t ne1, int64_t ne2)
{
    size_t part = (size_t)(ne0 * ne1) * sizeof(float);
    return (struct paged){shape(o, ELEM_F32, ne0, ne1, ne2), part * (size_t)ne2, part};
}

/* A good operation of each kind. */
static struct op good(const struct operands *o, enum op_kind kind)
{
    const struct tensor x = rows(o, N_EMBD), m = ints(o, M);
    const struct paged cache = state(o, DIM, ATTENTION_BLOCK, N_HEAD_KV);
    switch (kind) {
    case OP_EMBED: return (struct op){.kind = kind, .in = {m}, .out = {x}, .weight = {o->w[0]}};
    case OP_RMS_NORM:
        return (struct op){.kind = kind, .in = {x}, .out = {x}, .vec = {vec(o, 32), vec(o, 32)}, .norm = {32, 0}};
    case OP_LAYER_NORM:
        return (struct op){.kind = kind, .in = {x}, .out = {x}, .vec = {vec(o, N_EMBD), vec(o, N_EMBD)}};
    case OP_MATMUL:
        return (struct op){.kind = kind,
                           .in = {x},
                           .out = {rows(o, N_VOCAB), rows(o, N_EXPERT)},
                           .weight = {o->w[0], o->w[1]},
                           .vec = {vec(o, N_VOCAB), vec(o, N_EXPERT)}};
    case OP_HEADS:
        return (struct op){.kind = kind,
                           .in = {rows(o, N_HEAD * 20)},
                           .out = {rows(o, N_HEAD * 40)},
                           .weight = {o->w[2]},
                           .heads = {N_HEAD, 20, 4, 16, 40, 10, 30}};
    case OP_ROPE_TABLE: return (struct op){.kind = kind, .in = {m}, .out = {rows(o, 16)}, .vec = {vec(o, 8)}};
    case OP_ROPE: return (struct op){.kind = kind, .in = {x, rows(o, 16)}, .out = {x}, .rope = {ROPE_NEOX, DIM, 16}};
    case OP_KV_STORE:
        return (struct op){.kind = kind,
                           .in = {[KV_STORE_X] = rows(o, N_HEAD_KV * DIM),
                                  [KV_STORE_POS] = m,
                                  [KV_STORE_TABLE] = m,
                                  [KV_STORE_PAGES] = ints(o, 7)},
                           .state = {cache}};
    case OP_INDEX:
        return (struct op){.kind = kind,
                           .in = {[INDEX_Q] = rows(o, N_HEAD * DIM),
                                  [INDEX_POS] = m,
                                  [INDEX_TABLE] = m,
                                  [INDEX_PAGES] = ints(o, 7),
                                  [INDEX_WEIGHTS] = rows(o, N_HEAD)},
                           .out = {shape(o, ELEM_I32, 9, M, 1)},
                           .state = {state(o, DIM, ATTENTION_BLOCK, 1)}};
    case OP_ATTENTION:
        return (struct op){.kind = kind,
                           .in = {[ATTENTION_Q] = rows(o, N_HEAD * DIM),
                                  [ATTENTION_POS] = m,
                                  [ATTENTION_TABLE] = m,
                                  [ATTENTION_PAGES] = ints(o, 7),
                                  [ATTENTION_CHOSEN] = shape(o, ELEM_I32, 9, M, 1)},
                           .out = {rows(o, N_HEAD * DIM)},
                           .vec = {vec(o, N_HEAD)},
                           .state = {[ATTENTION_K] = cache, [ATTENTION_V] = cache},
                           .attention = {.n_head = N_HEAD, .scale = 1}};
    case OP_CONV:
        return (struct op){.kind = kind,
                           .in = {[CONV_X] = x, [CONV_FROM] = m, [CONV_TO] = m},
                           .out = {x},
                           .vec = {shape(o, ELEM_F32, N_EMBD, N_TAP, 1), vec(o, N_EMBD)},
                           .state = {state(o, N_EMBD, N_TAP - 1, 1)}};
    case OP_DELTA:
        return (struct op){.kind = kind,
                           .in = {[DELTA_QKV] = rows(o, 2 * N_HEAD_KV * 8 + N_HEAD * 12),
                                  [DELTA_ALPHA] = rows(o, N_HEAD),
                                  [DELTA_BETA] = rows(o, N_HEAD),
                                  [DELTA_FROM] = m,
                                  [DELTA_TO] = m},
                           .out = {rows(o, N_HEAD * 12)},
                           .vec = {[DELTA_DT] = vec(o, N_HEAD), [DELTA_A] = vec(o, N_HEAD)},
                           .state = {state(o, 8, 12, N_HEAD)},
                           .delta = {.n_head_k = N_HEAD_KV}};
    case OP_SSM: {
        struct op op = good(o, OP_DELTA);
        op.kind = kind;
        op.in[DELTA_BETA] = (struct tensor){0};
        op.vec[SSM_SKIP] = vec(o, N_HEAD);
        return op;
    }
    case OP_ACT_MUL:
    case OP_ADD: return (struct op){.kind = kind, .in = {x, x}, .out = {x}};
    case OP_SCALE: return (struct op){.kind = kind, .in = {x}, .out = {x}, .vec = {vec(o, 1)}};
    case OP_SOFTCAP: return (struct op){.kind = kind, .in = {x}, .out = {x}};
    case OP_CLAMP: return (struct op){.kind = kind, .in = {x}, .out = {x}, .scale = 1};
    case OP_SLICE: return (struct op){.kind = kind, .in = {x, m}, .out = {rows(o, 16)}, .slice_off = 40};
    case OP_SCATTER: return (struct op){.kind = kind, .in = {x, m}, .out = {x}};
    case OP_ROUTE:
        return (struct op){.kind = kind,
                           .in = {x},
                           .out = {[ROUTE_IDS] = shape(o, ELEM_I32, N_USED, M, 1),
                                   [ROUTE_WEIGHTS] = rows(o, N_USED),
                                   [ROUTE_SCORES] = rows(o, N_EXPERT)},
                           .weight = {o->w[1]},
                           .vec = {[ROUTE_BIAS] = vec(o, N_EXPERT),
                                   [ROUTE_CHOICE_BIAS] = vec(o, N_EXPERT),
                                   [ROUTE_EXPERT_SCALE] = vec(o, N_EXPERT)},
                           .route = {.scale = 1, .n_group = 4, .n_group_used = 2}};
    case OP_COMPRESS:
        return (struct op){.kind = kind,
                           .in = {[COMPRESS_AT] = m, [COMPRESS_TABLE] = m, [COMPRESS_PAGES] = ints(o, 7)},
                           .out = {rows(o, 16)},
                           .vec = {shape(o, ELEM_F32, 32, 4, 1)},
                           .state = {state(o, 32, ATTENTION_BLOCK, 1), state(o, 32, ATTENTION_BLOCK, 1)}};
    case OP_STREAMS_IN: {
        const struct tensor mix = rows(o, 24);
        return (struct op){.kind = kind,
                           .in = {[STREAMS_IN_X] = rows(o, 4 * 16), [STREAMS_IN_MIX] = mix},
                           .out = {rows(o, 16), mix},
                           .vec = {vec(o, 3), vec(o, 24)},
                           .streams = {.magnitude = 2, .n_iteration = 1}};
    }
    case OP_STREAMS_OUT: {
        const struct tensor streams = rows(o, 4 * 16);
        return (struct op){
            .kind = kind,
            .in = {[STREAMS_OUT_Y] = rows(o, 16), [STREAMS_OUT_X] = streams, [STREAMS_OUT_MIX] = rows(o, 24)},
            .out = {streams}};
    }
    case OP_STREAMS_MATCH: {
        const struct tensor key = rows(o, 4 * 16);
        return (struct op){
            .kind = kind,
            .in = {[STREAMS_MATCH_KEY] = key, [STREAMS_MATCH_QUERY] = key, [STREAMS_MATCH_VALUE] = rows(o, 16)},
            .out = {key}};
    }
    case OP_RESIDUALS:
        return (struct op){.kind = kind,
                           .in = {x, rows(o, 3 * N_EMBD)},
                           .out = {x},
                           .vec = {vec(o, N_EMBD)},
                           .residuals = {.n_banked = 2}};
    case OP_EXPERTS:
        return (struct op){.kind = kind,
                           .in = {[EXPERTS_X] = x,
                                  [EXPERTS_IDS] = shape(o, ELEM_I32, N_USED, M, 1),
                                  [EXPERTS_SLOTS] = ints(o, N_EXPERT),
                                  [EXPERTS_WEIGHTS] = rows(o, N_USED)},
                           .out = {shape(o, ELEM_F32, N_EMBD, N_USED, M), shape(o, ELEM_F32, N_FF, N_USED, M)},
                           .vec = {[EXPERT_GATE] = shape(o, ELEM_F32, N_FF, N_EXPERT, 1),
                                   [EXPERT_UP] = shape(o, ELEM_F32, N_FF, N_EXPERT, 1),
                                   [EXPERT_DOWN] = shape(o, ELEM_F32, N_EMBD, N_EXPERT, 1)},
                           .slot_pool = o->slots,
                           .experts = {.sort_cutoff = 1}};
    case OP_COMBINE:
        return (struct op){.kind = kind,
                           .in = {[COMBINE_Y] = shape(o, ELEM_F32, N_EMBD, N_USED, M),
                                  [COMBINE_WEIGHTS] = rows(o, N_USED),
                                  [COMBINE_SHARED] = x,
                                  [COMBINE_SHARED_GATE] = rows(o, 1)},
                           .out = {x}};
    case OP_N_KIND: break;
    }
    fail();
    return (struct op){0};
}

/* Whether an operation passes; a refusal must name it. */
static bool passes(struct fixture *f, const struct op *op)
{
    struct err e = {0};
    if (op_check(f->device, op, &e) == ERR_OK)
        return true;
    assert_int_equal(e.code, ERR_CHECK);
    assert_non_null(strstr(e.text, op_name(op->kind)));
    return false;
}

static void good_operations_of_all_kinds_pass(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    for (int kind = 0; kind < OP_N_KIND; kind++) {
        const struct op op = good(&o, (enum op_kind)kind);
        assert_true(passes(f, &op));
    }
    close_operands(f, &o);
}

/* The tensor at `at` of a good operation in a wrong place, of a wrong type, of no elements, of one more: each fault
 * alone is found. The operation's other operands contradict a length that is possible in itself. */
static void try_tensor(struct fixture *f, const struct op *op, struct tensor *at)
{
    const struct tensor t = *at;
    if (!t.buffer)
        return;
    at->off_bytes = (size_t)BUFFER_FLOATS * sizeof(float) - tensor_bytes(&t) + 4;
    assert_false(passes(f, op));
    *at = t;
    at->type = t.type == ELEM_I32 ? ELEM_F32 : ELEM_I32;
    assert_false(passes(f, op));
    *at = t;
    for (int d = 0; d < TENSOR_DIMS; d++) {
        at->ne[d] = 0;
        assert_false(passes(f, op));
        *at = t;
        at->ne[d] = INT32_MAX;
        assert_false(passes(f, op));
        *at = t;
    }
}

static void tensors_of_wrong_types_and_places_are_refused(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    for (int kind = 0; kind < OP_N_KIND; kind++) {
        struct op op = good(&o, (enum op_kind)kind);
        for (int i = 0; i < OP_MAX_IN; i++)
            try_tensor(f, &op, &op.in[i]);
        for (int i = 0; i < OP_MAX_OUT; i++) {
            try_tensor(f, &op, &op.out[i]);
            try_tensor(f, &op, &op.vec[i]);
        }
        for (int i = 0; i < OP_MAX_STATE; i++)
            try_tensor(f, &op, &op.state[i].page);
    }
    close_operands(f, &o);
}

/* A row more or less than the other operands have. */
static void rows_that_do_not_match_are_refused(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    for (int kind = 0; kind < OP_N_KIND; kind++)
        for (int more = -1; more <= 1; more += 2) {
            struct op op = good(&o, (enum op_kind)kind);
            if (!op.out[0].buffer)
                continue;
            struct tensor *t = kind == OP_SCATTER ? &op.in[0] : &op.out[0]; /* it may write to any number of rows */
            t->ne[kind == OP_EXPERTS ? 2 : 1] += more;
            assert_false(passes(f, &op));
        }
    close_operands(f, &o);
}

static void operands_that_are_absent_are_refused(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    for (int kind = 0; kind < OP_N_KIND; kind++) {
        struct op op = good(&o, (enum op_kind)kind);
        op.in[0].buffer = NULL;
        assert_false(passes(f, &op));
        op = good(&o, (enum op_kind)kind);
        op.weight[0] = NULL;
        op.slot_pool = NULL;
        op.state[0].page.buffer = NULL;
        bool needs_none = !good(&o, (enum op_kind)kind).weight[0] && kind != OP_EXPERTS &&
                          !good(&o, (enum op_kind)kind).state[0].page.buffer;
        assert_int_equal(passes(f, &op), needs_none);
    }
    close_operands(f, &o);
}

enum { N_BLOCK = 3 };

/* INDEX and ATTENTION, where blocks are chosen. */
static struct op good_blocks(const struct operands *o, enum op_kind kind)
{
    struct op op = good(o, kind);
    if (kind == OP_INDEX) {
        op.in[INDEX_WEIGHTS] = (struct tensor){0};
        op.out[0] = shape(o, ELEM_I32, N_HEAD * N_BLOCK, M, 1);
        op.index.block = 2 * ATTENTION_BLOCK;
        op.index.n_local = N_BLOCK;
    } else {
        op.in[ATTENTION_CHOSEN] = shape(o, ELEM_I32, N_HEAD_KV * N_BLOCK, M, 1);
        op.attention.chosen_block = 2 * ATTENTION_BLOCK;
    }
    return op;
}

/* Parameters that no tensor's shape shows. */
static void parameters_out_of_range_are_refused(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    struct op norm = good(&o, OP_RMS_NORM), heads = good(&o, OP_HEADS), rope = good(&o, OP_ROPE);
    struct op attention = good(&o, OP_ATTENTION), slice = good(&o, OP_SLICE), route = good(&o, OP_ROUTE);
    struct op experts = good(&o, OP_EXPERTS), delta = good(&o, OP_DELTA), far = rope;
    struct op index = good(&o, OP_INDEX), beside = attention, iterated = good(&o, OP_STREAMS_IN);
    struct op single = good(&o, OP_COMPRESS), apart = good(&o, OP_STREAMS_OUT);
    struct op capped = attention, clamp = good(&o, OP_CLAMP), unbanked = good(&o, OP_RESIDUALS), overdrawn = unbanked;
    struct op growing = delta, weightless = iterated, short_index = good_blocks(&o, OP_INDEX), odd_index = short_index,
              local = short_index, apart_index = short_index;
    struct op short_blocks = good_blocks(&o, OP_ATTENTION), odd_blocks = short_blocks, unchosen = short_blocks;
    assert_true(passes(f, &short_index) && passes(f, &short_blocks));
    norm.norm.n = 48;
    capped.attention.softcap = -1;
    clamp.scale = 0;
    unbanked.residuals.n_banked = 0;
    overdrawn.residuals.n_banked = 4;
    heads.heads.in_off = 5;
    rope.rope.n_rot = 15;
    attention.attention.n_head = 3;
    slice.slice_off = 49;
    route.route.n_group_used = 5;
    experts.experts.sort_cutoff = 0;
    delta.delta.n_head_k = 3;
    growing.delta.min_log_decay = 1;
    far.rope.off = DIM - 15;
    index.index.ratio = -1;
    beside.attention.ratio = 4; /* there is no compressed cache */
    iterated.streams.n_iteration = 0;
    weightless.streams.magnitude = 0;
    single.vec[0].ne[1] = 1;
    apart.out[0].off_bytes += BUFFER_ALIGN;
    short_index.index.block = ATTENTION_BLOCK / 2;
    odd_index.out[0].ne[0]--;
    local.index.n_local = N_BLOCK + 1;
    apart_index.index.ratio = 4;
    short_blocks.attention.chosen_block = ATTENTION_BLOCK + 1;
    odd_blocks.in[ATTENTION_CHOSEN].ne[0]--;
    unchosen.in[ATTENTION_CHOSEN].buffer = NULL;
    const struct op *all[] = {&norm,       &heads,    &rope,        &attention,  &slice,    &route,       &experts,
                              &delta,      &far,      &index,       &beside,     &iterated, &single,      &apart,
                              &capped,     &clamp,    &short_index, &odd_index,  &local,    &apart_index, &short_blocks,
                              &odd_blocks, &unchosen, &growing,     &weightless, &unbanked, &overdrawn};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_false(passes(f, all[i]));
    close_operands(f, &o);
}

static void gated_streams_have_a_mix_of_one_number_each_or_none(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    struct op in = good(&o, OP_STREAMS_IN), out = good(&o, OP_STREAMS_OUT);
    in.in[STREAMS_IN_GATE] = rows(&o, 4 * 16);
    assert_false(passes(f, &in));
    in.in[STREAMS_IN_MIX] = in.out[STREAMS_IN_MIXED] = out.in[STREAMS_OUT_MIX] = rows(&o, 4);
    in.vec[STREAMS_IN_SCALE] = in.vec[STREAMS_IN_BASE] = (struct tensor){0};
    assert_true(passes(f, &in) && passes(f, &out));
    in.streams.magnitude = 0;
    assert_false(passes(f, &in));
    in.in[STREAMS_IN_MIX] = in.out[STREAMS_IN_MIXED] = (struct tensor){0};
    assert_true(passes(f, &in));
    in.in[STREAMS_IN_GATE] = rows(&o, 4 * 16 - 1);
    assert_false(passes(f, &in));
    in.in[STREAMS_IN_GATE] = (struct tensor){0};
    assert_true(passes(f, &in));
    close_operands(f, &o);
}

static void runs_are_put_out_whole_and_what_is_behind_them(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    struct op op = good(&o, OP_INDEX);
    op.in[INDEX_WEIGHTS] = (struct tensor){0};
    assert_true(passes(f, &op));
    op.index.spreads = true;
    assert_false(passes(f, &op));
    op.index.ratio = 4;
    assert_false(passes(f, &op));
    op.out[0] = shape(&o, ELEM_I32, 11, M, 1);
    assert_true(passes(f, &op));
    op.out[0] = shape(&o, ELEM_I32, 3, M, 1);
    assert_false(passes(f, &op));
    close_operands(f, &o);
}

static void entries_may_be_plain_means(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    struct op op = good(&o, OP_COMPRESS);
    op.state[COMPRESS_GATE] = (struct paged){0};
    assert_true(passes(f, &op));
    close_operands(f, &o);
}

static void decays_are_of_heads_or_their_key_dimensions(void **test_state)
{
    enum { DK = 8 }; /* as good has it */
    const struct {
        enum op_kind kind;
        int64_t n_alpha, n_dt;
        bool passes;
    } all[] = {{OP_DELTA, N_HEAD * DK, N_HEAD * DK, true},  {OP_DELTA, N_HEAD * DK, N_HEAD, false},
               {OP_DELTA, N_HEAD, N_HEAD * DK, false},      {OP_DELTA, N_HEAD * 2, N_HEAD * 2, false},
               {OP_DELTA, N_HEAD * 12, N_HEAD * 12, false}, {OP_SSM, N_HEAD * DK, N_HEAD * DK, false}};
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op op = good(&o, all[i].kind);
        op.in[DELTA_ALPHA] = rows(&o, all[i].n_alpha);
        op.vec[DELTA_DT] = vec(&o, all[i].n_dt);
        assert_int_equal(passes(f, &op), all[i].passes);
    }
    close_operands(f, &o);
}

static void selective_state_spaces_have_one_head(void **test_state)
{
    enum { DK = 8, DV = 12 };
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    struct op op = good(&o, OP_SSM), wrong;
    op.in[DELTA_QKV] = op.in[DELTA_ALPHA] = op.out[0] = rows(&o, DV);
    op.in[SSM_QK] = rows(&o, 2 * DK);
    op.vec[DELTA_DT] = op.vec[SSM_SKIP] = vec(&o, DV);
    op.vec[DELTA_A] = shape(&o, ELEM_F32, DK, DV, 1);
    op.state[0] = state(&o, DK, DV, 1);
    op.delta.n_head_k = 1;
    assert_true(passes(f, &op));
    wrong = op;
    wrong.in[DELTA_QKV] = rows(&o, 2 * DK + DV);
    assert_false(passes(f, &wrong));
    wrong = op;
    wrong.in[DELTA_ALPHA] = rows(&o, 1);
    assert_false(passes(f, &wrong));
    wrong = op;
    wrong.vec[DELTA_A] = vec(&o, DV);
    assert_false(passes(f, &wrong));
    wrong = op;
    wrong.vec[SSM_SKIP] = vec(&o, 1);
    assert_false(passes(f, &wrong));
    wrong = op;
    wrong.state[0] = state(&o, DK, DV, 2);
    assert_false(passes(f, &wrong));
    close_operands(f, &o);
}

static void state_spaces_alone_may_do_without_alpha(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    for (int is_space = 0; is_space < 2; is_space++) {
        struct op op = good(&o, is_space ? OP_SSM : OP_DELTA);
        op.in[DELTA_ALPHA] = op.vec[DELTA_DT] = (struct tensor){0};
        assert_int_equal(passes(f, &op), is_space);
    }
    close_operands(f, &o);
}

static void limits_are_of_some_activations_and_positive(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    const struct {
        enum act_fn act;
        float limit, up_limit;
        bool passes;
    } all[] = {{ACT_SILU, 0.5f, 0, true},     {ACT_SILU, -1, 0, false},          {ACT_SILU, NAN, 0, false},
               {ACT_SILU, 0.5f, 0.5f, false}, {ACT_SILU_CLAMPED, 0.5f, 0, true}, {ACT_GELU, 0, 0, true},
               {ACT_GELU, 0.5f, 0, false},    {ACT_SITU, 0.5f, 0.5f, true},      {ACT_SITU, 0.5f, 0, true},
               {ACT_SITU, 0, 0.5f, false},    {ACT_SITU, 0.5f, NAN, false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op mul = good(&o, OP_ACT_MUL), experts = good(&o, OP_EXPERTS);
        mul.act = experts.experts.act = all[i].act;
        mul.act_limit = experts.experts.act_limit = all[i].limit;
        mul.act_up_limit = experts.experts.act_up_limit = all[i].up_limit;
        assert_int_equal(passes(f, &mul), all[i].passes);
        assert_int_equal(passes(f, &experts), all[i].passes);
    }
    close_operands(f, &o);
}

static void gates_are_shorter_by_a_whole_factor(void **test_state)
{
    struct fixture *f = *test_state;
    struct operands o = open_operands(f);
    struct op op = good(&o, OP_ACT_MUL);
    op.in[ACT_MUL_GATE] = rows(&o, N_EMBD / 4);
    assert_true(passes(f, &op));
    op.act_limit = 1;
    assert_false(passes(f, &op));
    op.act_limit = 0;
    op.in[ACT_MUL_GATE] = rows(&o, N_EMBD - 1);
    assert_false(passes(f, &op));
    op.in[ACT_MUL_GATE] = rows(&o, 2 * N_EMBD);
    assert_false(passes(f, &op));
    close_operands(f, &o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_operations_of_all_kinds_pass),
        cmocka_unit_test(tensors_of_wrong_types_and_places_are_refused),
        cmocka_unit_test(rows_that_do_not_match_are_refused),
        cmocka_unit_test(operands_that_are_absent_are_refused),
        cmocka_unit_test(parameters_out_of_range_are_refused),
        cmocka_unit_test(gates_are_shorter_by_a_whole_factor),
        cmocka_unit_test(gated_streams_have_a_mix_of_one_number_each_or_none),
        cmocka_unit_test(runs_are_put_out_whole_and_what_is_behind_them),
        cmocka_unit_test(entries_may_be_plain_means),
        cmocka_unit_test(decays_are_of_heads_or_their_key_dimensions),
        cmocka_unit_test(selective_state_spaces_have_one_head),
        cmocka_unit_test(state_spaces_alone_may_do_without_alpha),
        cmocka_unit_test(limits_are_of_some_activations_and_positive),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
