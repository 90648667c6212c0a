/* What recurrent layers are made of, as files have it. */
#include "gguf/gguf.h"
#include "model/loader.h"

/* The file's row that becomes row i of those that the runs pick. */
static int64_t row_at(const struct row_run *runs, int n_run, int64_t i)
{
    int r = 0;
    for (; r < n_run - 1 && i >= runs[r].n_row; r++)
        i -= runs[r].n_row;
    return runs[r].first + i / runs[r].block * runs[r].stride + i % runs[r].block;
}

/* Transposes `t`, n rows of n_tap as the file has them, into n_tap rows of n columns, which the runs pick. */
static err_code turn(struct loader *l, int64_t layer, int64_t n_tap, int64_t n, const struct row_run *runs, int n_run,
                     struct tensor *t, struct err *e)
{
    struct backend *device = load_device(l, layer);
    size_t size = (size_t)(n_tap * n);
    float *from = mem_calloc(size, sizeof *from), *to = mem_calloc(size, sizeof *to);
    err_code code = from && to ? backend_read(device, t, from, e) : err_nomem(e, size * sizeof *from, "convolution");
    if (code == ERR_OK) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n_tap; j++)
                to[j * n + i] = from[row_at(runs, n_run, i) * n_tap + j];
        t->ne[0] = n;
        t->ne[1] = n_tap;
        backend_write(device, t, to);
    }
    mem_free(from);
    mem_free(to);
    return code;
}

static err_code check_taps(struct loader *l, const char *key, const struct recurrent *r, struct err *e)
{
    if (r->n_tap < 2 || r->n_tap > OP_CONV_MAX_TAP)
        return err_set(e, ERR_FORMAT, "%s: %s.%s is %lld, expected 2 to %d", gguf_file_path(l->g, 0), l->m->arch, key,
                       (long long)r->n_tap, OP_CONV_MAX_TAP);
    return ERR_OK;
}

err_code load_conv(struct loader *l, int64_t layer, const struct conv_names *names, const struct row_run *runs,
                   int n_run, struct recurrent *r, struct err *e)
{
    const struct row_run all = {.n_row = r->n_mixed, .block = r->n_mixed, .stride = r->n_mixed};
    if (!runs) {
        runs = &all;
        n_run = 1;
    }
    TRY(check_taps(l, names->key, r, e));
    TRY(load_table(l, layer, names->weight, r->n_tap, r->n_mixed, true, &r->conv, e));
    TRY(turn(l, layer, r->n_tap, r->n_mixed, runs, n_run, &r->conv, e));
    if (!names->bias || !load_find(l, layer, names->bias))
        return ERR_OK;
    TRY(load_vector(l, layer, names->bias, r->n_mixed, true, &r->conv_bias, e));
    return turn(l, layer, 1, r->n_mixed, runs, n_run, &r->conv_bias, e);
}

err_code load_conv_parts(struct loader *l, int64_t layer, const char *key, const struct conv_part *parts, int n_part,
                         struct recurrent *r, struct err *e)
{
    const struct row_run all = {.n_row = r->n_mixed, .block = r->n_mixed, .stride = r->n_mixed};
    struct file_matrix tables[LOAD_MAX_TABLE];
    TRY(check_taps(l, key, r, e));
    for (int i = 0; i < n_part; i++)
        tables[i] = (struct file_matrix){layer, parts[i].weight, r->n_tap, parts[i].n};
    TRY(load_tables(l, tables, n_part, &r->conv, e));
    return turn(l, layer, r->n_tap, r->n_mixed, &all, 1, &r->conv, e);
}

/* The sizes that ssm.* keys give: dk, dv, heads, n_alpha, n_mixed, n_out and n_tap. */
static err_code load_ssm_sizes(struct loader *l, struct recurrent *r, struct err *e)
{
    TRY(load_u32(l, "ssm.state_size", &r->dk, e));
    TRY(load_u32(l, "ssm.group_count", &r->n_head_k, e));
    TRY(load_u32(l, "ssm.time_step_rank", &r->n_head_v, e));
    TRY(load_u32(l, "ssm.inner_size", &r->n_out, e));
    TRY(load_u32(l, "ssm.conv_kernel", &r->n_tap, e));
    if (r->dk < 1 || r->n_head_k < 1 || r->n_head_v < 1 || r->n_head_v % r->n_head_k || r->n_out % r->n_head_v ||
        r->n_out < r->n_head_v)
        return err_set(e, ERR_FORMAT,
                       "%s: %s.ssm.*: state %lld, %lld groups, rank %lld, inner %lld: expected a rank that is a "
                       "multiple of the groups and divides inner",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)r->dk, (long long)r->n_head_k,
                       (long long)r->n_head_v, (long long)r->n_out);
    r->dv = r->n_out / r->n_head_v;
    r->n_mixed = 2 * r->n_head_k * r->dk + r->n_out;
    r->n_alpha = r->n_head_v;
    return ERR_OK;
}

const struct conv_names load_ssm_conv = {"ssm.conv_kernel", "ssm_conv1d.weight", "ssm_conv1d.bias"};

