/* The public face of template/: a model's chat template with what it needs from the model, and the prompts it makes. */
#include <assert.h>
#include <string.h>

#include "engine/engine_vocab.h"
#include "engine/sized.h"
#include "engine/status.h"

enum { MAX_VARS = 64 };

struct moebius_prompt {
    char *text;          /* owned, with */
    const char *trusted; /* [n] 1 where a byte may be part of a special token */
    size_t n;
};

#define TEMPLATE_KEY "tokenizer.chat_template"

static err_code copy_template(struct moebius_vocab *v, const struct gguf_kv *kv, struct err *e)
{
    const size_t n_key = sizeof TEMPLATE_KEY - 1;
    struct gguf_string key = kv->key;
    bool is_one = key.n >= n_key && !memcmp(key.s, TEMPLATE_KEY, n_key) && (key.n == n_key || key.s[n_key] == '.');
    if (!is_one || kv->value.type != GGUF_STRING || memchr(kv->value.str.s, '\0', kv->value.str.n))
        return ERR_OK;
    struct vocab_template *t = arena_calloc(&v->arena, 1, sizeof *t);
    size_t n_name = key.n > n_key ? key.n - n_key - 1 : 0;
    char *name = arena_strndup(&v->arena, n_name ? key.s + n_key + 1 : "", n_name);
    char *source = arena_strndup(&v->arena, kv->value.str.s, kv->value.str.n);
    if (!t || !name || !source)
        return err_nomem(e, kv->value.str.n, "a chat template");
    *t = (struct vocab_template){name, source, v->templates};
    v->templates = t;
    return ERR_OK;
}

err_code vocab_fill(struct moebius_vocab *v, const struct gguf *g, struct err *e)
{
    TRY(tokenizer_open(&v->tokenizer, g, e));
    TRY(vocab_bytes_open(&v->bytes, e));
    for (uint64_t i = 0; i < gguf_n_kv(g); i++)
        TRY(copy_template(v, gguf_kv_at(g, i), e));
    return ERR_OK;
}

void vocab_empty(struct moebius_vocab *v)
{
    tokenizer_close(&v->tokenizer);
    vocab_bytes_close(&v->bytes);
    arena_close(&v->arena);
}

const char *moebius_vocab_template(const moebius_vocab *vocab, const char *name)
{
    for (const struct vocab_template *t = vocab->templates; t; t = t->next)
        if (!strcmp(t->name, name ? name : ""))
            return t->source;
    return NULL;
}

/* ---- rendering ----------------------------------------------------------------------------------------------- */

/* A special token's text as a variable; without one the variable stays undefined. */
static err_code add_token(moebius_template *t, const char *name, int32_t id, struct err *e)
{
    size_t n = 0;
    const char *piece = id < 0 ? NULL : tokenizer_piece(t->vocab->tokenizer, id, true, &n);
    if (n == 0)
        return ERR_OK;
    char *text = arena_strndup(&t->arena, piece, n);
    if (!text)
        return err_nomem(e, n, "a chat template");
    t->tokens[t->n_token++] = (struct template_var){.name = name, .text = text};
    return ERR_OK;
}

/* Which special token the template writes behind an answer: it ends the ones that are generated, too. */
static void find_end(moebius_template *t)
{
    static const char answer[] = "The answer of a probe.";
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"A probe.\"},"
                                   "{\"role\":\"assistant\",\"content\":\"The answer of a probe.\"}]";
    const moebius_template_input input = {.messages = messages, .no_generation_prompt = true};
    moebius_prompt *prompt;
    size_t n;
    struct token_list ids = {0};
    if (moebius_template_render(t, &input, &prompt, NULL) != MOEBIUS_OK)
        return; /* one that wants other messages: the model's own tokens end its answers */
    assert(prompt);
    size_t at = prompt->n;
    for (const char *found = prompt->text; (found = strstr(found, answer)); found++)
        at = (size_t)(found - prompt->text) + sizeof answer - 1;
    at += strspn(prompt->text + at, " \n");
    struct tokenizer *tokenizer = t->vocab->tokenizer;
    err_code code =
        tokenizer_encode_prompt(tokenizer, prompt->text + at, prompt->trusted + at, prompt->n - at, &ids, NULL);
    if (code == ERR_OK && ids.n > 0 && tokenizer_is_special(tokenizer, ids.ids[0])) {
        tokenizer_piece(tokenizer, ids.ids[0], true, &n);
        t->end = n ? ids.ids[0] : TOKEN_NONE;
    }
    token_list_close(&ids);
    moebius_prompt_close(&prompt);
}

