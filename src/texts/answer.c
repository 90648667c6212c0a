#define _GNU_SOURCE /* memrchr */
#include "texts/answer.h"

#include <string.h>

const char *answer_prompt_end(const char *prompt, size_t n)
{
    const char *zero = prompt ? memrchr(prompt, '\0', n) : NULL;
    return zero ? zero + 1 : prompt;
}

size_t answer_longest_piece(const moebius_vocab *vocab)
{
    size_t longest = 1;
    for (int32_t id = 0; id < moebius_vocab_size(vocab); id++) {
        size_t n;
        moebius_token_piece(vocab, id, false, &n);
        longest = n > longest ? n : longest;
    }
    return longest;
}

static void on_content(void *user, const char *text, size_t n)
{
    struct answer *a = user;
    if (a->params.fn)
        a->params.fn(a->params.user, MOEBIUS_REPLY_CONTENT, text, n);
}

/* Content that was held back comes before other parts, and nothing comes behind a stop string. */
static void on_reply(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct answer *a = user;
    if (part == MOEBIUS_REPLY_CONTENT) {
        text_stream_feed(&a->stream, text, n);
    } else if (!a->stream.stop) {
        text_stream_flush(&a->stream);
        if (a->params.fn)
            a->params.fn(a->params.user, part, text, n);
    }
}

err_code answer_open(struct answer *a, const struct answer_params *params, struct err *e)
{
    moebius_error error;
    *a = (struct answer){.params = *params};
    TRY(text_stream_open(&a->stream, on_content, a, params->stops, params->n_stops, params->max_piece, e));
    if (!params->tmpl)
        return ERR_OK;
    if (moebius_reply_open(&a->reply, params->tmpl, params->prompt, on_reply, a, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    if (params->tools && moebius_reply_set_tools(a->reply, params->tools, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    return ERR_OK;
}

err_code answer_feed(struct answer *a, int32_t id, bool *end, struct err *e)
{
    moebius_error error;
    size_t n;
    const char *piece = moebius_token_piece(a->params.vocab, id, false, &n);
    bool is_end = moebius_token_is_end(a->params.vocab, id);
    if (!a->reply && (!is_end || a->params.ignore_eos))
        text_stream_feed(&a->stream, piece, n);
    else if (a->reply && moebius_reply_feed(a->reply, id, &is_end, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    *end = (is_end && !a->params.ignore_eos) || a->stream.stop;
    return ERR_OK;
}

const char *answer_stop(const struct answer *a)
{
    return a->stream.stop;
}

bool answer_is_reasoning(const struct answer *a)
{
    return a->reply && moebius_reply_is_reasoning(a->reply, NULL);
}

bool answer_is_mark(const struct answer *a, int32_t id)
{
    return a->reply && moebius_reply_is_mark(a->reply, id);
}

void answer_finish(struct answer *a)
{
    if (a->reply && !a->stream.stop)
        moebius_reply_finish(a->reply);
    text_stream_flush(&a->stream);
}

void answer_close(struct answer *a)
{
    text_stream_close(&a->stream);
    moebius_reply_close(&a->reply);
}
