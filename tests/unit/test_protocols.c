/* The server's protocols, as text: each file of the folder named as argument is a case. Its sections, of which only
 * `protocol` and `request` must be there:
 *
 *     --- protocol    chat, completions, responses, messages, ollama_chat, ollama_generate, llama or
 *                     infill
 *     --- request     the body
 *     --- error       the sentence, and what it is called in the protocol's form; or
 *     --- parsed      what the request has become, without what has its default
 *     --- events      what happens to the answer, an object of JSON a line (read_event)
 *     --- stream      how the stream tells it, to the byte
 *     --- whole       the whole answer
 *
 * With MOEBIUS_UPDATE=1 the sections from `error` on, but `events`, are written anew: to be read before they are
 * committed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "server/kept_items.h"
#include "server/protocol.h"
#include "whole_files.h"

enum { MAX_PATH = 512, MAX_CHOICES = 8, MAX_TOKENS = 16 };

static const char *folder;

static const struct {
    const char *name;
    const struct protocol *protocol;
} protocols[] = {{"chat", &protocol_chat},
                 {"completions", &protocol_completions},
                 {"responses", &protocol_responses},
                 {"messages", &protocol_messages},
                 {"ollama_chat", &protocol_ollama_chat},
                 {"ollama_generate", &protocol_ollama_generate},
                 {"llama", &protocol_llama},
                 {"infill", &protocol_infill}};

/* ---- files ----------------------------------------------------------------------------------------------------- */

/* The lines of a section, without the heading and the last newline; NULL: there is none. Owned by the caller. */
static char *find_section(const char *text, const char *name)
{
    char heading[40];
    int n = snprintf(heading, sizeof heading, "--- %s\n", name);
    const char *begin = strstr(text, heading);
    if (!begin)
        return NULL;
    begin += n;
    const char *end = !strncmp(begin, "--- ", 4) ? begin : strstr(begin, "\n--- ");
    return end ? strndup(begin, (size_t)(end - begin)) : strndup(begin, strlen(begin) - 1);
}

static json_t *parse_json(const char *text)
{
    json_error_t error;
    json_t *j = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!j)
        fail_msg("%s in %.60s", error.text, text);
    return j;
}

/* ---- what a request has become --------------------------------------------------------------------------------- */

static void add(json_t *out, const char *name, json_t *value, bool is_default)
{
    if (is_default)
        json_decref(value);
    else
        assert_int_equal(json_object_set_new(out, name, value), 0);
}

static void add_json(json_t *out, const char *name, json_t *value)
{
    if (value)
        assert_int_equal(json_object_set(out, name, value), 0);
}

static json_t *dump_sampling(const moebius_sampler_options *o)
{
    const moebius_sampler_options d = moebius_default_sampler_options();
    json_t *out = json_object();
#define ADD(member, make) add(out, #member, make(o->member), o->member == d.member)
    ADD(temperature, json_real);
    ADD(repeat_penalty, json_real);
    ADD(presence_penalty, json_real);
    ADD(frequency_penalty, json_real);
    ADD(repeat_last_n, json_integer);
    ADD(dry_multiplier, json_real);
    ADD(dry_base, json_real);
    ADD(dry_allowed_length, json_integer);
    ADD(dry_last_n, json_integer);
    ADD(top_k, json_integer);
    ADD(typical_p, json_real);
    ADD(top_p, json_real);
    ADD(min_p, json_real);
    ADD(xtc_probability, json_real);
    ADD(xtc_threshold, json_real);
    ADD(mirostat, json_integer);
    ADD(mirostat_tau, json_real);
    ADD(mirostat_eta, json_real);
    add(out, "seed", json_integer((json_int_t)o->seed), o->seed == d.seed);
#undef ADD
    json_t *breakers = json_array(), *biases = json_array();
    for (int i = 0; o->dry_breakers != d.dry_breakers && i < o->n_dry_breakers; i++)
        json_array_append_new(breakers, json_string(o->dry_breakers[i]));
    for (int i = 0; i < o->n_logit_biases; i++) {
        double bias = (double)o->logit_biases[i].bias;
        json_array_append_new(biases, json_pack("[i,o]", (int)o->logit_biases[i].id,
                                                bias < -1e9 ? json_string("never") : json_real(bias)));
    }
    add(out, "dry_breakers", breakers, json_array_size(breakers) == 0);
    add(out, "logit_biases", biases, json_array_size(biases) == 0);
    return out;
}

