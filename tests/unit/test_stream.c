#define _DEFAULT_SOURCE /* mkdtemp */
/* Streams from one thread to another, text in whole characters, keys. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/keys.h"
#include "server/stream.h"
#include "server/whole_text.h"
#include "temp_folder.h"

/* ---- streams --------------------------------------------------------------------------------------------------- */

/* A reader that can sleep. */
struct sleeper {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    int n_asleep, n_woken;
};

static void fall_asleep(void *user)
{
    struct sleeper *s = user;
    s->n_asleep++;
}

static void wake_up(void *user)
{
    struct sleeper *s = user;
    pthread_mutex_lock(&s->lock);
    s->n_woken++;
    pthread_cond_signal(&s->woken);
    pthread_mutex_unlock(&s->lock);
}

static const struct sleeper awake = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

static void bytes_come_in_order_and_then_the_end(void **state)
{
    struct sleeper s = awake;
    const struct stream_reader reader = {fall_asleep, wake_up, &s};
    struct stream *stream, *writer;
    char text[4];
    size_t n;
    assert_int_equal(stream_open(&stream, 100, NULL), ERR_OK);
    writer = stream;
    assert_int_equal(stream_take(stream, text, sizeof text, &reader, &n), STREAM_SLEEPS);
    assert_true(stream_put(writer, "hello", 5));
    assert_int_equal(s.n_asleep, 1);
    assert_int_equal(s.n_woken, 1);
    assert_int_equal(stream_take(stream, text, sizeof text, &reader, &n), STREAM_BYTES);
    assert_int_equal(n, 4);
    assert_memory_equal(text, "hell", 4);
    stream_end(&writer, false);
    assert_null(writer);
    assert_int_equal(s.n_woken, 1); /* nobody slept */
    assert_int_equal(stream_take(stream, text, sizeof text, &reader, &n), STREAM_BYTES);
    assert_int_equal(n, 1);
    assert_int_equal(stream_take(stream, text, sizeof text, &reader, &n), STREAM_ENDED);
    stream_leave(&stream);
}

static void a_reader_that_takes_too_little_breaks_the_stream(void **state)
{
    struct stream *stream, *writer;
    const struct stream_reader reader = {fall_asleep, wake_up, NULL};
    char text[8];
    size_t n;
    assert_int_equal(stream_open(&stream, 8, NULL), ERR_OK);
    writer = stream;
    assert_true(stream_put(writer, "12345678", 8));
    assert_int_equal(stream_take(stream, text, 3, &reader, &n), STREAM_BYTES);
    assert_true(stream_put(writer, "123", 3));
    assert_false(stream_put(writer, "1", 1));
    assert_int_equal(stream_take(stream, text, 3, &reader, &n), STREAM_BROKEN);
    stream_leave(&stream);
    assert_false(stream_put(writer, "1", 1));
    stream_end(&writer, false);
}

static void nobody_is_woken_who_has_left(void **state)
{
    struct sleeper s = awake;
    const struct stream_reader reader = {fall_asleep, wake_up, &s};
    struct stream *stream, *writer;
    char byte;
    size_t n;
    assert_int_equal(stream_open(&stream, 8, NULL), ERR_OK);
    writer = stream;
    assert_int_equal(stream_take(stream, &byte, 1, &reader, &n), STREAM_SLEEPS);
    stream_leave(&stream);
    assert_false(stream_put(writer, "1", 1));
    assert_int_equal(s.n_woken, 0);
    stream_end(&writer, true);
}

enum { N_PIECE = 20000 };

static void *write_pieces(void *user)
{
    struct stream *writer = user;
    for (int i = 0; i < N_PIECE; i++) {
        char piece[16];
        int n = snprintf(piece, sizeof piece, "%d,", i);
        if (!stream_put(writer, piece, (size_t)n))
            break;
    }
    stream_end(&writer, false);
    return NULL;
}

