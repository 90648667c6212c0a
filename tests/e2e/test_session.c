/* Sessions: saved and restored, cut back, and the memory they take. usage: test_session GOLDEN_DIRECTORY */
#define _DEFAULT_SOURCE
#undef _FORTIFY_SOURCE /* so that fread is no other function */
#include <stdio.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "session_fixture.h"
#include "../unit/model_edit.h"
#include "../unit/for_threads.h"

/* ---- saving and loading -------------------------------------------------------------------------------------- */

static void check_continuation(moebius_engine *e, moebius_kv_type kv, int64_t cut)
{
    moebius_error error;
    struct temp_path a = temp_path(&folder, "a.state"), b = temp_path(&folder, "b.state");
    moebius_session *first = open_session(e, kv, 512, 128), *second = open_session(e, kv, N_TEXT, 64);
    int32_t ids[N_LONG];
    moebius_part part;
    get_text(e, ids);
    feed(first, e, 0, cut, 50);
    must(moebius_session_save(first, a.s, &error), &error);
    must(moebius_part_read(a.s, &part, &error), &error);
    assert_int_equal(part.n_tok, cut);

    feed(second, e, 100, 180, 64); /* another text is there already */
    must(moebius_session_load(second, a.s, &error), &error);
    assert_int_equal(moebius_session_pos(second), cut);
    assert_memory_equal(moebius_session_tokens(second), ids, (size_t)cut * sizeof *ids);
    expect_logits(second, e, moebius_session_logits(first));
    must(moebius_session_save(second, b.s, &error), &error);
    size_t n_a, n_b;
    char *bytes_a = read_file(a.s, &n_a), *bytes_b = read_file(b.s, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(bytes_a, bytes_b, n_a);

    for (int64_t i = cut; i < N_TEXT; i += 29) {
        int64_t to = i + 29 < N_TEXT ? i + 29 : N_TEXT;
        feed(first, e, i, to, 29);
        feed(second, e, i, to, 3);
        expect_logits(second, e, moebius_session_logits(first));
    }
    free(bytes_a);
    free(bytes_b);
    moebius_session_close(&first);
    moebius_session_close(&second);
}

static void a_loaded_session_goes_on_with_the_same_bits(void **state)
{
    static const int64_t cuts[] = {1, WINDOW, 64, 201};
    static const moebius_kv_type types[] = {MOEBIUS_KV_F16, MOEBIUS_KV_F32, MOEBIUS_KV_Q8_0};
    for (int i = 0; i < N_KIND; i += FOR_THREADS ? 3 : 1) {
        moebius_engine *e = open_engine(kinds[i].name);
        for (int t = 0; t < (kinds[i].q8_0 ? 3 : 2); t++)
            for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
                check_continuation(e, types[t], cuts[c]);
        moebius_engine_close(&e);
    }
}

static void an_empty_session_can_be_saved_and_loaded(void **state)
{
    moebius_error error;
    struct temp_path p = temp_path(&folder, "empty.state");
    moebius_engine *e = open_engine("qwen3next");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 64, 64);
    must(moebius_session_save(s, p.s, &error), &error);
    feed(s, e, 0, 5, 5);
    must(moebius_session_load(s, p.s, &error), &error);
    assert_int_equal(moebius_session_pos(s), 0);
    assert_null(moebius_session_logits(s));
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

/* ---- what is refused ----------------------------------------------------------------------------------------- */

/* Loading fails with a status and a sentence, and the session goes on as if nothing had been tried. */
static void expect_refusal(moebius_session *s, const moebius_engine *e, const char *path, moebius_status status,
                           const char *says)
{
    moebius_error error;
    int64_t pos = moebius_session_pos(s);
    float *logits = copy_logits(s, e);
    moebius_status got = moebius_session_load(s, path, &error);
    if (got == MOEBIUS_OK || (status && got != status) || !strstr(error.text, says))
        fail_msg("status %d, \"%s\": expected %d, \"%s\"", got, error.text, status, says);
    assert_int_equal(moebius_session_pos(s), pos);
    expect_logits(s, e, logits);
    free(logits);
}

static void damaged_files_are_refused(void **state)
{
    moebius_error error;
    struct temp_path p = temp_path(&folder, "good.state"), q = temp_path(&folder, "bad.state");
    moebius_engine *e = open_engine("qwen3next");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 64, 64), *other = open_session(e, MOEBIUS_KV_F16, 64, 64);
    feed(s, e, 0, 20, 20);
    must(moebius_session_save(s, p.s, &error), &error);
    feed(s, e, 20, 30, 10);
    feed(other, e, 0, 30, 30);
    size_t n;
    char *bytes = read_file(p.s, &n);
    for (size_t i = 0; i < n; i += i < 200 || n - i < 10 ? 1 : 331) { /* any byte flipped */
        bytes[i] ^= 0x10;
        write_file(q.s, bytes, n);
        expect_refusal(s, e, q.s, MOEBIUS_OK, q.s);
        bytes[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < n; cut += cut < 100 || n - cut < 10 ? 1 : 997) { /* cut short */
        write_file(q.s, bytes, cut);
        expect_refusal(s, e, q.s, MOEBIUS_FORMAT, "expected");
    }
    bytes[n] = 0;
    write_file(q.s, bytes, n + 1);
    expect_refusal(s, e, q.s, MOEBIUS_FORMAT, "damaged");
    expect_refusal(s, e, folder.path, MOEBIUS_FORMAT, "no saved session");
    struct temp_path fifo = temp_path(&folder, "pipe"); /* without anybody at the other end */
    assert_int_equal(mkfifo(fifo.s, 0600), 0);
    expect_refusal(s, e, fifo.s, MOEBIUS_FORMAT, "no saved session");
    expect_refusal(s, e, "/nowhere/at/all", MOEBIUS_IO, "/nowhere/at/all");
    assert_int_not_equal(moebius_session_save(s, "/nowhere/at/all", &error), MOEBIUS_OK);
    feed(s, e, 30, 40, 10); /* state, too, is as it was */
    feed(other, e, 30, 40, 10);
    expect_logits(s, e, moebius_session_logits(other));
    free(bytes);
    moebius_session_close(&s);
    moebius_session_close(&other);
    moebius_engine_close(&e);
}

/* What a file changes into between its two readings; NULL: it stays. */
static struct {
    const char *path, *bytes;
    size_t n;
} change;

void __real_rewind(FILE *f);
void __wrap_rewind(FILE *f);

void __wrap_rewind(FILE *f)
{
    if (change.path)
        write_file(change.path, change.bytes, change.n);
    __real_rewind(f);
}

/* Places in a saved session (engine/saved_file.h). */
enum { IDS_CRC_OFF = 112, CRC_OFF = 116, IDS_OFF = 120 };

/* The first of n_tok tokens becomes `id`, and the checksums right again. */
static void put_token(char *bytes, size_t n, size_t n_tok, int32_t id)
{
    memcpy(bytes + IDS_OFF, &id, sizeof id);
    uint32_t crc = crc32c(0, bytes + IDS_OFF, n_tok * sizeof id);
    memcpy(bytes + IDS_CRC_OFF, &crc, sizeof crc);
    crc = crc32c(0, bytes, CRC_OFF);
    memcpy(bytes + CRC_OFF, &crc, sizeof crc);
    crc = crc32c(0, bytes, n - sizeof crc);
    memcpy(bytes + n - sizeof crc, &crc, sizeof crc);
}

static void tokens_are_checked_in_both_readings(void **state)
{
    moebius_error error;
    struct temp_path p = temp_path(&folder, "tokens.state");
    moebius_engine *e = open_engine("qwen3moe");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 64, 64);
    int32_t n_vocab = (int32_t)moebius_n_vocab(e);
    feed(s, e, 0, 20, 20);
    must(moebius_session_save(s, p.s, &error), &error);
    size_t n;
    char *good = read_file(p.s, &n), *bad = malloc(n);
    memcpy(bad, good, n);
    for (int i = 0; i < 2; i++) {
        put_token(bad, n, 20, i ? n_vocab : -1);
        write_file(p.s, bad, n);
        expect_refusal(s, e, p.s, MOEBIUS_FORMAT, "1 tokens are none of the vocabulary");
        write_file(p.s, good, n);
        change.path = p.s;
        change.bytes = bad;
        change.n = n;
        assert_int_equal(moebius_session_load(s, p.s, &error), MOEBIUS_FORMAT);
        change.path = NULL;
        assert_non_null(strstr(error.text, "damaged: its tokens' checksum"));
        assert_int_equal(moebius_session_pos(s), 0);
        feed(s, e, 0, 20, 20);
    }
    put_token(bad, n, 20, n_vocab - 1);
    write_file(p.s, bad, n);
    must(moebius_session_load(s, p.s, &error), &error);
    free(good);
    free(bad);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

static void foreign_files_are_refused(void **state)
{
    moebius_error error;
    struct temp_path p = temp_path(&folder, "foreign.state");
    moebius_engine *e = open_engine("gemma4_shared"), *other = open_engine("gemma4");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 64, 64);
    moebius_session *f32 = open_session(e, MOEBIUS_KV_F32, 64, 64), *small = open_session(e, MOEBIUS_KV_F16, 39, 64);
    moebius_session *elsewhere = open_session(other, MOEBIUS_KV_F16, 64, 64);
    feed(s, e, 0, 40, 40);
    feed(f32, e, 0, 3, 3);
    feed(small, e, 0, 3, 3);
    feed(elsewhere, other, 0, 3, 3);
    must(moebius_session_save(s, p.s, &error), &error);
    expect_refusal(f32, e, p.s, MOEBIUS_USAGE, "KV cache is F16, this session's F32");
    expect_refusal(small, e, p.s, MOEBIUS_LIMIT, "40 tokens are more than the context of 39");
    expect_refusal(elsewhere, other, p.s, MOEBIUS_FORMAT, "another model");
    moebius_session_close(&s);
    moebius_session_close(&f32);
    moebius_session_close(&small);
    moebius_session_close(&elsewhere);
    moebius_engine_close(&e);
    moebius_engine_close(&other);
}

