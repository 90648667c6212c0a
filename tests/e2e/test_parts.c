/* Sessions in parts: written as a text grows, and read back as a chain. usage: test_parts GOLDEN_DIRECTORY
 * MOEBIUS_SEED: of the first random chain; MOEBIUS_CHAINS: how many for each model and type of caches (2). */
#include <unistd.h>

#include "base/crc32c.h"
#include "base/minmax.h"
#include "base/random.h"
#include "session_fixture.h"

enum { MAX_PART = 64, N_CHAIN = 2, N_MORE = 40 };

/* Parts of a text, from 0 on. */
struct chain {
    struct temp_path path[MAX_PART];
    int64_t end[MAX_PART];
    int n;
};

static int64_t below(struct random *r, int64_t n)
{
    return (int64_t)(random_u32(r) % (uint32_t)n);
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : otherwise;
}

static int64_t chain_end(const struct chain *c)
{
    return c->n ? c->end[c->n - 1] : 0;
}

/* ---- chains -------------------------------------------------------------------------------------------------- */

static void expect_part(const moebius_session *s, const char *path, int64_t from, int64_t to)
{
    moebius_error error;
    moebius_part part;
    int32_t ids[N_LONG];
    uint64_t key;
    must(moebius_part_read(path, &part, &error), &error);
    must(moebius_session_part_key(s, &key, &error), &error);
    must(moebius_part_tokens(path, ids + from, to - from, &error), &error);
    assert_int_not_equal(moebius_part_tokens(path, ids + from, to - from - 1, &error), MOEBIUS_OK);
    memcpy(ids, moebius_session_tokens(s), (size_t)from * sizeof *ids);
    assert_int_equal(part.from, from);
    assert_int_equal(part.n_tok, to);
    assert_int_equal(part.hash_before, moebius_tokens_hash(key, ids, (size_t)from));
    assert_int_equal(part.hash, moebius_tokens_hash(part.hash_before, ids + from, (size_t)(to - from)));
    assert_int_equal(part.has_logits, to == moebius_session_pos(s) && moebius_session_logits(s));
    assert_memory_equal(ids, moebius_session_tokens(s), (size_t)to * sizeof *ids);
}

/* Writes the next part of a session: up to `to`, or where a part can end. */
static void add_part(struct chain *c, moebius_session *s, int64_t to)
{
    char name[32];
    moebius_error error;
    int64_t from = chain_end(c), end = moebius_session_part_end(s, from, to);
    assert_true(c->n < MAX_PART && end > from && end <= moebius_session_pos(s));
    snprintf(name, sizeof name, "part%d.state", c->n);
    c->path[c->n] = temp_path(&folder, name);
    c->end[c->n] = end;
    int64_t n_bytes = moebius_session_part_bytes(s, from, end);
    must(moebius_session_save_part(s, from, end, c->path[c->n].s, &error), &error);
    expect_part(s, c->path[c->n].s, from, end);
    size_t n;
    free(read_file(c->path[c->n].s, &n));
    assert_int_equal(n, n_bytes);
    c->n++;
}

static void load_parts(moebius_session *s, const struct chain *c, int first, int n)
{
    moebius_error error;
    for (int i = first; i < n; i++) {
        must(moebius_session_load_part(s, c->path[i].s, &error), &error);
        assert_int_equal(moebius_session_pos(s), c->end[i]);
    }
}

/* Both go on with the same bits. */
static void expect_same(moebius_session *a, moebius_session *b, const moebius_engine *e)
{
    int64_t pos = moebius_session_pos(a), to = min_i64(pos + N_MORE, N_LONG);
    assert_int_equal(moebius_session_pos(b), pos);
    assert_memory_equal(moebius_session_tokens(a), moebius_session_tokens(b), (size_t)pos * sizeof(int32_t));
    if (moebius_session_logits(a) && moebius_session_logits(b))
        expect_logits(b, e, moebius_session_logits(a));
    feed(a, e, pos, to, 17);
    feed(b, e, pos, to, 5);
    expect_logits(b, e, moebius_session_logits(a));
}

