/* Many texts on one engine (texts/texts.h): each answer is, to the token, that of the same text alone, whatever others
 * do; queues, groups, memory for state, kept texts, cancelling, threads. usage: test_texts GOLDEN_DIRECTORY
 * MOEBIUS_SEED=N chooses the schedules, MOEBIUS_SCHEDULES=N how many there are of each kind (1). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>

#include "base/random.h"
#include "texts/look_ahead.h"
#include "texts/texts.h"
#include "../unit/temp_folder.h"
#include "../unit/for_threads.h"

enum { MAX_PROMPT = 400, MAX_ANSWER = 40, MAX_JOBS = 64, N_START = 3, TOP = 3 };

static const char *golden;
static const char *const families[] = {"qwen3moe", "gpt_oss", "qwen3next"};  /* full, windowed, recurrent */
static const char *const with_mtp[] = {"glm4moe", "qwen35moe_mtp", "hy_v3"}; /* with multi-token prediction */

static uint32_t below(struct random *r, uint32_t n)
{
    return random_u32(r) % n;
}

/* ---- what a text asks for, and what comes of it ------------------------------------------------------------------ */

struct job {
    int32_t ids[MAX_PROMPT + MAX_ANSWER];
    size_t n_ids;
    int64_t max_tokens;
    float temperature, repeat_penalty; /* of 0: 1.1 */
    uint64_t seed, group;
    moebius_logit_bias biases[2];
    int n_biases;
    int n_logprob;
    bool scores_prompt, follows;

    uint64_t id;
    int64_t cancel_after; /* tokens; -1: never */
    struct texts *texts;
    int64_t n_told;  /* tokens that the sink was told of */
    size_t n_prompt; /* the last that it was told of the prompt */
    double logprobs[MAX_ANSWER];
    moebius_logprob top[TOP];
    moebius_logprob scores[MAX_PROMPT + MAX_ANSWER][1 + TOP]; /* of the prompt, of which as many are filled as wanted */
    int n_scored;                                             /* how often they were told */
    int n_ended;
    enum text_end end;
    struct err error;
    size_t n_answer, n_cached, n_reasoning;
    int32_t answer[MAX_ANSWER];
    int order;   /* of the ends */
    int n_notes; /* sentences for a log */
};

static int n_ends;

static void on_prompt(void *user, size_t n_done, size_t n_cached, size_t n_prompt)
{
    struct job *j = user;
    assert_true(n_done <= n_prompt && n_cached <= n_done && n_prompt == j->n_ids);
    j->n_prompt = n_done;
    if (j->cancel_after == 0)
        texts_cancel(j->texts, j->id);
}

static void on_token(void *user, const struct text_token *token)
{
    struct job *j = user;
    assert_int_equal(j->n_ended, 0);
    j->logprobs[j->n_told++] = token->logprob;
    if (token->n_top)
        memcpy(j->top, token->top, (size_t)token->n_top * sizeof *token->top);
    if (j->n_told == j->cancel_after)
        texts_cancel(j->texts, j->id);
}

static void on_scored(void *user, const moebius_logprob *scores, size_t n_prompt)
{
    struct job *j = user;
    size_t n_row = 1 + (size_t)j->n_logprob;
    assert_true(j->scores_prompt && j->n_told == 0 && n_prompt == j->n_ids && j->n_prompt == n_prompt);
    j->n_scored++;
    for (size_t i = 0; i < n_prompt; i++)
        memcpy(j->scores[i], scores + i * n_row, n_row * sizeof *scores);
}

static void on_end(void *user, const struct text_result *r)
{
    struct job *j = user;
    j->n_ended++;
    j->end = r->end;
    j->n_answer = r->n_answer;
    j->n_cached = r->n_cached;
    j->n_reasoning = r->n_reasoning;
    assert_int_equal(r->n_prompt, j->n_ids);
    assert_int_equal(r->n_answer, j->n_told);
    assert_true(r->queue_ns >= 0 && r->prompt_ns >= 0 && r->answer_ns >= 0);
    assert_memory_equal(r->ids, j->ids, j->n_ids * sizeof *j->ids);
    memcpy(j->answer, r->ids + r->n_prompt, r->n_answer * sizeof *j->answer);
    if (r->error)
        j->error = *r->error;
    j->order = n_ends++;
}

static struct text_request request_of(struct job *j)
{
    moebius_sampler_options sampling = moebius_default_sampler_options();
    sampling.temperature = j->temperature;
    sampling.seed = j->seed;
    sampling.logit_biases = j->biases;
    sampling.n_logit_biases = j->n_biases;
    sampling.repeat_penalty = j->repeat_penalty > 0 ? j->repeat_penalty : 1.1f;
    return (struct text_request){
        .ids = j->ids,
        .n_ids = j->n_ids,
        .max_tokens = j->max_tokens,
        .ignore_eos = true,
        .sampling = sampling,
        .n_logprob = j->n_logprob,
        .scores_prompt = j->scores_prompt,
        .reasoning_budget = -1,
        .group = j->group,
        .follows = j->follows,
        .sink = {.prompt = on_prompt, .scored = on_scored, .token = on_token, .end = on_end, .user = j}};
}

static err_code submit(struct texts *x, struct job *j, struct err *e)
{
    const struct text_request r = request_of(j);
    j->texts = x;
    return texts_submit(x, &r, &j->id, e);
}

static void must_submit(struct texts *x, struct job *j)
{
    struct err e = {0};
    if (submit(x, j, &e) != ERR_OK)
        fail_msg("%s", e.text);
}

