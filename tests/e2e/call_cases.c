/* For check_templates.sh: what real chat templates make of a conversation with calls is read back as those calls. A
 * template whose family is the generic one, or that refuses the conversation, is passed over.
 *
 *   call_cases TEMPLATE.jinja... */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "reply/reply.h"
#include "base/bytes.h"
#include "reply/reply_tools.h"
#include "template/template.h"
#include "../unit/whole_files.h"

#define ARGUMENTS                                                                                                      \
    "{\"city\":\"Paris \\\"x\\\"\\n\\u00fc\",\"days\":3,\"tags\":[\"a\",\"b\"],\"fast\":true,\"note\":null}"
#define CALL(id, arguments)                                                                                            \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"arguments\":" arguments "}}"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"d\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":\"c\"},\"days\":{\"type\":\"integer\","
    "\"description\":\"n\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"t\"},"
    "\"fast\":"
    "{\"type\":\"boolean\",\"description\":\"f\"},\"note\":{\"type\":[\"integer\",\"null\"],\"description\":\"x\"}},"
    "\"required\":[\"city\"]}}}]";

static const char question[] = "The question?";

/* Of files of these names nothing is read back. */
static const char *const exceptions[] = {
    "NVIDIA-Nemotron-Nano-v2" /* leaves reasoning open in earlier turns */
};

/* From the richest conversation to the plainest. */
static const char *const answers[] = {
    "\"content\":\"I look.\",\"tool_calls\":[" CALL("a1b2c3d4e", ARGUMENTS) "," CALL("a1b2c3d4f",
                                                                                     "{\"city\":\"Rome\"}") "]",
    "\"content\":\"\",\"tool_calls\":[" CALL("a1b2c3d4e", ARGUMENTS) "," CALL("a1b2c3d4f", "{\"city\":\"Rome\"}") "]",
    "\"content\":\"\",\"tool_calls\":[" CALL("a1b2c3d4e", ARGUMENTS) "]",
};

struct told {
    int n_calls, n_right;
    struct bytes args;    /* of the call that is open */
    bool leaves_out_null; /* the template does so with parameters */
};

static void collect(void *user, enum reply_part part, const char *text, size_t n)
{
    struct told *t = user;
    json_error_t error;
    if (part == REPLY_ARGUMENTS)
        bytes_put(&t->args, text, n);
    if (part != REPLY_CALL_END)
        return;
    json_t *got = json_loadb(t->args.s, t->args.n, 0, &error);
    json_t *wanted = json_loads(t->n_calls ? "{\"city\":\"Rome\"}" : ARGUMENTS, 0, &error);
    if (t->leaves_out_null)
        json_object_del(wanted, "note");
    t->n_right += json_equal(got, wanted);
    t->n_calls++;
    json_decref(got);
    json_decref(wanted);
    bytes_clear(&t->args);
}

/* The assistant's turn as the template writes it, owned; NULL: it refuses the conversation. */
static char *render(const struct template *t, const char *answer)
{
    char messages[1024], *text;
    const char *trusted;
    struct err e;
    size_t n;
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"%s\"},{\"role\":\"assistant\",%s}]",
             question, answer);
    const struct template_var vars[] = {
        {.name = "messages", .json = messages}, {.name = "tools", .json = tools_json},
        {.name = "documents", .json = "null"},  {.name = "add_generation_prompt", .json = "false"},
        {.name = "bos_token", .text = "<s>"},   {.name = "eos_token", .text = "</s>"}};
    if (template_render(t, vars, sizeof vars / sizeof *vars, &text, &trusted, &n, &e) != ERR_OK)
        return NULL;
    for (char *found; (found = strstr(text, question));)
        memmove(text, found + sizeof question - 1, strlen(found + sizeof question - 1) + 1);
    return text;
}

/* Returns whether the calls were read back. */
static bool read_back(struct reply_style style, const char *text, const struct reply_tools *tools)
{
    /* What the prompt holds in front of an answer is not the answer's. */
    static const char *const turns[] = {"<|end_header_id|>\n\n", "<|header_end|>\n\n", "assistant\n"};
    struct told t = {.leaves_out_null = !strcmp(reply_style_name(&style), "minimax-m3")};
    struct reply *r;
    struct err e;
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        const char *found = strstr(text, turns[i]);
        text = found ? found + strlen(turns[i]) : text;
    }
    bool good = reply_open(&r, style, "", collect, &t, &e) == ERR_OK;
    if (good) {
        reply_set_tools(r, tools);
        good = reply_feed(r, text, strlen(text), &e) == ERR_OK && reply_finish(r, false, &e) == ERR_OK;
    }
    reply_close(&r);
    bytes_close(&t.args);
    return good && t.n_calls > 0 && t.n_right == t.n_calls;
}

/* 1: read back, 0: not, -1: passed over. */
static int check(const char *path, const char *source, size_t n, const struct reply_tools *tools)
{
    struct reply_style style = reply_style_of(source);
    struct template *t;
    struct err e;
    char *text = NULL;
    int result = -1;
    for (size_t i = 0; i < sizeof exceptions / sizeof *exceptions; i++)
        if (strstr(path, exceptions[i]))
            return -1;
    if (!strcmp(reply_style_name(&style), "generic") || template_parse(&t, source, n, &e) != ERR_OK)
        return -1;
    for (size_t i = 0; i < sizeof answers / sizeof *answers && !text; i++)
        text = render(t, answers[i]);
    if (text && strstr(text, "get_weather")) {
        result = read_back(style, text, tools);
        if (!result)
            printf("%s: %s: not read back:\n%s\n", path, reply_style_name(&style), text);
    }
    mem_free(text);
    template_close(&t);
    return result;
}

int main(int argc, char **argv)
{
    struct reply_tools tools;
    struct err e;
    int n_good = 0, n_bad = 0;
    if (reply_tools_open(&tools, tools_json, &e) != ERR_OK)
        return 1;
    for (int i = 1; i < argc; i++) {
        size_t n;
        char *source = read_file(argv[i], &n);
        int result = check(argv[i], source, n, &tools);
        n_good += result == 1;
        n_bad += result == 0;
        free(source);
    }
    reply_tools_close(&tools);
    printf("calls: %d templates read back, %d not\n", n_good, n_bad);
    return n_bad > 0;
}