static void threads_lose_nothing(void **state)
{
    struct sleeper s = awake;
    const struct stream_reader reader = {fall_asleep, wake_up, &s};
    struct stream *stream;
    struct bytes all = {0};
    pthread_t thread;
    char text[100];
    size_t n;
    enum stream_state what;
    assert_int_equal(stream_open(&stream, 1 << 20, NULL), ERR_OK);
    assert_int_equal(pthread_create(&thread, NULL, write_pieces, stream), 0);
    while ((what = stream_take(stream, text, sizeof text, &reader, &n)) != STREAM_ENDED) {
        assert_int_not_equal(what, STREAM_BROKEN);
        pthread_mutex_lock(&s.lock);
        while (what == STREAM_SLEEPS && s.n_woken < s.n_asleep)
            pthread_cond_wait(&s.woken, &s.lock);
        pthread_mutex_unlock(&s.lock);
        assert_int_equal(bytes_add(&all, text, n, NULL), ERR_OK);
    }
    stream_leave(&stream);
    pthread_join(thread, NULL);
    const char *at = all.s;
    for (int i = 0; i < N_PIECE; i++) {
        int number, length;
        assert_int_equal(sscanf(at, "%d,%n", &number, &length), 1);
        assert_int_equal(number, i);
        at += length;
    }
    assert_int_equal(*at, '\0');
    bytes_close(&all);
}

/* ---- whole characters ------------------------------------------------------------------------------------------ */

/* What comes of a text in pieces of n bytes. */
static void check_pieces(const char *text, size_t n, const char *expected)
{
    struct whole_text t = {0};
    struct bytes all = {0};
    const char *got;
    size_t n_got;
    for (size_t i = 0; i < strlen(text) + 1; i += n) {
        bool is_last = i + n > strlen(text);
        assert_int_equal(whole_text_add(&t, text + i, is_last ? strlen(text) - i : n, NULL), ERR_OK);
        assert_int_equal(whole_text_take(&t, is_last, &got, &n_got, NULL), ERR_OK);
        assert_true(n_got == 0 || (got[0] & 0xC0) != 0x80);
        assert_int_equal(bytes_add(&all, got, n_got, NULL), ERR_OK);
    }
    assert_string_equal(all.s, expected);
    bytes_close(&all);
    whole_text_close(&t);
}

static void characters_are_whole_however_their_bytes_come(void **state)
{
    for (size_t n = 1; n < 8; n++) {
        check_pieces("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z", n, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z");
        check_pieces("a\xe2\x82", n, "a\xef\xbf\xbd\xef\xbf\xbd");
        check_pieces("\xff\xc3\xa9", n, "\xef\xbf\xbd\xc3\xa9");
        check_pieces("", n, "");
    }
}

/* ---- keys ------------------------------------------------------------------------------------------------------ */

static void keys_are_known_whole(void **state)
{
    assert_int_equal(temp_folder_make(&folder), 0);
    struct keys *k;
    struct err e;
    uint64_t which;
    const struct temp_path path = temp_path(&folder, "keys");
    write_text_file(path.s, "# a comment\none\r\n\n  two \n");
    assert_int_equal(keys_open(&k, "zero", path.s, &e), ERR_OK);
    assert_true(keys_are_wanted(k));
    assert_true(keys_have(k, "zero", &which) && which == 1);
    assert_true(keys_have(k, "two", &which) && which == 3);
    static const char *const wrong[] = {"", "on", "onee", "oneone", "# a comment", "zerozero", "One"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(keys_have(k, wrong[i], &which));
    write_text_file(path.s, "bad\x01key\n");
    assert_int_equal(keys_reload(k, &e), ERR_USAGE);
    assert_true(keys_have(k, "one", &which));
    write_text_file(path.s, "three");
    assert_int_equal(keys_reload(k, &e), ERR_OK);
    assert_false(keys_have(k, "one", &which));
    assert_true(keys_have(k, "three", &which));
    keys_close(&k);
    temp_folder_remove(&folder);
}

static void without_keys_nobody_is_asked(void **state)
{
    struct keys *k;
    struct err e;
    assert_int_equal(keys_open(&k, NULL, NULL, &e), ERR_OK);
    assert_false(keys_are_wanted(k));
    keys_close(&k);
    assert_int_equal(keys_open(&k, NULL, "/nowhere/keys", &e), ERR_IO);
    keys_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_come_in_order_and_then_the_end),
        cmocka_unit_test(a_reader_that_takes_too_little_breaks_the_stream),
        cmocka_unit_test(nobody_is_woken_who_has_left),
        cmocka_unit_test(threads_lose_nothing),
        cmocka_unit_test(characters_are_whole_however_their_bytes_come),
        cmocka_unit_test(keys_are_known_whole),
        cmocka_unit_test(without_keys_nobody_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