err_code load_head_numbers(struct loader *l, int64_t layer, const char *name, int64_t n, struct tensor *out,
                           struct err *e)
{
    const struct gguf_tensor *t = load_find(l, layer, name);
    bool is_column = t && t->ne[0] == 1 && n > 1;
    TRY(load_table(l, layer, name, is_column ? 1 : n, is_column ? n : 1, true, out, e));
    out->ne[0] = n;
    out->ne[1] = 1;
    return ERR_OK;
}

/* Loads the norm, whose weights stand group by group. */
static err_code load_space_norm(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    if (!load_find(l, layer, "ssm_norm.weight"))
        return ERR_OK;
    r->n_norm = r->n_out / r->n_head_k;
    r->norms_gated = true;
    TRY(load_table(l, layer, "ssm_norm.weight", r->n_norm, r->n_head_k, true, &r->norm, e));
    r->norm.ne[0] = r->n_out;
    r->norm.ne[1] = 1;
    return ERR_OK;
}

err_code load_state_space(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    *r = (struct recurrent){.kind = RECURRENCE_SPACE, .grouped = true};
    TRY(load_ssm_sizes(l, r, e));
    /* the file has z, x, B, C, dt; of those that are convolved, x comes last here */
    int64_t n_out = r->n_out, n_group = r->n_head_k * r->dk, n_row = n_out + r->n_mixed + r->n_head_v;
    const struct file_matrix in = {layer, "ssm_in.weight", l->m->n_embd, n_row};
    const struct row_run z = {n_out, n_out, n_out, 0};
    const struct row_run dt = {r->n_head_v, r->n_head_v, r->n_head_v, n_out + r->n_mixed};
    struct row_run mixed[] = {
        {n_group, n_group, n_group, n_out + n_group}, {n_group, n_group, n_group, n_out}, {n_out, n_out, n_out, 0}};
    TRY(load_conv(l, layer, &load_ssm_conv, mixed, 3, r, e));
    for (int i = 0; i < 3; i++)
        mixed[i].first += n_out;
    TRY(load_weight_rows(l, &in, &z, 1, &r->z, e));
    TRY(load_weight_rows(l, &in, mixed, 3, &r->mixed, e));
    TRY(load_weight_rows(l, &in, &dt, 1, &r->alpha, e));
    TRY(load_vector(l, layer, "ssm_dt.bias", r->n_head_v, true, &r->dt, e));
    TRY(load_head_numbers(l, layer, "ssm_a", r->n_head_v, &r->a, e));
    TRY(load_head_numbers(l, layer, "ssm_d", r->n_head_v, &r->skip, e));
    TRY(load_space_norm(l, layer, r, e));
    return load_weight(l, layer, "ssm_out.weight", n_out, l->m->n_embd, &r->out, e);
}

/* The sizes of a selective state space. */
static err_code load_selective_sizes(struct loader *l, struct recurrent *r, struct err *e)
{
    TRY(load_u32(l, "ssm.state_size", &r->dk, e));
    TRY(load_u32(l, "ssm.time_step_rank", &r->n_rank, e));
    TRY(load_u32(l, "ssm.inner_size", &r->n_out, e));
    TRY(load_u32(l, load_ssm_conv.key, &r->n_tap, e));
    if (r->dk < 1 || r->n_rank < 1 || r->n_out < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.ssm.*: state %lld, rank %lld, inner %lld: expected at least 1 of each",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)r->dk, (long long)r->n_rank,
                       (long long)r->n_out);
    r->n_head_k = r->n_head_v = 1;
    r->dv = r->n_mixed = r->n_alpha = r->n_out;
    r->n_beta = 2 * r->dk;
    return ERR_OK;
}

/* What is computed from what is convolved: steps of low rank, C and B. */
static err_code load_selection(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    int64_t dk = r->dk, n_rank = r->n_rank;
    const struct file_matrix from = {layer, "ssm_x.weight", r->n_out, n_rank + 2 * dk};
    const struct row_run step = {n_rank, n_rank, n_rank, 0};
    const struct row_run qk[] = {{dk, dk, dk, n_rank + dk}, {dk, dk, dk, n_rank}};
    const struct file_matrix norms[] = {{layer, "ssm_c_norm.weight", dk, 1}, {layer, "ssm_b_norm.weight", dk, 1}};
    TRY(load_weight_rows(l, &from, &step, 1, &r->alpha_in, e));
    TRY(load_weight_rows(l, &from, qk, 2, &r->qk, e));
    TRY(load_vector(l, layer, "ssm_dt_norm.weight", n_rank, true, &r->alpha_norm, e));
    TRY(load_tables(l, norms, 2, &r->qk_norm, e));
    r->qk_norm.ne[0] = 2 * dk;
    r->qk_norm.ne[1] = 1;
    return load_weight(l, layer, "ssm_dt.weight", n_rank, r->n_out, &r->alpha, e);
}

