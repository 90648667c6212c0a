/* Messages between ranks whose fields are wrong: each is refused with the field's name before anything is read by it.
 * Messages lie in memory of their own size, so that a sanitizer sees what is read beyond. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "ranks/rank_messages.h"

enum { N_LAYER = 3, N_EXPERT = 8, N_USED = 2, N_EMBD = 4, N_TOK = 5, N_PLACE = 2 };

/* Rank 1 of two, which has the odd experts. */
static const struct rank_service *service(void)
{
    static uint64_t holders[N_LAYER * N_EXPERT];
    static struct division division = {
        .n_place = N_PLACE, .n_layer = N_LAYER, .n_expert = N_EXPERT, .holders = holders};
    static struct expert_rules rules[N_LAYER];
    static const struct rank_service s = {.rules = rules, .division = &division, .n_layer = N_LAYER, .rank = 1};
    for (int i = 0; i < N_LAYER * N_EXPERT; i++)
        holders[i] = (uint64_t)1 << i % N_PLACE;
    for (int i = 0; i < N_LAYER; i++)
        rules[i] = (struct expert_rules){.n_embd = N_EMBD, .n_expert = N_EXPERT, .n_used = N_USED};
    return &s;
}

static void assert_says(const struct err *e, const char *what)
{
    if (!strstr(e->text, what))
        fail_msg("\"%s\" does not say \"%s\"", e->text, what);
}

/* A request with ids 1, -1, 1, -1 ... and zeros behind them. what NULL: it is fine. */
static void check(struct request q, size_t n_bytes, const int32_t *first_id, const char *what)
{
    struct err e = {0};
    struct request *m = calloc(1, n_bytes);
    assert_non_null(m);
    *m = q;
    int32_t *ids = (int32_t *)(m + 1);
    for (size_t i = 0; q.kind != REQUEST_OPEN && i < (n_bytes - sizeof q) / sizeof *ids && i < N_TOK * N_USED; i++)
        ids[i] = i % 2 ? -1 : i == 0 && first_id ? *first_id : 1;
    assert_int_equal(rank_check_request(service(), m, n_bytes, &e), what ? ERR_FAIL : ERR_OK);
    if (what)
        assert_says(&e, what);
    free(m);
}

static const struct request a_run = {
    .kind = REQUEST_RUN, .layer = 2, .n_tok = N_TOK, .n_used = N_USED, .n_embd = N_EMBD, .n_row = N_TOK};