/* The same numbers and shapes, other weights: a tensor that begins with other bytes. */
static void a_fine_tune_is_another_model(void **state)
{
    moebius_error error;
    struct temp_path p = temp_path(&folder, "base.state"), q = temp_path(&folder, "tuned.gguf");
    char path[1024];
    snprintf(path, sizeof path, "%s/qwen3moe.gguf", golden);
    size_t n;
    char *bytes = read_file(path, &n);
    moebius_engine *e = open_engine("qwen3moe"), *tuned;
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 64, 64);
    feed(s, e, 0, 5, 5);
    must(moebius_session_save(s, p.s, &error), &error);
    moebius_session_close(&s);
    for (size_t at = n - 1; at > n / 2; at -= 32) /* tensors are longer than that */
        bytes[at] ^= 1;
    write_file(q.s, bytes, n);
    must(moebius_engine_open(&tuned, q.s, NULL, &error), &error);
    s = open_session(tuned, MOEBIUS_KV_F16, 64, 64);
    feed(s, tuned, 0, 5, 5);
    expect_refusal(s, tuned, p.s, MOEBIUS_FORMAT, "another model");
    moebius_session_close(&s);
    moebius_engine_close(&tuned);
    moebius_engine_close(&e);
    free(bytes);
}

/* ---- cutting back -------------------------------------------------------------------------------------------- */

