#include "server/answer_grammar.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json_text.h"
#include "base/mem.h"

/* Which field a client's mistake is in, for messages. */
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
    for (size_t i = 0; i < moebius_grammar_n_unenforced(g->grammar); i++) {
        const char *pointer, *keyword = moebius_grammar_unenforced(g->grammar, i, &pointer);
        server_request_note(r, "%s: %s at %s is not enforced", field, keyword, *pointer ? pointer : "its top");
    }
}

static err_code compile(struct answer_grammar *g, const struct model *m, moebius_grammar_kind kind, const char *text,
                        size_t n, unsigned flags, const char *field, struct server_request *r, struct err *e)
{
    moebius_error error;
    if (moebius_grammar_open(&g->grammar, m->vocab, kind, text, n, flags, &error) == MOEBIUS_OK) {
        note_unenforced(g, field, r);
        return ERR_OK;
    }
    return err_set(e, error.status == MOEBIUS_NOMEM ? ERR_NOMEM : ERR_USAGE, "%s: %s", field, error.text);
}

/* The form that the client asks for, which reasoning has none of. */
static err_code open_format(struct answer_grammar *g, const struct model *m, struct server_request *r, struct err *e)
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

static bool must_call(const struct server_request *r)
{
    return r->tool_choice == TOOL_CHOICE_REQUIRED || r->tool_choice == TOOL_CHOICE_NAMED;
}

/* Calls of tools: those that there must be, or those that there may be, once one begins. Tools whose schemas can't be
 * enforced are called with any arguments. *text is owned by the caller (moebius_free). */
static err_code write_calls(struct answer_grammar *g, const struct model *m, const struct prompt *prompt,
                            const struct server_request *r, char **text, struct err *e)
{
    moebius_error error;
    const moebius_call_grammar_input input = {.tools = prompt->tools,
                                              .name = r->tool_choice == TOOL_CHOICE_NAMED ? r->tool_name : NULL,
                                              .is_required = must_call(r),
                                              .is_single = r->one_call,
                                              .prompt = prompt->text.s};
    g->from = must_call(r) ? TEXT_GRAMMAR_FROM_START : TEXT_GRAMMAR_FROM_TRIGGER;
    return moebius_template_call_grammar(m->tmpl, &input, text, &g->trigger, &error) == MOEBIUS_OK
               ? ERR_OK
               : err_set(e, error.status == MOEBIUS_NOMEM ? ERR_NOMEM : ERR_USAGE, "tools: %s", error.text);
}

/* JSON in the client's form, or calls, whose grammar's first rule is the root. */
static err_code write_form_or_calls(struct bytes *both, const char *calls, const struct server_request *r,
                                    struct err *e)
{
    static const char root[] = "root";
    assert(!strncmp(calls, root, sizeof root - 1));
    char *schema = r->format == FORMAT_JSON_SCHEMA ? json_write(r->schema, JSON_COMPACT, NULL)
                                                   : mem_strdup("{\"type\":\"object\"}");
    if (!schema)
        return err_nomem(e, 0, "a schema");
    err_code code = bytes_print(both, e, "root ::= calls | %%json%s\ncalls", schema);
    if (code == ERR_OK)
        code = bytes_add_text(both, calls + sizeof root - 1, e);
    mem_free(schema);
    return code;
}

/* A schema that must be enforced is tried alone first, where it is no tool's keyword that can't be. */
static err_code check_form(const struct model *m, struct server_request *r, struct err *e)
{
    struct answer_grammar alone = {0};
    err_code code = r->is_strict ? open_format(&alone, m, r, e) : ERR_OK;
    answer_grammar_close(&alone);
    return code;
}

static err_code open_form_or_calls(struct answer_grammar *g, const struct model *m, const char *calls,
                                   struct server_request *r, struct err *e)
{
    struct bytes both = {0};
    g->from = TEXT_GRAMMAR_FROM_CONTENT;
    err_code code = check_form(m, r, e);
    if (code == ERR_OK)
        code = write_form_or_calls(&both, calls, r, e);
    if (code == ERR_OK)
        code = compile(g, m, MOEBIUS_GRAMMAR_GBNF, both.s, both.n, MOEBIUS_GRAMMAR_LENIENT, "tools and response_format",
                       r, e);
    bytes_close(&both);
    return code;
}

static err_code open_calls(struct answer_grammar *g, const struct model *m, const struct prompt *prompt,
                           struct server_request *r, struct err *e)
{
    char *calls;
    bool is_json = r->format == FORMAT_JSON_OBJECT || r->format == FORMAT_JSON_SCHEMA;
    if (r->format != FORMAT_TEXT && !is_json)
        server_request_note(r, "%s: not enforced beside tools", field_of(r));
    TRY(write_calls(g, m, prompt, r, &calls, e));
    err_code code = is_json && !must_call(r) ? open_form_or_calls(g, m, calls, r, e)
                                             : compile(g, m, MOEBIUS_GRAMMAR_GBNF, calls, strlen(calls),
                                                       MOEBIUS_GRAMMAR_LENIENT, "tools", r, e);
    moebius_free(calls);
    return code;
}

err_code answer_grammar_open(struct answer_grammar *g, const struct model *m, const struct prompt *prompt,
                             struct server_request *r, struct err *e)
{
    *g = (struct answer_grammar){0};
    if (prompt->tools)
        return open_calls(g, m, prompt, r, e);
    return r->format != FORMAT_TEXT ? open_format(g, m, r, e) : ERR_OK;
}

void answer_grammar_close(struct answer_grammar *g)
{
    moebius_grammar_close(&g->grammar);
    *g = (struct answer_grammar){0};
}
