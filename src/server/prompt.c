#include "server/prompt.h"

#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "server/infill.h"
#include "server/request_fields.h"
#include "texts/answer.h"

enum { MAX_VARS = 64 };

/* The input of a template. */
struct input {
    moebius_template_var vars[MAX_VARS]; /* [n_vars] */
    char *values[MAX_VARS];              /* [n_values] JSON of the request's own variables; owned */
    size_t n_vars, n_values;
    char *messages; /* owned */
    json_t *own;    /* the request's variables, in the template's words; owned */
};

/* Errors of the library are the client's fault, except for lack of memory and failures of files. */
static err_code from_public(struct err *e, const moebius_error *error)
{
    bool is_ours = error->status == MOEBIUS_NOMEM || error->status == MOEBIUS_IO;
    return err_set(e, is_ours ? (err_code)error->status : ERR_USAGE, "%s", error->text);
}

/* ---- templates ------------------------------------------------------------------------------------------------- */

static void input_close(struct input *in)
{
    for (size_t i = 0; i < in->n_values; i++)
        mem_free(in->values[i]);
    mem_free(in->messages);
    json_decref(in->own);
}

static bool has_var(const moebius_template_var *vars, size_t n, const char *name)
{
    bool has = false;
    for (size_t i = 0; i < n; i++)
        has |= !strcmp(vars[i].name, name);
    return has;
}

/* The request's variables come before those that are the same for all. */
static err_code add_vars(struct input *in, const struct served_model *m, const struct server_request *r,
                         const moebius_template_var *defaults, size_t n_defaults, struct err *e)
{
    static const char effort[] = "reasoning_effort";
    const char *name, *word = m->needs.efforts[r->effort];
    json_t *value;
    in->own = json_copy(r->template_vars);
    bool sets = word && !(r->effort == EFFORT_ANY && has_var(defaults, n_defaults, effort));
    if (!in->own || (sets && json_object_set_new(in->own, effort, json_string(word)) != 0))
        return err_nomem(e, 0, "the template's variables");
    json_object_foreach(in->own, name, value)
    {
        if (in->n_vars == MAX_VARS)
            return err_set(e, ERR_USAGE, "the template's variables: expected at most %d", MAX_VARS);
        char *text = json_write(value, JSON_ENCODE_ANY | JSON_COMPACT, NULL);
        if (!text)
            return err_nomem(e, 0, "the template's variables");
        in->values[in->n_values++] = text;
        in->vars[in->n_vars++] = (moebius_template_var){name, text};
    }
    for (size_t i = 0; i < n_defaults && in->n_vars < MAX_VARS; i++)
        if (!json_object_get(in->own, defaults[i].name))
            in->vars[in->n_vars++] = defaults[i];
    return ERR_OK;
}

/* Adds the messages in the form that the template can take, without the last one if the answer continues it. */
static err_code add_messages(struct input *in, const struct served_model *m, const struct server_request *r,
                             struct err *e)
{
    json_t *all = template_needs_apply(&m->needs, r), *messages = all ? json_copy(all) : NULL;
    if (messages && r->continues_message)
        (void)json_array_remove(messages, json_array_size(messages) - 1);
    in->messages = messages ? json_write(messages, JSON_COMPACT, NULL) : NULL;
    json_decref(messages);
    json_decref(all);
    return in->messages ? ERR_OK : err_nomem(e, 0, "the messages");
}

/* Writes the tools that can be called (p->tools), and those that the template shows (*shown). Deferred tools are
 * defined in messages instead. */
static err_code write_tools(struct prompt *p, const struct server_request *r, char **shown, struct err *e)
{
    const char *name;
    json_t *tool, *all = json_array_size(r->tools) ? json_copy(r->tools) : json_array();
    bool good = all != NULL;
    if (good && json_array_size(all))
        good = (*shown = json_write(all, JSON_COMPACT, NULL)) != NULL;
    json_object_foreach(r->loaded, name, tool)
    {
        good = good && json_array_append(all, tool) == 0;
    }
    if (good && json_array_size(all))
        good = (p->tools = json_write(all, JSON_COMPACT, NULL)) != NULL;
    json_decref(all);
    if (good)
        return ERR_OK;
    mem_free(*shown);
    return err_nomem(e, 0, "the tools");
}

static err_code render(struct prompt *p, const struct served_model *m, const struct server_request *r, struct input *in,
                       struct err *e)
{
    moebius_error error;
    TRY(add_messages(in, m, r, e));
    char *shown = NULL;
    if (r->tool_choice != TOOL_CHOICE_NONE)
        TRY(write_tools(p, r, &shown, e));
    const moebius_template_input input = {
        .messages = in->messages, .tools = shown, .vars = in->vars, .n_vars = in->n_vars};
    moebius_status status = moebius_template_render(m->tmpl, &input, &p->rendered, &error);
    mem_free(shown);
    if (status == MOEBIUS_OK)
        return ERR_OK;
    from_public(e, &error);
    return err_prefix(e, "messages: the model's chat template");
}