/* After going back to `pos`, or to where that led, the text goes on as in a new session. */
static void check_truncated(moebius_session *s, moebius_engine *e, int64_t pos, int64_t expected)
{
    int64_t before = moebius_session_pos(s);
    assert_int_equal(moebius_session_way_back(s, pos), expected);
    assert_int_equal(moebius_session_pos(s), before);
    assert_int_equal(moebius_session_truncate(s, pos), expected);
    assert_int_equal(moebius_session_pos(s), expected);
    assert_null(moebius_session_logits(s));
    moebius_session *fresh = open_session(e, MOEBIUS_KV_F16, N_LONG, 64);
    feed(s, e, expected, expected + 20, 7);
    feed(fresh, e, 0, expected + 20, 64);
    expect_logits(s, e, moebius_session_logits(fresh));
    moebius_session_close(&fresh);
}

/* Each piece that was fed is a prompt, at whose end recurrent layers can begin again. */
static void going_back_ends_where_a_layer_knows_a_way(void **state)
{
    for (int i = 0; i < N_KIND; i++) {
        const struct kind *k = &kinds[i];
        moebius_engine *e = open_engine(k->name);
        moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64);
        feed(s, e, 0, 280, 64);
        check_truncated(s, e, 216, k->recurrent ? 192 : 216);
        feed(s, e, moebius_session_pos(s), 280, 64);
        check_truncated(s, e, 30, k->recurrent ? 0 : 30);
        feed(s, e, moebius_session_pos(s), 60, 64);
        check_truncated(s, e, 5, k->recurrent ? 0 : 5);
        moebius_session_close(&s);
        moebius_engine_close(&e);
    }
}

/* A long prompt in one piece. interval: between checkpoints; less than 0: none. */
static void check_far_back(const struct kind *k, int64_t interval)
{
    moebius_engine *e =
        open_engine_with(k->name, &(moebius_engine_options){.n_threads = 1, .checkpoint_interval = interval});
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, N_LONG, 64);
    bool has = interval > 0;
    feed(s, e, 0, N_LONG, N_LONG);
    check_truncated(s, e, 1270, k->recurrent ? has ? 1200 : 0 : 1270);
    moebius_session_truncate(s, 0);
    feed(s, e, 0, N_LONG, N_LONG);
    check_truncated(s, e, 390, k->recurrent || k->windowed ? has ? 200 : 0 : 390);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

static void going_far_back_ends_at_checkpoints(void **state)
{
    for (int i = 0; i < N_KIND; i += FOR_THREADS ? 3 : 1) {
        check_far_back(&kinds[i], 200);
        check_far_back(&kinds[i], -1);
    }
}

static void checkpoints_keep_within_their_memory(void **state)
{
    const moebius_engine_options o = {.n_threads = 1, .checkpoint_interval = 64, .checkpoint_bytes = 1};
    moebius_engine *e = open_engine_with("qwen3next", &o);
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64);
    feed(s, e, 0, 280, 64);
    check_truncated(s, e, 279, 0);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

static void a_loaded_window_has_no_way_back(void **state)
{
    moebius_error error;
    struct temp_path p = temp_path(&folder, "window.state");
    moebius_engine *e = open_engine("gpt_oss");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64);
    feed(s, e, 0, 100, 64);
    must(moebius_session_save(s, p.s, &error), &error);
    must(moebius_session_load(s, p.s, &error), &error);
    check_truncated(s, e, 99, 0);
    feed(s, e, 20, 22, 2);
    must(moebius_session_load(s, p.s, &error), &error);
    feed(s, e, 100, 130, 64);
    check_truncated(s, e, 111, 111); /* the window before it was computed here */
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

/* ---- growing ------------------------------------------------------------------------------------------------- */

/* A fork of a short context grows, goes on, and goes back to what was before. */
static void a_context_can_grow(void **state)
{
    for (int i = 0; i < N_KIND; i++) {
        moebius_error error;
        moebius_engine *e = open_engine(kinds[i].name);
        moebius_session *s = open_session(e, MOEBIUS_KV_F16, 192, 64), *fork;
        feed(s, e, 0, 192, 64);
        must(moebius_session_fork(&fork, s, &error), &error);
        must(moebius_session_grow(fork, 100, &error), &error); /* it is longer */
        assert_int_equal(moebius_session_n_ctx(fork), 192);
        must(moebius_session_grow(fork, N_LONG, &error), &error);
        assert_int_equal(moebius_session_n_ctx(fork), N_LONG);
        assert_int_equal(moebius_session_n_ctx(s), 192);
        assert_memory_equal(moebius_session_logits(fork), moebius_session_logits(s),
                            (size_t)moebius_n_vocab(e) * sizeof(float));
        assert_memory_equal(moebius_session_tokens(fork), moebius_session_tokens(s), 192 * sizeof(int32_t));
        moebius_session_close(&s);
        feed(fork, e, 192, N_TEXT, 64);
        check_truncated(fork, e, 192, 192);
        feed(fork, e, moebius_session_pos(fork), N_LONG - 20, 64);
        check_truncated(fork, e, N_LONG - 20, N_LONG - 20);
        moebius_session_close(&fork);
        assert_int_equal(moebius_engine_counters(e).context_bytes, 0);
        moebius_engine_close(&e);
    }
}

