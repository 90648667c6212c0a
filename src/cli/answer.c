#include "cli/answer.h"

#include "cli/common.h"

enum { MAX_SLICE = 64 }; /* bytes of a message's content that are fed at once, of what may be long after a mark */

size_t answer_longest_piece(const moebius_vocab *vocab)
{
    size_t longest = 0;
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

static void on_reply(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct answer *a = user;
    for (size_t at = 0; part == MOEBIUS_REPLY_CONTENT && at < n && !a->is_stopped; at += MAX_SLICE)
        a->is_stopped = text_stream_feed(&a->stream, text + at, n - at < MAX_SLICE ? n - at : MAX_SLICE);
    if (part != MOEBIUS_REPLY_CONTENT && a->params.fn)
        a->params.fn(a->params.user, part, text, n);
}

err_code answer_open(struct answer *a, const struct answer_params *params, struct err *e)
{
    moebius_error error;
    *a = (struct answer){.params = *params};
    TRY(text_stream_open(&a->stream, on_content, a, &a->params.stops, params->max_piece + MAX_SLICE, e));
    if (params->tmpl && moebius_reply_open(&a->reply, params->tmpl, params->prompt, on_reply, a, &error) != MOEBIUS_OK)
        return cli_error(e, &error);
    return ERR_OK;
}

err_code answer_feed(struct answer *a, int32_t id, bool *end, struct err *e)
{
    moebius_error error;
    size_t n;
    const char *piece = moebius_token_piece(a->params.vocab, id, false, &n);
    bool is_end = moebius_token_is_end(a->params.vocab, id);
    if (!a->reply && (!is_end || a->params.ignore_eos))
        a->is_stopped = text_stream_feed(&a->stream, piece, n);
    else if (a->reply && moebius_reply_feed(a->reply, id, &is_end, &error) != MOEBIUS_OK)
        return cli_error(e, &error);
    *end = (is_end && !a->params.ignore_eos) || a->is_stopped;
    return ERR_OK;
}

void answer_finish(struct answer *a)
{
    if (a->reply && !a->is_stopped)
        moebius_reply_finish(a->reply);
    text_stream_flush(&a->stream);
}

void answer_close(struct answer *a)
{
    text_stream_close(&a->stream);
    moebius_reply_close(&a->reply);
}