/* Feeds a text in turns, each written in parts that end where the dice say, and forks and goes back on the way. */
static void write_random(struct chain *c, moebius_session *s, const moebius_engine *e, struct random *r)
{
    moebius_session *other = NULL;
    while (moebius_session_pos(s) < N_LONG - 200 && c->n < MAX_PART / 2) {
        int64_t pos = moebius_session_pos(s), to = pos + 1 + below(r, below(r, 3) ? 60 : 500);
        feed(s, e, pos, min_i64(to, N_LONG - N_MORE), 1 + below(r, 600));
        if (below(r, 3) == 0) { /* pages have others that hold them, too, and that write to what is theirs alone */
            moebius_session_close(&other);
            must(moebius_session_fork(&other, s, NULL), &(moebius_error){.text = "fork"});
            feed(other, e, moebius_session_pos(s), moebius_session_pos(s) + 3, 3);
        }
        if (below(r, 4) == 0)
            must(moebius_session_park(s, NULL, NULL), &(moebius_error){.text = "park"});
        while (chain_end(c) < moebius_session_pos(s) && c->n < MAX_PART && below(r, 5))
            add_part(c, s, chain_end(c) + 1 + below(r, 300));
        if (below(r, 3) == 0) { /* the text goes another way, from where the chain knows it or from before */
            int64_t back = moebius_session_truncate(s, moebius_session_pos(s) - below(r, 60));
            while (c->n && chain_end(c) > back)
                c->n--;
        }
    }
    if (chain_end(c) < moebius_session_pos(s) && c->n < MAX_PART)
        add_part(c, s, N_LONG);
    moebius_session_close(&other);
}

static void check_random(moebius_engine *e, moebius_kv_type kv, uint64_t seed)
{
    struct random r = random_seed(seed);
    struct chain c = {.n = 0};
    moebius_session *s = open_session(e, kv, N_LONG, 64 << below(&r, 4));
    moebius_session *all = open_session(e, kv, N_LONG, 64), *some = open_session(e, kv, N_LONG + 300, 512);
    print_message("seed %llu\n", (unsigned long long)seed);
    write_random(&c, s, e, &r);
    load_parts(all, &c, 0, c.n);
    int n = 1 + (int)below(&r, c.n); /* the beginning, which goes on alone, and the rest again after going back */
    load_parts(some, &c, 0, n);
    moebius_session *alone = open_session(e, kv, N_LONG, 512);
    feed(alone, e, 0, c.end[n - 1], N_LONG);
    expect_same(alone, some, e);
    if (moebius_session_truncate(some, c.end[n - 1]) == c.end[n - 1]) {
        load_parts(some, &c, n, c.n);
        moebius_session_truncate(alone, 0);
        feed(alone, e, 0, chain_end(&c), 64);
        expect_same(alone, some, e);
    }
    moebius_session_truncate(alone, 0);
    feed(alone, e, 0, chain_end(&c), N_LONG);
    expect_same(alone, all, e);
    int64_t back = moebius_session_truncate(all, below(&r, N_LONG));
    moebius_session_truncate(alone, 0);
    feed(alone, e, 0, back, 512);
    expect_same(alone, all, e);
    moebius_session_close(&s);
    moebius_session_close(&all);
    moebius_session_close(&some);
    moebius_session_close(&alone);
}

static void random_chains_go_on_with_the_bits_of_the_text_alone(void **state)
{
    static const moebius_kv_type types[] = {MOEBIUS_KV_F16, MOEBIUS_KV_F32, MOEBIUS_KV_Q8_0};
    uint64_t seed = setting("MOEBIUS_SEED", 1), n = setting("MOEBIUS_CHAINS", N_CHAIN);
    for (int i = 0; i < N_KIND; i++) {
        const moebius_engine_options o = {.n_threads = 1, .checkpoint_interval = i % 2 ? 100 : 0};
        moebius_engine *e = open_engine_with(kinds[i].name, &o);
        print_message("%s\n", kinds[i].name);
        for (int t = 0; t < (kinds[i].q8_0 ? 3 : 2); t++)
            for (uint64_t j = 0; j < n; j++)
                check_random(e, types[t], seed + j);
        moebius_engine_close(&e);
    }
}