/* A short context bounds its batches, a long one those that the session was opened for. */
static void a_grown_context_takes_longer_batches(void **state)
{
    moebius_error error;
    moebius_engine *e = open_engine("qwen3moe");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 64, 0), *alone = open_session(e, MOEBIUS_KV_F16, N_LONG, 0);
    feed(s, e, 0, 20, 20);
    assert_int_equal(moebius_session_batch(s, 500), 64);
    must(moebius_session_grow(s, N_LONG, &error), &error);
    assert_int_equal(moebius_session_batch(s, 500), 500);
    feed(s, e, 20, 520, 500);
    feed(alone, e, 0, 520, 520);
    expect_logits(s, e, moebius_session_logits(alone));
    moebius_session_close(&s);
    moebius_session_close(&alone);
    moebius_engine_close(&e);
}

static void a_context_grows_within_the_memory_for_state(void **state)
{
    moebius_error error;
    moebius_engine *e =
        open_engine_with("qwen3next", &(moebius_engine_options){.n_threads = 1, .state_bytes = 8 << 20});
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 64, 64);
    feed(s, e, 0, 40, 64);
    assert_int_equal(moebius_session_grow(s, 1 << 20, &error), MOEBIUS_LIMIT);
    assert_non_null(strstr(error.text, "a context of 1048576 tokens needs "));
    assert_int_equal(moebius_session_n_ctx(s), 64);
    assert_int_equal(moebius_engine_counters(e).state_max_bytes, 8 << 20);
    assert_true(moebius_engine_counters(e).state_bytes >= moebius_session_state_bytes(s));
    check_truncated(s, e, 40, 40);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

/* gemma4_shared: layers 0 to 2 have caches of 32 wide keys and values of one head, the first two are windowed. A page
 * is 64 positions of a kind of layer, in blocks of 4096 bytes. */
static void windowed_layers_take_the_memory_of_their_window(void **state)
{
    static const struct {
        moebius_kv_type kv;
        size_t full, windowed; /* bytes of a page */
    } types[] = {{MOEBIUS_KV_F16, 8192, 16384}, {MOEBIUS_KV_F32, 16384, 32768}, {MOEBIUS_KV_Q8_0, 8192, 12288}};
    moebius_engine *e = open_engine("gemma4_shared");
    for (int i = 0; i < 3; i++) {
        moebius_session *s = open_session(e, types[i].kv, N_LONG, 64);
        assert_int_equal(moebius_session_state_bytes(s), 0);
        feed(s, e, 0, 65, 65);
        assert_int_equal(moebius_session_state_bytes(s), 2 * (types[i].full + types[i].windowed));
        feed(s, e, 65, N_LONG, 64); /* 21 blocks; 512 tokens back, block 12 is seen */
        assert_int_equal(moebius_session_state_bytes(s), 21 * types[i].full + 9 * types[i].windowed);
        moebius_session_close(&s);
    }
    moebius_engine_close(&e);
}

static void closed_sessions_give_their_memory_back(void **state)
{
    for (int i = 0; i < N_KIND; i++) {
        moebius_engine *e = open_engine(kinds[i].name);
        moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64);
        feed(s, e, 0, N_TEXT, 64);
        assert_true(moebius_engine_counters(e).context_bytes >= moebius_session_state_bytes(s));
        moebius_session_close(&s);
        assert_int_equal(moebius_engine_counters(e).context_bytes, 0);
        moebius_engine_close(&e);
    }
}

static void heads_that_q8_0_cannot_hold_are_refused(void **state)
{
    moebius_error error;
    moebius_session *s;
    moebius_engine *e = open_engine("gemma4");
    const moebius_session_options q8_0 = {.kv = MOEBIUS_KV_Q8_0}, none = {.kv = (moebius_kv_type)7};
    assert_int_equal(moebius_session_open(&s, e, &q8_0, &error), MOEBIUS_UNSUPPORTED);
    assert_null(s);
    assert_non_null(strstr(error.text, "multiples of 32"));
    assert_int_equal(moebius_session_open(&s, e, &none, &error), MOEBIUS_USAGE);
    moebius_engine_close(&e);
}

/* ---- parking ------------------------------------------------------------------------------------------------- */

/* A parked session takes no pages, and goes on with the same bits. */
static void check_parked(moebius_engine *e, const char *path)
{
    moebius_error error;
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64), *alone = open_session(e, MOEBIUS_KV_F16, 512, 64);
    feed(s, e, 0, 100, 64);
    feed(alone, e, 0, 120, 64);
    float *want = copy_logits(s, e);
    must(moebius_session_park(s, path, &error), &error);
    assert_int_equal(moebius_session_state_bytes(s), 0);
    assert_int_equal(moebius_session_pos(s), 100);
    expect_logits(s, e, want);
    feed(s, e, 100, 120, 7);
    expect_logits(s, e, moebius_session_logits(alone));
    must(moebius_session_park(s, path, &error), &error);
    must(moebius_session_park(s, path, &error), &error); /* comes back and goes again */
    must(moebius_session_unpark(s, &error), &error);
    assert_true(moebius_session_state_bytes(s) > 0);
    must(moebius_session_park(s, path, &error), &error);
    assert_true(moebius_session_truncate(s, 119) <= 119);
    moebius_session_close(&s);
    moebius_session_close(&alone);
    free(want);
}