err_code load_selective_space(struct loader *l, int64_t layer, struct recurrent *r, struct err *e)
{
    *r = (struct recurrent){.kind = RECURRENCE_SELECTIVE};
    TRY(load_selective_sizes(l, r, e));
    int64_t n = r->n_out;
    const struct file_matrix in = {layer, "ssm_in.weight", l->m->n_embd, 2 * n};
    const struct row_run x = {n, n, n, 0}, z = {n, n, n, n};
    TRY(load_conv(l, layer, &load_ssm_conv, NULL, 0, r, e));
    TRY(load_weight_rows(l, &in, &x, 1, &r->mixed, e));
    TRY(load_weight_rows(l, &in, &z, 1, &r->z, e));
    TRY(load_selection(l, layer, r, e));
    TRY(load_vector(l, layer, "ssm_dt.bias", n, true, &r->dt, e));
    TRY(load_table(l, layer, "ssm_a", r->dk, n, true, &r->a, e));
    TRY(load_vector(l, layer, "ssm_d", n, true, &r->skip, e));
    return load_weight(l, layer, "ssm_out.weight", n, l->m->n_embd, &r->out, e);
}

/* ---- gated delta nets ---------------------------------------------------------------------------------------------
 */

/* beta and alpha: two tensors, or one in which each key head's betas are followed by its alphas. */
static err_code load_gates(struct loader *l, int64_t layer, struct recurrent *d, struct err *e)
{
    int64_t n = d->n_head_v, share = n / d->n_head_k;
    if (!load_find(l, layer, "ssm_ba.weight")) {
        TRY(load_weight(l, layer, "ssm_beta.weight", l->m->n_embd, n, &d->beta, e));
        return load_weight(l, layer, "ssm_alpha.weight", l->m->n_embd, n, &d->alpha, e);
    }
    const struct row_run beta = {.n_row = n, .block = share, .stride = 2 * share};
    const struct row_run alpha = {.n_row = n, .block = share, .stride = 2 * share, .first = share};
    const struct file_matrix both = {layer, "ssm_ba.weight", l->m->n_embd, 2 * n};
    TRY(load_weight_rows(l, &both, &beta, 1, &d->beta, e));
    return load_weight_rows(l, &both, &alpha, 1, &d->alpha, e);
}

/* q, k, v and z: two tensors, or one in which each key head's q, k, v and z stand together. */
static err_code load_mixed(struct loader *l, int64_t layer, struct recurrent *d, struct err *e)
{
    int64_t n_embd = l->m->n_embd, n_k = d->n_head_k * d->dk, n_v = d->n_head_v * d->dv;
    if (!load_find(l, layer, "ssm_in.weight")) {
        TRY(load_weight(l, layer, "attn_qkv.weight", n_embd, d->n_mixed, &d->mixed, e));
        return load_weight(l, layer, "attn_gate.weight", n_embd, n_v, &d->z, e);
    }
    int64_t share = n_v / d->n_head_k, stride = 2 * d->dk + 2 * share;
    const struct row_run qkv[] = {{.n_row = n_k, .block = d->dk, .stride = stride},
                                  {.n_row = n_k, .block = d->dk, .stride = stride, .first = d->dk},
                                  {.n_row = n_v, .block = share, .stride = stride, .first = 2 * d->dk}};
    const struct row_run z = {.n_row = n_v, .block = share, .stride = stride, .first = 2 * d->dk + share};
    const struct file_matrix all = {layer, "ssm_in.weight", n_embd, d->n_mixed + n_v};
    TRY(load_weight_rows(l, &all, qkv, 3, &d->mixed, e));
    return load_weight_rows(l, &all, &z, 1, &d->z, e);
}

err_code load_delta_net(struct loader *l, int64_t layer, bool grouped, struct recurrent *d, struct err *e)
{
    *d = (struct recurrent){.kind = RECURRENCE_DELTA, .grouped = grouped, .qk_eps = l->m->norm_eps};
    TRY(load_ssm_sizes(l, d, e));
    d->n_beta = d->n_head_v;
    TRY(load_mixed(l, layer, d, e));
    TRY(load_gates(l, layer, d, e));
    TRY(load_conv(l, layer, &load_ssm_conv, NULL, 0, d, e));
    TRY(load_vector(l, layer, "ssm_dt.bias", d->n_head_v, true, &d->dt, e));
    TRY(load_vector(l, layer, "ssm_a", d->n_head_v, true, &d->a, e));
    TRY(load_vector(l, layer, "ssm_norm.weight", d->dv, true, &d->norm, e));
    d->n_norm = d->dv;
    return load_weight(l, layer, "ssm_out.weight", d->n_out, l->m->n_embd, &d->out, e);
}

err_code load_is_recurrent(struct loader *l, int64_t layer, int64_t interval, bool *out, struct err *e)
{
    TRY(load_u32_opt(l, "full_attention_interval", &interval, e));
    if (interval < 1)
        return err_set(e, ERR_FORMAT, "%s: %s.full_attention_interval is 0, expected at least 1",
                       gguf_file_path(l->g, 0), l->m->arch);
    *out = (layer + 1) % interval != 0;
    TRY(load_layer_flag_opt(l, "attention.recurrent_layers", layer, out, e));
    *out &= layer < l->m->n_trunk;
    return ERR_OK;
}