static json_t *dump_request(const struct server_request *r)
{
    static const char *const choices[] = {"auto", "none", "required", "named"};
    static const char *const formats[] = {"text", "json_object", "json_schema", "gbnf", "regex"};
    json_t *out = json_object(), *sampling = dump_sampling(&r->sampling);
    add(out, "model", json_string(r->model ? r->model : ""), !r->model);
    add_json(out, "messages", r->messages);
    add_json(out, "prompts", r->prompts);
    add_json(out, "suffix", (json_t *)r->suffix);
    add_json(out, "extra", (json_t *)r->extra);
    add_json(out, "tools", r->tools);
    add_json(out, "loaded", r->loaded);
    add_json(out, "tool_kinds", r->tool_kinds);
    add(out, "tool_choice", json_string(choices[r->tool_choice]), r->tool_choice == TOOL_CHOICE_AUTO);
    add(out, "tool_name", json_string(r->tool_name ? r->tool_name : ""), !r->tool_name);
    add(out, "one_call", json_true(), !r->one_call);
    add(out, "format", json_string(formats[r->format]), r->format == FORMAT_TEXT);
    add_json(out, "schema", r->schema);
    add(out, "is_strict", json_true(), !r->is_strict);
    add(out, "grammar", json_string(r->grammar ? r->grammar : ""), !r->grammar);
    add(out, "stream", json_true(), !r->stream);
    add(out, "stream_usage", json_true(), !r->stream_usage);
    add(out, "return_progress", json_true(), !r->return_progress);
    add(out, "return_ids", json_true(), !r->return_ids);
    add(out, "echo", json_true(), !r->echo);
    add(out, "only_loads", json_true(), !r->only_loads);
    add(out, "n_choices", json_integer(r->n_choices), r->n_choices == 1);
    add(out, "n_given", json_integer(r->n_given), r->n_given == 0);
    add(out, "max_tokens", json_integer(r->max_tokens), r->max_tokens == -1);
    add(out, "max_answer_ms", json_integer(r->max_answer_ms), r->max_answer_ms == 0);
    add(out, "ignore_eos", json_true(), !r->ignore_eos);
    add_json(out, "stops", r->stops);
    add(out, "has_seed", json_true(), !r->has_seed);
    add(out, "sampling", sampling, json_object_size(sampling) == 0);
    add(out, "n_logprob", json_integer(r->n_logprob), r->n_logprob == -1);
    add(out, "template_vars", json_incref(r->template_vars), json_object_size(r->template_vars) == 0);
    add(out, "reasoning_budget", json_integer(r->reasoning_budget), r->reasoning_budget == -1);
    add(out, "hides_reasoning", json_true(), !r->hides_reasoning);
    add(out, "continues_message", json_true(), !r->continues_message);
    add(out, "notes", json_incref(r->notes), json_array_size(r->notes) == 0);
    return out;
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *line, const char *name)
{
    return json_string_value(json_object_get(line, name));
}

static int64_t int_of(const json_t *line, const char *name)
{
    return json_integer_value(json_object_get(line, name));
}

static struct answer_usage read_usage(const json_t *line)
{
    return (struct answer_usage){.n_prompt = int_of(line, "prompt"),
                                 .n_cached = int_of(line, "cached"),
                                 .n_answer = int_of(line, "answer"),
                                 .n_reasoning = int_of(line, "thought"),
                                 .n_substituted = int_of(line, "substituted"),
                                 .prompt_s = json_number_value(json_object_get(line, "prompt_s")),
                                 .answer_s = json_number_value(json_object_get(line, "answer_s"))};
}

struct event_store {
    struct answer_logprob tokens[MAX_TOKENS];
    struct err error;
};

/* {"e": KIND, "choice", "text", "id", "call", usage's members, "finish", "stop", "error": CODE, "done"};
 * tokens: "token": [[PIECE, ID, LOGPROB], ...], without LOGPROB where there is none; of a prompt, "n_tok" of them, each
 * with its likeliest. */