static void a_parked_session_returns_with_the_same_bits(void **state)
{
    for (int i = 0; i < N_KIND; i++) {
        struct temp_path p = temp_path(&folder, "parked.state");
        moebius_engine *e = open_engine(kinds[i].name);
        check_parked(e, NULL);
        check_parked(e, p.s);
        moebius_engine_close(&e);
    }
}

/* Bytes of state that a page of a session takes. */
static int64_t page_bytes(const char *name)
{
    moebius_engine *e = open_engine(name);
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 1024, 64);
    feed(s, e, 0, 64, 64);
    int64_t n = (int64_t)moebius_session_state_bytes(s);
    moebius_session_close(&s);
    moebius_engine_close(&e);
    return n;
}

static void a_session_without_room_to_return_stays_parked(void **state)
{
    moebius_error error;
    moebius_engine *e = open_engine_with(
        "qwen3moe", &(moebius_engine_options){.n_threads = 1, .state_bytes = 16 * page_bytes("qwen3moe")});
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 1024, 64), *other = open_session(e, MOEBIUS_KV_F16, 1024, 64);
    feed(s, e, 0, 600, 64);
    float *want = copy_logits(s, e);
    must(moebius_session_park(s, NULL, &error), &error);
    feed(other, e, 0, 900, 64);
    assert_int_equal(moebius_session_unpark(s, &error), MOEBIUS_LIMIT);
    assert_int_equal(moebius_session_park(s, NULL, &error), MOEBIUS_LIMIT);
    assert_int_equal(moebius_session_pos(s), 600);
    moebius_session_close(&other);
    must(moebius_session_unpark(s, &error), &error);
    assert_int_equal(moebius_session_pos(s), 600);
    expect_logits(s, e, want);
    free(want);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

static void a_session_whose_file_is_gone_stays_parked(void **state)
{
    moebius_error error;
    struct temp_path p = temp_path(&folder, "gone.state");
    moebius_engine *e = open_engine("qwen3next");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64);
    size_t n;
    feed(s, e, 0, 100, 64);
    must(moebius_session_park(s, p.s, &error), &error);
    char *bytes = read_file(p.s, &n);
    remove(p.s);
    assert_int_equal(moebius_session_unpark(s, &error), MOEBIUS_IO);
    assert_int_equal(moebius_session_eval(s, (const int32_t[]){1}, 1, &error), MOEBIUS_IO);
    assert_int_equal(moebius_session_pos(s), 100);
    write_file(p.s, bytes, n);
    must(moebius_session_unpark(s, &error), &error);
    feed(s, e, 100, 110, 5);
    must(moebius_session_park(s, p.s, &error), &error);
    remove(p.s);
    assert_int_equal(moebius_session_truncate(s, 50), 0); /* it begins again */
    feed(s, e, 0, 20, 5);
    assert_int_not_equal(moebius_session_park(s, "/nowhere/at/all", &error), MOEBIUS_OK);
    assert_int_equal(moebius_session_pos(s), 20); /* and is not parked */
    free(bytes);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

static moebius_engine *interrupted; /* by each read of a file; NULL: none is */

/* In place of the system's. */
size_t fread(void *to, size_t size, size_t n, FILE *f)
{
    if (interrupted)
        moebius_engine_interrupt(interrupted);
    return fread_unlocked(to, size, n, f);
}

/* The interrupt that comes while the text is read ends the evaluation behind it; later ones do what they say. */
static void an_interrupt_while_a_parked_session_returns_leaves_it_as_it_was(void **state)
{
    for (int i = 0; i < N_KIND; i++) {
        moebius_error error;
        int32_t ids[N_LONG];
        struct temp_path p = temp_path(&folder, "interrupted.state");
        moebius_engine *e = open_engine(kinds[i].name);
        moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64),
                        *alone = open_session(e, MOEBIUS_KV_F16, 512, 64);
        get_text(e, ids);
        feed(s, e, 0, 100, 64);
        feed(alone, e, 0, 120, 64);
        float *want = copy_logits(s, e);
        must(moebius_session_park(s, p.s, &error), &error);
        interrupted = e;
        moebius_status status = moebius_session_eval(s, ids + 100, 20, &error);
        interrupted = NULL;
        assert_int_equal(status, MOEBIUS_CANCELLED);
        assert_int_equal(moebius_session_pos(s), 100);
        assert_true(moebius_session_state_bytes(s) > 0); /* it is back */
        expect_logits(s, e, want);
        feed(s, e, 100, 120, 64);
        expect_logits(s, e, moebius_session_logits(alone));
        moebius_session_close(&s);
        moebius_session_close(&alone);
        moebius_engine_close(&e);
        free(want);
    }
}

/* Of two texts that were parked at one path the first is not taken for the second, however long that is. */
static void a_parked_session_never_becomes_another_text(void **state)
{
    moebius_error error;
    struct temp_path p = temp_path(&folder, "parked.state");
    moebius_engine *e = open_engine("qwen3next");
    for (int64_t n_other = 80; n_other <= 100; n_other += 20) {
        moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64),
                        *other = open_session(e, MOEBIUS_KV_F16, 512, 64);
        feed(s, e, 0, 80, 64);
        feed(other, e, 7, 7 + n_other, 64);
        must(moebius_session_park(s, p.s, &error), &error);
        must(moebius_session_save(other, p.s, &error), &error);
        assert_int_equal(moebius_session_unpark(s, &error), MOEBIUS_USAGE);
        assert_int_equal(moebius_session_pos(s), 80);
        assert_int_equal(moebius_session_truncate(s, 40), 0);
        moebius_session_close(&s);
        moebius_session_close(&other);
    }
    moebius_engine_close(&e);
}