/* ---- where parts end ----------------------------------------------------------------------------------------- */

/* A prompt in one piece, with checkpoints every 200 tokens. Windowed layers have somewhat more than the last 512. */
static void parts_end_where_a_session_can_go_back_to(void **state)
{
    enum { STEP = 200, AT_HAND = N_LONG - 512, GONE = N_LONG - 700 };
    for (int i = 0; i < N_KIND; i++) {
        const struct kind *k = &kinds[i];
        moebius_engine *e =
            open_engine_with(k->name, &(moebius_engine_options){.n_threads = 1, .checkpoint_interval = STEP});
        moebius_session *s = open_session(e, MOEBIUS_KV_F16, N_LONG, 64);
        assert_int_equal(moebius_session_goes_back(s), !k->recurrent && !k->windowed);
        feed(s, e, 0, N_LONG, N_LONG);
        for (int64_t from = 0; from < N_LONG; from += 150)
            for (int64_t to = from + 1; to < N_LONG; to += 97) {
                int64_t end = moebius_session_part_end(s, from, to), checkpoint = to / STEP * STEP;
                if ((!k->recurrent && !k->windowed) || (!k->recurrent && to >= AT_HAND))
                    assert_int_equal(end, to);
                else if (checkpoint > from && (k->recurrent || to < GONE))
                    assert_int_equal(end, checkpoint);
                else if (k->recurrent || to < GONE)
                    assert_true(end > to && end <= checkpoint + STEP);
            }
        assert_int_equal(moebius_session_part_end(s, 0, N_LONG), N_LONG);
        assert_int_equal(moebius_session_part_end(s, 0, INT64_MAX), N_LONG);
        moebius_session_close(&s);
        moebius_engine_close(&e);
    }
}

static void a_part_that_cannot_be_is_refused(void **state)
{
    static const struct {
        int64_t from, to;
        const char *says;
    } cases[] = {{-1, 5, "expected a range"},    {5, 5, "expected a range"}, {0, 31, "expected a range"},
                 {40, 50, "expected a range"},   {0, 10, "known at 30"},     {INT64_MIN, INT64_MAX, "expected a range"},
                 {INT64_MAX, 30, "from token 9"}};
    moebius_error error;
    struct temp_path p = temp_path(&folder, "never.state");
    moebius_engine *e = open_engine("qwen3next");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 64, 64);
    feed(s, e, 0, 30, 30);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(moebius_session_save_part(s, cases[i].from, cases[i].to, p.s, &error), MOEBIUS_USAGE);
        assert_non_null(strstr(error.text, cases[i].says));
        assert_int_not_equal(access(p.s, F_OK), 0);
    }
    assert_int_equal(moebius_session_save_part(s, 0, 30, "/nowhere/at/all", &error), MOEBIUS_IO);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

/* ---- what is refused ----------------------------------------------------------------------------------------- */

typedef moebius_status load_fn(moebius_session *session, const char *path, moebius_error *error);

/* Loading fails with a sentence, and the session is what it was; `twin`: the same session, to which nothing happens. */
static void expect_refusal(load_fn *load, moebius_session *s, moebius_session *twin, const char *path, const char *says)
{
    moebius_error error = {0};
    int64_t pos = moebius_session_pos(s);
    size_t n_logits = moebius_session_logits(twin) ? 16 : 0;
    moebius_status got = load(s, path, &error);
    if (got == MOEBIUS_OK || !strstr(error.text, says))
        fail_msg("status %d, \"%s\": expected \"%s\"", got, error.text, says);
    assert_int_equal(moebius_session_pos(s), pos);
    assert_int_equal(moebius_session_pos(twin), pos);
    assert_memory_equal(moebius_session_tokens(s), moebius_session_tokens(twin), (size_t)pos * sizeof(int32_t));
    assert_int_equal(moebius_session_logits(s) != NULL, n_logits > 0);
    if (n_logits)
        assert_memory_equal(moebius_session_logits(s), moebius_session_logits(twin), n_logits * sizeof(float));
}