/* *mark: the text that ends the reasoning that the prompt has begun; "": it has begun none. Borrowed from the template.
 */
static err_code open_mark(const struct prompt *p, const struct served_model *m, const char **mark, struct err *e)
{
    moebius_error error;
    moebius_reply *reply;
    const char *end = answer_prompt_end(bytes_text(&p->text), p->text.n);
    *mark = "";
    if (moebius_reply_open(&reply, m->tmpl, end, NULL, NULL, &error) != MOEBIUS_OK)
        return from_public(e, &error);
    if (!moebius_reply_is_reasoning(reply, mark))
        *mark = "";
    moebius_reply_close(&reply);
    return ERR_OK;
}

/* Adds the reasoning of a message that is continued, and the mark that ends it, on lines of their own if the mark that
 * begins reasoning was. */
static err_code add_reasoning(struct prompt *p, const char *reasoning, const char *mark, struct err *e)
{
    size_t n = strlen(reasoning);
    bool has_lines = p->begun && p->text.s[p->begun - 1] == '\n';
    while (n && strchr(" \t\r\n", reasoning[n - 1]))
        n--;
    TRY(bytes_add(&p->text, reasoning, n, e));
    TRY(bytes_add_text(&p->text, has_lines ? "\n" : "", e));
    p->mark = p->text.n;
    p->n_mark = strlen(mark);
    TRY(bytes_add(&p->text, mark, p->n_mark, e));
    return bytes_add_text(&p->text, has_lines ? "\n\n" : "", e);
}

/* Adds the last message, if the answer continues it. */
static err_code add_begun(struct prompt *p, const struct served_model *m, const struct server_request *r, struct err *e)
{
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    const char *content = json_string_value(json_object_get(last, "content")), *mark;
    const char *reasoning = json_string_value(json_object_get(last, "reasoning_content"));
    p->begun = p->mark = p->text.n;
    content = content ? content : "";
    reasoning = reasoning ? reasoning : "";
    if (!r->continues_message || (!*content && !*reasoning))
        return ERR_OK;
    TRY(open_mark(p, m, &mark, e));
    if (*mark)
        TRY(add_reasoning(p, reasoning, mark, e));
    return bytes_add_text(&p->text, content, e);
}

