#include "server/metrics.h"

#include "base/clock.h"
#include "server/call.h"

void metrics_note(struct metrics *m, int status, bool left)
{
    atomic_fetch_add(&m->n_requests[status > 0 && status < METRICS_N_STATUS ? status : 0], 1);
    if (left)
        atomic_fetch_add(&m->n_left, 1);
}

struct metric {
    const char *name, *type, *help;
    double value;
};

static err_code write_all(const char *prefix, const struct metric *list, size_t n, struct bytes *out, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        TRY(bytes_print(out, e, "# HELP %s%s %s\n# TYPE %s%s %s\n%s%s %.17g\n", prefix, list[i].name, list[i].help,
                        prefix, list[i].name, list[i].type, prefix, list[i].name, list[i].value));
    return ERR_OK;
}

static err_code write_requests(const struct metrics *m, struct bytes *out, struct err *e)
{
    TRY(bytes_add_text(out,
                       "# HELP moebius_requests_total Requests that are over, by HTTP status\n"
                       "# TYPE moebius_requests_total counter\n",
                       e));
    for (int i = 0; i < METRICS_N_STATUS; i++)
        if (m->n_requests[i])
            TRY(bytes_print(out, e, "moebius_requests_total{status=\"%d\"} %llu\n", i,
                            (unsigned long long)m->n_requests[i]));
    return ERR_OK;
}

static err_code write_ends(const struct texts_stats *t, struct bytes *out, struct err *e)
{
    static const char *const names[] = {[TEXT_END_TOKEN] = "token",
                                        [TEXT_END_STOP] = "stop",
                                        [TEXT_END_LENGTH] = "length",
                                        [TEXT_END_CANCELLED] = "cancelled",
                                        [TEXT_END_FAILED] = "failed"};
    TRY(bytes_add_text(out,
                       "# HELP moebius_texts_ended_total Texts that have ended, by why\n"
                       "# TYPE moebius_texts_ended_total counter\n",
                       e));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        TRY(bytes_print(out, e, "moebius_texts_ended_total{end=\"%s\"} %llu\n", names[i],
                        (unsigned long long)t->n_ended[i]));
    return ERR_OK;
}

/* Metrics under the names that llama.cpp's server gives them, so that existing dashboards work. */
static err_code write_familiar(const struct texts_stats *t, struct bytes *out, struct err *e)
{
    const struct metric list[] = {
        {"prompt_tokens_total", "counter", "Tokens of prompts computed", (double)t->n_prompt},
        {"prompt_seconds_total", "counter", "Time of passes with prompts", (double)t->prefill_ns / 1e9},
        {"tokens_predicted_total", "counter", "Tokens of answers", (double)t->n_answer},
        {"tokens_predicted_seconds_total", "counter", "Time of passes without prompts", (double)t->decode_ns / 1e9},
        {"n_decode_total", "counter", "Passes over the model", (double)t->n_pass},
        {"requests_processing", "gauge", "Texts that run", (double)t->n_running},
        {"requests_deferred", "gauge", "Texts that wait", (double)t->n_waiting},
    };
    return write_all("llamacpp:", list, sizeof list / sizeof *list, out, e);
}

static err_code write_texts(const struct texts_stats *t, struct bytes *out, struct err *e)
{
    const struct metric list[] = {
        {"texts_running", "gauge", "Texts that run", (double)t->n_running},
        {"texts_waiting", "gauge", "Texts that wait for a place", (double)t->n_waiting},
        {"texts_most", "gauge", "The most texts at once", (double)t->n_most},
        {"texts_refused_total", "counter", "Texts for which the queue had no room", (double)t->n_refused},
        {"texts_suspended_total", "counter", "Times that a text waited for memory", (double)t->n_suspended},
        {"prompt_tokens_total", "counter", "Tokens of prompts computed", (double)t->n_prompt},
        {"cached_tokens_total", "counter", "Tokens of prompts that were there", (double)t->n_cached},
        {"answer_tokens_total", "counter", "Tokens of answers", (double)t->n_answer},
        {"passes_total", "counter", "Passes over the model", (double)t->n_pass},
        {"guesses_total", "counter", "Tokens of answers guessed (--draft)", (double)t->n_guess},
        {"guesses_right_total", "counter", "Those that were right", (double)t->n_guess_right},
        {"prefill_seconds_total", "counter", "Time of passes with tokens of prompts", (double)t->prefill_ns / 1e9},
        {"decode_seconds_total", "counter", "Time of passes without", (double)t->decode_ns / 1e9},
        {"kept_texts", "gauge", "Texts kept in memory for others that begin so", (double)t->n_kept},
        {"kept_bytes", "gauge", "Their state", (double)t->kept_bytes},
        {"cache_disk_bytes", "gauge", "Prefixes kept on disk", (double)t->disk_bytes},
        {"cache_disk_reads_total", "counter", "Prefixes read from there", (double)t->n_disk_read},
        {"cache_disk_writes_total", "counter", "Prefixes written", (double)t->n_disk_written},
    };
    TRY(write_all("moebius_", list, sizeof list / sizeof *list, out, e));
    return write_ends(t, out, e);
}