static void parts_of_other_places_and_texts_are_refused(void **state)
{
    moebius_error error;
    struct chain c = {.n = 0};
    moebius_engine *e = open_engine("qwen3next"), *other = open_engine("gpt_oss");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 200, 64), *t = open_session(e, MOEBIUS_KV_F16, 200, 64);
    moebius_session *twin = open_session(e, MOEBIUS_KV_F16, 200, 64);
    for (int64_t pos = 0; pos < 120; pos += 30) {
        feed(s, e, pos, pos + 30, 30);
        add_part(&c, s, pos + 30);
    }
    expect_refusal(moebius_session_load_part, t, twin, c.path[1].s, "from token 30 on: this session has 0");
    expect_refusal(moebius_session_load, t, twin, c.path[1].s, "a part of a session, from token 30 on");
    load_parts(t, &c, 0, 2);
    load_parts(twin, &c, 0, 2);
    expect_refusal(moebius_session_load_part, t, twin, c.path[1].s, "from token 30 on: this session has 60");
    expect_refusal(moebius_session_load_part, t, twin, c.path[3].s, "from token 90 on: this session has 60");
    expect_refusal(moebius_session_load_part, t, twin, folder.path, "no saved session");
    expect_refusal(moebius_session_load_part, t, twin, "/nowhere/at/all", "/nowhere/at/all");
    expect_same(twin, t, e);

    int32_t ids[N_LONG];
    get_text(e, ids);
    ids[59]++;
    assert_int_equal(moebius_session_truncate(t, 0), 0);
    must(moebius_session_eval(t, ids, 60, &error), &error);
    assert_int_equal(moebius_session_load_part(t, c.path[2].s, &error), MOEBIUS_USAGE);
    assert_non_null(strstr(error.text, "of another text: its token 59 is"));
    assert_int_equal(moebius_session_pos(t), 60);
    assert_non_null(moebius_session_logits(t));

    moebius_session *f32 = open_session(e, MOEBIUS_KV_F32, 200, 64), *small = open_session(e, MOEBIUS_KV_F16, 80, 64);
    moebius_session *elsewhere = open_session(other, MOEBIUS_KV_F16, 200, 64);
    assert_int_equal(moebius_session_load_part(f32, c.path[0].s, &error), MOEBIUS_USAGE);
    assert_int_equal(moebius_session_load_part(elsewhere, c.path[0].s, &error), MOEBIUS_FORMAT);
    load_parts(small, &c, 0, 2);
    assert_int_equal(moebius_session_load_part(small, c.path[2].s, &error), MOEBIUS_LIMIT);
    assert_int_equal(moebius_session_pos(small), 60);

    uint64_t keys[3];
    const moebius_session *const sessions[3] = {s, f32, elsewhere};
    for (int i = 0; i < 3; i++)
        must(moebius_session_part_key(sessions[i], &keys[i], &error), &error);
    assert_true(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2]);
    moebius_session_close(&s);
    moebius_session_close(&t);
    moebius_session_close(&twin);
    moebius_session_close(&f32);
    moebius_session_close(&small);
    moebius_session_close(&elsewhere);
    moebius_engine_close(&e);
    moebius_engine_close(&other);
}

