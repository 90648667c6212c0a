/* Batches of sessions through the library: what is refused, who gets logits, forks, drafts, keeping a session at a list
 * of tokens, interrupts, structs of other lengths, and memory for state that is full. That the bits are those of each
 * text alone is tried by test_schedules. usage: test_batches GOLDEN_DIRECTORY */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "../unit/model_edit.h"
#include "../unit/temp_folder.h"
#include "base/mem.h"
#include "moebius/moebius.h"

enum { N_TEXT = 600, N_CTX = 1024 };

static const char *golden;
static int32_t ids[N_TEXT];

static moebius_engine *open_file(const char *path, const moebius_engine_options *o)
{
    moebius_error error;
    moebius_engine *e;
    if (moebius_engine_open(&e, path, o, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    for (int i = 0; i < N_TEXT; i++)
        ids[i] = (int32_t)((i * 37 + i / 11 * 5) % moebius_n_vocab(e));
    return e;
}

static moebius_engine *open_engine(const char *name, const moebius_engine_options *o)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.gguf", golden, name);
    return open_file(path, o);
}

static moebius_session *open_session(moebius_engine *e)
{
    moebius_error error;
    moebius_session *s;
    const moebius_session_options o = {.n_ctx = N_CTX, .n_batch = 64};
    if (moebius_session_open(&s, e, &o, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    return s;
}

static void must(moebius_status status, const moebius_error *error)
{
    if (status != MOEBIUS_OK)
        fail_msg("%s", error->text);
}

/* Appends tokens [pos, to) of the text. */
static void feed(moebius_session *s, int64_t to)
{
    moebius_error error;
    int64_t pos = moebius_session_pos(s);
    must(moebius_session_eval(s, ids + pos, (size_t)(to - pos), &error), &error);
}

/* The logits after the first n tokens of the text. Owned by the caller (free). */
static float *logits_after(moebius_engine *e, int64_t n)
{
    moebius_session *s = open_session(e);
    size_t n_bytes = (size_t)moebius_n_vocab(e) * sizeof(float);
    float *x = malloc(n_bytes);
    feed(s, n);
    memcpy(x, moebius_session_logits(s), n_bytes);
    moebius_session_close(&s);
    return x;
}

static void expect_logits_after(moebius_engine *e, const moebius_session *s, int64_t n)
{
    float *want = logits_after(e, n);
    assert_int_equal(moebius_session_pos(s), n);
    assert_non_null(moebius_session_logits(s));
    assert_memory_equal(moebius_session_logits(s), want, (size_t)moebius_n_vocab(e) * sizeof *want);
    free(want);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static bool any_logits(void *user, size_t i, const float *logits)
{
    ++*(int *)user;
    return true;
}

static void any_choice(void *user, int moe_layer, int64_t n_tok, int64_t n_used, const int32_t *chosen)
{
    ++*(int *)user;
}

/* Two items, of which the second is wrong: nothing is computed, and the sentence says why. */
static void expect_refusal(moebius_engine *e, moebius_session *good, const moebius_batch_item *wrong,
                           moebius_status status, const char *says)
{
    moebius_error error;
    const moebius_batch_item items[] = {{.session = good, .ids = ids, .n = 1}, *wrong};
    int64_t pos = moebius_session_pos(good);
    moebius_status got = moebius_eval_batch(e, items, 2, &error);
    if (got != status || !strstr(error.text, says))
        fail_msg("status %d, \"%s\": expected %d, \"%s\"", got, error.text, status, says);
    assert_int_equal(moebius_session_pos(good), pos);
    assert_int_equal(moebius_session_pos(wrong->session), wrong->session == good ? pos : 0);
}

static void wrong_items_are_refused_before_anything_is_computed(void **state)
{
    static const int32_t bad_ids[] = {1, 2, -1}, large_ids[] = {1 << 30};
    moebius_error error;
    int n_calls = 0;
    moebius_engine *e = open_engine("qwen3next", &(moebius_engine_options){.n_threads = 1});
    moebius_engine *other = open_engine("qwen3moe", &(moebius_engine_options){.n_threads = 1});
    moebius_session *a = open_session(e), *b = open_session(e), *far = open_session(other);
    feed(a, 10);
    const moebius_batch_item
        twice = {.session = a, .ids = ids, .n = 1},
        none = {.session = b, .ids = ids}, negative = {.session = b, .ids = bad_ids, .n = 3},
        large = {.session = b, .ids = large_ids, .n = 1}, foreign = {.session = far, .ids = ids, .n = 1},
        draft = {.session = b, .ids = ids, .n = 65, .is_draft = true},
        both = {.session = b, .ids = ids, .n = 1, .logits = any_logits, .user = &n_calls, .no_logits = true};
    expect_refusal(e, a, &twice, MOEBIUS_USAGE, "a session comes twice");
    expect_refusal(e, a, &none, MOEBIUS_USAGE, "no tokens");
    expect_refusal(e, a, &negative, MOEBIUS_USAGE, "token 2 is -1: expected 0 to ");
    expect_refusal(e, a, &large, MOEBIUS_USAGE, "token 0 is 1073741824");
    expect_refusal(e, a, &foreign, MOEBIUS_USAGE, "another engine");
    expect_refusal(e, a, &draft, MOEBIUS_USAGE, "a draft of 65 tokens: expected at most 64");
    expect_refusal(e, a, &both, MOEBIUS_USAGE, "logits that are not wanted");
    moebius_session_trace(b, &(moebius_trace){.routed = any_choice, .user = &n_calls});
    expect_refusal(e, a, &(const moebius_batch_item){.session = b, .ids = ids, .n = 1}, MOEBIUS_USAGE, "traced");
    assert_int_equal(moebius_eval_batch(e, NULL, 0, &error), MOEBIUS_USAGE);
    assert_int_equal(n_calls, 0);
    expect_logits_after(e, a, 10);
    moebius_session_close(&a);
    moebius_session_close(&b);
    moebius_session_close(&far);
    moebius_engine_close(&e);
    moebius_engine_close(&other);
}

static void a_full_context_is_refused_before_anything_is_computed(void **state)
{
    moebius_engine *e = open_engine("qwen3moe", &(moebius_engine_options){.n_threads = 1});
    moebius_session *a = open_session(e), *b;
    moebius_error error;
    const moebius_session_options small = {.n_ctx = 20};
    must(moebius_session_open(&b, e, &small, &error), &error);
    expect_refusal(e, a, &(const moebius_batch_item){.session = b, .ids = ids, .n = 21}, MOEBIUS_LIMIT,
                   "21 tokens after the 0 already there are more than the context of 20");
    moebius_session_close(&a);
    moebius_session_close(&b);
    moebius_engine_close(&e);
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

struct seen {
    size_t next;
    int n;
};

static bool in_order(void *user, size_t i, const float *logits)
{
    struct seen *x = user;
    assert_int_equal(i, x->next++);
    x->n++;
    return true;
}

static void each_item_gets_the_logits_that_it_asked_for(void **state)
{
    moebius_error error;
    moebius_engine *e = open_engine("gpt_oss", &(moebius_engine_options){.n_threads = 2});
    moebius_session *s[4];
    struct seen all = {0}, some = {.next = 130};
    for (int i = 0; i < 4; i++)
        s[i] = open_session(e);
    const moebius_batch_item items[] = {
        {.session = s[0], .ids = ids, .n = 200, .logits = in_order, .user = &all},
        {.session = s[1], .ids = ids, .n = 150, .logits = in_order, .user = &some, .first = 130},
        {.session = s[2], .ids = ids, .n = 90, .no_logits = true},
        {.session = s[3], .ids = ids, .n = 1},
    };
    must(moebius_eval_batch(e, items, 4, &error), &error);
    assert_int_equal(all.n, 200);
    assert_int_equal(some.n, 20);
    expect_logits_after(e, s[0], 200);
    expect_logits_after(e, s[1], 150);
    expect_logits_after(e, s[3], 1);
    assert_null(moebius_session_logits(s[2]));
    feed(s[2], 100);
    expect_logits_after(e, s[2], 100);
    for (int i = 0; i < 4; i++)
        moebius_session_close(&s[i]);
    moebius_engine_close(&e);
}

/* ---- forks, lists ------------------------------------------------------------------------------------------------ */

static const char *const models[] = {"qwen3moe", "gpt_oss", "gemma4_shared", "deepseek2_latent", "qwen3next"};

static void a_fork_is_the_same_and_outlives_what_it_came_from(void **state)
{
    for (int i = 0; i < 5; i++) {
        moebius_error error;
        moebius_engine *e = open_engine(models[i], &(moebius_engine_options){.n_threads = 1});
        moebius_session *s = open_session(e), *fork;
        feed(s, 100);
        must(moebius_session_fork(&fork, s, &error), &error);
        assert_int_equal(moebius_session_n_ctx(fork), N_CTX);
        assert_memory_equal(moebius_session_tokens(fork), ids, 100 * sizeof *ids);
        assert_int_equal(moebius_session_state_bytes(fork), moebius_session_state_bytes(s));
        expect_logits_after(e, fork, 100);
        must(moebius_session_eval(s, ids + 7, 30, &error), &error); /* other tokens */
        moebius_session_close(&s);
        feed(fork, 130);
        expect_logits_after(e, fork, 130);
        moebius_session_close(&fork);
        assert_int_equal(moebius_engine_counters(e).context_bytes, 0);
        moebius_engine_close(&e);
    }
}

static void an_empty_session_can_be_forked(void **state)
{
    moebius_error error;
    moebius_engine *e = open_engine("qwen3next", &(moebius_engine_options){.n_threads = 1});
    moebius_session *s = open_session(e), *fork;
    must(moebius_session_fork(&fork, s, &error), &error);
    assert_null(moebius_session_logits(fork));
    feed(fork, 5);
    expect_logits_after(e, fork, 5);
    moebius_session_close(&s);
    moebius_session_close(&fork);
    moebius_engine_close(&e);
}

/* The session becomes `n` tokens of the text, of which `kept` are not computed. */
static void sync_to(moebius_engine *e, moebius_session *s, size_t n, size_t kept)
{
    moebius_error error;
    size_t n_kept = 12345;
    must(moebius_session_sync(s, ids, n, &n_kept, &error), &error);
    assert_int_equal(n_kept, kept);
    expect_logits_after(e, s, (int64_t)n);
}

static void a_session_is_kept_at_a_list(void **state)
{
    int32_t other[40];
    for (int i = 0; i < 5; i++) {
        bool is_recurrent = !strcmp(models[i], "qwen3next");
        moebius_error error;
        moebius_engine *e = open_engine(models[i], &(moebius_engine_options){.n_threads = 1});
        moebius_session *s = open_session(e);
        sync_to(e, s, 50, 0);
        sync_to(e, s, 50, 50); /* nothing to do */
        sync_to(e, s, 80, 50);
        sync_to(e, s, 60, is_recurrent ? 50 : 59); /* the end of an earlier list, or a token for its logits */
        memcpy(other, ids, sizeof other);
        other[30] ^= 1;
        must(moebius_session_sync(s, other, 40, NULL, &error), &error);
        assert_memory_equal(moebius_session_tokens(s), other, sizeof other);
        sync_to(e, s, 70, is_recurrent ? 0 : 30);
        assert_int_equal(moebius_session_sync(s, ids, 0, NULL, &error), MOEBIUS_USAGE);
        moebius_session_close(&s);
        moebius_engine_close(&e);
    }
}

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

/* Beside a prompt that takes several passes, drafts can still be taken back to where each guess was right. */
static void drafts_beside_a_long_prompt_go_back_exactly(void **state)
{
    for (int i = 0; i < 5; i++) {
        moebius_error error;
        moebius_engine *e =
            open_engine(models[i], &(moebius_engine_options){.n_threads = 2, .checkpoint_interval = -1});
        moebius_session *a = open_session(e), *b = open_session(e), *prompt = open_session(e);
        feed(a, 70);
        feed(b, 20);
        const moebius_batch_item items[] = {{.session = prompt, .ids = ids, .n = 500},
                                            {.session = a, .ids = ids + 70, .n = 8, .is_draft = true},
                                            {.session = b, .ids = ids + 20, .n = 5, .is_draft = true}};
        must(moebius_eval_batch(e, items, 3, &error), &error);
        assert_int_equal(moebius_session_truncate(a, 73), 73);
        assert_int_equal(moebius_session_truncate(b, 20), 20);
        feed(a, 90);
        feed(b, 21);
        expect_logits_after(e, a, 90);
        expect_logits_after(e, b, 21);
        expect_logits_after(e, prompt, 500);
        moebius_session_close(&a);
        moebius_session_close(&b);
        moebius_session_close(&prompt);
        moebius_engine_close(&e);
    }
}

static void drafts_that_make_no_pass_together_are_refused(void **state)
{
    moebius_error error;
    moebius_engine *e = open_engine("qwen3next", &(moebius_engine_options){.n_threads = 1});
    moebius_session *a = open_session(e), *b = open_session(e);
    const moebius_batch_item items[] = {{.session = a, .ids = ids, .n = 60, .is_draft = true},
                                        {.session = b, .ids = ids, .n = 5, .is_draft = true}};
    assert_int_equal(moebius_eval_batch(e, items, 2, &error), MOEBIUS_USAGE);
    assert_non_null(strstr(error.text, "expected at most 64"));
    assert_int_equal(moebius_session_pos(a), 0);
    moebius_session_close(&a);
    moebius_session_close(&b);
    moebius_engine_close(&e);
}

static void drafts_on_caches_of_two_types_are_refused(void **state)
{
    moebius_error error;
    moebius_engine *e = open_engine("qwen3next", &(moebius_engine_options){.n_threads = 1});
    moebius_session *a = open_session(e), *b;
    must(moebius_session_open(&b, e, &(moebius_session_options){.kv = MOEBIUS_KV_F32}, &error), &error);
    const moebius_batch_item items[] = {{.session = a, .ids = ids, .n = 3, .is_draft = true},
                                        {.session = b, .ids = ids, .n = 5, .is_draft = true}};
    assert_int_equal(moebius_eval_batch(e, items, 2, &error), MOEBIUS_USAGE);
    assert_non_null(strstr(error.text, "expected one type"));
    moebius_session_close(&a);
    moebius_session_close(&b);
    moebius_engine_close(&e);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static bool interrupt_engine(void *user)
{
    moebius_engine_interrupt(user);
    return false;
}

static void an_interrupt_ends_a_batch_of_several_sessions(void **state)
{
    for (int i = 0; i < 5; i++) {
        moebius_error error;
        moebius_engine *e = open_engine(models[i], &(moebius_engine_options){.n_threads = 2});
        moebius_session *a = open_session(e), *b = open_session(e);
        feed(a, 30);
        feed(b, 10);
        const moebius_batch_item items[] = {{.session = a, .ids = ids + 30, .n = 300},
                                            {.session = b, .ids = ids + 10, .n = 200}};
        moebius_engine_interrupt(e); /* before an evaluation it is of no account */
        moebius_session_set_cancel(a, interrupt_engine, e);
        assert_int_equal(moebius_eval_batch(e, items, 2, &error), MOEBIUS_CANCELLED);
        moebius_session_set_cancel(a, NULL, NULL);
        assert_int_equal(moebius_session_pos(a), 30);
        assert_int_equal(moebius_session_pos(b), 10);
        must(moebius_eval_batch(e, items, 2, &error), &error);
        expect_logits_after(e, a, 330);
        expect_logits_after(e, b, 210);
        moebius_session_close(&a);
        moebius_session_close(&b);
        moebius_engine_close(&e);
    }
}

/* Memory for one session of N_CTX tokens, shared by three. */
static void a_full_state_is_told_and_closing_a_session_makes_room(void **state)
{
    moebius_error error;
    moebius_engine *e = open_engine("qwen3moe", &(moebius_engine_options){.n_threads = 1});
    moebius_session *s[3] = {open_session(e)};
    feed(s[0], 64);
    int64_t page_bytes = (int64_t)moebius_session_state_bytes(s[0]);
    moebius_session_close(&s[0]);
    moebius_engine_close(&e);
    const moebius_engine_options o = {.n_threads = 1, .state_bytes = page_bytes * (N_CTX / 64)};
    e = open_engine("qwen3moe", &o);
    for (int i = 0; i < 3; i++)
        s[i] = open_session(e);
    feed(s[0], 500); /* 8 of 16 pages */
    feed(s[1], 300);
    feed(s[2], 60);
    const moebius_batch_item items[] = {{.session = s[1], .ids = ids + 300, .n = 20},
                                        {.session = s[2], .ids = ids + 60, .n = 400}};
    assert_int_equal(moebius_eval_batch(e, items, 2, &error), MOEBIUS_LIMIT);
    assert_non_null(strstr(error.text, "no room for more tokens"));
    for (int i = 1; i < 3; i++) /* each holds the batches that were done */
        moebius_session_truncate(s[i], i == 1 ? 300 : 60);
    moebius_session_close(&s[0]);
    must(moebius_eval_batch(e, items, 2, &error), &error);
    assert_int_equal(moebius_session_pos(s[2]), 460);
    moebius_session_close(&s[2]);
    expect_logits_after(e, s[1], 320);
    moebius_session_close(&s[1]);
    const moebius_session_options too_long = {.n_ctx = N_CTX + 1};
    assert_int_equal(moebius_session_open(&s[0], e, &too_long, &error), MOEBIUS_LIMIT);
    assert_non_null(strstr(error.text, "a context of 1025 tokens needs "));
    moebius_engine_close(&e);
}

/* A caller with a header of another version. */
static void structs_may_be_shorter_or_longer(void **state)
{
    struct {
        moebius_batch_item item;
        size_t more;
    } long_item;
    struct {
        moebius_session_options options;
        int64_t more;
    } long_options = {.options = {.n_ctx = N_CTX}, .more = 1};
    moebius_error error;
    moebius_session *s;
    moebius_engine *e = open_engine("qwen3moe", NULL);
    assert_int_equal(moebius_session_open_sized(&s, e, &long_options.options, sizeof long_options, &error),
                     MOEBIUS_USAGE);
    assert_non_null(strstr(error.text, "session options"));
    long_options.more = 0;
    must(moebius_session_open_sized(&s, e, &long_options.options, sizeof long_options, &error), &error);
    assert_int_equal(moebius_session_n_ctx(s), N_CTX);
    memset(&long_item, 0, sizeof long_item);
    long_item.item = (moebius_batch_item){.session = s, .ids = ids, .n = 3};
    must(moebius_eval_batch_sized(e, &long_item.item, sizeof long_item, 1, &error), &error);
    must(moebius_eval_batch_sized(e, &long_item.item, offsetof(moebius_batch_item, is_draft), 1, &error), &error);
    assert_int_equal(moebius_session_pos(s), 6);
    long_item.more = 7;
    assert_int_equal(moebius_eval_batch_sized(e, &long_item.item, sizeof long_item, 1, &error), MOEBIUS_USAGE);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

/* Makes n layers for multi-token prediction of the only one. */
static void repeat_mtp(struct model_edit *m, const char *arch, uint32_t n)
{
    char key[64], name[128];
    snprintf(key, sizeof key, "%s.nextn_predict_layers", arch);
    model_edit_set_u32(m, key, n);
    snprintf(key, sizeof key, "%s.block_count", arch);
    const uint32_t n_block = (uint32_t)model_edit_find(m, key)->u, n_all = n_block + n - 1;
    model_edit_set_u32(m, key, n_all);
    for (size_t i = 0; i < m->n_key; i++) { /* what is listed by layer: numbers of 32 bits and flags */
        struct gguf_value *v = &m->keys[i].value;
        size_t size = v->type == GGUF_ARRAY && v->arr.type == GGUF_BOOL ? 1 : 4;
        if (v->type != GGUF_ARRAY || v->arr.n != n_block)
            continue;
        char *all = arena_alloc(&m->arena, n_all * size);
        for (uint32_t k = 0; k < n_all; k++)
            memcpy(all + k * size, (const char *)v->arr.data + (k < n_block ? k : n_block - 1) * size, size);
        v->arr.data = all;
        v->arr.n = n_all;
    }
    const size_t n_tensor = m->n_tensor, n_prefix = (size_t)snprintf(key, sizeof key, "blk.%u.", n_block - 1);
    for (size_t i = 0; i < n_tensor; i++)
        for (uint32_t k = n_block; k < n_all && !strncmp(m->tensors[i].name, key, n_prefix); k++) {
            int length = snprintf(name, sizeof name, "blk.%u.%s", k, m->tensors[i].name + n_prefix);
            m->tensors[m->n_tensor] = m->tensors[i];
            m->tensors[m->n_tensor++].name = arena_strndup(&m->arena, name, (size_t)length);
        }
}

enum { N_GUESS = 5, N_PLACE = 4 };
struct guessed {
    int32_t ids[N_PLACE][N_GUESS];
    float likely[N_PLACE][N_GUESS];
};

/* Guesses at several places of a text, which is computed in pieces between them. */
static struct guessed guess_along(const char *path)
{
    static const int64_t places[N_PLACE] = {1, 2, 90, 200};
    struct guessed all;
    moebius_error error;
    size_t n;
    moebius_engine *e = open_file(path, &(moebius_engine_options){.mtp = true, .n_threads = 2});
    moebius_session *s = open_session(e);
    for (int i = 0; i < N_PLACE; i++) {
        feed(s, places[i]);
        const moebius_guess_item item = {
            .session = s, .id = ids[places[i]], .most = N_GUESS, .ids = all.ids[i], .likely = all.likely[i], .n = &n};
        must(moebius_guess_batch(e, &item, 1, &error), &error);
        assert_int_equal(n, N_GUESS);
    }
    moebius_session_close(&s);
    moebius_engine_close(&e);
    return all;
}

static struct guessed guess_with(const struct model_edit *m)
{
    struct temp_path path = temp_path(&folder, "edited.gguf");
    struct err e;
    size_t n;
    void *bytes = model_edit_bytes(m, &n, &e);
    assert_non_null(bytes);
    write_file(path.s, bytes, n);
    mem_free(bytes);
    return guess_along(path.s);
}

/* Layers that are all the same guess what one of them does alone, so each has the text's tokens and the guesses before
 * its own in its cache. Where the second one is another, so is the second guess. */
static void each_of_several_layers_makes_its_own_guess(void **state)
{
    static const char *const of[][2] = {{"glm4moe", "glm4moe"}, {"mimo2", "mimo2"}, {"qwen35moe_mtp", "qwen35moe"}};
    static const float zeros[64];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct model_edit m;
        char path[1024], name[64];
        snprintf(path, sizeof path, "%s/%s.gguf", golden, of[i][0]);
        struct guessed one = guess_along(path);
        model_edit_open(&m, path);
        repeat_mtp(&m, of[i][1], 3);
        struct guessed three = guess_with(&m);
        assert_memory_equal(&one, &three, sizeof one);
        snprintf(name, sizeof name, "%s.block_count", of[i][1]);
        snprintf(name, sizeof name, "blk.%u.nextn.enorm.weight", (unsigned)model_edit_find(&m, name)->u - 2);
        model_edit_put(&m, name, model_edit_tensor(&m, name)->ne[0], 1, 1, zeros);
        three = guess_with(&m);
        for (int k = 0; k < N_PLACE; k++) {
            assert_memory_equal(one.likely[k], three.likely[k], sizeof(float));
            assert_true(one.likely[k][1] != three.likely[k][1]);
        }
        model_edit_close(&m);
    }
}

static void wrong_guesses_are_refused_and_items_may_be_longer(void **state)
{
    enum { MOST = 3 };
    struct {
        moebius_guess_item item;
        size_t more;
    } x[2];
    int32_t got[2][MOST];
    size_t n[2] = {0};
    moebius_error error;
    moebius_session *s;
    moebius_engine *e = open_engine("glm4moe", &(moebius_engine_options){.mtp = true});
    moebius_engine *without = open_engine("glm4moe", NULL);
    must(moebius_session_open(&s, e, &(moebius_session_options){.n_ctx = N_CTX}, &error), &error);
    must(moebius_session_eval(s, ids, 5, &error), &error);
    memset(x, 0, sizeof x);
    for (int i = 0; i < 2; i++)
        x[i].item = (moebius_guess_item){.session = s, .id = ids[5], .most = MOST, .ids = got[i], .n = &n[i]};
    must(moebius_guess_batch(e, &x[0].item, 1, &error), &error);
    assert_true(n[0] == MOST && moebius_session_pos(s) == 5);
    must(moebius_guess_batch_sized(e, &x[1].item, sizeof x[1], 1, &error), &error);
    assert_int_equal(n[1], MOST);
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    x[0].item.least = 1; /* nothing is that certain */
    must(moebius_guess_batch(e, &x[0].item, 1, &error), &error);
    assert_int_equal(n[0], 0);
    assert_int_equal(moebius_guess_batch_sized(e, &x[0].item, sizeof x[0], 2, &error), MOEBIUS_USAGE);
    assert_non_null(strstr(error.text, "twice"));
    assert_int_equal(moebius_guess_batch(without, &x[0].item, 1, &error), MOEBIUS_USAGE);
    assert_non_null(strstr(error.text, "loaded with it"));
    x[0].item.most = N_CTX;
    assert_int_equal(moebius_guess_batch(e, &x[0].item, 1, &error), N_CTX > 64 ? MOEBIUS_USAGE : MOEBIUS_LIMIT);
    x[0].item.most = 1;
    x[0].item.id = -1;
    assert_int_equal(moebius_guess_batch(e, &x[0].item, 1, &error), MOEBIUS_USAGE);
    x[1].more = 1;
    assert_int_equal(moebius_guess_batch_sized(e, &x[1].item, sizeof x[1], 1, &error), MOEBIUS_USAGE);
    moebius_session_close(&s);
    moebius_engine_close(&without);
    moebius_engine_close(&e);
}

struct told {
    int n;
    double last;
};

static void note_progress(void *user, double done)
{
    struct told *t = user;
    assert_true(done >= t->last && done <= 1);
    t->last = done;
    t->n++;
}

static bool wait_a_little(void *user)
{
    const struct timespec ms = {.tv_nsec = 30 * 1000 * 1000};
    nanosleep(&ms, NULL);
    return false;
}

static void progress_grows_to_one(void **state)
{
    moebius_error error;
    struct told told = {0};
    moebius_engine *e = open_engine("qwen35moe", NULL);
    moebius_session *s = open_session(e);
    moebius_session_set_progress(s, note_progress, &told);
    moebius_session_set_cancel(s, wait_a_little, NULL); /* or it would be over before it is told */
    must(moebius_session_eval(s, ids, N_TEXT / 4, &error), &error);
    assert_true(told.n > 1 && told.last > 0);
    moebius_session_close(&s);
    moebius_engine_close(&e);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    golden = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structs_may_be_shorter_or_longer),
        cmocka_unit_test(progress_grows_to_one),
        cmocka_unit_test(wrong_items_are_refused_before_anything_is_computed),
        cmocka_unit_test(a_full_context_is_refused_before_anything_is_computed),
        cmocka_unit_test(each_item_gets_the_logits_that_it_asked_for),
        cmocka_unit_test(a_fork_is_the_same_and_outlives_what_it_came_from),
        cmocka_unit_test(an_empty_session_can_be_forked),
        cmocka_unit_test(a_session_is_kept_at_a_list),
        cmocka_unit_test(drafts_beside_a_long_prompt_go_back_exactly),
        cmocka_unit_test(drafts_that_make_no_pass_together_are_refused),
        cmocka_unit_test(drafts_on_caches_of_two_types_are_refused),
        cmocka_unit_test(each_of_several_layers_makes_its_own_guess),
        cmocka_unit_test(wrong_guesses_are_refused_and_items_may_be_longer),
        cmocka_unit_test(an_interrupt_ends_a_batch_of_several_sessions),
        cmocka_unit_test(a_full_state_is_told_and_closing_a_session_makes_room),
    };
    return cmocka_run_group_tests_name("batches", tests, folder_setup, folder_teardown);
}