static struct answer_event read_event(const json_t *line, struct event_store *store)
{
    static const char *const kinds[] = {"begin",     "prompt",   "progress", "reasoning", "content", "call",
                                        "arguments", "call_end", "token",    "end",       "failed"};
    static const char *const finishes[] = {"stop", "stop_string", "length", "tool_calls"};
    struct answer_event event = {.choice = int_of(line, "choice"),
                                 .text = text_of(line, "text"),
                                 .id = text_of(line, "id"),
                                 .call = int_of(line, "call"),
                                 .n_done = int_of(line, "done"),
                                 .n_all = int_of(line, "prompt"),
                                 .n_cached = int_of(line, "cached"),
                                 .stop = text_of(line, "stop"),
                                 .usage = read_usage(line),
                                 .token = store->tokens,
                                 .error = &store->error};
    const json_t *tokens = json_object_get(line, "token");
    size_t kind = 0;
    while (kind < sizeof kinds / sizeof *kinds && strcmp(kinds[kind], text_of(line, "e")))
        kind++;
    assert_true(kind < sizeof kinds / sizeof *kinds);
    event.kind = (enum answer_event_kind)kind;
    event.n = event.text ? strlen(event.text) : 0;
    for (size_t i = 0; i < 4; i++)
        if (text_of(line, "finish") && !strcmp(finishes[i], text_of(line, "finish")))
            event.finish = (enum answer_finish)i;
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const json_t *one = json_array_get(tokens, i), *piece = json_array_get(one, 0), *x = json_array_get(one, 2);
        store->tokens[i] = (struct answer_logprob){json_string_value(piece), json_string_length(piece),
                                                   (int32_t)json_integer_value(json_array_get(one, 1)),
                                                   x ? json_number_value(x) : NAN};
    }
    event.n_tok = (size_t)int_of(line, "n_tok");
    event.n_top = (int)(json_array_size(tokens) / (event.n_tok ? event.n_tok : 1)) - 1;
    if (event.kind == ANSWER_FAILED)
        (void)err_set(&store->error, (err_code)int_of(line, "error"), "%s", event.text);
    return event;
}

static const struct answer_head head = {.id = "0123abcd", .model = "tiny", .created = 1790000000};

/* Tells the events as a stream, gathers them, and returns the whole answer; NULL: they failed. */
static json_t *run_events(const struct protocol *p, const struct server_request *r, const char *lines,
                          struct bytes *stream)
{
    struct gathered_choice choices[MAX_CHOICES] = {0};
    struct answer_writer *writer;
    struct err e = {0};
    json_t *all_lines = json_array();
    char *copy = strdup(lines), *rest = copy;
    bool failed = false;
    assert_true(r->n_choices <= MAX_CHOICES);
    assert_int_equal(p->open(&writer, r, &head, &e), ERR_OK);
    for (char *line; (line = strsep(&rest, "\n"));) {
        json_t *j = parse_json(line);
        json_array_append_new(all_lines, j); /* pieces are borrowed until the answer is whole */
        struct event_store store = {0};
        if (!strcmp(text_of(j, "e"), "ping")) {
            p->ping(writer, stream);
        } else {
            struct answer_event event = read_event(j, &store);
            assert_int_equal(p->event(writer, &event, stream, &e), ERR_OK);
            err_code code = gathered_choice_add(&choices[event.choice], &event, &e);
            assert_int_equal(code, store.error.code);
            failed |= code != ERR_OK;
        }
    }
    p->close(writer);
    json_t *whole = failed ? NULL : p->whole(r, &head, choices);
    assert_true(failed || whole);
    for (int i = 0; i < MAX_CHOICES; i++)
        gathered_choice_close(&choices[i]);
    free(copy);
    json_decref(all_lines);
    return whole;
}

/* ---- cases ----------------------------------------------------------------------------------------------------- */

struct outcome {
    char *sections[4]; /* error, parsed, stream, whole; owned, NULL: none */
};
static const char *const names[] = {"error", "parsed", "stream", "whole"};

static char *pretty(json_t *j)
{
    char *text = json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6) | JSON_ENCODE_ANY);
    json_decref(j);
    assert_non_null(text);
    return text;
}