/* Of a part any byte is changed, and it is cut anywhere. */
static void damaged_parts_are_refused(void **state)
{
    for (int i = 0; i < N_KIND; i++) {
        moebius_error error;
        struct chain c = {.n = 0};
        struct random r = random_seed(setting("MOEBIUS_SEED", 1));
        struct temp_path q = temp_path(&folder, "bad.state");
        moebius_engine *e = open_engine(kinds[i].name);
        moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64), *t = open_session(e, MOEBIUS_KV_F16, 512, 64);
        moebius_session *twin = open_session(e, MOEBIUS_KV_F16, 512, 64), *kept;
        feed(s, e, 0, 70, 70);
        add_part(&c, s, 70);
        feed(s, e, 70, 150, 80);
        add_part(&c, s, 150);
        load_parts(t, &c, 0, 1);
        load_parts(twin, &c, 0, 1);
        must(moebius_session_fork(&kept, t, &error), &error); /* which shares the page that the part begins in */
        size_t n;
        char *bytes = read_file(c.path[1].s, &n);
        for (size_t at = 0; at < n; at += at < 120 || n - at < 10 ? 1 : 1 + (size_t)below(&r, 2 * (int64_t)n / 50)) {
            char change = (char)(1 << below(&r, 8));
            bytes[at] ^= change;
            write_file(q.s, bytes, n);
            expect_refusal(moebius_session_load_part, t, twin, q.s, q.s);
            bytes[at] ^= change;
        }
        for (size_t cut = 0; cut < n; cut += cut < 8 || n - cut < 8 ? 1 : n / 20) {
            write_file(q.s, bytes, cut);
            expect_refusal(moebius_session_load_part, t, twin, q.s, "expected");
        }
        must(moebius_session_load_part(t, c.path[1].s, &error), &error);
        expect_same(s, t, e);
        expect_same(kept, twin, e);
        free(bytes);
        moebius_session_close(&s);
        moebius_session_close(&t);
        moebius_session_close(&twin);
        moebius_session_close(&kept);
        moebius_engine_close(&e);
    }
}

/* No state for a part's pages: the session stays, and takes it when there is room again. */
static void a_part_that_finds_no_memory_leaves_the_session(void **state)
{
    moebius_error error;
    struct chain c = {.n = 0};
    moebius_engine *e = open_engine("q_q4_0");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64);
    feed(s, e, 0, 64, 64);
    size_t page = moebius_session_state_bytes(s);
    add_part(&c, s, 64);
    feed(s, e, 64, 400, 64);
    add_part(&c, s, 400);
    moebius_session_close(&s);
    moebius_engine_close(&e);

    e = open_engine_with("q_q4_0", &(moebius_engine_options){.n_threads = 1, .state_bytes = (int64_t)page * 8});
    s = open_session(e, MOEBIUS_KV_F16, 512, 64);
    moebius_session *t = open_session(e, MOEBIUS_KV_F16, 512, 64), *twin = open_session(e, MOEBIUS_KV_F16, 512, 64);
    feed(s, e, 0, 129, 64);
    load_parts(t, &c, 0, 1);
    load_parts(twin, &c, 0, 1);
    expect_refusal(moebius_session_load_part, t, twin, c.path[1].s, "no room for more tokens");
    moebius_session_close(&s);
    moebius_session_close(&twin);
    load_parts(t, &c, 1, 2);
    moebius_session_truncate(t, 300);
    must(moebius_session_eval(t, (const int32_t[]){1}, 1, &error), &error);
    moebius_session_close(&t);
    moebius_engine_close(&e);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 1;
    golden = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_chains_go_on_with_the_bits_of_the_text_alone),
        cmocka_unit_test(parts_end_where_a_session_can_go_back_to),
        cmocka_unit_test(a_part_that_cannot_be_is_refused),
        cmocka_unit_test(parts_of_other_places_and_texts_are_refused),
        cmocka_unit_test(damaged_parts_are_refused),
        cmocka_unit_test(a_part_that_finds_no_memory_leaves_the_session),
    };
    return cmocka_run_group_tests_name("parts", tests, folder_setup, folder_teardown);
}