/* ---- engines ------------------------------------------------------------------------------------------------- */

static void an_engine_without_a_bound_leaves_it_to_another(void **state)
{
    moebius_error error;
    moebius_engine *free = open_engine_with("qwen3moe", &(moebius_engine_options){.n_threads = 1, .ram_bytes = -1});
    moebius_engine *bound =
        open_engine_with("gemma4", &(moebius_engine_options){.n_threads = 1, .ram_bytes = (int64_t)1 << 30});
    struct temp_path p = temp_path(&folder, "none");
    moebius_engine *none;
    assert_int_equal(
        moebius_engine_open(&none, p.s, &(moebius_engine_options){.n_threads = 1, .ram_bytes = -2}, &error),
        MOEBIUS_USAGE);
    assert_true(moebius_engine_counters(free).weight_bytes != moebius_engine_counters(bound).weight_bytes);
    moebius_engine_close(&bound);
    moebius_engine_close(&free);
}

/* ---- samplers ------------------------------------------------------------------------------------------------ */

static void a_matcher_of_another_vocabulary_is_refused(void **state)
{
    moebius_error error;
    moebius_sampler *sampler;
    const moebius_sampler_options o = moebius_default_sampler_options();
    moebius_engine *e = open_engine("qwen3moe"), *other = open_engine("gemma4");
    const moebius_vocab *vocabs[] = {moebius_engine_vocab(e), moebius_engine_vocab(other), NULL};
    must(moebius_sampler_open(&sampler, e, &o, &error), &error);
    for (int i = 0; i < 3; i++) {
        moebius_grammar *grammar;
        moebius_matcher *matcher;
        must(moebius_grammar_open(&grammar, vocabs[i], MOEBIUS_GRAMMAR_REGEX, "a+", 2, 0, &error), &error);
        must(moebius_matcher_open(&matcher, grammar, &error), &error);
        assert_int_equal(moebius_sampler_set_matcher(sampler, matcher, &error), i == 0 ? MOEBIUS_OK : MOEBIUS_USAGE);
        must(moebius_sampler_set_matcher(sampler, NULL, &error), &error);
        moebius_matcher_close(&matcher);
        moebius_grammar_close(&grammar);
    }
    moebius_sampler_close(&sampler);
    moebius_engine_close(&e);
    moebius_engine_close(&other);
}

/* The likeliest token is not picked where the file says so, and the next one is. */
static void suppressed_tokens_are_never_picked(void **state)
{
    moebius_error error;
    moebius_sampler *sampler;
    const moebius_logit_bias bias = {0, 0};
    const moebius_sampler_options o = {.top_p = 1,
                                       .typical_p = 1,
                                       .repeat_penalty = 1,
                                       .dry_base = 1,
                                       .dry_allowed_length = 1,
                                       .logit_biases = &bias,
                                       .n_logit_biases = 1};
    struct temp_path p = temp_path(&folder, "suppressed.gguf");
    moebius_engine *e = open_engine("qwen3moe"), *other;
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, 64, 64);
    feed(s, e, 0, 5, 5);
    int32_t first, picks[2];
    must(moebius_sampler_open(&sampler, e, &o, &error), &error);
    picks[0] = first = moebius_sampler_pick(sampler, moebius_session_logits(s));
    moebius_sampler_close(&sampler);
    for (int i = 1; i < 3; i++) {
        struct model_edit m;
        struct err failure;
        size_t n;
        char path[1024];
        const uint32_t ids[] = {(uint32_t)first, (uint32_t)picks[i - 1], UINT32_MAX};
        snprintf(path, sizeof path, "%s/qwen3moe.gguf", golden);
        model_edit_open(&m, path);
        model_edit_set_array(&m, "tokenizer.ggml.suppress_tokens", ids, 3);
        void *bytes = model_edit_bytes(&m, &n, &failure);
        write_file(p.s, bytes, n);
        mem_free(bytes);
        model_edit_close(&m);
        must(moebius_engine_open(&other, p.s, &(moebius_engine_options){.n_threads = 1}, &error), &error);
        must(moebius_sampler_open(&sampler, other, &o, &error), &error);
        int32_t id = moebius_sampler_pick(sampler, moebius_session_logits(s));
        assert_true(id != first && id != picks[i - 1] && id >= 0);
        picks[i % 2] = id;
        moebius_sampler_close(&sampler);
        moebius_engine_close(&other);
    }
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

/* ---- cancelling ---------------------------------------------------------------------------------------------- */

static bool count_down(void *user)
{
    return --*(int *)user < 0;
}

/* Cancels an evaluation, and completes the text: with the same bits. Returns where it had ended. */
static int64_t cancel_and_go_on(moebius_session *s, const moebius_engine *e, moebius_cancel_fn *is_wanted, void *user,
                                const float *want)
{
    enum { BEGUN = 40 };
    int32_t ids[N_LONG];
    moebius_error error;
    get_text(e, ids);
    moebius_session_truncate(s, 0);
    feed(s, e, 0, BEGUN, 64);
    float *begun = copy_logits(s, e);
    moebius_session_set_cancel(s, is_wanted, user);
    moebius_status status = moebius_session_eval(s, ids + BEGUN, N_TEXT - BEGUN, &error);
    int64_t pos = moebius_session_pos(s);
    moebius_session_set_cancel(s, NULL, NULL);
    assert_true(pos == N_TEXT || pos % 64 == BEGUN);
    assert_true(status == MOEBIUS_CANCELLED || (status == MOEBIUS_OK && pos == N_TEXT));
    if (status == MOEBIUS_CANCELLED) {
        assert_string_equal(error.text, "cancelled");
        if (pos == BEGUN)
            expect_logits(s, e, begun);
        else
            assert_null(moebius_session_logits(s));
    }
    free(begun);
    must(moebius_session_sync(s, ids, N_TEXT, NULL, &error), &error);
    expect_logits(s, e, want);
    return pos;
}

