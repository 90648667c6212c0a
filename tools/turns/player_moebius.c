/* moebius for turns.py: only what its public header offers. */
#include "player.h"
#include <moebius/moebius.h>

struct engine {
    moebius_engine *engine;
    moebius_session *session;
};

static void must(moebius_status status, const moebius_error *error)
{
    if (status != MOEBIUS_OK) {
        fprintf(stderr, "%s\n", error->text);
        exit(1);
    }
}

struct engine *engine_open(const char *path, int n_threads, int n_ctx)
{
    static struct engine e;
    moebius_error error;
    moebius_engine_options o = moebius_default_engine_options();
    moebius_session_options s = moebius_default_session_options();
    o.n_threads = n_threads;
    s.n_ctx = n_ctx;
    must(moebius_engine_open(&e.engine, path, &o, &error), &error);
    must(moebius_session_open(&e.session, e.engine, &s, &error), &error);
    return &e;
}

void engine_reset(struct engine *e)
{
    moebius_session_truncate(e->session, 0);
}

void engine_eval(struct engine *e, int32_t *ids, int n)
{
    moebius_error error;
    must(moebius_session_eval(e->session, ids, (size_t)n, &error), &error);
}

double engine_memory(struct engine *e)
{
    moebius_error error;
    moebius_roof roof;
    must(moebius_engine_measure_roof(e->engine, &roof, &error), &error);
    return roof.read_bytes_per_s / 1e9;
}
