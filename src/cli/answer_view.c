#include "cli/answer_view.h"

void answer_view_write(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct answer_view *v = user;
    bool reasoning = part == MOEBIUS_REPLY_REASONING;
    if (reasoning != v->in_reasoning)
        text_out_end(v->out);
    if (reasoning != v->in_reasoning && v->out->terminal)
        terminal_text_part(v->out->terminal, reasoning ? "\033[2m" : "", !reasoning);
    else if (reasoning && !v->in_reasoning)
        fputs(v->styled ? "\033[2m" : "[reasoning]\n", v->out->stream);
    else if (!reasoning && v->in_reasoning)
        fputs(v->styled ? "\033[0m\n" : "\n[answer]\n", v->out->stream);
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
