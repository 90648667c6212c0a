#include "server/expert_watch.h"

#include "base/bytes.h"
#include "base/mem.h"

enum { MAX_WATCH_BYTES = 4 << 20 }; /* events that may wait for a client that does not read */

static const int64_t ping_ns = (int64_t)5 * 1000000000; /* without events, until a ping */

struct expert_watch {
    struct models *models; /* borrowed */
    struct stream *stream; /* the writer's side; NULL: it has ended */
    struct expert_sight sight;
    bool has_state;          /* a state was sent to the client */
    enum served_state state; /* the last one that was sent */
    int64_t wrote_ns;        /* when something was sent last */
    struct bytes out;        /* events to be sent */
};

err_code expert_watch_open(struct expert_watch **out, struct models *models, struct stream **stream, struct err *e)
{
    struct expert_watch *w = *out = mem_calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w, "a stream of experts");
    err_code code = stream_open(&w->stream, MAX_WATCH_BYTES, e);
    if (code != ERR_OK) {
        mem_free(w);
        *out = NULL;
        return code;
    }
    w->models = models;
    *stream = w->stream;
    models_watch(models, true);
    return ERR_OK;
}

/* Adds what is new to the client: the current model's state, and its picture. */
static err_code gather(struct expert_watch *w, struct err *e)
{
    struct served_model *m = models_current(w->models);
    const enum served_state state = models_look(m).state;
    if (!w->has_state || state != w->state)
        TRY(bytes_print(&w->out, e, "event: state\ndata: {\"state\":\"%s\"}\n\n", models_state_name(state)));
    w->has_state = true;
    w->state = state;
    return expert_picture_tell(m->picture, &w->sight, &w->out, e);
}

void expert_watch_tick(struct expert_watch *w, int64_t now_ns, bool is_over)
{
    struct err e;
    if (!w->stream)
        return;
    err_code code = gather(w, &e);
    if (code == ERR_OK && w->out.n == 0 && now_ns - w->wrote_ns > ping_ns)
        code = bytes_add_text(&w->out, ": ping\n\n", &e);
    if (w->out.n) {
        (void)stream_put(w->stream, w->out.s, w->out.n); /* the stream of a client that does not read breaks */
        w->wrote_ns = now_ns;
    }
    bytes_clear(&w->out);
    if (is_over || code != ERR_OK)
        stream_end(&w->stream, code != ERR_OK);
}

void expert_watch_close(struct expert_watch **watch)
{
    struct expert_watch *w = *watch;
    if (!w)
        return;
    *watch = NULL;
    models_watch(w->models, false);
    stream_end(&w->stream, false);
    bytes_close(&w->out);
    mem_free(w);
}