/* A job whose prompt begins as others do. */
static struct job some_job(struct random *r, const moebius_engine *engine, size_t n_least)
{
    struct job j = {.max_tokens = 1 + (int64_t)below(r, MAX_ANSWER),
                    .temperature = below(r, 2) ? 0.8f : 0,
                    .seed = random_u32(r),
                    .n_logprob = -1,
                    .cancel_after = -1};
    uint32_t start = below(r, N_START), n_same = below(r, 330);
    j.n_ids = n_least + n_same + below(r, 40);
    for (size_t i = 0; i < j.n_ids; i++)
        j.ids[i] = (int32_t)((i < n_same ? start * 7 + i * i * 3 : random_u32(r)) % (uint32_t)moebius_n_vocab(engine));
    return j;
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */

static moebius_engine *open_engine(const char *name, int64_t state_bytes)
{
    char path[1024];
    moebius_error error;
    moebius_engine *engine;
    const moebius_engine_options o = {
        .n_threads = 2, .state_bytes = state_bytes, .checkpoint_interval = 128, .mtp = true};
    snprintf(path, sizeof path, "%s/%s.gguf", golden, name);
    if (moebius_engine_open(&engine, path, &o, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    return engine;
}

static struct texts *open_texts(moebius_engine *engine, const struct texts_options *o)
{
    struct err e;
    struct texts *x;
    if (texts_open(&x, engine, o, &e) != ERR_OK)
        fail_msg("%s", e.text);
    return x;
}

static bool step(struct texts *x)
{
    struct err e = {0};
    bool is_idle;
    if (texts_step(x, &is_idle, &e) != ERR_OK)
        fail_msg("%s", e.text);
    return !is_idle;
}

static void run(struct texts *x)
{
    while (step(x))
        ;
}

struct score_check {
    const struct job *job;
    int32_t n_vocab;
};

static bool check_score(void *user, size_t i, const float *logits)
{
    const struct score_check *c = user;
    const struct job *j = c->job;
    moebius_logprob top[TOP];
    if (i + 1 == j->n_ids)
        return true;
    const moebius_logprob *row = j->scores[i + 1];
    assert_int_equal(row->id, j->ids[i + 1]);
    assert_true(row->logprob == moebius_logprobs(logits, c->n_vocab, row->id, top, j->n_logprob));
    for (int k = 0; k < j->n_logprob; k++)
        assert_true(row[1 + k].id == top[k].id && row[1 + k].logprob == top[k].logprob);
    return true;
}

/* The prompt's log-probabilities are those of a session that computes it at once. */
static void check_scores(moebius_engine *engine, const struct job *j)
{
    moebius_error error;
    moebius_session *s;
    struct score_check check = {j, moebius_n_vocab(engine)};
    const moebius_session_options o = {.n_ctx = MAX_PROMPT + MAX_ANSWER};
    assert_int_equal(j->n_scored, 1);
    assert_int_equal(j->scores[0][0].id, j->ids[0]);
    assert_true(isnan(j->scores[0][0].logprob));
    for (int k = 0; k < j->n_logprob; k++)
        assert_int_equal(j->scores[0][1 + k].id, -1);
    assert_int_equal(moebius_session_open(&s, engine, &o, &error), MOEBIUS_OK);
    assert_int_equal(moebius_session_eval_each(s, j->ids, j->n_ids, 0, check_score, &check, &error), MOEBIUS_OK);
    moebius_session_close(&s);
}

/* The job's answer alone, through one session. */
static void check_alone(moebius_engine *engine, const struct job *j)
{
    moebius_error error;
    moebius_session *s;
    moebius_sampler *sampler;
    const struct text_request r = request_of((struct job *)j);
    const moebius_session_options o = {.n_ctx = MAX_PROMPT + MAX_ANSWER};
    assert_int_equal(moebius_session_open(&s, engine, &o, &error), MOEBIUS_OK);
    assert_int_equal(moebius_sampler_open(&sampler, engine, &r.sampling, &error), MOEBIUS_OK);
    for (size_t i = 0; i < j->n_ids; i++)
        moebius_sampler_accept(sampler, j->ids[i]);
    assert_int_equal(moebius_session_eval(s, j->ids, j->n_ids, &error), MOEBIUS_OK);
    for (size_t i = 0; i < j->n_answer; i++) {
        const float *logits = moebius_session_logits(s);
        int32_t id = moebius_sampler_pick(sampler, logits);
        moebius_logprob top[TOP];
        if (id != j->answer[i])
            fail_msg("token %zu of a text of %zu is %d, alone %d", i, j->n_ids, j->answer[i], id);
        if (j->n_logprob >= 0)
            assert_true(j->logprobs[i] == moebius_logprobs(logits, moebius_n_vocab(engine), id, top, j->n_logprob));
        moebius_sampler_accept(sampler, id);
        assert_int_equal(moebius_session_eval(s, &id, 1, &error), MOEBIUS_OK);
    }
    moebius_sampler_close(&sampler);
    moebius_session_close(&s);
}

/* The text has ended, once, as it should, and said what it says alone. */
static void check_job(moebius_engine *engine, const struct job *j)
{
    assert_int_equal(j->n_ended, 1);
    if (j->end == TEXT_END_FAILED)
        fail_msg("%s", j->error.text);
    assert_true(j->end == TEXT_END_LENGTH || j->end == TEXT_END_CANCELLED);
    if (j->end == TEXT_END_LENGTH)
        assert_true((int64_t)j->n_answer == j->max_tokens);
    else
        assert_true(j->cancel_after >= 0 && (int64_t)j->n_answer <= j->cancel_after);
    check_alone(engine, j);
    if (j->scores_prompt && (j->n_answer || j->end == TEXT_END_LENGTH))
        check_scores(engine, j);
    else
        assert_int_equal(j->n_scored, 0);
}

static void close_all(struct texts **x, moebius_engine **engine)
{
    texts_close(x);
    assert_int_equal(moebius_engine_counters(*engine).context_bytes, 0); /* all sessions are closed */
    moebius_engine_close(engine);
}

/* ---- neighbours -------------------------------------------------------------------------------------------------- */

/* Texts come and go at random, some are cancelled, some begin as others: all say what they say alone. */
static void check_schedule(const char *family, size_t n_texts, size_t n_jobs, int64_t state_bytes, uint64_t seed)
{
    static struct job jobs[MAX_JOBS];
    struct random r = random_seed(seed);
    moebius_engine *engine = open_engine(family, state_bytes);
    const struct texts_options o = {.n_texts = n_texts,
                                    .n_queue = MAX_JOBS,
                                    .n_ctx = MAX_PROMPT + MAX_ANSWER,
                                    .n_batch = 64 << below(&r, 3),
                                    .max_stall_ns = below(&r, 2) ? 0 : -1};
    struct texts *x = open_texts(engine, &o);
    for (size_t i = 0; i < n_jobs;) {
        for (uint32_t n = below(&r, 4); n > 0 && i < n_jobs; n--, i++) {
            jobs[i] = some_job(&r, engine, 1);
            jobs[i].group = below(&r, 3);
            if (below(&r, 4) == 0)
                jobs[i].cancel_after = below(&r, MAX_ANSWER);
            if (i && below(&r, 6) == 0) { /* the same prompt again */
                memcpy(jobs[i].ids, jobs[i - 1].ids, sizeof jobs[i].ids);
                jobs[i].n_ids = jobs[i - 1].n_ids;
            }
            if (below(&r, 2)) {
                jobs[i].scores_prompt = true;
                jobs[i].n_logprob = (int)below(&r, TOP + 1);
            }
            must_submit(x, &jobs[i]);
        }
        for (uint32_t n = below(&r, 8); n > 0; n--)
            step(x);
    }
    run(x);
    const struct texts_stats stats = texts_stats(x);
    assert_true(stats.n_most <= n_texts && stats.n_running == 0 && stats.n_waiting == 0);
    if (state_bytes)
        assert_true(stats.n_suspended > 0);
    texts_close(&x); /* what is kept takes memory that a text alone may need */
    for (size_t i = 0; i < n_jobs; i++)
        check_job(engine, &jobs[i]);
    printf("%s, %zu texts, seed %llu: %llu passes, %llu tokens of prompts computed, %llu not, %llu suspended\n", family,
           n_texts, (unsigned long long)seed, (unsigned long long)stats.n_pass, (unsigned long long)stats.n_prompt,
           (unsigned long long)stats.n_cached, (unsigned long long)stats.n_suspended);
    close_all(&x, &engine);
}

/* Texts that repeat themselves, one or several at a time, with guesses wherever there are some: all say what they say
 * alone. Returns how many guesses were right. */
static uint64_t check_guesses(const char *family, size_t n_texts, struct random *r)
{
    enum { N_JOBS = 12 };
    static struct job jobs[N_JOBS];
    moebius_engine *engine = open_engine(family, 0);
    const struct texts_options o = {.n_texts = n_texts,
                                    .n_queue = MAX_JOBS,
                                    .n_ctx = MAX_PROMPT + MAX_ANSWER,
                                    .n_batch = below(r, 2) ? 8 : 0,
                                    .n_draft = 1 + below(r, 20),
                                    .always_draft = true};
    struct texts *x = open_texts(engine, &o);
    for (int i = 0; i < N_JOBS; i++) {
        struct job *j = &jobs[i];
        *j = some_job(r, engine, 2);
        j->max_tokens = MAX_ANSWER - below(r, 8);
        j->repeat_penalty = below(r, 4) ? 1 : 1.1f;
        j->temperature = below(r, 3) ? 0 : 0.8f;
        j->n_logprob = below(r, 3) ? -1 : TOP;
        j->cancel_after = below(r, 6) ? -1 : (int64_t)below(r, MAX_ANSWER);
        j->n_biases = i % 3 ? 2 : 0; /* of two tokens alone, which guesses often hit */
        for (int k = 0; k < j->n_biases; k++)
            j->biases[k] = (moebius_logit_bias){j->ids[k], 50};
        uint32_t period = 1 + below(r, 30);
        for (size_t k = j->n_ids - below(r, (uint32_t)j->n_ids / 2); k < j->n_ids; k++)
            j->ids[k] = j->ids[k - (k < period ? k : period)];
        must_submit(x, j);
    }
    run(x);
    const struct texts_stats stats = texts_stats(x);
    texts_close(&x);
    for (int i = 0; i < N_JOBS; i++)
        check_job(engine, &jobs[i]);
    assert_true(stats.n_guess > 0 && stats.n_guess_right <= stats.n_guess);
    printf("%s, %zu texts: %llu of %llu guesses were right in %llu passes\n", family, n_texts,
           (unsigned long long)stats.n_guess_right, (unsigned long long)stats.n_guess,
           (unsigned long long)stats.n_pass);
    close_all(&x, &engine);
    return stats.n_guess_right;
}

static uint64_t seed_of(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);
    return s ? strtoull(s, NULL, 10) : otherwise;
}

static void answers_are_those_of_each_text_alone(void **state)
{
    uint64_t seed = seed_of("MOEBIUS_SEED", 1), n = seed_of("MOEBIUS_SCHEDULES", 1);
    for (uint64_t i = 0; i < n; i++)
        for (int f = 0; f < 3; f += FOR_THREADS ? 2 : 1) {
            if (!FOR_THREADS) {
                check_schedule(families[f], 1, 8, 0, seed + i);
                check_schedule(families[f], 4, 20, 0, seed + i);
            }
            check_schedule(families[f], 16, 40, 0, seed + i);
        }
}

static void guesses_change_no_answer(void **state)
{
    static const size_t n_texts[] = {1, 3, 8};
    uint64_t seed = seed_of("MOEBIUS_SEED", 1), n = seed_of("MOEBIUS_SCHEDULES", 1), n_right = 0;
    for (uint64_t i = 0; i < n; i++) {
        struct random r = random_seed(seed + i);
        for (int k = 0; k < 9; k += FOR_THREADS ? 4 : 1) {
            n_right += check_guesses(families[k % 3], n_texts[k / 3], &r);
            check_guesses(with_mtp[k % 3], n_texts[k / 3], &r);
        }
    }
    assert_true(n_right > 0);
}

/* A text that goes on with guesses, and one that goes on token by token: the same logits all the while. From time to
 * time the text goes on otherwise than the logits say, and once the session is taken back in between. */
static void check_look_ahead(const char *family, struct random *r)
{
    enum { N_TOKENS = 120 };
    struct err e;
    moebius_error error;
    moebius_session *plain, *ahead;
    moebius_engine *engine = open_engine(family, 0);
    struct look_ahead a = {.n_draft = 1 + below(r, 15), .always = true};
    const moebius_session_options o = {.n_ctx = MAX_PROMPT + N_TOKENS};
    size_t n_logits = (size_t)moebius_n_vocab(engine) * sizeof(float);
    struct job j = some_job(r, engine, 2);
    int64_t ns, n_computed = 0;
    assert_int_equal(moebius_session_open(&plain, engine, &o, &error), MOEBIUS_OK);
    assert_int_equal(moebius_session_open(&ahead, engine, &o, &error), MOEBIUS_OK);
    assert_int_equal(moebius_session_eval(plain, j.ids, j.n_ids, &error), MOEBIUS_OK);
    assert_int_equal(moebius_session_eval(ahead, j.ids, j.n_ids, &error), MOEBIUS_OK);
    assert_int_equal(look_ahead_begin(&a, engine, ahead, &e), ERR_OK);
    for (int i = 0; i < N_TOKENS; i++) {
        /* the prompt again and again, with other tokens here and there */
        int32_t id = below(r, 8) ? j.ids[(size_t)i % (j.n_ids < 40 ? j.n_ids : 40)] : j.ids[below(r, 2)];
        if (a.match == DRAFT_MTP && a.n_used < a.n && below(r, 4)) /* random models guess nothing right */
            id = a.guesses[1 + a.n_used];
        assert_int_equal(moebius_session_eval(plain, &id, 1, &error), MOEBIUS_OK);
        assert_int_equal(look_ahead_eval(&a, id, &ns, &e), ERR_OK);
        n_computed += ns > 0;
        assert_int_equal(look_ahead_pos(&a), moebius_session_pos(plain));
        assert_memory_equal(look_ahead_logits(&a), moebius_session_logits(plain), n_logits);
        if (i == N_TOKENS / 2) {
            look_ahead_end(&a);
            assert_int_equal(moebius_session_pos(ahead), moebius_session_pos(plain));
            assert_int_equal(look_ahead_begin(&a, engine, ahead, &e), ERR_OK);
        }
    }
    assert_true(a.n_right > 0 && a.n_right <= a.n_guess && n_computed == N_TOKENS - (int64_t)a.n_right);
    look_ahead_end(&a);
    assert_int_equal(moebius_session_pos(ahead), moebius_session_pos(plain));
    assert_memory_equal(moebius_session_tokens(ahead), moebius_session_tokens(plain),
                        (size_t)moebius_session_pos(plain) * sizeof(int32_t));
    look_ahead_close(&a);
    moebius_session_close(&plain);
    moebius_session_close(&ahead);
    moebius_engine_close(&engine);
}

static void looking_ahead_changes_no_logits(void **state)
{
    uint64_t seed = seed_of("MOEBIUS_SEED", 1), n = seed_of("MOEBIUS_SCHEDULES", 1);
    for (uint64_t i = 0; i < n; i++) {
        struct random r = random_seed(seed + i);
        for (int k = 0; k < 3; k += FOR_THREADS ? 2 : 1) {
            check_look_ahead(families[k], &r);
            check_look_ahead(with_mtp[k], &r);
        }
    }
}

/* What one text of the longest context needs. */
static int64_t text_bytes(const char *family)
{
    moebius_error error;
    moebius_session *s;
    moebius_engine *engine = open_engine(family, 1);
    const moebius_session_options o = {.n_ctx = 512};
    double mib;
    assert_int_equal(moebius_session_open(&s, engine, &o, &error), MOEBIUS_LIMIT);
    assert_int_equal(sscanf(error.text, "a context of 512 tokens needs %lf MiB", &mib), 1);
    moebius_engine_close(&engine);
    return (int64_t)((mib + 0.1) * (1 << 20));
}

static void texts_wait_for_memory(void **state)
{
    for (int f = 0; f < 3; f += FOR_THREADS ? 2 : 1) {
        int64_t n_bytes = text_bytes(families[f]);
        check_schedule(families[f], 8, 24, 2 * n_bytes - (n_bytes >> 2), seed_of("MOEBIUS_SEED", 1));
    }
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

static void a_full_queue_refuses(void **state)
{
    struct random r = random_seed(1);
    struct err e = {0};
    struct job jobs[4], long_one;
    moebius_engine *engine = open_engine("qwen3moe", 0);
    const struct texts_options o = {.n_texts = 1, .n_queue = 2, .n_ctx = 300};
    struct texts *x = open_texts(engine, &o);
    for (int i = 0; i < 4; i++) {
        jobs[i] = some_job(&r, engine, 1);
        jobs[i].n_ids = jobs[i].n_ids % 250 + 1;
        if (i < 3)
            must_submit(x, &jobs[i]);
    }
    assert_int_equal(submit(x, &jobs[3], &e), ERR_LIMIT);
    assert_string_equal(e.text, "2 texts wait already: try again later");
    assert_int_equal(texts_stats(x).n_waiting, 3);
    jobs[3].follows = true;
    must_submit(x, &jobs[3]);
    assert_int_equal(texts_stats(x).n_waiting, 4);
    run(x);
    long_one = jobs[0];
    long_one.n_ids = 301;
    assert_int_equal(texts_n_ctx(x), 300);
    assert_int_equal(submit(x, &long_one, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "301 tokens, the context 300"));
    long_one.n_ids = 0;
    assert_int_equal(submit(x, &long_one, &e), ERR_USAGE);
    long_one.n_ids = 5;
    long_one.ids[3] = -1;
    assert_int_equal(submit(x, &long_one, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "token 3 is -1: expected 0 to"));
    assert_int_equal(texts_stats(x).n_refused, 1);
    for (int i = 0; i < 4; i++)
        check_job(engine, &jobs[i]);
    close_all(&x, &engine);
}

static void groups_take_turns(void **state)
{
    static const uint64_t groups[] = {7, 7, 7, 7, 9, 9, 1ull << 60};
    static const int order[] = {0, 3, 5, 6, 1, 4, 2};
    struct random r = random_seed(2);
    struct job jobs[7];
    moebius_engine *engine = open_engine("qwen3moe", 0);
    const struct texts_options o = {.n_texts = 1, .n_queue = 7};
    struct texts *x = open_texts(engine, &o);
    n_ends = 0;
    for (int i = 0; i < 7; i++) {
        jobs[i] = some_job(&r, engine, 1);
        jobs[i].group = groups[i];
        must_submit(x, &jobs[i]);
    }
    run(x);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(jobs[i].order, order[i]);
        check_job(engine, &jobs[i]);
    }
    close_all(&x, &engine);
}

/* ---- kept texts -------------------------------------------------------------------------------------------------- */

/* The next turn of a conversation: all of the last one and some more. */
static struct job next_turn(const struct job *last, size_t n_more)
{
    struct job j = *last;
    memcpy(j.ids + j.n_ids, last->answer, last->n_answer * sizeof *j.ids);
    j.n_ids += last->n_answer;
    for (size_t i = 0; i < n_more; i++)
        j.ids[j.n_ids++] = (int32_t)(5 + i);
    j.n_ended = 0;
    j.n_told = 0;
    return j;
}

static void the_next_turn_goes_on_from_the_last(void **state)
{
    for (int f = 0; f < 3; f++) {
        struct random r = random_seed(3);
        moebius_engine *engine = open_engine(families[f], 0);
        const struct texts_options o = {.n_texts = 2};
        struct texts *x = open_texts(engine, &o);
        struct job first = some_job(&r, engine, 100), second, third, again;
        first.n_ids = 200;
        must_submit(x, &first);
        run(x);
        assert_int_equal(first.n_cached, 0);
        assert_int_equal(texts_stats(x).n_kept, 1);
        second = next_turn(&first, 20);
        must_submit(x, &second);
        run(x);
        assert_int_equal(second.n_cached, first.n_ids + first.n_answer - 1); /* its last token was not computed */
        assert_int_equal(texts_stats(x).n_kept, 1);                          /* the first is a part of the second */
        third = next_turn(&second, 5);
        again = first; /* a branch at the first turn's prompt */
        again.n_told = again.n_ended = 0;
        again.seed++;
        must_submit(x, &third);
        must_submit(x, &again);
        run(x);
        assert_int_equal(third.n_cached, second.n_ids + second.n_answer - 1);
        assert_true(again.n_cached >= 128 && again.n_cached < 200); /* at worst a checkpoint */
        check_job(engine, &first);
        check_job(engine, &second);
        check_job(engine, &third);
        check_job(engine, &again);
        close_all(&x, &engine);
    }
}

/* Of texts with the same beginning one computes it, and the others go on from where they part; where the prompts'
 * log-probabilities are wanted, too, from a token before. */
static void a_beginning_is_computed_once(void **state)
{
    for (int k = 0; k < 6; k++) {
        const int f = k % 3;
        const size_t n_again = k / 3;
        struct random r = random_seed(4);
        struct job jobs[8];
        moebius_engine *engine = open_engine(families[f], 0);
        const struct texts_options o = {.n_texts = 8, .n_batch = 64};
        struct texts *x = open_texts(engine, &o);
        jobs[0] = some_job(&r, engine, 30);
        for (int i = 0; i < 8; i++) {
            struct job j = some_job(&r, engine, 1);
            memcpy(j.ids, jobs[0].ids, 150 * sizeof *j.ids);
            j.n_ids = 200;
            j.ids[150] = i;
            if (i > 5) { /* these have the same prompt as another */
                memcpy(j.ids, jobs[i - 5].ids, sizeof j.ids);
            }
            if (n_again) {
                j.scores_prompt = true;
                j.n_logprob = i % 2 ? 0 : TOP - 1; /* as many as the first one wants, or less */
            }
            jobs[i] = j;
            must_submit(x, &jobs[i]);
        }
        run(x);
        for (int i = 0; i < 8; i++) {
            bool is_whole = i == 7 || (i == 6 && !n_again); /* the one that 6 repeats has less */
            assert_int_equal(jobs[i].n_cached, i == 0 ? 0 : (is_whole ? 200 : 150) - n_again);
            check_job(engine, &jobs[i]);
        }
        close_all(&x, &engine);
    }
}

/* Also by recurrent layers, from the second text that parts there on. */
static void where_texts_part_a_third_one_begins(void **state)
{
    for (int f = 0; f < 3; f++) {
        struct random r = random_seed(11);
        struct job jobs[3];
        moebius_engine *engine = open_engine(families[f], 0);
        struct texts *x = open_texts(engine, &(struct texts_options){.n_texts = 2});
        for (int i = 0; i < 3; i++) {
            jobs[i] = some_job(&r, engine, 30);
            memcpy(jobs[i].ids, jobs[0].ids, 100 * sizeof(int32_t));
            jobs[i].ids[100] = i;
            jobs[i].n_ids = 140;
            must_submit(x, &jobs[i]);
            run(x);
            assert_int_equal(jobs[i].n_cached, i == 0 || (i == 1 && f == 2) ? 0 : 100);
            check_job(engine, &jobs[i]);
        }
        close_all(&x, &engine);
    }
}

static void what_was_computed_of_a_cancelled_prompt_is_kept(void **state)
{
    for (int f = 0; f < 3; f++) {
        struct random r = random_seed(5);
        moebius_engine *engine = open_engine(families[f], 0);
        const struct texts_options o = {.n_texts = 2, .n_batch = 64};
        struct texts *x = open_texts(engine, &o);
        struct job a = some_job(&r, engine, 30), b;
        a.n_ids = 350;
        b = a;
        must_submit(x, &a);
        for (int i = 0; i < 3; i++)
            step(x);
        assert_int_equal(a.n_prompt, 192);
        texts_cancel(x, a.id);
        texts_cancel(x, a.id + 17); /* nobody's */
        run(x);
        assert_true(a.end == TEXT_END_CANCELLED && a.n_answer == 0 && a.n_ended == 1);
        must_submit(x, &b);
        run(x);
        assert_int_equal(b.n_cached, 192);
        check_job(engine, &b);
        close_all(&x, &engine);
    }
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static void log_probabilities_are_those_of_the_logits(void **state)
{
    struct random r = random_seed(6);
    moebius_engine *engine = open_engine("qwen3moe", 0);
    struct texts *x = open_texts(engine, &(struct texts_options){.n_texts = 3});
    struct job jobs[3];
    for (int i = 0; i < 3; i++) {
        jobs[i] = some_job(&r, engine, 1);
        jobs[i].n_logprob = i == 2 ? TOP : i;
        must_submit(x, &jobs[i]);
    }
    run(x);
    for (int i = 0; i < 3; i++)
        check_job(engine, &jobs[i]);
    assert_true(jobs[2].top[0].logprob >= jobs[2].top[1].logprob && jobs[2].top[1].logprob >= jobs[2].top[2].logprob);
    close_all(&x, &engine);
}

/* A text of no tokens computes its prompt, which is there for the next one. */
static void an_answer_may_be_empty(void **state)
{
    struct random r = random_seed(7);
    moebius_engine *engine = open_engine("qwen3next", 0);
    struct texts *x = open_texts(engine, &(struct texts_options){.n_texts = 1});
    struct job a = some_job(&r, engine, 100), b = a;
    a.max_tokens = 0;
    must_submit(x, &a);
    run(x);
    must_submit(x, &b);
    run(x);
    assert_int_equal(b.n_cached, b.n_ids); /* even the logits after its last token */
    check_job(engine, &a);
    check_job(engine, &b);
    close_all(&x, &engine);
}

/* After its budget of tokens the reasoning is ended by the template's mark, and the model goes on from there. */
static void reasoning_is_ended_after_its_budget(void **state)
{
    enum { BUDGET = 5, N_MORE = 6 };
    static const char source[] = "{{ messages[0].content }}<think>";
    struct random r = random_seed(12);
    struct err e;
    moebius_error error;
    moebius_template *tmpl;
    moebius_session *s;
    int32_t *mark;
    size_t n_mark;
    moebius_engine *engine = open_engine("qwen3next", 0);
    const moebius_vocab *vocab = moebius_engine_vocab(engine);
    struct texts *x = open_texts(engine, &(struct texts_options){.n_texts = 2});
    assert_int_equal(moebius_template_open(&tmpl, source, sizeof source - 1, vocab, &error), MOEBIUS_OK);
    assert_int_equal(moebius_tokenize(vocab, "</think>", 8, false, true, &mark, &n_mark, &error), MOEBIUS_OK);
    for (int budget = 0; budget <= BUDGET; budget += BUDGET) {
        struct job j = some_job(&r, engine, 1), other = some_job(&r, engine, 1);
        j.temperature = 0;
        j.max_tokens = budget + (int64_t)n_mark + N_MORE;
        struct text_request request = request_of(&j);
        request.tmpl = tmpl;
        request.prompt = "a<think>";
        request.reasoning_budget = budget;
        assert_int_equal(texts_submit(x, &request, &j.id, &e), ERR_OK);
        must_submit(x, &other);
        run(x);
        assert_int_equal(j.n_answer, j.max_tokens);
        assert_memory_equal(j.answer + budget, mark, n_mark * sizeof *mark);
        assert_int_equal(j.n_reasoning, (size_t)budget + n_mark - 1);
        const moebius_session_options o = {.n_ctx = MAX_PROMPT + MAX_ANSWER};
        assert_int_equal(moebius_session_open(&s, engine, &o, &error), MOEBIUS_OK);
        moebius_sampler_options greedy = request.sampling;
        moebius_sampler *sampler;
        assert_int_equal(moebius_sampler_open(&sampler, engine, &greedy, &error), MOEBIUS_OK);
        for (size_t i = 0; i < j.n_ids + j.n_answer; i++) {
            int32_t id = i < j.n_ids ? j.ids[i] : j.answer[i - j.n_ids];
            if (i >= j.n_ids + (size_t)budget + n_mark)
                assert_int_equal(id, moebius_sampler_pick(sampler, moebius_session_logits(s)));
            moebius_sampler_accept(sampler, id);
            assert_int_equal(moebius_session_eval(s, &id, 1, &error), MOEBIUS_OK);
        }
        check_job(engine, &other);
        moebius_sampler_close(&sampler);
        moebius_session_close(&s);
    }
    moebius_free(mark);
    moebius_template_close(&tmpl);
    close_all(&x, &engine);
}

static void count_notes(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct job *j = user;
    j->n_notes += part == MOEBIUS_REPLY_NOTE;
}

/* A grammar with too many ways to read a text lets it go on where it holds behind a trigger only; else the text fails,
 * and that is no matter of a full queue. */
static void a_grammar_that_is_too_much_is_let_go_behind_a_trigger(void **state)
{
    static const char rules[] = "root ::= \"aaa\" ((\"a\"?){1000}){10} \"!\"";
    struct random r = random_seed(14);
    struct err e;
    moebius_error error;
    moebius_grammar *grammar;
    int32_t *ids;
    size_t n_ids;
    moebius_engine *engine = open_engine("qwen3next", 0);
    const moebius_vocab *vocab = moebius_engine_vocab(engine);
    struct texts *x = open_texts(engine, &(struct texts_options){.n_texts = 2});
    assert_int_equal(moebius_tokenize(vocab, "a", 1, false, false, &ids, &n_ids, &error), MOEBIUS_OK);
    assert_int_equal(moebius_grammar_open(&grammar, vocab, MOEBIUS_GRAMMAR_GBNF, rules, sizeof rules - 1, 0, &error),
                     MOEBIUS_OK);
    for (int is_free = 0; is_free < 2; is_free++) {
        struct job j = some_job(&r, engine, 1);
        j.max_tokens = 10;
        j.biases[0] = (moebius_logit_bias){ids[0], 1000};
        j.n_biases = 1;
        struct text_request request = request_of(&j);
        request.grammar = grammar;
        request.grammar_from = is_free ? TEXT_GRAMMAR_FROM_TRIGGER : TEXT_GRAMMAR_FROM_START;
        request.trigger = "a";
        request.sink.part = count_notes;
        assert_int_equal(texts_submit(x, &request, &j.id, &e), ERR_OK);
        run(x);
        assert_int_equal(j.end, is_free ? TEXT_END_LENGTH : TEXT_END_FAILED);
        assert_int_equal(j.error.code, is_free ? ERR_OK : ERR_UNSUPPORTED);
        assert_true(is_free == (j.n_notes > 0));
    }
    moebius_free(ids);
    moebius_grammar_close(&grammar);
    close_all(&x, &engine);
}

static void note_stop(void *user, const struct text_result *r)
{
    char *out = user;
    snprintf(out, 100, "%d %s", (int)r->end, r->stop ? r->stop : "-");
}

/* The result names the stop string; text before it has been told. */
static void a_stop_string_ends_the_text(void **state)
{
    struct random r = random_seed(13);
    struct err e;
    char piece[32] = "", said[100];
    size_t n;
    moebius_engine *engine = open_engine("qwen3moe", 0);
    struct texts *x = open_texts(engine, &(struct texts_options){.n_texts = 1});
    struct job j = some_job(&r, engine, 1);
    j.max_tokens = 20;
    j.temperature = 0;
    must_submit(x, &j);
    run(x);
    for (int i = 0; !*piece; i++) {
        const char *text = moebius_token_piece(moebius_engine_vocab(engine), j.answer[i], false, &n);
        snprintf(piece, sizeof piece, "%.*s", (int)n, text);
    }
    const char *const stops[] = {"no such text", piece};
    struct text_request request = request_of(&j);
    request.stops = stops;
    request.n_stops = 2;
    request.sink = (struct text_sink){.end = note_stop, .user = said};
    assert_int_equal(texts_submit(x, &request, &j.id, &e), ERR_OK);
    run(x);
    char want[100];
    snprintf(want, sizeof want, "%d %s", (int)TEXT_END_STOP, piece);
    assert_string_equal(said, want);
    close_all(&x, &engine);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void *drive(void *user)
{
    texts_run(user);
    return NULL;
}

struct client {
    struct texts *x;
    struct job *jobs; /* [n] */
    int n;
    uint64_t seed;
};

/* Submits, and cancels some. */
static void *be_a_client(void *user)
{
    struct client *c = user;
    struct random r = random_seed(c->seed);
    for (int i = 0; i < c->n; i++) {
        struct err e;
        const struct text_request request = request_of(&c->jobs[i]);
        uint64_t id;
        if (texts_submit(c->x, &request, &id, &e) == ERR_OK && c->jobs[i].cancel_after >= 0) {
            for (uint32_t n = below(&r, 20); n > 0; n--)
                sched_yield();
            texts_cancel(c->x, id);
        }
        (void)texts_stats(c->x);
    }
    return NULL;
}

static size_t n_there(struct texts *x)
{
    const struct texts_stats s = texts_stats(x);
    return s.n_running + s.n_waiting;
}

static void threads_submit_and_cancel(void **state)
{
    enum { N_CLIENT = 4, N_EACH = 8 };
    static struct job jobs[N_CLIENT * N_EACH];
    struct random r = random_seed(8);
    pthread_t driver, threads[N_CLIENT];
    struct client clients[N_CLIENT];
    moebius_engine *engine = open_engine("qwen3next", 0);
    const struct texts_options o = {.n_texts = 5, .n_queue = N_CLIENT * N_EACH, .n_batch = 64};
    struct texts *x = open_texts(engine, &o);
    for (int i = 0; i < N_CLIENT * N_EACH; i++) {
        jobs[i] = some_job(&r, engine, 1);
        jobs[i].cancel_after = below(&r, 3) ? -1 : MAX_ANSWER; /* by its client */
        jobs[i].texts = x;
    }
    assert_int_equal(pthread_create(&driver, NULL, drive, x), 0);
    for (int i = 0; i < N_CLIENT; i++) {
        clients[i] = (struct client){x, jobs + i * N_EACH, N_EACH, (uint64_t)i};
        assert_int_equal(pthread_create(&threads[i], NULL, be_a_client, &clients[i]), 0);
    }
    for (int i = 0; i < N_CLIENT; i++)
        pthread_join(threads[i], NULL);
    while (n_there(x) > 0)
        sched_yield();
    texts_stop(x);
    pthread_join(driver, NULL);
    for (int i = 0; i < N_CLIENT * N_EACH; i++)
        check_job(engine, &jobs[i]);
    close_all(&x, &engine);
}

static void stopping_ends_all(void **state)
{
    struct random r = random_seed(9);
    struct err e;
    struct job jobs[4];
    pthread_t driver;
    moebius_engine *engine = open_engine("gpt_oss", 0);
    struct texts *x = open_texts(engine, &(struct texts_options){.n_texts = 2, .n_queue = 2});
    for (int i = 0; i < 4; i++) {
        jobs[i] = some_job(&r, engine, 30);
        jobs[i].max_tokens = i < 2 ? MAX_ANSWER : 1;
        must_submit(x, &jobs[i]);
    }
    assert_int_equal(pthread_create(&driver, NULL, drive, x), 0);
    texts_stop(x);
    pthread_join(driver, NULL);
    assert_int_equal(submit(x, &jobs[0], &e), ERR_CANCELLED);
    for (int i = 0; i < 4; i++)
        assert_int_equal(jobs[i].n_ended, 1);
    close_all(&x, &engine);
}

static bool at_once(void *user)
{
    return ++*(int *)user > 3;
}

/* An interrupt ends a step, wherever it comes, and the next one goes on. */
static void an_interrupt_loses_nothing(void **state)
{
    int n_asked = 0, n_before = 0, n_interrupts = 0;
    struct random r = random_seed(10);
    moebius_engine *engine = open_engine("qwen3next", 0);
    const struct texts_options o = {.n_texts = 2, .is_interrupted = at_once, .user = &n_asked};
    do {
        struct err e = {0};
        struct texts *x = open_texts(engine, &o);
        struct job j = some_job(&r, engine, 30);
        bool is_idle = false;
        j.scores_prompt = true;
        j.n_logprob = 1;
        must_submit(x, &j);
        n_asked = -n_before;
        while (!is_idle && texts_step(x, &is_idle, &e) == ERR_OK)
            ;
        n_interrupts += e.code == ERR_CANCELLED && j.n_ended == 0;
        n_asked = -1000000;
        run(x);
        check_job(engine, &j);
        texts_close(&x);
        n_before = 2 * n_before + 1;
    } while (n_before < 2000);
    assert_true(n_interrupts > 2);
    moebius_engine_close(&engine);
}

struct late {
    struct texts *x;
    struct job *jobs; /* [n] */
    int n;
};

/* Cancels in the middle of a pass. */
static bool cancel_now(void *user)
{
    struct late *l = user;
    for (int i = 0; i < l->n; i++)
        texts_cancel(l->x, l->jobs[i].id);
    return false;
}

/* A pass for one prompt alone is interrupted; one that others have a part in is not. */
static void cancelling_interrupts_what_nobody_else_wants(void **state)
{
    struct random r = random_seed(14);
    struct late late = {.n = 1};
    moebius_engine *engine = open_engine("qwen3moe", 0);
    const struct texts_options o = {.n_texts = 2, .is_interrupted = cancel_now, .user = &late};
    struct texts *x = open_texts(engine, &o);
    for (int both = 0; both < 2; both++) {
        struct job jobs[2] = {some_job(&r, engine, 30), some_job(&r, engine, 30)};
        late = (struct late){x, jobs, 1};
        for (int i = 0; i <= both; i++)
            must_submit(x, &jobs[i]);
        step(x);
        assert_true(jobs[0].end == TEXT_END_CANCELLED && jobs[0].n_ended == 1 && jobs[0].n_answer == 0);
        assert_int_equal(jobs[0].n_prompt, both ? jobs[0].n_ids : 0);
        run(x);
        if (both)
            check_job(engine, &jobs[1]);
    }
    assert_int_equal(texts_stats(x).n_ended[TEXT_END_CANCELLED], 2);
    close_all(&x, &engine);
}

/* Many texts, one after the other, in memory for a few: the last ones are kept, and none that runs has to wait. */
static void kept_texts_give_way(void **state)
{
    for (int f = 0; f < (FOR_THREADS ? 1 : 3); f++) {
        enum { N = 20 };
        static struct job jobs[N];
        struct random r = random_seed(15);
        struct job again;
        moebius_engine *engine = open_engine(families[f], 4 * text_bytes(families[f]));
        struct texts *x = open_texts(engine, &(struct texts_options){.n_texts = 2});
        for (int i = 0; i < N; i++) {
            jobs[i] = some_job(&r, engine, 30);
            jobs[i].ids[0] = i;
            jobs[i].n_ids = 300;
            must_submit(x, &jobs[i]);
            run(x);
        }
        const struct texts_stats stats = texts_stats(x);
        assert_true(stats.n_kept >= 1 && stats.n_kept < 15 && stats.n_suspended == 0);
        assert_true(moebius_engine_counters(engine).state_bytes <=
                    moebius_engine_counters(engine).state_max_bytes * 7 / 8);
        again = jobs[N - 1];
        again.n_told = again.n_ended = 0;
        must_submit(x, &again);
        run(x);
        assert_true(again.n_cached >= 256);
        texts_close(&x);
        for (int i = 0; i < N; i++)
            check_job(engine, &jobs[i]);
        check_job(engine, &again);
        moebius_engine_close(&engine);
    }
}

/* ---- on disk ----------------------------------------------------------------------------------------------------- */

/* What a text leaves on disk another process goes on from, even where the first one was killed. */
static void texts_go_on_from_disk(void **state)
{
    for (int f = 0; f < 3; f++) {
        struct random r = random_seed(16);
        assert_int_equal(temp_folder_make(&folder), 0);
        const struct texts_options o = {.n_texts = 4, .n_batch = 64, .cache_dir = folder.path, .cache_bytes = 1 << 30};
        moebius_engine *engine = open_engine(families[f], 0);
        struct texts *x = open_texts(engine, &o);
        struct job jobs[2], second[2];
        for (int i = 0; i < 2; i++) {
            jobs[i] = some_job(&r, engine, 30);
            jobs[i].n_ids = 300;
            jobs[i].ids[0] = i;
            must_submit(x, &jobs[i]);
        }
        run(x);
        assert_true(texts_stats(x).n_disk_written >= 2 && texts_stats(x).disk_bytes > 0);
        close_all(&x, &engine);
        engine = open_engine(families[f], 0);
        x = open_texts(engine, &o);
        second[0] = next_turn(&jobs[0], 10);
        second[1] = jobs[1]; /* another question instead of the last tokens of the prompt */
        second[1].n_told = second[1].n_ended = 0;
        second[1].ids[290] ^= 1;
        must_submit(x, &second[0]);
        must_submit(x, &second[1]);
        run(x);
        assert_true(second[0].n_cached >= 300); /* less than 64 tokens are not worth a file */
        assert_true(second[1].n_cached >= 300 - 32 && second[1].n_cached <= 290);
        assert_true(texts_stats(x).n_disk_read >= 2);
        for (int i = 0; i < 2; i++) {
            check_job(engine, &jobs[i]);
            check_job(engine, &second[i]);
        }
        close_all(&x, &engine);
        temp_folder_remove(&folder);
    }
}

/* Texts of which other processes have left all but the last tokens on disk. */
static void leave_on_disk(const char *family, const struct texts_options *o, struct job *jobs, size_t n)
{
    struct random r = random_seed(17);
    moebius_engine *engine = open_engine(family, 0);
    struct texts *x = open_texts(engine, o);
    for (size_t i = 0; i < n; i++) {
        jobs[i] = some_job(&r, engine, 30);
        jobs[i].n_ids = 300;
        jobs[i].ids[0] = (int32_t)i;
        jobs[i].max_tokens = 2;
        must_submit(x, &jobs[i]);
    }
    run(x);
    assert_true(texts_stats(x).n_disk_written >= n);
    close_all(&x, &engine);
}

/* However many texts are loading: beside an answer one part at a time is read or written, and no prompt is computed
 * meanwhile. */
static void an_answer_waits_for_one_part_at_a_time(void **state)
{
    enum { N_LOADING = 4 };
    for (int f = 0; f < 3; f++) {
        struct random r = random_seed(18);
        assert_int_equal(temp_folder_make(&folder), 0);
        const struct texts_options o = {
            .n_texts = N_LOADING + 2, .n_batch = 64, .cache_dir = folder.path, .cache_bytes = 1 << 30};
        struct job before[N_LOADING], jobs[N_LOADING + 2];
        leave_on_disk(families[f], &o, before, N_LOADING);
        moebius_engine *engine = open_engine(families[f], 0);
        struct texts *x = open_texts(engine, &o);
        struct job *talk = &jobs[N_LOADING];
        for (int i = 0; i < N_LOADING; i++)
            jobs[i] = next_turn(&before[i], 1);
        for (int i = N_LOADING; i < N_LOADING + 2; i++) {
            jobs[i] = some_job(&r, engine, 30);
            jobs[i].n_ids = 350;
            jobs[i].max_tokens = MAX_ANSWER;
            jobs[i].ids[0] = 90 + i;
        }
        must_submit(x, talk);
        while (talk->n_told < 2 || texts_stats(x).n_disk_written == 0)
            assert_true(step(x));
        for (int i = 0; i < N_LOADING + 2; i++)
            if (&jobs[i] != talk)
                must_submit(x, &jobs[i]);
        uint64_t n_read = 0;
        for (bool goes_on = true; goes_on;) {
            const struct texts_stats a = texts_stats(x);
            const int64_t n_told = talk->n_told;
            goes_on = step(x);
            const struct texts_stats b = texts_stats(x);
            const uint64_t n_part = b.n_disk_read - a.n_disk_read + b.n_disk_written - a.n_disk_written;
            if (talk->n_ended)
                continue;
            assert_int_equal(talk->n_told, n_told + 1);
            /* of prompts at most their last tokens, which are computed as those of answers are */
            assert_true(n_part == 0 || (n_part == 1 && b.n_prompt - a.n_prompt <= N_LOADING + 1));
            n_read = b.n_disk_read;
        }
        assert_true(n_read >= N_LOADING);
        for (int i = 0; i < N_LOADING + 2; i++)
            check_job(engine, &jobs[i]);
        assert_true(jobs[0].n_cached >= 256 && jobs[N_LOADING - 1].n_cached >= 256);
        close_all(&x, &engine);
        temp_folder_remove(&folder);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_change_no_answer),
        cmocka_unit_test(looking_ahead_changes_no_logits),
        cmocka_unit_test(answers_are_those_of_each_text_alone),
        cmocka_unit_test(texts_wait_for_memory),
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(groups_take_turns),
        cmocka_unit_test(the_next_turn_goes_on_from_the_last),
        cmocka_unit_test(a_beginning_is_computed_once),
        cmocka_unit_test(where_texts_part_a_third_one_begins),
        cmocka_unit_test(what_was_computed_of_a_cancelled_prompt_is_kept),
        cmocka_unit_test(log_probabilities_are_those_of_the_logits),
        cmocka_unit_test(an_answer_may_be_empty),
        cmocka_unit_test(reasoning_is_ended_after_its_budget),
        cmocka_unit_test(a_grammar_that_is_too_much_is_let_go_behind_a_trigger),
        cmocka_unit_test(a_stop_string_ends_the_text),
        cmocka_unit_test(threads_submit_and_cancel),
        cmocka_unit_test(stopping_ends_all),
        cmocka_unit_test(an_interrupt_loses_nothing),
        cmocka_unit_test(cancelling_interrupts_what_nobody_else_wants),
        cmocka_unit_test(kept_texts_give_way),
        cmocka_unit_test(texts_go_on_from_disk),
        cmocka_unit_test(an_answer_waits_for_one_part_at_a_time),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_texts GOLDEN_DIRECTORY\n");
        return 2;
    }
    golden = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