err_code prompt_render(struct prompt *p, const struct served_model *m, const struct server_request *r,
                       const moebius_template_var *defaults, size_t n_defaults, struct err *e)
{
    struct input in = {0};
    if (!m->tmpl)
        return err_set(e, ERR_UNSUPPORTED, "messages: %s", m->template_error.text);
    err_code code = add_vars(&in, m, r, defaults, n_defaults, e);
    if (code == ERR_OK)
        code = render(p, m, r, &in, e);
    input_close(&in);
    TRY(code);
    size_t n;
    const char *text = moebius_prompt_text(p->rendered, &n);
    TRY(bytes_add(&p->text, text, n, e));
    return add_begun(p, m, r, e);
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

err_code prompt_add_ids(struct prompt *p, const int32_t *ids, size_t n, struct err *e)
{
    if (n == 0)
        return ERR_OK;
    int32_t *more = mem_resize(p->ids, p->n + n, sizeof *more);
    if (!more)
        return err_nomem(e, (p->n + n) * sizeof *more, "a prompt");
    memcpy(more + p->n, ids, n * sizeof *ids);
    p->ids = more;
    p->n += n;
    return ERR_OK;
}

err_code prompt_tokenize(const struct served_model *m, const char *text, size_t n, bool parse_special, int32_t **ids,
                         size_t *n_ids, struct err *e)
{
    moebius_error error;
    return moebius_tokenize(m->vocab, text, n, false, parse_special, ids, n_ids, &error) == MOEBIUS_OK
               ? ERR_OK
               : from_public(e, &error);
}

static err_code add_text(struct prompt *p, const struct served_model *m, const char *text, size_t n, bool is_mark,
                         struct err *e)
{
    int32_t *ids;
    size_t n_ids;
    if (n == 0)
        return ERR_OK;
    TRY(prompt_tokenize(m, text, n, is_mark, &ids, &n_ids, e));
    err_code code = prompt_add_ids(p, ids, n_ids, e);
    moebius_free(ids);
    return code;
}

/* Adds a text that is the whole prompt. The client has applied the template itself, so special tokens are recognised,
 * and the text may begin with the one that begins texts. */
static err_code add_raw(struct prompt *p, const struct served_model *m, const json_t *text, struct err *e)
{
    moebius_error error;
    int32_t *ids, bos = moebius_token_bos(m->vocab);
    size_t n_ids;
    if (moebius_tokenize(m->vocab, json_string_value(text), json_string_length(text), true, true, &ids, &n_ids,
                         &error) != MOEBIUS_OK)
        return from_public(e, &error);
    size_t n_twice = n_ids > 1 && ids[0] == bos && ids[1] == bos;
    err_code code = prompt_add_ids(p, ids + n_twice, n_ids - n_twice, e);
    moebius_free(ids);
    return code;
}

/* Adds the tokens of the message that is continued. Only the mark in it may be a special token. */
static err_code add_begun_ids(struct prompt *p, const struct served_model *m, struct err *e)
{
    const char *text = bytes_text(&p->text);
    size_t behind = p->mark + p->n_mark;
    TRY(add_text(p, m, text + p->begun, p->mark - p->begun, false, e));
    TRY(add_text(p, m, text + p->mark, p->n_mark, true, e));
    return add_text(p, m, text + behind, p->text.n - behind, false, e);
}

static err_code add_rendered(struct prompt *p, const struct served_model *m, struct err *e)
{
    moebius_error error;
    int32_t *ids;
    size_t n;
    if (moebius_prompt_tokenize(p->rendered, m->vocab, &ids, &n, &error) != MOEBIUS_OK)
        return from_public(e, &error);
    err_code code = prompt_add_ids(p, ids, n, e);
    moebius_free(ids);
    return code;
}

err_code prompt_take_ids(struct prompt *p, const struct served_model *m, const char *field, const json_t *ids,
                         struct err *e)
{
    size_t n = json_array_size(ids);
    p->ids = mem_calloc(n + 1, sizeof *p->ids);
    if (!p->ids)
        return err_nomem(e, n * sizeof *p->ids, "a prompt");
    for (; p->n < n; p->n++) {
        const json_t *token = json_array_get(ids, p->n);
        json_int_t id = json_integer_value(token);
        if (!json_is_integer(token))
            return err_set(e, ERR_USAGE, "%s: token %zu is no whole number", field, p->n);
        if (id < 0 || id >= moebius_vocab_size(m->vocab))
            return err_set(e, ERR_USAGE, "%s: token %zu is %lld: expected 0 to %d", field, p->n, (long long)id,
                           (int)moebius_vocab_size(m->vocab) - 1);
        p->ids[p->n] = (int32_t)id;
    }
    return ERR_OK;
}

/* Replaces the template's tokens by those that were sampled. Messages that the template gets as several are left out,
 * because they are no longer the one turn that was sampled. */
static err_code replay(struct prompt *p, const struct served_model *m, const json_t *messages, struct err *e)
{
    json_t *message, *whole = json_array();
    size_t i;
    bool good = whole != NULL;
    json_array_foreach(messages, i, message)
    {
        good = good && (template_needs_splits(&m->needs, message) || json_array_append(whole, message) == 0);
    }
    err_code code = good ? replay_apply(m->replay, whole, &p->ids, &p->n, e) : err_nomem(e, 0, "a prompt");
    json_decref(whole);
    return code;
}

/* What an answer that echoes its prompt begins with: the text as it was sent, or that of the tokens. */
static err_code add_echo(struct prompt *p, const struct served_model *m, const json_t *prompt, struct err *e)
{
    moebius_error error;
    char *text;
    size_t n;
    if (json_is_string(prompt))
        return bytes_add(&p->text, json_string_value(prompt), json_string_length(prompt), e);
    if (moebius_detokenize(m->vocab, p->ids, p->n, true, &text, &n, &error) != MOEBIUS_OK)
        return from_public(e, &error);
    err_code code = bytes_add(&p->text, text, n, e);
    moebius_free(text);
    return code;
}

err_code prompt_make(struct prompt *p, const struct served_model *m, const struct server_request *r, size_t i,
                     const moebius_template_var *defaults, size_t n_defaults, struct err *e)
{
    const json_t *prompt = json_array_get(r->prompts, i);
    struct field_path path = request_prompt_path(r, i);
    if (r->messages) {
        TRY(prompt_render(p, m, r, defaults, n_defaults, e));
        TRY(add_rendered(p, m, e));
        TRY(add_begun_ids(p, m, e));
        TRY(replay(p, m, r->messages, e));
    } else if (r->suffix) {
        TRY(infill_make(p, m, r, prompt, e));
    } else if (json_is_array(prompt)) {
        TRY(prompt_take_ids(p, m, path.s, prompt, e));
    } else {
        TRY(add_raw(p, m, prompt, e));
    }
    if (!p->n)
        return err_set(e, ERR_USAGE, "%s: empty, and this model has no token that begins a text", path.s);
    return r->echo ? add_echo(p, m, prompt, e) : ERR_OK;
}

void prompt_close(struct prompt *p)
{
    mem_free(p->ids);
    mem_free(p->tools);
    moebius_prompt_close(&p->rendered);
    bytes_close(&p->text);
    *p = (struct prompt){0};
}
