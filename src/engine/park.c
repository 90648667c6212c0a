/* Parking: a session's state outside of the engine's memory. */
#include <string.h>

#include "engine/engine_internal.h"

/* Bytes in memory that a state is written to or read from. */
struct cursor {
    char *at;
};

static err_code put(void *user, void *bytes, size_t n, struct err *e)
{
    struct cursor *c = user;
    memcpy(c->at, bytes, n);
    c->at += n;
    return ERR_OK;
}

static err_code get(void *user, void *bytes, size_t n, struct err *e)
{
    struct cursor *c = user;
    memcpy(bytes, c->at, n);
    c->at += n;
    return ERR_OK;
}

static err_code park_in_memory(moebius_session *s, struct err *e)
{
    struct parked_state *p = &s->parked;
    p->n_bytes = (size_t)model_state_saved_bytes(s->state, 0, p->pos);
    p->bytes = mem_map(p->n_bytes ? p->n_bytes : 1, MEM_STATE);
    if (!p->bytes)
        return err_nomem(e, p->n_bytes, "a parked session");
    struct cursor c = {p->bytes};
    return model_state_save(s->state, 0, p->pos, put, &c, e);
}

static err_code park(moebius_session *s, const char *path, struct err *e)
{
    s->parked.pos = model_state_pos(s->state);
    s->parked.path = path ? mem_strdup(path) : NULL;
    if (path && !s->parked.path)
        return err_nomem(e, strlen(path), "a path");
    return path ? session_save(s, path, e) : park_in_memory(s, e);
}

moebius_status moebius_session_park(moebius_session *session, const char *path, moebius_error *error)
{
    struct err e = {0};
    if (session_unpark(session, &e) != ERR_OK) /* it stays parked */
        return engine_status(e.code, &e, error);
    err_code code = park(session, path, &e);
    if (code == ERR_OK) {
        model_state_truncate(session->state, 0);
        state_pool_trim(session->engine->pools[session->options.kv]);
        session->parked.is_parked = true;
    } else {
        session_forget_parked(session);
    }
    return engine_status(code, &e, error);
}

static err_code unpark(moebius_session *s, struct err *e)
{
    struct cursor c = {s->parked.bytes};
    if (s->parked.path)
        return session_load_parked(s, e);
    TRY(model_state_load(s->state, s->parked.pos, get, &c, e));
    model_state_load_end(s->state, true);
    return ERR_OK;
}

err_code session_unpark(moebius_session *s, struct err *e)
{
    if (!s->parked.is_parked)
        return ERR_OK;
    TRY(unpark(s, e));
    session_forget_parked(s);
    return ERR_OK;
}

void session_forget_parked(moebius_session *s)
{
    mem_unmap(s->parked.bytes, s->parked.n_bytes ? s->parked.n_bytes : 1, MEM_STATE);
    mem_free(s->parked.path);
    s->parked = (struct parked_state){0};
}

moebius_status moebius_session_unpark(moebius_session *session, moebius_error *error)
{
    struct err e = {0};
    return engine_status(session_unpark(session, &e), &e, error);
}