static struct outcome run_case(const struct protocol *p, const char *request, const char *events)
{
    struct outcome out = {0};
    struct server_request r;
    struct bytes stream = {0};
    struct err e = {0};
    server_request_init(&r);
    err_code code = p->parse(&r, parse_json(request), &e);
    if (code != ERR_OK) {
        char *body = pretty(p->error(server_http_status(&e), &e));
        assert_true(asprintf(&out.sections[0], "%d %s\n%s", server_http_status(&e), e.text, body) > 0);
        free(body);
    } else {
        out.sections[1] = pretty(dump_request(&r));
        json_t *whole = events ? run_events(p, &r, events, &stream) : NULL;
        out.sections[2] = events ? strndup(stream.s ? stream.s : "", stream.n) : NULL;
        out.sections[3] = whole ? pretty(whole) : NULL;
    }
    bytes_close(&stream);
    server_request_close(&r);
    return out;
}

static void rewrite(const char *path, const char *text, const struct outcome *out)
{
    static const char *const given[] = {"protocol", "request", "events"};
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i < 3; i++) {
        char *section = find_section(text, given[i]);
        if (i == 2)
            for (int k = 0; k < 2; k++)
                if (out->sections[k])
                    fprintf(f, "--- %s\n%s\n", names[k], out->sections[k]);
        if (section)
            fprintf(f, "--- %s\n%s\n", given[i], section);
        free(section);
    }
    for (int k = 2; k < 4; k++)
        if (out->sections[k])
            fprintf(f, "--- %s\n%s\n", names[k], out->sections[k]);
    fclose(f);
}

static int check_case(const char *name)
{
    char path[MAX_PATH];
    int n_bad = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    size_t n;
    char *text = read_file(path, &n), *request = find_section(text, "request"), *events = find_section(text, "events");
    char *protocol = find_section(text, "protocol");
    size_t i = 0;
    while (i < sizeof protocols / sizeof *protocols && strcmp(protocols[i].name, protocol))
        i++;
    assert_true(i < sizeof protocols / sizeof *protocols);
    struct outcome out = run_case(protocols[i].protocol, request, events);
    if (getenv("MOEBIUS_UPDATE"))
        rewrite(path, text, &out);
    for (int k = 0; k < 4; k++) {
        char *expected = find_section(text, names[k]);
        bool same = !expected == !out.sections[k] && (!expected || !strcmp(expected, out.sections[k]));
        if (!same && !getenv("MOEBIUS_UPDATE")) {
            print_error("%s: %s:\n%s\nexpected:\n%s\n", name, names[k], out.sections[k] ? out.sections[k] : "(none)",
                        expected ? expected : "(none)");
            n_bad++;
        }
        free(expected);
        free(out.sections[k]);
    }
    free(text);
    free(request);
    free(events);
    free(protocol);
    return n_bad;
}

static int is_case(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void each_case_is_told_as_its_file_says(void **state)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, is_case, alphasort), n_bad = 0;
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        n_bad += check_case(entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    assert_int_equal(n_bad, 0);
}

/* ---- refusals -------------------------------------------------------------------------------------------------- */

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define TOOL "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}]"