/* t->vocab is set. */
static err_code open_template(moebius_template *t, const char *source, size_t n, struct err *e)
{
    TRY(template_parse(&t->template, source, n, e));
    t->source = arena_strndup(&t->arena, source, n);
    if (!t->source)
        return err_nomem(e, n, "a chat template");
    t->style = reply_style_of(t->source);
    if (!t->vocab)
        return ERR_OK;
    const struct tokenizer *tokenizer = t->vocab->tokenizer;
    TRY(add_token(t, "bos_token", tokenizer_bos(tokenizer), e));
    TRY(add_token(t, "eos_token", tokenizer_eos(tokenizer), e));
    TRY(add_token(t, "unk_token", tokenizer_unknown(tokenizer), e));
    TRY(add_token(t, "pad_token", tokenizer_padding(tokenizer), e));
    find_end(t);
    return ERR_OK;
}

moebius_status moebius_template_open(moebius_template **out, const char *source, size_t n, const moebius_vocab *vocab,
                                     moebius_error *error)
{
    struct err e = {0};
    *out = NULL;
    moebius_template *t = mem_calloc(1, sizeof *t);
    if (!t)
        return engine_status(err_nomem(&e, sizeof *t, "a chat template"), &e, error);
    t->vocab = vocab;
    t->end = TOKEN_NONE;
    err_code code = open_template(t, source, n, &e);
    if (code != ERR_OK)
        moebius_template_close(&t);
    *out = t;
    return engine_status(code, &e, error);
}

void moebius_template_close(moebius_template **tmpl)
{
    if (!*tmpl)
        return;
    template_close(&(*tmpl)->template);
    arena_close(&(*tmpl)->arena);
    mem_free(*tmpl);
    *tmpl = NULL;
}

const char *moebius_template_source(const moebius_template *tmpl)
{
    return tmpl->source;
}

/* Adds the variables that a template sees to vars [*n]. */
static err_code list_vars(const moebius_template *t, const moebius_template_input *input,
                          struct template_var vars[MAX_VARS], int *n, struct err *e)
{
    if (!input->messages)
        return err_set(e, ERR_USAGE, "a template's input without messages: expected a JSON array");
    for (int i = 0; i < t->n_token; i++)
        vars[(*n)++] = t->tokens[i];
    vars[(*n)++] = (struct template_var){.name = "messages", .json = input->messages};
    vars[(*n)++] = (struct template_var){.name = "tools", .json = input->tools ? input->tools : "null"};
    vars[(*n)++] = (struct template_var){.name = "documents", .json = "null"};
    vars[(*n)++] =
        (struct template_var){.name = "add_generation_prompt", .json = input->no_generation_prompt ? "false" : "true"};
    if (input->n_vars > (size_t)(MAX_VARS - *n))
        return err_set(e, ERR_LIMIT, "%zu variables for a template: expected at most %d", input->n_vars, MAX_VARS - *n);
    for (size_t i = 0; i < input->n_vars; i++) {
        if (!input->vars[i].name || !input->vars[i].json)
            return err_set(e, ERR_USAGE, "variable %zu of a template: expected a name and JSON", i);
        vars[(*n)++] = (struct template_var){.name = input->vars[i].name, .json = input->vars[i].json};
    }
    return ERR_OK;
}

static err_code render(const moebius_template *t, const moebius_template_input *input, moebius_prompt **out,
                       struct err *e)
{
    struct template_var vars[MAX_VARS];
    int n = 0;
    TRY(list_vars(t, input, vars, &n, e));
    moebius_prompt *p = *out = mem_calloc(1, sizeof *p);
    if (!p)
        return err_nomem(e, sizeof *p, "a prompt");
    return template_render(t->template, vars, n, &p->text, &p->trusted, &p->n, e);
}

moebius_status moebius_template_render_sized(const moebius_template *tmpl, const moebius_template_input *input,
                                             size_t input_bytes, moebius_prompt **prompt, moebius_error *error)
{
    struct err e = {0};
    moebius_template_input known = {0};
    *prompt = NULL;
    err_code code = sized_take(&known, sizeof known, input, input_bytes, "a template's input", &e);
    if (code == ERR_OK)
        code = render(tmpl, &known, prompt, &e);
    if (code != ERR_OK)
        moebius_prompt_close(prompt);
    return engine_status(code, &e, error);
}

void moebius_prompt_close(moebius_prompt **prompt)
{
    if (!*prompt)
        return;
    mem_free((*prompt)->text);
    mem_free(*prompt);
    *prompt = NULL;
}

const char *moebius_prompt_text(const moebius_prompt *prompt, size_t *n)
{
    if (n)
        *n = prompt->n;
    return prompt->text;
}

moebius_status moebius_prompt_tokenize(const moebius_prompt *prompt, const moebius_vocab *vocab, int32_t **ids,
                                       size_t *n_ids, moebius_error *error)
{
    struct err e = {0};
    struct token_list list = {0};
    err_code code = tokenizer_encode_prompt(vocab->tokenizer, prompt->text, prompt->trusted, prompt->n, &list, &e);
    if (code != ERR_OK)
        token_list_close(&list);
    *ids = list.ids;
    *n_ids = list.n;
    return engine_status(code, &e, error);
}
