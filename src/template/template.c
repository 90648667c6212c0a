#include "template/template.h"

#include <string.h>

#include "template/tmpl_unicode.h"
#include "template/tmpl_value.h"

err_code template_parse(struct template **out, const char *source, size_t n, struct err *e)
{
    *out = NULL;
    struct template *t = mem_calloc(1, sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t, "a template");
    struct token_stream stream;
    err_code code = tmpl_lex(&stream, source, n, &t->arena, e);
    if (code == ERR_OK)
        code = tmpl_parse(t, &stream, e);
    if (code != ERR_OK)
        template_close(&t);
    *out = t;
    return code;
}

void template_close(struct template **t)
{
    if (!*t)
        return;
    arena_close(&(*t)->arena);
    mem_free(*t);
    *t = NULL;
}

/* The number of a name, -1 when the template never says it. */
static int32_t find_symbol(const struct template *t, const char *name)
{
    for (int32_t i = 0; i < t->symbols.n; i++)
        if (span_is(t->symbols.names[i], name))
            return i;
    return -1;
}

static struct value trusted_text(struct render *r, const char *name, const char *s)
{
    struct text_builder t = {0};
    size_t n = strlen(s);
    if (utf8_valid(s, n) < n)
        r->code = err_set(r->e, ERR_FORMAT, "%s is not UTF-8", name);
    text_add(r, &t, s, n);
    text_trust(r, &t, 0);
    return text_value(t);
}

static void set_variables(struct render *r, const struct template_var *vars, int n_var)
{
    for (int i = 0; i < n_var && r->code == ERR_OK; i++) {
        struct value v =
            vars[i].json ? json_parse(r, vars[i].name, vars[i].json) : trusted_text(r, vars[i].name, vars[i].text);
        int32_t symbol = find_symbol(r->t, vars[i].name);
        if (symbol >= 0 && r->code == ERR_OK)
            frame_set(r, r->frame, symbol, v);
    }
}

/* The output for the caller, its marks behind its end. */
static err_code copy_out(const struct text_builder *out, char **text, const char **trusted, struct err *e)
{
    char *copy = mem_calloc(2 * out->n + 1, 1);
    if (!copy)
        return err_nomem(e, 2 * out->n, "a rendered template");
    if (out->n)
        memcpy(copy, out->s, out->n);
    if (out->n && out->trusted)
        memcpy(copy + out->n + 1, out->s + out->trusted, out->n);
    *text = copy;
    *trusted = copy + out->n + 1;
    return ERR_OK;
}

err_code template_render(const struct template *t, const struct template_var *vars, int n_var, char **text,
                         const char **trusted, size_t *n_text, struct err *e)
{
    struct frame variables = {0}, top = {.parent = &variables};
    struct text_builder out = {0};
    struct render r = {.t = t, .e = e, .frame = &variables, .out = &out};
    size_t n_input = 0;
    for (int i = 0; i < n_var; i++)
        n_input += strlen(vars[i].json ? vars[i].json : vars[i].text);
    r.max_bytes = TMPL_MAX_BYTES + TMPL_BYTES_PER_INPUT * n_input;
    if (r.max_bytes > TMPL_MOST_BYTES)
        r.max_bytes = TMPL_MOST_BYTES;
    r.max_steps = TMPL_MAX_STEPS + TMPL_STEPS_PER_INPUT * (int64_t)n_input;
    *text = NULL;
    *trusted = NULL;
    *n_text = 0;
    set_variables(&r, vars, n_var);
    r.frame = &top;
    if (r.code == ERR_OK)
        render_body(&r);
    if (r.code == ERR_OK)
        r.code = copy_out(&out, text, trusted, e);
    if (r.code == ERR_OK)
        *n_text = out.n;
    arena_close(&r.arena);
    return r.code;
}
