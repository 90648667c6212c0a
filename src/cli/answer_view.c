#include "cli/answer_view.h"

static void begin_part(struct answer_view *v, bool reasoning)
{
    struct text_out *out = v->out;
    text_out_end(out);
    if (out->terminal)
        terminal_text_part(out->terminal, reasoning && v->styled ? "\033[2m" : "", v->has_markdown && !reasoning);
    if (out->terminal && v->styled)
        return;
    if (reasoning)
        fputs(v->styled ? "\033[2m" : "[reasoning]\n", out->stream);
    else
        fputs(out->terminal ? "[answer]\n" : v->styled ? "\033[0m\n" : "\n[answer]\n", out->stream);
}

void answer_view_write(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct answer_view *v = user;
    bool reasoning = part == MOEBIUS_REPLY_REASONING;
    if (reasoning != v->in_reasoning)
        begin_part(v, reasoning);
    v->in_reasoning = reasoning;
    text_out_write(v->out, text, n);
    fflush(v->out->stream);
}

void answer_view_end(struct answer_view *v)
{
    text_out_end(v->out);
    if (v->out->terminal)
        terminal_text_end(v->out->terminal);
    fputs(v->in_reasoning && v->styled ? "\033[0m\n" : "\n", v->out->stream);
    v->in_reasoning = false;
    fflush(v->out->stream);
}