static const struct refusal {
    const struct protocol *protocol;
    const char *body, *sentence;
} refusals[] = {
    {&protocol_chat, "[]", "the body is no JSON object"},
    {&protocol_chat, "{}", "messages: missing; expected a list of messages, one at least"},
    {&protocol_chat, "{\"messages\":\"x\"}", "messages: \"x\"; expected a list of messages, one at least"},
    {&protocol_chat, "{\"messages\":[]}", "messages: an empty list; expected a list of messages, one at least"},
    {&protocol_chat, "{\"messages\":[7]}",
     "messages[0].role: missing; expected system, developer, user, assistant or tool"},
    {&protocol_chat, "{\"messages\":[{\"role\":\"boss\"}]}",
     "messages[0].role: \"boss\"; expected system, developer, user, assistant or tool"},
    {&protocol_chat, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}",
     "messages[0].content: 5; expected a text, or a list of parts"},
    {&protocol_chat, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\",\"input_audio\":{}}]}]}",
     "messages[0].content[0]: of type input_audio; expected text, as this server reads nothing else"},
    {&protocol_chat, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]}",
     "messages[0].content[0]: an object; expected an object with a type, such as {\"type\": \"text\", \"text\": "
     "\"...\"}"},
    {&protocol_chat, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
     "messages[0].tool_calls[0].function.name: missing; expected a tool's name"},
    {&protocol_chat, "{" USER ",\"temperature\":\"hot\"}", "temperature: \"hot\"; expected a number from 0 to 100"},
    {&protocol_chat, "{" USER ",\"temperature\":-0.5}", "temperature: -0.5; expected a number from 0 to 100"},
    {&protocol_chat, "{" USER ",\"top_k\":1.5}", "top_k: 1.5; expected a whole number from -1 to 1000000000"},
    {&protocol_chat, "{" USER ",\"stream\":1}", "stream: 1; expected true or false"},
    {&protocol_chat, "{" USER ",\"n\":65}", "n: 65; expected a whole number from 1 to 64"},
    {&protocol_chat, "{" USER ",\"best_of\":3}", "best_of: 3; expected 1, as this server has no other way"},
    {&protocol_chat, "{" USER ",\"use_beam_search\":true}",
     "use_beam_search: true; expected false, as this server has no other way"},
    {&protocol_chat, "{" USER ",\"stop_token_ids\":[1]}", "stop_token_ids: not supported: use stop"},
    {&protocol_chat, "{" USER ",\"audio\":{\"voice\":\"x\"}}", "audio: not supported: this server writes text only"},
    {&protocol_chat, "{" USER ",\"modalities\":[\"text\",\"audio\"]}",
     "modalities: \"audio\"; expected text, as this server writes nothing else"},
    {&protocol_chat, "{" USER ",\"stop\":[\"a\\u0000b\"]}",
     "stop: \"a\"; expected a text, or several in a list, without zero bytes"},
    {&protocol_chat, "{" USER ",\"logit_bias\":{\"x\":1}}",
     "logit_bias: expected tokens' ids and numbers, such as {\"15043\": -100}"},
    {&protocol_chat, "{" USER ",\"logprobs\":false,\"top_logprobs\":2}",
     "top_logprobs: given with logprobs false; expected logprobs true"},
    {&protocol_chat, "{" USER ",\"top_logprobs\":21}", "top_logprobs: 21; expected a whole number from 0 to 20"},
    {&protocol_chat, "{" USER ",\"mirostat\":1}", "mirostat: 1; expected 0 (off) or 2 (its second version)"},
    {&protocol_chat, "{" USER ",\"grammar\":\"root ::= [a]\",\"response_format\":{\"type\":\"json_object\"}}",
     "response_format: a second form for the answer; expected one"},
    {&protocol_chat, "{" USER ",\"response_format\":{\"type\":\"json_schema\"}}",
     "response_format.schema: missing; expected a JSON schema, an object"},
    {&protocol_chat, "{" USER ",\"response_format\":{\"type\":\"xml\"}}",
     "response_format.type: \"xml\"; expected text, json_object or json_schema"},
    {&protocol_chat, "{" USER ",\"reasoning_effort\":\"huge\"}",
     "reasoning_effort: \"huge\"; expected none, minimal, low, medium, high, xhigh or max"},
    {&protocol_chat, "{" USER ",\"tool_choice\":\"required\"}",
     "tool_choice: a call is required, but there are no tools"},
    {&protocol_chat, "{" USER "," TOOL ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"b\"}}}",
     "tool_choice: there is no tool with the name \"b\""},
    {&protocol_chat, "{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]}",
     "tools[0].function.name: \"\"; expected a tool's name"},
    {&protocol_chat, "{" USER ",\"tools\":[{\"type\":\"function\"}]}",
     "tools[0].function: missing; expected an object"},
    {&protocol_chat, "{" USER ",\"continue_final_message\":true}",
     "continue_final_message: the last message is no text of the assistant's"},
    {&protocol_completions, "{}", "prompt: missing; expected a text, or a list of tokens' ids"},
    {&protocol_completions, "{\"prompt\":[]}", "prompt: an empty list; expected a text, or a list of tokens' ids"},
    {&protocol_completions, "{\"prompt\":[\"a\",[]]}",
     "prompt[1]: an empty list; expected a text, or a list of tokens' ids"},
    {&protocol_completions, "{\"prompt\":[[1],[2],3]}", "prompt[2]: 3; expected a text, or a list of tokens' ids"},
    {&protocol_completions, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"best_of\":3,\"stream\":true}",
     "best_of: 3; expected n or less, as a stream has all the answers that are made"},
    {&protocol_completions,
     "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"j\",\"k\",\"l\",\"m\",\"n\",\"o\","
     "\"p\",\"q\"],\"best_of\":64}",
     "best_of: 64 answers to each of 17 prompts; expected at most 1024 answers"},
    {&protocol_completions, "{\"prompt\":[1,-2]}", "prompt: a list; expected a text, or a list of tokens' ids"},
    {&protocol_completions, "{\"prompt\":\"x\",\"best_of\":\"two\"}",
     "best_of: \"two\"; expected a whole number from 0 to 64"},
    {&protocol_completions, "{\"prompt\":[\"x\",[1]],\"suffix\":\"y\"}",
     "prompt[1]: a list; expected a text, as there is a suffix"},
    {&protocol_completions, "{\"prompt\":\"x\",\"suffix\":\"y\",\"echo\":true,\"logprobs\":0}",
     "suffix: with echo and logprobs; expected two of the three"},
    {&protocol_infill, "{\"input_prefix\":\"x\"}", "input_suffix: missing; expected the text behind the answer"},
    {&protocol_infill, "{\"input_prefix\":[],\"input_suffix\":\"\"}", "input_prefix: an empty list; expected a text"},
    {&protocol_infill, "{\"input_suffix\":\"\",\"input_extra\":[{\"text\":\"a\"},{\"filename\":\"b\"}]}",
     "input_extra[1]: an object; expected an object with a text, and a filename that is one"},
    {&protocol_responses, "{\"input\":\"x\",\"previous_response_id\":\"resp_1\"}",
     "previous_response_id: not supported: send the whole conversation as input, as this server keeps no responses"},
    {&protocol_responses, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}",
     "input[0]: an item_reference to an item that is not here, or no longer; expected the item itself"},
    {&protocol_responses, "{\"input\":[{\"type\":\"compaction\"}]}", "input: a list; expected a message"},
    {&protocol_responses,
     "{\"input\":\"x\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":\"function\"}]}]}",
     "tools[0].tools[0].name: missing; expected a tool's name"},
    {&protocol_responses, "{\"input\":\"x\",\"n\":2}", "n: 2; expected 1"},
    {&protocol_messages, "{" USER ",\"thinking\":{\"type\":\"on\"}}",
     "thinking.type: \"on\"; expected enabled, adaptive or disabled"},
    {&protocol_messages, "{" USER ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":0}}",
     "thinking.budget_tokens: 0; expected a whole number from 1 on"},
    {&protocol_messages, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{}}]}]}",
     "messages[0].content[0]: of type image; expected text, as this server reads nothing else"},
    {&protocol_messages, "{" USER ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"x\"}}",
     "tool_choice: there is no tool with the name \"x\""},
    {&protocol_ollama_chat, "{" USER ",\"options\":{\"top_p\":2}}", "options.top_p: 2; expected a number from 0 to 1"},
    {&protocol_ollama_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"images\":[\"AAAA\"]}]}",
     "messages[0].images: expected none, as this server reads text only"},
    {&protocol_llama, "{}", "prompt: missing; expected a text, or a list of tokens' ids"},
    {&protocol_llama, "{\"prompt\":\"x\",\"response_fields\":[\"content\",1]}",
     "response_fields[1]: 1; expected a field's name"},
    {&protocol_llama, "{\"prompt\":\"x\",\"post_sampling_probs\":true}",
     "post_sampling_probs: not supported: log-probabilities are the model's own"},
    {&protocol_ollama_generate, "{\"prompt\":\"x\",\"context\":[1,2]}",
     "context: not supported: send the conversation to /api/chat"},
};