struct end {
    const moebius_session *s;
    int64_t pos;
};

static bool is_there(void *user)
{
    const struct end *x = user;
    return moebius_session_pos(x->s) >= x->pos;
}

static void a_cancelled_text_stays_at_its_last_chunk_and_goes_on_with_the_same_bits(void **state)
{
    static const int asks[] = {0, 1, 2, 3, 5, 8, 13, 21, 1000}; /* layer by layer, and now and then */
    for (int i = 0; i < N_KIND; i++) {
        moebius_engine *e = open_engine(kinds[i].name);
        moebius_session *s = open_session(e, MOEBIUS_KV_F16, 512, 64),
                        *alone = open_session(e, MOEBIUS_KV_F16, 512, 64);
        feed(alone, e, 0, N_TEXT, 64);
        const float *want = moebius_session_logits(alone);
        for (size_t k = 0; k < sizeof asks / sizeof *asks; k++) {
            int left = asks[k];
            int64_t pos = cancel_and_go_on(s, e, count_down, &left, want);
            assert_true(pos <= 40 + 64 * (asks[k] / moebius_n_layer(e)) && (asks[k] < 1000 || pos == N_TEXT));
        }
        for (int64_t pos = 40; pos <= 232; pos += 64) {
            struct end end = {s, pos};
            assert_int_equal(cancel_and_go_on(s, e, is_there, &end, want), pos);
        }
        moebius_session_close(&s);
        moebius_session_close(&alone);
        moebius_engine_close(&e);
    }
}

static bool cancel_at(void *user, size_t i, const float *logits)
{
    return i != *(const size_t *)user;
}

static void a_cancelled_batch_leaves_the_last_logits_or_none(void **state)
{
    moebius_engine *e = open_engine("qwen3moe");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, N_TEXT, 64);
    int32_t ids[N_LONG];
    get_text(e, ids);
    feed(s, e, 0, 64, 64);
    float *want = copy_logits(s, e);
    for (size_t at = 0; at < 64; at += 9) { /* of the 64 tokens, whose logits are computed 32 at a time */
        moebius_session_truncate(s, 0);
        assert_int_equal(moebius_session_eval_each(s, ids, 64, 0, cancel_at, &at, NULL), MOEBIUS_CANCELLED);
        assert_int_equal(moebius_session_pos(s), 64);
        if (at < 63)
            assert_null(moebius_session_logits(s));
        else
            expect_logits(s, e, want);
    }
    free(want);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

/* Generates n tokens into ids. */
static void generate(moebius_session *s, moebius_sampler *sampler, int n, int32_t *ids)
{
    moebius_error error;
    for (int i = 0; i < n; i++) {
        ids[i] = moebius_sampler_pick(sampler, moebius_session_logits(s));
        moebius_sampler_accept(sampler, ids[i]);
        must(moebius_session_eval(s, &ids[i], 1, &error), &error);
    }
}

static void a_cloned_sampler_chooses_the_same_for_a_fork_of_the_text(void **state)
{
    enum { N = 40, N_FORK = 20 };
    int32_t text[N_LONG], ids[N], forks[3][N_FORK];
    moebius_error error;
    moebius_engine *e = open_engine("qwen3moe");
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, N_TEXT, 64);
    moebius_sampler_options options = moebius_default_sampler_options();
    options.temperature = 1.5f;
    options.dry_multiplier = 1;
    options.frequency_penalty = 0.5f;
    moebius_sampler *samplers[3];
    struct temp_path path = temp_path(&folder, "fork.state");
    get_text(e, text);
    feed(s, e, 0, 8, 8);
    must(moebius_sampler_open(&samplers[0], e, &options, &error), &error);
    generate(s, samplers[0], N, ids);
    must(moebius_session_save(s, path.s, &error), &error);
    for (int i = 1; i < 3; i++)
        must(moebius_sampler_clone(&samplers[i], samplers[0], &error), &error);
    moebius_sampler_reseed(samplers[2], 7);
    for (int i = 0; i < 3; i++) {
        must(moebius_session_load(s, path.s, &error), &error);
        generate(s, samplers[i], N_FORK, forks[i]);
        moebius_sampler_close(&samplers[i]);
        assert_null(samplers[i]);
    }
    assert_memory_equal(forks[0], forks[1], sizeof forks[0]);
    assert_memory_not_equal(forks[0], forks[2], sizeof forks[0]);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

/* ---- counts of experts ------------------------------------------------------------------------------------------ */

enum { MAX_LAYER = 16, MAX_EXPERT = 64 };

struct choices {
    uint64_t n[MAX_LAYER][MAX_EXPERT];
};

static void note_choice(void *user, int layer, int64_t n_tok, int64_t n_used, const int32_t *ids)
{
    struct choices *c = user;
    for (int64_t i = 0; i < n_tok * n_used; i++)
        c->n[layer][ids[i]]++;
}

