/* A conversation: streams answers, and Ctrl-C stops one. usage: chat MODEL.gguf < LINES
 *
 *     cc chat.c -o chat $(pkg-config --cflags --libs moebius jansson) */
#include <jansson.h>
#include <moebius/moebius.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ANSWER = 200, MAX_LINE = 4096 };

/* For models without a template. */
static const char plain_template[] = "{% for m in messages %}{{ m.content }}\n{% endfor %}";

static volatile sig_atomic_t is_stopped;

static void stop(int number)
{
    is_stopped = 1;
}

/* The engine calls this at least every 50 ms. */
static bool is_cancel_wanted(void *user)
{
    return is_stopped;
}

/* Receives each piece of an answer; shows only the content. */
static void show(void *user, moebius_reply_part part, const char *text, size_t n)
{
    if (part == MOEBIUS_REPLY_CONTENT)
        fwrite(text, 1, n, stdout);
    fflush(stdout);
}

struct chat {
    moebius_engine *engine;
    moebius_session *session;
    moebius_sampler *sampler;
    moebius_template *tmpl;
    json_t *messages; /* an array, in the form of OpenAI's API */
};

static moebius_status open_chat(struct chat *c, const char *path, moebius_error *error)
{
    moebius_status status = moebius_engine_open(&c->engine, path, NULL, error);
    if (status == MOEBIUS_OK)
        status = moebius_session_open(&c->session, c->engine, NULL, error);
    if (status == MOEBIUS_OK)
        status = moebius_sampler_open(&c->sampler, c->engine, NULL, error);
    if (status != MOEBIUS_OK)
        return status;
    moebius_session_set_cancel(c->session, is_cancel_wanted, NULL);
    const moebius_vocab *vocab = moebius_engine_vocab(c->engine);
    const char *source = moebius_vocab_template(vocab, NULL);
    source = source ? source : plain_template;
    return moebius_template_open(&c->tmpl, source, strlen(source), vocab, error);
}

/* Generates tokens until the answer ends, is stopped or is long enough. */
static moebius_status generate(struct chat *c, moebius_reply *reply, moebius_error *error)
{
    bool end = false;
    moebius_status status = MOEBIUS_OK;
    for (int i = 0; i < MAX_ANSWER && status == MOEBIUS_OK && !end && !is_stopped; i++) {
        int32_t id = moebius_sampler_pick(c->sampler, moebius_session_logits(c->session));
        status = moebius_reply_feed(reply, id, &end, error);
        if (status == MOEBIUS_OK && !end)
            status = moebius_session_eval(c->session, &id, 1, error);
    }
    moebius_reply_finish(reply);
    return status == MOEBIUS_CANCELLED ? MOEBIUS_OK : status;
}

/* Renders the conversation as a prompt; what the session already holds is not computed again. */
static moebius_status answer(struct chat *c, moebius_error *error)
{
    char *json = json_dumps(c->messages, JSON_COMPACT);
    const moebius_template_input input = {.messages = json};
    moebius_prompt *prompt = NULL;
    moebius_reply *reply = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0, n_text = 0;
    moebius_status status = moebius_template_render(c->tmpl, &input, &prompt, error);
    if (status == MOEBIUS_OK)
        status = moebius_prompt_tokenize(prompt, moebius_engine_vocab(c->engine), &ids, &n_ids, error);
    if (status == MOEBIUS_OK)
        status = moebius_reply_open(&reply, c->tmpl, moebius_prompt_text(prompt, NULL), show, NULL, error);
    if (status == MOEBIUS_OK)
        status = moebius_session_sync(c->session, ids, n_ids, NULL, error);
    if (status == MOEBIUS_OK)
        status = generate(c, reply, error);
    if (status == MOEBIUS_OK) {
        const char *text = moebius_reply_text(reply, MOEBIUS_REPLY_CONTENT, &n_text);
        json_t *message = NULL;
        do /* drop a character that was cut */
            message = json_pack("{s:s, s:s%}", "role", "assistant", "content", text, n_text);
        while (!message && n_text-- > 0);
        json_array_append_new(c->messages, message);
    }
    moebius_free(ids);
    moebius_reply_close(&reply);
    moebius_prompt_close(&prompt);
    free(json);
    return status == MOEBIUS_CANCELLED ? MOEBIUS_OK : status; /* stopped before the answer began */
}

int main(int argc, char **argv)
{
    char line[MAX_LINE];
    struct chat c = {.messages = json_array()};
    moebius_error error = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL.gguf\n", argv[0]);
        return 2;
    }
    moebius_status status = open_chat(&c, argv[1], &error);
    signal(SIGINT, stop);
    while (status == MOEBIUS_OK && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        is_stopped = 0;
        if (json_array_append_new(c.messages, json_pack("{s:s, s:s}", "role", "user", "content", line)) == 0)
            status = answer(&c, &error);
        else
            fprintf(stderr, "expected UTF-8");
        printf("\n");
    }
    if (status != MOEBIUS_OK)
        fprintf(stderr, "%s\n", error.text);
    json_decref(c.messages);
    moebius_template_close(&c.tmpl);
    moebius_sampler_close(&c.sampler);
    moebius_session_close(&c.session);
    moebius_engine_close(&c.engine);
    return (int)status;
}
