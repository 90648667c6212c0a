#include "server/answer_grammar.h"

#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "texts/answer.h"

/* The field that messages name as wrong. */
static const char *field_of(const struct server_request *r)
{
    switch (r->format) {
    case FORMAT_GBNF: return "grammar";
    case FORMAT_REGEX: return "regex";
    default: return "response_format";
    }
}

/* One sentence for each keyword that is not enforced. */
static void note_unenforced(const struct answer_grammar *g, const char *field, struct server_request *r)
{
    for (size_t i = 0; i < moebius_grammar_n_unenforced(g->kept->grammar); i++) {
        const char *pointer, *keyword = moebius_grammar_unenforced(g->kept->grammar, i, &pointer);
        server_request_note(r, "%s: %s at %s is not enforced", field, keyword, *pointer ? pointer : "its top");
    }
}

static err_code compile(struct answer_grammar *g, const struct served_model *m, moebius_grammar_kind kind,
                        const char *text, size_t n, unsigned flags, const char *field, struct server_request *r,
                        struct err *e)
{
    moebius_error error;
    g->cache = m->grammars;
    if (grammar_cache_take(g->cache, kind, text, n, flags, &g->kept, &error) == MOEBIUS_OK) {
        note_unenforced(g, field, r);
        return ERR_OK;
    }
    return err_set(e, error.status == MOEBIUS_NOMEM ? ERR_NOMEM : ERR_USAGE, "%s: %s", field, error.text);
}

/* Opens the grammar of the form that the client asks for. Reasoning before the content is free. */
static err_code open_format(struct answer_grammar *g, const struct served_model *m, struct server_request *r,
                            struct err *e)
{
    size_t n = 0;
    char *schema = NULL;
    unsigned flags = r->is_strict ? 0 : MOEBIUS_GRAMMAR_LENIENT;
    g->from = r->messages ? TEXT_GRAMMAR_FROM_CONTENT : TEXT_GRAMMAR_FROM_START;
    if (r->format == FORMAT_GBNF || r->format == FORMAT_REGEX) {
        bool is_gbnf = r->format == FORMAT_GBNF;
        return compile(g, m, is_gbnf ? MOEBIUS_GRAMMAR_GBNF : MOEBIUS_GRAMMAR_REGEX, r->grammar, strlen(r->grammar),
                       flags, field_of(r), r, e);
    }
    if (r->format == FORMAT_JSON_SCHEMA && !(schema = json_write(r->schema, JSON_COMPACT, &n)))
        return err_nomem(e, 0, "a schema");
    err_code code = compile(g, m, MOEBIUS_GRAMMAR_SCHEMA, schema ? schema : "", n, flags, field_of(r), r, e);
    mem_free(schema);
    return code;
}

/* The schema for an answer that calls no tool. It is compiled by itself once, only to find out which parts can't be
 * enforced. *schema: its text, owned by the caller; NULL: there is no schema, or a call is required. */
static err_code take_schema(const struct served_model *m, struct server_request *r, bool is_required, char **schema,
                            struct err *e)
{
    struct answer_grammar alone = {0};
    *schema = NULL;
    if (is_required || r->format == FORMAT_TEXT)
        return ERR_OK;
    TRY(open_format(&alone, m, r, e));
    answer_grammar_close(&alone);
    *schema = r->format == FORMAT_JSON_SCHEMA ? json_write(r->schema, JSON_COMPACT, NULL)
                                              : mem_strdup("{\"type\":\"object\"}");
    return *schema ? ERR_OK : err_nomem(e, 0, "a schema");
}

/* Opens the grammar of tool calls. It covers the whole answer if a call is required, or if content must follow a
 * schema; otherwise it applies only once a call begins. What can't be enforced of a tool's schema is left out. */
static err_code open_calls(struct answer_grammar *g, const struct served_model *m, const struct prompt *prompt,
                           struct server_request *r, bool is_required, struct err *e)
{
    moebius_error error;
    char *text, *schema;
    TRY(take_schema(m, r, is_required, &schema, e));
    const moebius_call_grammar_input input = {.tools = prompt->tools,
                                              .name = r->tool_choice == TOOL_CHOICE_NAMED ? r->tool_name : NULL,
                                              .is_required = is_required,
                                              .is_single = r->one_call,
                                              .prompt = answer_prompt_end(prompt->text.s, prompt->text.n),
                                              .schema = schema};
    moebius_status status = moebius_template_call_grammar(m->tmpl, &input, &text, &g->trigger, &error);
    g->from = is_required || schema ? TEXT_GRAMMAR_FROM_START : TEXT_GRAMMAR_FROM_TRIGGER;
    mem_free(schema);
    if (status != MOEBIUS_OK)
        return err_set(e, status == MOEBIUS_NOMEM ? ERR_NOMEM : ERR_USAGE, "tools: %s", error.text);
    err_code code = compile(g, m, MOEBIUS_GRAMMAR_GBNF, text, strlen(text), MOEBIUS_GRAMMAR_LENIENT, "tools", r, e);
    moebius_free(text);
    return code;
}

err_code answer_grammar_open(struct answer_grammar *g, const struct served_model *m, const struct prompt *prompt,
                             struct server_request *r, struct err *e)
{
    bool is_required = r->tool_choice == TOOL_CHOICE_REQUIRED || r->tool_choice == TOOL_CHOICE_NAMED;
    bool is_own = r->format == FORMAT_GBNF || r->format == FORMAT_REGEX; /* which must describe calls itself */
    *g = (struct answer_grammar){0};
    if (prompt->tools && is_required && r->format != FORMAT_TEXT)
        server_request_note(r, "%s: not enforced where a call is required", field_of(r));
    if (prompt->tools && (is_required || !is_own))
        return open_calls(g, m, prompt, r, is_required, e);
    return r->format != FORMAT_TEXT ? open_format(g, m, r, e) : ERR_OK;
}

void answer_grammar_close(struct answer_grammar *g)
{
    if (g->kept)
        grammar_cache_give_back(g->cache, g->kept);
    *g = (struct answer_grammar){0};
}