static void what_cannot_be_honoured_is_refused_by_name(void **state)
{
    for (const struct refusal *c = refusals; c < refusals + sizeof refusals / sizeof *refusals; c++) {
        struct server_request r;
        struct err e = {0};
        server_request_init(&r);
        err_code code = c->protocol->parse(&r, parse_json(c->body), &e);
        assert_int_equal(code, ERR_USAGE);
        assert_string_equal(e.text, c->sentence);
        server_request_close(&r);
    }
}

static void a_request_has_a_bounded_number_of_answers(void **state)
{
    struct server_request r;
    struct err e = {0};
    json_t *body = parse_json("{\"n\":64,\"prompt\":[]}");
    for (int i = 0; i < 17; i++)
        json_array_append_new(json_object_get(body, "prompt"), json_string("x"));
    server_request_init(&r);
    assert_int_equal(protocol_completions.parse(&r, body, &e), ERR_USAGE);
    assert_string_equal(e.text, "n: 64 answers to each of 17 prompts; expected at most 1024 answers");
    server_request_close(&r);
}

/* ---- errors ---------------------------------------------------------------------------------------------------- */

static void check_error(const struct protocol *p, int status, const struct err *e, const char *expected)
{
    json_t *error = p->error(status, e), *wanted = parse_json(expected);
    if (!json_equal(error, wanted))
        fail_msg("%s: %s", p->name, json_dumps(error, 0));
    json_decref(error);
    json_decref(wanted);
}

