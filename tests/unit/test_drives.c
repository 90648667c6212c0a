/* Choosing between drives, on a clock of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "store/drives.h"

enum { READ_BYTES = 1000000, MS = 1000000 };

struct setup {
    struct drive d[3];
    struct drive *drives[3];
    bool alive[3], has[3];
    int64_t now;
};

static struct setup set_up(int n_alive)
{
    struct setup s = {0};
    for (int i = 0; i < 3; i++)
        s.alive[i] = s.has[i] = i < n_alive;
    return s;
}

static int pick(struct setup *s)
{
    for (int i = 0; i < 3; i++)
        s->drives[i] = &s->d[i];
    return drives_pick(s->drives, s->alive, s->has, 3, READ_BYTES, s->now);
}

/* Each drive works through what it is given, bytes_per_s[i] fast; returns how often each was picked. */
static void simulate(struct setup *s, const double *bytes_per_s, int n, int *picked)
{
    double free_at[3] = {(double)s->now, (double)s->now, (double)s->now};
    memset(picked, 0, 3 * sizeof *picked);
    for (int k = 0; k < n; k += 8) { /* a layer's worth at once, and then the layer waits for all */
        int flying[8];
        double last = (double)s->now;
        for (int j = 0; j < 8; j++) {
            flying[j] = pick(s);
            assert_in_range(flying[j], 0, 2);
            picked[flying[j]]++;
            drive_begin(&s->d[flying[j]], READ_BYTES, s->now);
        }
        for (int j = 0; j < 8; j++) {
            int i = flying[j];
            free_at[i] =
                (free_at[i] > (double)s->now ? free_at[i] : (double)s->now) + READ_BYTES * 1e9 / bytes_per_s[i];
            drive_end(&s->d[i], READ_BYTES, true, (int64_t)free_at[i]);
            last = free_at[i] > last ? free_at[i] : last;
        }
        s->now = (int64_t)last;
    }
}

static void bytes_follow_the_speeds(void **state)
{
    struct setup s = set_up(2);
    int picked[3];
    simulate(&s, (const double[]){3e9, 1e9, 0}, 200, picked); /* gets to know them */
    simulate(&s, (const double[]){3e9, 1e9, 0}, 1000, picked);
    assert_in_range(picked[0], 700, 800);
    assert_int_equal(picked[0] + picked[1], 1000);
    assert_true(s.d[0].bytes_per_s > 2.9e9 && s.d[0].bytes_per_s < 3.1e9);
}

static void a_drive_that_slows_is_relieved_and_comes_back(void **state)
{
    struct setup s = set_up(2);
    int picked[3];
    simulate(&s, (const double[]){1e9, 1e9, 0}, 400, picked);
    assert_in_range(picked[0], 180, 220);
    assert_false(drive_is_slow(&s.d[0]) || drive_is_slow(&s.d[1]));
    simulate(&s, (const double[]){1e9, 0.005e9, 0}, 400, picked);
    simulate(&s, (const double[]){1e9, 0.005e9, 0}, 1600, picked);
    assert_in_range(picked[1], 1, 30); /* a little, to see how it does */
    assert_true(!drive_is_slow(&s.d[0]) && drive_is_slow(&s.d[1]));
    simulate(&s, (const double[]){1e9, 1e9, 0}, 4000, picked);
    simulate(&s, (const double[]){1e9, 1e9, 0}, 400, picked);
    assert_in_range(picked[1], 150, 250);
    assert_false(drive_is_slow(&s.d[1]));
}

static void a_drive_that_does_not_answer_is_left_alone(void **state)
{
    struct setup s = set_up(2);
    int picked[3], n = 0;
    simulate(&s, (const double[]){1e9, 1e9, 0}, 400, picked);
    drive_begin(&s.d[1], READ_BYTES, s.now);
    s.now += 2000LL * MS; /* nothing comes */
    assert_true(drive_speed(&s.d[1], s.now) < 2e6);
    for (int i = 0; i < 64; i++)
        n += pick(&s) == 1;
    assert_in_range(n, 0, 3);
}

static void only_who_is_alive_and_has_it_is_picked(void **state)
{
    struct setup s = set_up(3);
    s.has[0] = false;
    s.alive[2] = false;
    for (int i = 0; i < 10; i++)
        assert_int_equal(pick(&s), 1);
    s.has[1] = false;
    assert_int_equal(pick(&s), -1);
    s.has[0] = true; /* it was spared all the while, and is due */
    s.has[1] = true;
    for (int i = 0; i < 5; i++)
        assert_int_equal(pick(&s), 0);
    assert_int_equal(drives_pick(s.drives, s.alive, s.has, 0, READ_BYTES, s.now), -1);
}

static void failed_reads_count_for_nothing(void **state)
{
    struct setup s = set_up(1);
    drive_begin(&s.d[0], READ_BYTES, 0);
    drive_begin(&s.d[0], READ_BYTES, 0);
    drive_end(&s.d[0], READ_BYTES, false, 50LL * MS);
    drive_end(&s.d[0], READ_BYTES, true, 100LL * MS);
    assert_int_equal(s.d[0].n_flying, 0);
    assert_int_equal(s.d[0].flying_bytes, 0);
    assert_true(drive_speed(&s.d[0], 100LL * MS) < 11e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_follow_the_speeds),
        cmocka_unit_test(a_drive_that_slows_is_relieved_and_comes_back),
        cmocka_unit_test(a_drive_that_does_not_answer_is_left_alone),
        cmocka_unit_test(only_who_is_alive_and_has_it_is_picked),
        cmocka_unit_test(failed_reads_count_for_nothing),
    };
    return cmocka_run_group_tests_name("drives", tests, NULL, NULL);
}
