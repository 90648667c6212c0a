/* Completes several prompts at once: each weight is read once for all of them. usage: texts MODEL.gguf PROMPT...
 *
 *     cc texts.c -o texts $(pkg-config --cflags --libs moebius) */
#include <moebius/moebius.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TEXTS = 16, MAX_TOKENS = 32 };

struct text {
    moebius_session *session;
    moebius_sampler *sampler;
    int32_t *prompt;
    size_t n_prompt;
    int32_t last; /* the token to append next */
    bool is_over;
};

static moebius_status open_text(struct text *t, moebius_engine *engine, const char *prompt, moebius_error *error)
{
    moebius_sampler_options options = moebius_default_sampler_options();
    options.temperature = 0;
    moebius_status status = moebius_session_open(&t->session, engine, NULL, error);
    if (status == MOEBIUS_OK)
        status = moebius_sampler_open(&t->sampler, engine, &options, error);
    if (status == MOEBIUS_OK)
        status = moebius_tokenize(moebius_engine_vocab(engine), prompt, strlen(prompt), true, false, &t->prompt,
                                  &t->n_prompt, error);
    return status;
}

/* Appends to each text that continues: first its prompt, then the token chosen last. */
static moebius_status step(moebius_engine *engine, struct text *texts, int n, bool prompts, moebius_error *error)
{
    moebius_batch_item items[MAX_TEXTS];
    size_t n_items = 0;
    for (int i = 0; i < n; i++) {
        struct text *t = &texts[i];
        if (!t->is_over)
            items[n_items++] = (moebius_batch_item){
                .session = t->session, .ids = prompts ? t->prompt : &t->last, .n = prompts ? t->n_prompt : 1};
    }
    return n_items ? moebius_eval_batch(engine, items, n_items, error) : MOEBIUS_OK;
}

static void choose(struct text *t, const moebius_vocab *vocab)
{
    t->last = moebius_sampler_pick(t->sampler, moebius_session_logits(t->session));
    t->is_over = t->last < 0 || moebius_token_is_end(vocab, t->last);
}

static moebius_status complete(moebius_engine *engine, struct text *texts, int n, moebius_error *error)
{
    moebius_status status = step(engine, texts, n, true, error);
    for (int round = 0; round < MAX_TOKENS && status == MOEBIUS_OK; round++) {
        for (int i = 0; i < n; i++)
            if (!texts[i].is_over)
                choose(&texts[i], moebius_engine_vocab(engine));
        status = step(engine, texts, n, false, error);
    }
    return status;
}

static moebius_status print_text(const moebius_vocab *vocab, const struct text *t, moebius_error *error)
{
    char *text = NULL;
    moebius_status status = moebius_detokenize(vocab, moebius_session_tokens(t->session),
                                               (size_t)moebius_session_pos(t->session), false, &text, NULL, error);
    if (status == MOEBIUS_OK)
        printf("%s\n---\n", text);
    moebius_free(text);
    return status;
}

int main(int argc, char **argv)
{
    moebius_engine *engine = NULL;
    moebius_error error = {0};
    struct text texts[MAX_TEXTS] = {0};
    int n = argc - 2;
    if (n < 1 || n > MAX_TEXTS) {
        fprintf(stderr, "usage: %s MODEL.gguf PROMPT... (up to %d)\n", argv[0], MAX_TEXTS);
        return 2;
    }
    moebius_status status = moebius_engine_open(&engine, argv[1], NULL, &error);
    for (int i = 0; i < n && status == MOEBIUS_OK; i++)
        status = open_text(&texts[i], engine, argv[i + 2], &error);
    if (status == MOEBIUS_OK)
        status = complete(engine, texts, n, &error);
    for (int i = 0; i < n && status == MOEBIUS_OK; i++)
        status = print_text(moebius_engine_vocab(engine), &texts[i], &error);
    if (status != MOEBIUS_OK)
        fprintf(stderr, "%s\n", error.text);
    for (int i = 0; i < n; i++) {
        moebius_free(texts[i].prompt);
        moebius_sampler_close(&texts[i].sampler);
        moebius_session_close(&texts[i].session);
    }
    moebius_engine_close(&engine);
    return (int)status;
}