static void errors_have_the_form_of_each_protocol(void **state)
{
    static const struct {
        int status;
        const char *openai, *code, *anthropic;
    } cases[] = {
        {400, "invalid_request_error", "null", "invalid_request_error"},
        {401, "authentication_error", "\"invalid_api_key\"", "authentication_error"},
        {403, "permission_error", "\"forbidden\"", "permission_error"},
        {404, "invalid_request_error", "\"not_found\"", "not_found_error"},
        {405, "invalid_request_error", "\"method_not_allowed\"", "invalid_request_error"},
        {408, "timeout_error", "\"request_timeout\"", "timeout_error"},
        {413, "invalid_request_error", "\"request_too_large\"", "request_too_large"},
        {422, "invalid_request_error", "null", "invalid_request_error"},
        {429, "rate_limit_error", "\"rate_limit_exceeded\"", "rate_limit_error"},
        {500, "server_error", "null", "api_error"},
        {503, "overloaded_error", "\"server_is_overloaded\"", "overloaded_error"},
        {529, "overloaded_error", "\"server_is_overloaded\"", "overloaded_error"},
    };
    const struct err e = {ERR_FAIL, "it is so"};
    char expected[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(expected, sizeof expected,
                 "{\"error\":{\"message\":\"it is so\",\"type\":\"%s\",\"param\":null,\"code\":%s}}", cases[i].openai,
                 cases[i].code);
        check_error(&protocol_chat, cases[i].status, &e, expected);
        check_error(&protocol_responses, cases[i].status, &e, expected);
        snprintf(expected, sizeof expected, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"it is so\"}}",
                 cases[i].anthropic);
        check_error(&protocol_messages, cases[i].status, &e, expected);
        check_error(&protocol_ollama_chat, cases[i].status, &e, "{\"error\":\"it is so\"}");
    }
}

static void a_field_and_a_long_prompt_are_recognised(void **state)
{
    struct err e;
    (void)err_set(&e, ERR_USAGE, "tools[3].function.name: missing");
    check_error(&protocol_chat, 400, &e,
                "{\"error\":{\"message\":\"tools[3].function.name: missing\",\"type\":\"invalid_request_error\","
                "\"param\":\"tools[3].function.name\",\"code\":null}}");
    (void)err_set(&e, ERR_USAGE, "model: there is none with the name x");
    check_error(&protocol_chat, 404, &e,
                "{\"error\":{\"message\":\"model: there is none with the name x\",\"type\":\"invalid_request_error\","
                "\"param\":\"model\",\"code\":\"model_not_found\"}}");
    assert_int_equal(server_set_overflow(&e, 5000, 4096), ERR_LIMIT);
    assert_true(server_is_overflow(&e));
    assert_int_equal(server_http_status(&e), 400);
    check_error(&protocol_chat, 400, &e,
                "{\"error\":{\"message\":\"prompt is too long: 5000 tokens > 4096 maximum\","
                "\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"context_length_exceeded\"}}");
    check_error(&protocol_messages, 400, &e,
                "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\","
                "\"message\":\"prompt is too long: 5000 tokens > 4096 maximum\"}}");
    (void)err_set(&e, ERR_LIMIT, "the queue is full");
    assert_false(server_is_overflow(&e));
    assert_int_equal(server_http_status(&e), 503);
}

static json_t *make_item(int i, size_t n)
{
    char *text = calloc(n + 1, 1);
    assert_non_null(text);
    memset(text, 'x', n);
    json_t *item = json_pack("{s:o,s:s}", "id", json_sprintf("msg_%d", i), "text", text);
    free(text);
    return item;
}

static bool is_kept(struct kept_items *k, int i)
{
    char id[32];
    snprintf(id, sizeof id, "msg_%d", i);
    size_t n;
    json_t *found = kept_items_find(k, id, &n);
    bool is_it = found && !strcmp(json_string_value(json_object_get(found, "id")), id);
    assert_true(is_it || !found);
    json_decref(found);
    return is_it;
}

