#define _GNU_SOURCE
/* Calls in answers, of all families: whole, in pieces of any size, cut, and damaged. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "base/random.h"
#include "reply/reply.h"
#include "base/bytes.h"
#include "reply/reply_tools.h"
#include "reply_samples.h"

static struct reply_tools tools;

/* What was told, with pieces of one part together. */
struct told {
    struct bytes events;  /* written as in the samples, notes without their text */
    struct bytes bytes;   /* content, reasoning and syntax, in order: the answer */
    struct bytes args;    /* of the call that is open */
    enum reply_part last; /* REPLY_SYNTAX: another piece begins */
    bool is_open;         /* a call */
    int n_notes;
};

static void end_piece(struct told *t)
{
    if (t->last == REPLY_CONTENT || t->last == REPLY_REASONING || t->last == REPLY_ARGUMENTS)
        bytes_put_text(&t->events, "] ");
    t->last = REPLY_SYNTAX;
}

static void collect(void *user, enum reply_part part, const char *text, size_t n)
{
    static const char *const names[] = {"C[", "R[", "CALL[", "A[", "END[", "N["};
    struct told *t = user;
    if (part == REPLY_CONTENT || part == REPLY_REASONING || part == REPLY_SYNTAX)
        bytes_put(&t->bytes, text, n);
    if (part == REPLY_SYNTAX) {
        if (t->last != REPLY_ARGUMENTS)
            end_piece(t);
        return;
    }
    if (part != t->last) {
        end_piece(t);
        bytes_put_text(&t->events, names[part]);
    }
    if (part != REPLY_NOTE)
        bytes_put(&t->events, text, n);
    t->last = part;
    assert_true(part != REPLY_ARGUMENTS || (t->is_open && n));
    if (part == REPLY_ARGUMENTS)
        bytes_put(&t->args, text, n);
    if (part == REPLY_CALL || part == REPLY_CALL_END || part == REPLY_NOTE) {
        bytes_put_text(&t->events, "] ");
        t->last = REPLY_SYNTAX;
    }
    if (part == REPLY_CALL || part == REPLY_CALL_END) {
        assert_true(t->is_open == (part == REPLY_CALL_END));
        t->is_open = part == REPLY_CALL;
    }
    if (part == REPLY_CALL)
        assert_non_null(reply_tools_find(&tools, text));
    if (part == REPLY_CALL_END) {
        json_error_t error;
        json_t *j = json_read(t->args.s, t->args.n, JSON_ALLOW_NUL, &error);
        bool is_beyond_jansson = !j && (json_error_code(&error) == json_error_numeric_overflow ||
                                        json_error_code(&error) == json_error_null_byte_in_key);
        if (!j && !is_beyond_jansson)
            fail_msg("%.*s: %s", (int)t->args.n, t->args.s, error.text);
        assert_true(!j || json_is_object(j));
        json_decref(j);
        bytes_clear(&t->args);
    }
    if (part == REPLY_NOTE) {
        t->n_notes++;
        assert_true(n > 20);
    }
}

/* Arguments of a call that has no end must not pass for whole ones. */
static void check_open_call(struct told *t)
{
    json_error_t error;
    assert_true(t->is_open && t->args.n > 0);
    assert_null(json_read(t->args.s, t->args.n, JSON_ALLOW_NUL, &error));
}

