/* Completes a prompt. usage: complete MODEL.gguf PROMPT
 *
 *     cc complete.c -o complete $(pkg-config --cflags --libs moebius) */
#include <moebius/moebius.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TOKENS = 64 };

/* Samples until the text ends. */
static moebius_status generate(moebius_session *session, moebius_sampler *sampler, const moebius_vocab *vocab,
                               moebius_error *error)
{
    for (int i = 0; i < MAX_TOKENS; i++) {
        int32_t id = moebius_sampler_pick(sampler, moebius_session_logits(session));
        if (id < 0 || moebius_token_is_end(vocab, id))
            break;
        moebius_sampler_accept(sampler, id); /* for the penalties */
        size_t n;
        const char *piece = moebius_token_piece(vocab, id, false, &n);
        fwrite(piece, 1, n, stdout);
        fflush(stdout);
        moebius_status status = moebius_session_eval(session, &id, 1, error);
        if (status != MOEBIUS_OK)
            return status;
    }
    printf("\n");
    return MOEBIUS_OK;
}

int main(int argc, char **argv)
{
    moebius_engine *engine = NULL;
    moebius_session *session = NULL;
    moebius_sampler *sampler = NULL;
    moebius_error error = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.gguf PROMPT\n", argv[0]);
        return 2;
    }
    moebius_sampler_options options = moebius_default_sampler_options();
    options.seed = 1;
    moebius_status status = moebius_engine_open(&engine, argv[1], NULL, &error);
    if (status == MOEBIUS_OK)
        status = moebius_session_open(&session, engine, NULL, &error);
    if (status == MOEBIUS_OK)
        status = moebius_sampler_open(&sampler, engine, &options, &error);
    if (status == MOEBIUS_OK)
        status =
            moebius_tokenize(moebius_engine_vocab(engine), argv[2], strlen(argv[2]), true, false, &ids, &n_ids, &error);
    if (status == MOEBIUS_OK)
        status = moebius_session_eval(session, ids, n_ids, &error);
    if (status == MOEBIUS_OK)
        status = generate(session, sampler, moebius_engine_vocab(engine), &error);
    if (status != MOEBIUS_OK)
        fprintf(stderr, "%s\n", error.text);
    moebius_free(ids);
    moebius_sampler_close(&sampler);
    moebius_session_close(&session);
    moebius_engine_close(&engine);
    return (int)status;
}