static void the_last_items_are_kept_within_bounds(void **state)
{
    static struct kept_items k;
    kept_items_open(&k);
    kept_items_add(&k, json_null());
    for (int i = 0; i < KEPT_ITEMS_MAX + 10; i++) {
        json_t *item = make_item(i, 10);
        kept_items_add(&k, item);
        json_decref(item);
    }
    assert_false(is_kept(&k, 9));
    assert_true(is_kept(&k, 10) && is_kept(&k, KEPT_ITEMS_MAX + 9));
    for (int i = 10000; i < 10020; i++) { /* a mebibyte each */
        json_t *item = make_item(i, 1 << 20);
        kept_items_add(&k, item);
        json_decref(item);
    }
    json_t *huge = make_item(7, KEPT_ITEMS_BYTES);
    kept_items_add(&k, huge);
    json_decref(huge);
    assert_true(k.n_bytes <= KEPT_ITEMS_BYTES);
    assert_true(is_kept(&k, 10019) && is_kept(&k, 10010));
    assert_false(is_kept(&k, 10000) || is_kept(&k, KEPT_ITEMS_MAX + 9) || is_kept(&k, 7));
    kept_items_close(&k);
}

/* n references to item 0, of which there is one. */
static err_code refer(struct kept_items *k, int n, struct err *e)
{
    struct server_request r;
    json_t *input = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(input, json_pack("{s:s}", "id", "msg_0"));
    server_request_init(&r);
    r.kept = k;
    err_code code = protocol_responses.parse(&r, json_pack("{s:o}", "input", input), e);
    server_request_close(&r);
    return code;
}

static void a_request_refers_to_no_more_than_is_kept(void **state)
{
    static struct kept_items k;
    struct err e = {0};
    kept_items_open(&k);
    json_t *item = make_item(0, 1 << 20); /* a mebibyte */
    json_object_set_new(item, "type", json_string("message"));
    json_object_set_new(item, "role", json_string("assistant"));
    kept_items_add(&k, item);
    json_decref(item);
    assert_int_equal(refer(&k, 15, &e), ERR_OK);
    assert_int_equal(refer(&k, 16, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "16777216 bytes"));
    kept_items_close(&k);
}

/* A body with a text of so many bytes in the place of %s. */
static json_t *body_with_text(const char *form, size_t n)
{
    char *text = calloc(n + 1, 1), *body;
    assert_non_null(text);
    memset(text, 'x', n);
    assert_true(asprintf(&body, form, text) > 0);
    json_t *j = parse_json(body);
    free(text);
    free(body);
    return j;
}

/* All of an answer, and of the vocabulary, is compared with these, for each token. */
static void texts_that_are_searched_for_are_short(void **state)
{
    static const struct {
        const char *form, *sentence;
    } cases[] = {
        {"{" USER ",\"stop\":\"%s\"}", "stop: a text of 1025 bytes; expected at most 1024"},
        {"{" USER ",\"stop\":[\"x\",\"%s\"]}", "stop: a text of 1025 bytes; expected at most 1024"},
        {"{" USER ",\"dry_sequence_breakers\":[\"%s\"]}",
         "dry_sequence_breakers: a text of 1025 bytes; expected at most 1024"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t n = 1024; n <= 1025; n++) {
            struct server_request r;
            struct err e = {0};
            server_request_init(&r);
            err_code code = protocol_chat.parse(&r, body_with_text(cases[i].form, n), &e);
            assert_int_equal(code, n > 1024 ? ERR_USAGE : ERR_OK);
            assert_string_equal(e.text, n > 1024 ? cases[i].sentence : "");
            server_request_close(&r);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_case_is_told_as_its_file_says),
                                       cmocka_unit_test(what_cannot_be_honoured_is_refused_by_name),
                                       cmocka_unit_test(a_request_has_a_bounded_number_of_answers),
                                       cmocka_unit_test(errors_have_the_form_of_each_protocol),
                                       cmocka_unit_test(a_field_and_a_long_prompt_are_recognised),
                                       cmocka_unit_test(texts_that_are_searched_for_are_short),
                                       cmocka_unit_test(the_last_items_are_kept_within_bounds),
                                       cmocka_unit_test(a_request_refers_to_no_more_than_is_kept)};
    folder = argc > 1 ? argv[1] : ".";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