/* Reads n bytes with pieces that end where `ends` has a one (NULL: a single piece). */
static struct told read_answer_to(const char *source, const char *text, size_t n, const char *ends, bool is_cut)
{
    struct told t = {.last = REPLY_SYNTAX};
    struct reply *r;
    struct err e;
    assert_int_equal(reply_open(&r, reply_style_of(source), "", collect, &t, &e), ERR_OK);
    reply_set_tools(r, &tools);
    size_t from = 0;
    for (size_t i = 0; ends && i < n; i++)
        if (ends[i]) {
            assert_int_equal(reply_feed(r, text + from, i + 1 - from, &e), ERR_OK);
            from = i + 1;
        }
    assert_int_equal(reply_feed(r, text + from, n - from, &e), ERR_OK);
    assert_int_equal(reply_finish(r, is_cut, &e), ERR_OK);
    reply_close(&r);
    end_piece(&t);
    if (is_cut && t.is_open)
        check_open_call(&t);
    else
        assert_false(t.is_open);
    assert_int_equal(t.bytes.n, n);
    if (n)
        assert_memory_equal(t.bytes.s, text, n);
    return t;
}

static struct told read_answer(const char *source, const char *text, size_t n, const char *ends)
{
    return read_answer_to(source, text, n, ends, false);
}

static void close_told(struct told *t)
{
    bytes_close(&t->events);
    bytes_close(&t->bytes);
    bytes_close(&t->args);
}

static void samples_are_read(void **state)
{
    for (int i = 0; i < N_SAMPLES; i++) {
        struct told t = read_answer(samples[i].source, samples[i].text, strlen(samples[i].text), NULL);
        if (strcmp(bytes_text(&t.events), samples[i].events) != 0)
            fail_msg("%s\nexpected %s\nread     %s", samples[i].text, samples[i].events, bytes_text(&t.events));
        close_told(&t);
    }
}

static void pieces_change_nothing(void **state)
{
    static char ends[4096];
    for (int i = 0; i < N_SAMPLES; i++) {
        size_t n = strlen(samples[i].text);
        for (size_t at = 0; at <= n; at++) { /* two pieces; at n: byte by byte */
            memset(ends, at == n, n);
            if (at < n)
                ends[at] = 1;
            struct told t = read_answer(samples[i].source, samples[i].text, n, ends);
            assert_string_equal(bytes_text(&t.events), samples[i].events);
            close_told(&t);
        }
    }
}

static void cut_answers_lose_nothing(void **state)
{
    for (int i = 0; i < N_SAMPLES; i++)
        for (size_t n = 0; n < strlen(samples[i].text); n++) {
            struct told t = read_answer(samples[i].source, samples[i].text, n, NULL);
            close_told(&t);
            t = read_answer_to(samples[i].source, samples[i].text, n, NULL, true);
            close_told(&t);
        }
}

static void a_call_that_is_cut_stays_open(void **state)
{
    static const char hermes[] = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par",
                      qwen3_coder[] = "<tool_call>\n<function=write-file>\n<parameter=text>\na</parameter>\n";
    struct told t = read_answer_to(HERMES, hermes, sizeof hermes - 1, NULL, true);
    assert_string_equal(bytes_text(&t.events), "CALL[get_weather] A[{\"city\":\"Par] N[] ");
    close_told(&t);
    t = read_answer_to(QWEN3_CODER, qwen3_coder, sizeof qwen3_coder - 1, NULL, true);
    assert_string_equal(bytes_text(&t.events), "CALL[write-file] A[{\"text\":\"a] N[] ");
    close_told(&t);
}

static void a_value_ends_where_much_space_follows(void **state)
{
    char text[1000];
    struct told t;
    for (int n = 256; n <= 257; n++) {
        snprintf(text, sizeof text, "<function=write-file>\n<parameter=text>\na</parameter>%*sso", n, "");
        t = read_answer(QWEN3_CODER, text, strlen(text), NULL);
        bool ends = strstr(bytes_text(&t.events), "A[{\"text\":\"a\"}] END[] N[] C[") != NULL;
        assert_int_equal(ends, n == 257);
        close_told(&t);
    }
}