/* Counters of the engine, as of the last text's end. */
static err_code write_engine(const moebius_counters *k, struct bytes *out, struct err *e)
{
    const struct metric list[] = {
        {"expert_hits_total", "counter", "Experts asked for that were in memory", (double)k->n_expert_hit},
        {"expert_misses_total", "counter", "Experts that had to be read", (double)k->n_expert_miss},
        {"expert_read_bytes_total", "counter", "Bytes of experts read", (double)k->n_expert_read_bytes},
        {"experts_substituted_total", "counter", "Choices that cache-aware routing replaced", (double)k->n_substituted},
        {"read_stall_seconds_total", "counter", "Waiting for reads with nothing to compute", (double)k->stall_ns / 1e9},
        {"expert_bytes", "gauge", "Memory of routed experts", (double)k->expert_bytes},
        {"weight_bytes", "gauge", "Memory of other weights", (double)k->weight_bytes},
        {"context_bytes", "gauge", "Memory of texts' state", (double)k->context_bytes},
        {"work_bytes", "gauge", "Memory of activations", (double)k->work_bytes},
    };
    return write_all("moebius_", list, sizeof list / sizeof *list, out, e);
}

/* What each place did, as of the last text's end. Nothing if there is only one place. */
static err_code write_places(const struct place_figures *p, struct bytes *out, struct err *e)
{
    enum { N = 7 };
    static const char *const names[N][2] = {{"rows_total", "Pairs of a token and an expert computed"},
                                            {"found_total", "Experts that were in memory when calls asked for them"},
                                            {"read_total", "Experts that had to be read"},
                                            {"missed_total", "Experts that a cache had not, which others computed"},
                                            {"moved_bytes_total", "Bytes of experts that moved into a cache"},
                                            {"compute_seconds_total", "Time of computing experts"},
                                            {"waited_for_seconds_total", "Time that place 0 waited for this one"}};
    for (int k = 0; p->n > 0 && k < N; k++) {
        TRY(bytes_print(out, e, "# HELP moebius_place_%s %s\n# TYPE moebius_place_%s counter\n", names[k][0],
                        names[k][1], names[k][0]));
        for (int i = 0; i < p->n; i++) {
            const moebius_place_stats *s = &p->did[i];
            const double values[N] = {(double)s->n_row,
                                      (double)s->n_found,
                                      (double)s->n_read,
                                      (double)s->n_missed,
                                      (double)s->moved_bytes,
                                      (double)s->compute_ns / 1e9,
                                      (double)s->finish_wait_ns / 1e9};
            TRY(bytes_print(out, e, "moebius_place_%s{place=\"%d\"} %.17g\n", names[k][0], i, values[k]));
        }
    }
    return ERR_OK;
}

err_code metrics_write(struct server *s, struct bytes *out, struct err *e)
{
    struct model_view view = {0};
    for (size_t i = 0; i < models_n(s->models) && view.state != SERVED_READY; i++)
        view = models_look(models_at(s->models, i));
    const struct metric own[] = {
        {"uptime_seconds", "gauge", "Since the start", (double)(clock_ns() - s->start_ns) / 1e9},
        {"requests_busy", "gauge", "Requests that are there and not over", (double)http_n_busy(s->http)},
        {"requests_waiting_for_models", "gauge", "Requests whose model is being loaded, or is to be",
         (double)models_n_waiting(s->models)},
        {"clients_left_total", "counter", "Clients that left before their answer's end", (double)s->metrics.n_left},
        {"model_ready", "gauge", "Whether a model is loaded", view.state == SERVED_READY},
    };
    TRY(write_all("moebius_", own, sizeof own / sizeof *own, out, e));
    TRY(write_requests(&s->metrics, out, e));
    TRY(write_texts(&view.stats, out, e));
    TRY(write_engine(&view.counters, out, e));
    TRY(write_places(&view.places, out, e));
    return write_familiar(&view.stats, out, e);
}