static void a_request_to_compute_is_what_was_agreed(void **state)
{
    const size_t n = run_bytes(&a_run);
    struct request q = a_run;
    check(a_run, n, NULL, NULL);
    check(a_run, n - 4, NULL, "n_tok 5: expected 1 to 4");
    check(a_run, n + 4, NULL, "bytes ");
    check(a_run, sizeof q, NULL, "n_tok 5: expected 1 to 0");
    q.has_weights = 1;
    check(q, run_bytes(&q), NULL, NULL);
    check(q, n, NULL, "n_tok 5: expected 1 to 3");
    for (int layer = -1; layer <= N_LAYER; layer += N_LAYER + 1) {
        q = a_run;
        q.layer = layer;
        check(q, n, NULL, "layer ");
    }
    const int64_t n_tok[] = {-1, 0, 6, INT64_MAX, INT64_MIN, ((int64_t)1 << 61) + N_TOK};
    for (size_t i = 0; i < sizeof n_tok / sizeof *n_tok; i++) {
        q = a_run;
        q.n_tok = n_tok[i];
        check(q, n, NULL, "n_tok ");
    }
    q = a_run;
    q.n_used = N_USED + 1;
    check(q, n, NULL, "n_used 3: expected 2 to 2");
    q = a_run;
    q.n_embd = INT64_MAX;
    check(q, n, NULL, "n_embd ");
    q = a_run;
    q.n_row = N_TOK + 1;
    check(q, n, NULL, "n_row 6: expected 5 to 5");
    const int32_t ids[] = {-2, N_EXPERT, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        check(a_run, n, &ids[i], "ids ");
    const int32_t of_rank_0 = 2;
    check(a_run, n, &of_rank_0, "ids 2: expected experts of layer 2 that this rank has");
}

static void other_requests_are_what_was_agreed(void **state)
{
    const struct request predict = {.kind = REQUEST_PREDICT, .layer = 1, .n_tok = 3};
    struct request q = predict;
    const int32_t beyond = N_EXPERT;
    check(q, sizeof q + 12, NULL, NULL);
    check(q, sizeof q + 8, NULL, "n_tok 3: expected 0 to 2");
    check(q, sizeof q + 16, NULL, "bytes ");
    check(q, sizeof q + 12, &beyond, "ids 8: expected -1 to 7");
    q.n_tok = ((int64_t)1 << 62) + 3; /* so many ids have 12 bytes, modulo 2^64 */
    check(q, sizeof q + 12, NULL, "n_tok ");
    q = (struct request){.kind = REQUEST_OPEN, .n_spare_bytes = -1};
    check(q, sizeof q, NULL, NULL);
    check(q, sizeof q + 8, NULL, "bytes ");
    q.n_tok = N_LAYER;
    q.n_row = N_EXPERT;
    check(q, sizeof q + N_LAYER * N_EXPERT * 8, NULL, NULL);
    check(q, sizeof q + N_LAYER * N_EXPERT * 8 - 8, NULL, "bytes ");
    q.n_row = (int64_t)1 << 61;
    check(q, sizeof q, NULL, "n_row ");
    q.n_tok = -1;
    check(q, sizeof q, NULL, "n_tok ");
    q = (struct request){.kind = REQUEST_STATS, .layer = N_LAYER};
    check(q, sizeof q, NULL, "layer 3: expected 0 to 2");
    for (uint32_t kind = REQUEST_STATS; kind <= REQUEST_FORGET; kind++)
        check((struct request){.kind = kind}, sizeof q, NULL, NULL);
    check((struct request){.kind = REQUEST_DIVISION}, sizeof q, NULL, "kind 0");
    check((struct request){.kind = UINT32_MAX}, sizeof q, NULL, "kind 4294967295");
}

static void a_division_is_of_this_model_and_these_ranks(void **state)
{
    enum { N_ALL = N_LAYER * N_EXPERT };
    static const struct division_head agreed = {N_PLACE, N_LAYER, N_EXPERT};
    const struct {
        struct division_head head;
        uint64_t holder;
        uint32_t kind;
        int n_more;
        const char *says;
    } cases[] = {{agreed, 3, REQUEST_DIVISION, 0, NULL},
                 {agreed, 4, REQUEST_DIVISION, 0, "holders 4: expected places below 2"},
                 {agreed, 3, REQUEST_RUN, 0, "kind 1"},
                 {agreed, 3, REQUEST_DIVISION, 1, "bytes "},
                 {agreed, 3, REQUEST_DIVISION, -1, "bytes "},
                 {agreed, 3, REQUEST_DIVISION, -N_ALL - 1, "bytes "},
                 {{3, N_LAYER, N_EXPERT}, 3, REQUEST_DIVISION, 0, "n_place 3: expected 2 to 2"},
                 {{N_PLACE, 4, N_EXPERT}, 3, REQUEST_DIVISION, 0, "n_layer 4"},
                 {{N_PLACE, N_LAYER, 1 << 20}, 3, REQUEST_DIVISION, 0, "n_expert 1048576: expected 8"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct division d = {0};
        size_t n = sizeof(struct request) + sizeof agreed + (size_t)(N_ALL + cases[i].n_more) * sizeof(uint64_t);
        const size_t n_more = n - sizeof(struct request), n_head = n_more < sizeof agreed ? n_more : sizeof agreed;
        struct request *m = calloc(1, n);
        assert_non_null(m);
        m->kind = cases[i].kind;
        memcpy(m + 1, &cases[i].head, n_head);
        if (cases[i].n_more >= 0)
            memcpy((char *)(m + 1) + sizeof agreed, &cases[i].holder, sizeof(uint64_t));
        assert_int_equal(rank_read_division(m, n, &agreed, &d, &e), cases[i].says ? ERR_FAIL : ERR_OK);
        if (cases[i].says)
            assert_says(&e, cases[i].says);
        else
            assert_int_equal(division_holders(&d, 0, 0), 3);
        division_close(&d);
        free(m);
    }
}

static void an_answer_and_an_offer_name_rank_and_field(void **state)
{
    struct err e = {0};
    struct answer a = {.number = 7};
    assert_int_equal(rank_check_answer("rank 1 (h)", &a, 7, 16, 16, &e), ERR_OK);
    assert_int_equal(rank_check_answer("rank 1 (h)", &a, 7, 12, 16, &e), ERR_FAIL);
    assert_says(&e, "rank 1 (h): answer 7 of 12 bytes: expected 7 of 16");
    assert_int_equal(rank_check_answer("rank 1 (h)", &a, 8, 16, 16, &e), ERR_FAIL);
    a.compute_ns = -1;
    assert_int_equal(rank_check_answer("rank 1 (h)", &a, 7, 16, 16, &e), ERR_FAIL);
    assert_says(&e, "rank 1 (h): an answer's compute_ns -1");
    a.code = 1000;
    assert_int_equal(rank_check_answer("rank 1 (h)", &a, 7, 16, 16, &e), ERR_FAIL);
    assert_says(&e, "code 1000");
    a.code = ERR_IO;
    memset(a.text, 'x', sizeof a.text); /* without an end */
    assert_int_equal(rank_check_answer("rank 1 (h)", &a, 7, 0, 16, &e), ERR_IO);
    assert_says(&e, "rank 1 (h): xxx");

    const struct rank_offer mine = {.n_threads = 4};
    struct rank_offer o = mine;
    assert_int_equal(rank_check_offer("rank 2 (h)", &o, &mine, &e), ERR_OK);
    o.bytes_per_s = NAN;
    assert_int_equal(rank_check_offer("rank 2 (h)", &o, &mine, &e), ERR_FAIL);
    assert_says(&e, "rank 2 (h): an offer's bytes_per_s nan");
    o = mine;
    o.reads_per_s = -1;
    assert_int_equal(rank_check_offer("rank 2 (h)", &o, &mine, &e), ERR_FAIL);
    assert_says(&e, "reads_per_s -1");
    o = mine;
    o.n_threads = 0;
    assert_int_equal(rank_check_offer("rank 2 (h)", &o, &mine, &e), ERR_FAIL);
    assert_says(&e, "n_threads 0");
    o = mine;
    o.fingerprint = 1;
    assert_int_equal(rank_check_offer("rank 2 (h)", &o, &mine, &e), ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_to_compute_is_what_was_agreed),
        cmocka_unit_test(other_requests_are_what_was_agreed),
        cmocka_unit_test(a_division_is_of_this_model_and_these_ranks),
        cmocka_unit_test(an_answer_and_an_offer_name_rank_and_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