/* What the engine counted, and how many experts are in memory. */
static int64_t look_at_experts(const moebius_engine *e, struct choices *c)
{
    bool in_memory[MAX_EXPERT];
    int64_t n = 0;
    memset(c, 0, sizeof *c);
    for (int l = 0; l < moebius_n_moe_layer(e); l++) {
        assert_true(moebius_moe_layer_at(e, l).n_expert <= MAX_EXPERT && l < MAX_LAYER);
        assert_true(moebius_engine_experts(e, l, c->n[l], in_memory));
        for (int64_t i = 0; i < moebius_moe_layer_at(e, l).n_expert; i++)
            n += in_memory[i];
    }
    assert_false(moebius_engine_experts(e, moebius_n_moe_layer(e), c->n[0], in_memory));
    return n;
}

static int64_t n_all_experts(const moebius_engine *e)
{
    int64_t n = 0;
    for (int l = 0; l < moebius_n_moe_layer(e); l++)
        n += moebius_moe_layer_at(e, l).n_expert;
    return n;
}

static void choices_of_resident_layers_count_when_asked_and_change_no_bit(void **state)
{
    static const char *const names[] = {"qwen3moe", "qwen3next"};
    for (size_t k = 0; k < 2; k++) {
        static struct choices counted, routed, zero;
        moebius_engine *e = open_engine(names[k]);
        moebius_session *s = open_session(e, MOEBIUS_KV_F16, N_TEXT, 64);
        feed(s, e, 0, 20, 10);
        feed(s, e, 20, 30, 1);
        float *plain = copy_logits(s, e);
        assert_int_equal(look_at_experts(e, &counted), n_all_experts(e));
        assert_memory_equal(&counted, &zero, sizeof zero);

        memset(&routed, 0, sizeof routed);
        moebius_engine_count_experts(e, true);
        moebius_session_trace(s, &(moebius_trace){.routed = note_choice, .user = &routed});
        assert_int_equal(moebius_session_truncate(s, 0), 0);
        feed(s, e, 0, 20, 10);
        moebius_session_trace(s, NULL);
        look_at_experts(e, &counted);
        assert_memory_equal(&counted, &routed, sizeof routed);
        feed(s, e, 20, 30, 1);
        assert_memory_equal(plain, moebius_session_logits(s), (size_t)moebius_n_vocab(e) * sizeof *plain);
        look_at_experts(e, &routed);
        moebius_engine_count_experts(e, false);
        feed(s, e, 30, 40, 1);
        look_at_experts(e, &counted);
        assert_memory_equal(&counted, &routed, sizeof routed);
        free(plain);
        moebius_session_close(&s);
        moebius_engine_close(&e);
    }
}

static void choices_of_layers_that_are_read_count_always(void **state)
{
    static struct choices counted, routed;
    moebius_engine *e =
        open_engine_with("qwen3moe", &(moebius_engine_options){.n_threads = 1, .expert_ram_share = 0.6});
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, N_TEXT, 64);
    moebius_session_trace(s, &(moebius_trace){.routed = note_choice, .user = &routed});
    feed(s, e, 0, 40, 1);
    int64_t n = look_at_experts(e, &counted);
    assert_true(n > 0 && n < n_all_experts(e));
    assert_memory_equal(&counted, &routed, sizeof routed);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 1;
    golden = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_parked_session_returns_with_the_same_bits),
        cmocka_unit_test(a_session_without_room_to_return_stays_parked),
        cmocka_unit_test(a_session_whose_file_is_gone_stays_parked),
        cmocka_unit_test(an_interrupt_while_a_parked_session_returns_leaves_it_as_it_was),
        cmocka_unit_test(a_parked_session_never_becomes_another_text),
        cmocka_unit_test(an_engine_without_a_bound_leaves_it_to_another),
        cmocka_unit_test(a_matcher_of_another_vocabulary_is_refused),
        cmocka_unit_test(suppressed_tokens_are_never_picked),
        cmocka_unit_test(a_loaded_session_goes_on_with_the_same_bits),
        cmocka_unit_test(an_empty_session_can_be_saved_and_loaded),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(tokens_are_checked_in_both_readings),
        cmocka_unit_test(foreign_files_are_refused),
        cmocka_unit_test(a_fine_tune_is_another_model),
        cmocka_unit_test(going_back_ends_where_a_layer_knows_a_way),
        cmocka_unit_test(going_far_back_ends_at_checkpoints),
        cmocka_unit_test(checkpoints_keep_within_their_memory),
        cmocka_unit_test(a_loaded_window_has_no_way_back),
        cmocka_unit_test(a_context_can_grow),
        cmocka_unit_test(a_grown_context_takes_longer_batches),
        cmocka_unit_test(a_context_grows_within_the_memory_for_state),
        cmocka_unit_test(windowed_layers_take_the_memory_of_their_window),
        cmocka_unit_test(closed_sessions_give_their_memory_back),
        cmocka_unit_test(heads_that_q8_0_cannot_hold_are_refused),
        cmocka_unit_test(a_cancelled_text_stays_at_its_last_chunk_and_goes_on_with_the_same_bits),
        cmocka_unit_test(a_cancelled_batch_leaves_the_last_logits_or_none),
        cmocka_unit_test(a_cloned_sampler_chooses_the_same_for_a_fork_of_the_text),
        cmocka_unit_test(choices_of_resident_layers_count_when_asked_and_change_no_bit),
        cmocka_unit_test(choices_of_layers_that_are_read_count_always),
    };
    return cmocka_run_group_tests_name("session", tests, folder_setup, folder_teardown);
}