static void arguments_are_told_as_they_come(void **state)
{
    static const struct {
        const char *source, *text, *events;
    } cases[] = {
        {HERMES, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par",
         "CALL[get_weather] A[{\"city\":\"Par"},
        {QWEN3_CODER, "<tool_call>\n<function=write-file>\n<parameter=text>\na\nb <c",
         "CALL[write-file] A[{\"text\":\"a\\nb <c"},
        {QWEN3_CODER, "<tool_call>\n<function=write-file>\n<parameter=owner>\nnum",
         "CALL[write-file] A[{\"owner\":\"num"},
        {QWEN3_CODER, "<tool_call>\n<function=write-file>\n<parameter=append>\nTru", "CALL[write-file] A[{\"append\":"},
        {GEMMA4, "<|tool_call>call:get_weather{city:<|\"|>Par", "CALL[get_weather] A[{\"city\":\"Par"},
        {KIMI_K2, "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"days\": 3, ",
         "CALL[get_weather] A[{\"days\":3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct told t = {.last = REPLY_SYNTAX};
        struct reply *r;
        struct err e;
        assert_int_equal(reply_open(&r, reply_style_of(cases[i].source), "", collect, &t, &e), ERR_OK);
        reply_set_tools(r, &tools);
        assert_int_equal(reply_feed(r, cases[i].text, strlen(cases[i].text), &e), ERR_OK);
        assert_string_equal(bytes_text(&t.events), cases[i].events);
        reply_close(&r);
        close_told(&t);
    }
}

static size_t below(struct random *rnd, size_t n)
{
    return random_u32(rnd) % n;
}

/* Some bytes of the sample replaced, taken out or put in, or a part of another sample. */
static size_t damage(struct random *rnd, const char *text, char *out, size_t n_out)
{
    size_t n = strlen(text), n_changes = 1 + below(rnd, 4);
    memcpy(out, text, n);
    for (size_t i = 0; i < n_changes && n; i++) {
        static const char bytes[] = "{}[]\"\\<>|/=:, \n'x0\xc3\xff";
        size_t at = below(rnd, n), kind = below(rnd, 4);
        const char *other = samples[below(rnd, N_SAMPLES)].text;
        size_t n_other = strlen(other), from = below(rnd, n_other);
        size_t n_part = kind == 3 ? 1 + below(rnd, n_other - from) : kind == 1 ? 1 : 0;
        size_t n_gone = kind == 0 || kind == 2 ? 1 : 0;
        if (n - n_gone + n_part + 1 > n_out)
            break;
        char byte = bytes[below(rnd, sizeof bytes)];
        if (kind == 0) {
            out[at] = byte;
            continue;
        }
        memmove(out + at + n_part, out + at + n_gone, n - at - n_gone);
        memcpy(out + at, kind == 1 ? &byte : other + from, n_part);
        n = n - n_gone + n_part;
    }
    return n;
}

static void damaged_answers_lose_nothing(void **state)
{
    static char text[8192], ends[8192];
    struct random rnd = random_seed(26);
    for (int i = 0; i < N_SAMPLES; i++)
        for (int k = 0; k < 1000; k++) {
            size_t n = damage(&rnd, samples[i].text, text, sizeof text);
            for (size_t at = 0; at < n; at++)
                ends[at] = random_u32(&rnd) % 8 == 0;
            struct told whole = read_answer(samples[i].source, text, n, NULL);
            struct told pieces = read_answer(samples[i].source, text, n, ends);
            assert_string_equal(bytes_text(&whole.events), bytes_text(&pieces.events));
            close_told(&whole);
            close_told(&pieces);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_read),
        cmocka_unit_test(pieces_change_nothing),
        cmocka_unit_test(arguments_are_told_as_they_come),
        cmocka_unit_test(cut_answers_lose_nothing),
        cmocka_unit_test(a_call_that_is_cut_stays_open),
        cmocka_unit_test(a_value_ends_where_much_space_follows),
        cmocka_unit_test(damaged_answers_lose_nothing),
    };
    struct err e;
    if (reply_tools_open(&tools, sample_tools, &e) != ERR_OK)
        return 1;
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    reply_tools_close(&tools);
    return result;
}
