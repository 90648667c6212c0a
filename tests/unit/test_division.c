/* Which place gets which experts, of random models on random places; and what a call chooses among replicas. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/random.h"
#include "places/division.h"
#include "places/place_speeds.h"

enum { MAX_LAYER = 8, MAX_EXPERT = 40, MAX_PLACE = 6, N_CASE = 400, SLOT = 1000 };

/* A model and the places that it is to be divided among. */
struct problem {
    int n_layer, n_place;
    struct expert_layer layers[MAX_LAYER];
    size_t slot_bytes[MAX_LAYER];
    struct division_place places[MAX_PLACE];
    struct usage past;
    struct err e;
};

static int64_t below(struct random *r, int64_t n)
{
    return (int64_t)(random_u32(r) % (uint32_t)n);
}

static struct problem make_problem(uint64_t seed)
{
    struct random r = random_seed(seed);
    struct problem p = {.n_layer = 1 + (int)below(&r, MAX_LAYER), .n_place = 1 + (int)below(&r, MAX_PLACE)};
    assert_int_equal(usage_create(&p.past, p.n_layer, MAX_EXPERT, &p.e), ERR_OK);
    for (int i = 0; i < p.n_layer; i++) {
        int64_t n = 1 + below(&r, MAX_EXPERT);
        p.layers[i] = (struct expert_layer){.index = i + 3, .n_expert = n, .n_used = 1 + below(&r, n)};
        p.slot_bytes[i] = SLOT;
        for (int k = 0; k < 200 && i % 3 != 2; k++) { /* nothing is known of each third layer */
            int32_t id = (int32_t)(below(&r, n) * below(&r, n) / n);
            usage_add(&p.past, i, &id, 1);
        }
    }
    for (int i = 0; i < p.n_place; i++)
        p.places[i] = (struct division_place){.room_bytes = SIZE_MAX,
                                              .bytes_per_s = below(&r, 5) ? (double)(1 + below(&r, 9)) : 0,
                                              .replica_bytes = SIZE_MAX};
    return p;
}

static int64_t n_all_experts(const struct problem *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->n_layer; i++)
        n += p->layers[i].n_expert;
    return n;
}

/* Rooms for n slots together, give or take the parts of slots that nothing fits into; each can hold a layer's top-k. */
static void set_rooms(struct problem *p, int64_t n, uint64_t seed)
{
    struct random r = random_seed(seed);
    int64_t own[MAX_PLACE] = {0};
    for (int64_t i = 0; i < n; i++)
        own[below(&r, p->n_place)]++;
    for (int i = 0; i < p->n_place; i++)
        p->places[i].room_bytes = (size_t)(own[i] * SLOT + below(&r, SLOT));
}

static err_code divide(struct problem *p, const struct split *split, struct division *out)
{
    return division_make(out, p->layers, p->slot_bytes, p->n_layer, p->places, p->n_place, split, &p->past, &p->e);
}

static bool has(const struct division *d, int place, int layer, int64_t expert)
{
    return d->holders[layer * d->n_expert + expert] >> place & 1;
}

static size_t used_bytes(const struct problem *p, const struct division *d, int place)
{
    size_t n = 0;
    for (int l = 0; l < p->n_layer; l++)
        for (int64_t i = 0; i < p->layers[l].n_expert; i++)
            n += has(d, place, l, i) ? p->slot_bytes[l] : 0;
    return n;
}

/* Every expert has a holder, one unless there may be replicas, and nothing else has one. */
static void check_holders(const struct problem *p, const struct division *d, bool may_repeat)
{
    bool is_here[MAX_EXPERT];
    for (int l = 0; l < p->n_layer; l++) {
        int n_holder[MAX_EXPERT] = {0};
        for (int i = 0; i < p->n_place; i++) {
            division_is_here(d, i, l, is_here);
            for (int64_t k = 0; k < d->n_expert; k++)
                n_holder[k] += is_here[k];
        }
        for (int64_t k = 0; k < d->n_expert; k++) {
            assert_int_equal(d->holders[l * d->n_expert + k] >> p->n_place, 0);
            if (k >= p->layers[l].n_expert)
                assert_int_equal(n_holder[k], 0);
            else if (may_repeat)
                assert_true(n_holder[k] >= 1);
            else
                assert_int_equal(n_holder[k], 1);
        }
    }
}

static void every_expert_has_a_holder(void **state)
{
    static const enum split_kind kinds[] = {SPLIT_EXPERTS, SPLIT_LAYERS, SPLIT_RANDOM};
    for (uint64_t seed = 0; seed < N_CASE; seed++) {
        struct problem p = make_problem(seed);
        struct division d, again;
        const struct split split = {.kind = kinds[seed % 3], .seed = seed, .replica_share = seed % 2 ? 0.25 : 0};
        if (seed % 5 == 0)
            for (int i = 0; i < p.n_place; i++)
                p.places[i].share = i % 2 ? 2.5 : 1;
        assert_int_equal(divide(&p, &split, &d), ERR_OK);
        check_holders(&p, &d, split.replica_share > 0);
        assert_int_equal(divide(&p, &split, &again), ERR_OK); /* the same input, the same output */
        assert_memory_equal(d.holders, again.holders, (size_t)d.n_layer * (size_t)d.n_expert * sizeof *d.holders);
        division_close(&again);
        division_close(&d);
        usage_close(&p.past);
    }
}

static void rooms_that_suffice_are_kept(void **state)
{
    for (uint64_t seed = 0; seed < N_CASE; seed++) {
        struct problem p = make_problem(seed);
        struct division d;
        const struct split split = {.kind = SPLIT_EXPERTS, .replica_share = seed % 2 ? 0.25 : 0};
        set_rooms(&p, n_all_experts(&p) + (seed % 4 ? 0 : (int64_t)seed % 50), seed);
        assert_int_equal(divide(&p, &split, &d), ERR_OK);
        check_holders(&p, &d, split.replica_share > 0);
        for (int i = 0; i < p.n_place; i++)
            assert_true(used_bytes(&p, &d, i) <= p.places[i].room_bytes);
        division_close(&d);
        usage_close(&p.past);
    }
}

static void rooms_that_do_not_suffice_are_filled_alike(void **state)
{
    int n_tried = 0;
    for (uint64_t seed = 0; seed < N_CASE; seed++) {
        struct problem p = make_problem(seed);
        struct division d;
        double n = (double)n_all_experts(&p), room = 0;
        for (int i = 0; i < p.n_layer; i++)
            p.layers[i].n_used = 1;
        set_rooms(&p, n_all_experts(&p) / 3, seed);
        for (int i = 0; i < p.n_place; i++) {
            p.places[i].room_bytes += SLOT; /* of the one expert that a token needs */
            room += (double)p.places[i].room_bytes;
        }
        assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_OK);
        check_holders(&p, &d, false);
        for (int i = 0; i < p.n_place && room < n * SLOT; i++) {
            double fair = n * (double)p.places[i].room_bytes / room, own = (double)used_bytes(&p, &d, i) / SLOT;
            assert_true(fabs(own - fair) <= p.n_place);
            n_tried++;
        }
        division_close(&d);
        usage_close(&p.past);
    }
    assert_true(n_tried > N_CASE);
}

/* Where drives' speeds are known, all places have what they have room for, and read what is left equally long. */
static void what_has_no_room_goes_to_fast_drives(void **state)
{
    int n_tried = 0;
    for (uint64_t seed = 0; seed < N_CASE; seed++) {
        struct problem p = make_problem(seed);
        struct division d;
        double n = (double)n_all_experts(&p), room = 0, reads = 0;
        for (int i = 0; i < p.n_layer; i++)
            p.layers[i].n_used = 1;
        set_rooms(&p, n_all_experts(&p) / 3, seed);
        for (int i = 0; i < p.n_place; i++) {
            p.places[i].room_bytes += SLOT; /* of the one expert that a token needs */
            p.places[i].reads_per_s = (double)(1 + (seed + (uint64_t)i * 5) % 7);
            room += (double)p.places[i].room_bytes / SLOT;
            reads += p.places[i].reads_per_s;
        }
        assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_OK);
        check_holders(&p, &d, false);
        for (int i = 0; i < p.n_place && room < n; i++) {
            double fair = (double)p.places[i].room_bytes / SLOT + (n - room) * p.places[i].reads_per_s / reads;
            assert_true(fabs((double)used_bytes(&p, &d, i) / SLOT - fair) <= p.n_place);
            n_tried++;
        }
        division_close(&d);
        usage_close(&p.past);
    }
    assert_true(n_tried > N_CASE);
}

/* Three places, the last of which has no room for a token's choice: the others have what is left. Then with a drive of
 * which nothing is known: each has the same part of all experts as of all room. */
static void a_place_without_room_for_a_choice_reads_nothing_again(void **state)
{
    static const int64_t expected[2][3] = {{64, 33, 3}, {50, 45, 5}};
    for (int is_unknown = 0; is_unknown < 2; is_unknown++) {
        struct problem p = {
            .n_layer = 1, .n_place = 3, .layers = {{.n_expert = 100, .n_used = 4}}, .slot_bytes = {SLOT}};
        struct division d;
        assert_int_equal(usage_create(&p.past, 1, 100, &p.e), ERR_OK);
        p.places[0] = (struct division_place){.room_bytes = 40 * SLOT, .bytes_per_s = 1, .reads_per_s = 6};
        p.places[1] = (struct division_place){
            .room_bytes = is_unknown ? 36 * SLOT : 21 * SLOT, .bytes_per_s = 1, .reads_per_s = is_unknown ? 0 : 3};
        p.places[2] =
            (struct division_place){.room_bytes = is_unknown ? 4 * SLOT : 3 * SLOT, .bytes_per_s = 1, .reads_per_s = 9};
        assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_OK);
        for (int i = 0; i < 3; i++)
            assert_int_equal(used_bytes(&p, &d, i) / SLOT, expected[is_unknown][i]);
        division_close(&d);
        usage_close(&p.past);
    }
}

static void the_fastest_place_has_the_hottest(void **state)
{
    for (uint64_t seed = 0; seed < N_CASE; seed++) {
        struct problem p = make_problem(seed);
        struct division d;
        int fastest = 0;
        for (int i = 0; i < p.n_place; i++)
            p.places[i].bytes_per_s += 1;
        assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_OK);
        for (int i = 1; i < p.n_place; i++)
            fastest = p.places[i].bytes_per_s > p.places[fastest].bytes_per_s ? i : fastest;
        for (int l = 0; l < p.n_layer; l++) {
            int64_t hottest = 0;
            for (int64_t i = 1; i < p.layers[l].n_expert; i++)
                if (p.past.count[l * MAX_EXPERT + i] > p.past.count[l * MAX_EXPERT + hottest])
                    hottest = i;
            for (int i = 0; i < p.n_place; i++)
                if (has(&d, i, l, hottest))
                    assert_true(p.places[i].bytes_per_s == p.places[fastest].bytes_per_s);
        }
        division_close(&d);
        usage_close(&p.past);
    }
}

/* Without usage, no place is longer at work in a layer than a fair share and one expert more. */
static void places_are_through_at_the_same_time(void **state)
{
    for (uint64_t seed = 0; seed < N_CASE; seed++) {
        struct problem p = make_problem(seed);
        struct division d;
        double all = 0;
        for (int i = 0; i < p.n_place; i++) {
            p.places[i].bytes_per_s = 1 + (double)i / 2;
            all += p.places[i].bytes_per_s;
        }
        assert_int_equal(division_make(&d, p.layers, p.slot_bytes, p.n_layer, p.places, p.n_place,
                                       &(struct split){.kind = SPLIT_EXPERTS}, NULL, &p.e),
                         ERR_OK);
        for (int l = 0; l < p.n_layer; l++)
            for (int i = 0; i < p.n_place; i++) {
                int64_t n = 0;
                for (int64_t k = 0; k < p.layers[l].n_expert; k++)
                    n += has(&d, i, l, k);
                assert_true((double)n / p.places[i].bytes_per_s <=
                            (double)(p.layers[l].n_expert + p.n_place) / all + 1e-9);
            }
        division_close(&d);
        usage_close(&p.past);
    }
}

static void replicas_fill_what_room_is_left(void **state)
{
    int n_replica = 0;
    for (uint64_t seed = 0; seed < N_CASE; seed++) {
        struct problem p = make_problem(seed);
        struct division one, more;
        set_rooms(&p, n_all_experts(&p) + 20, seed);
        assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &one), ERR_OK);
        assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS, .replica_share = MAX_PLACE}, &more), ERR_OK);
        for (int i = 0; i < p.n_place; i++) {
            bool lacks = false;
            for (int l = 0; l < p.n_layer; l++)
                for (int64_t k = 0; k < p.layers[l].n_expert; k++) {
                    assert_true(has(&more, i, l, k) || !has(&one, i, l, k));
                    n_replica += has(&more, i, l, k) && !has(&one, i, l, k);
                    lacks = lacks || !has(&more, i, l, k);
                }
            assert_true(!lacks || used_bytes(&p, &more, i) + SLOT > p.places[i].room_bytes);
        }
        division_close(&more);
        division_close(&one);
        usage_close(&p.past);
    }
    assert_true(n_replica > N_CASE);
}

/* As many bytes as were asked for, of all places and of each one. */
static void replicas_keep_within_what_is_asked_for(void **state)
{
    for (uint64_t seed = 0; seed < N_CASE; seed++) {
        struct problem p = make_problem(seed);
        struct random r = random_seed(seed);
        struct division one, more;
        size_t asked = (size_t)below(&r, 60 * SLOT), sum = 0, most = 0;
        for (int i = 0; i < p.n_place; i++) {
            size_t n_lacking;
            p.places[i].replica_bytes = below(&r, 3) ? (size_t)below(&r, 30 * SLOT) : SIZE_MAX;
            assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &one), ERR_OK);
            n_lacking = (size_t)n_all_experts(&p) * SLOT - used_bytes(&p, &one, i);
            most += p.places[i].replica_bytes < n_lacking ? p.places[i].replica_bytes / SLOT * SLOT : n_lacking;
            division_close(&one);
        }
        assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &one), ERR_OK);
        assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS, .replica_bytes = asked}, &more), ERR_OK);
        for (int i = 0; i < p.n_place; i++) {
            size_t n_bytes = used_bytes(&p, &more, i) - used_bytes(&p, &one, i);
            assert_true(n_bytes <= p.places[i].replica_bytes);
            sum += n_bytes;
        }
        assert_int_equal(sum, more.replica_bytes);
        assert_true(sum <= asked);
        assert_true(sum + SLOT > asked || p.n_place > 2 || sum == most);
        division_close(&more);
        division_close(&one);
        usage_close(&p.past);
    }
}

/* 6 layers of 8 experts on two places. */
static struct problem two_places(void)
{
    struct problem p = {.n_layer = 6, .n_place = 2};
    assert_int_equal(usage_create(&p.past, 6, 8, &p.e), ERR_OK);
    for (int i = 0; i < 6; i++) {
        p.layers[i] = (struct expert_layer){.index = i + 3, .n_expert = 8, .n_used = 2};
        p.slot_bytes[i] = SLOT;
    }
    for (int i = 0; i < 2; i++)
        p.places[i] = (struct division_place){.room_bytes = SIZE_MAX, .bytes_per_s = 1, .replica_bytes = SIZE_MAX};
    return p;
}

/* Without counts each layer has as many; with counts those that were used most. */
static void the_hottest_experts_have_replicas(void **state)
{
    struct problem p = two_places();
    const struct split split = {.kind = SPLIT_EXPERTS, .replica_bytes = 12 * SLOT};
    const int32_t hot[2] = {6, 3};
    struct division d;
    assert_int_equal(divide(&p, &split, &d), ERR_OK);
    for (int l = 0; l < 6; l++)
        for (int i = 0; i < 8; i++)
            assert_int_equal(division_has_replicas(&d, l, i), i < 2);
    division_close(&d);
    for (int l = 0; l < 6; l++)
        for (int k = 0; k < 1000; k++)
            usage_add(&p.past, l, hot, 2);
    assert_int_equal(divide(&p, &split, &d), ERR_OK);
    for (int l = 0; l < 6; l++)
        for (int i = 0; i < 8; i++)
            assert_int_equal(division_has_replicas(&d, l, i), i == 3 || i == 6);
    division_close(&d);
    usage_close(&p.past);
}

static void shares_are_given_in_each_layer(void **state)
{
    struct problem p = two_places();
    struct division d;
    p.places[0].share = 0.5;
    p.places[1].share = 1.5;
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_OK);
    for (int l = 0; l < 6; l++) {
        int n = 0;
        for (int i = 0; i < 8; i++)
            n += has(&d, 0, l, i);
        assert_int_equal(n, 2);
    }
    division_close(&d);
    p.places[0].share = 0;
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_OK);
    assert_int_equal(used_bytes(&p, &d, 0), 0);
    division_close(&d);
    usage_close(&p.past);
}

static void experts_of_a_layer_stay_together_where_layers_are_divided(void **state)
{
    struct problem p = two_places();
    struct division d;
    p.places[1].share = 2;
    p.places[0].share = 1;
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_LAYERS}, &d), ERR_OK);
    for (int l = 0; l < 6; l++)
        for (int i = 1; i < 8; i++)
            assert_int_equal(has(&d, 0, l, i), has(&d, 0, l, 0));
    assert_int_equal(used_bytes(&p, &d, 0), 2 * 8 * SLOT);
    division_close(&d);
    usage_close(&p.past);
}

static void the_last_layers_go_to_the_last_place(void **state)
{
    for (int n = 0; n <= 7; n++) {
        struct problem p = two_places();
        struct division d;
        assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_LAST, .n_last = n}, &d), ERR_OK);
        for (int l = 0; l < 6; l++)
            for (int i = 0; i < 8; i++)
                assert_int_equal(division_holders(&d, l, i), l < 6 - n ? 1 : 2);
        division_close(&d);
        usage_close(&p.past);
    }
}

static void random_divisions_differ_by_seed_alone(void **state)
{
    struct problem p = two_places();
    struct division a, b;
    int n_both = 0;
    p.places[0].bytes_per_s = 100;
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_RANDOM, .seed = 1}, &a), ERR_OK);
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_RANDOM, .seed = 2}, &b), ERR_OK);
    assert_memory_not_equal(a.holders, b.holders, 6 * 8 * sizeof *a.holders);
    assert_true(used_bytes(&p, &a, 0) > 12 * SLOT && used_bytes(&p, &a, 1) > 12 * SLOT);
    division_close(&b);
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_RANDOM, .seed = 1, .replica_share = 0.25}, &b), ERR_OK);
    for (int i = 0; i < 6 * 8; i++)
        n_both += b.holders[i] == 3;
    assert_in_range(n_both, 1, 20);
    division_close(&b);
    division_close(&a);
    usage_close(&p.past);
}

static void a_place_without_room_for_what_a_token_chooses_is_refused(void **state)
{
    struct problem p = two_places();
    struct division d;
    p.places[1].room_bytes = 2 * SLOT - 1;
    p.places[1].share = p.places[0].share = 1;
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_LIMIT);
    assert_string_equal(p.e.text, "place 1 has room for 1999 bytes of experts; a token's experts in layer 3 that it "
                                  "would have need 2000");
    assert_null(d.holders);
    p.places[1].room_bytes = 2 * SLOT;
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_OK);
    division_close(&d);
    p.places[1] = (struct division_place){.bytes_per_s = 1}; /* no room, and nothing asked for */
    p.places[0].share = 0;
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_OK);
    assert_int_equal(used_bytes(&p, &d, 1), 0);
    division_close(&d);
    p.places[0].room_bytes = 0;
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_LIMIT);
    usage_close(&p.past);
}

static void calls_balance_over_replicas(void **state)
{
    struct problem p = two_places();
    struct division d;
    const int32_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7}, rows[8] = {5, 5, 5, 1, 5, 2, 3, 5};
    const double speed[2] = {1, 3};
    uint8_t place[8];
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS, .replica_share = 1}, &d), ERR_OK);
    for (int k = 0; k < 2; k++) { /* nothing is left over from the call before */
        int n_here = 0;
        division_choose(&d, speed, 0, ids, 8, place);
        for (int i = 0; i < 8; i++)
            n_here += place[i] == 0;
        assert_int_equal(n_here, 2);
    }
    division_choose(&d, speed, 0, rows, 8, place); /* five rows of one expert on the fast one */
    for (int i = 0; i < 8; i++)
        assert_int_equal(place[i], rows[i] == 5 || rows[i] == 3); /* 3 would be a third row on the slow one */
    division_close(&d);
    usage_close(&p.past);
}

/* When the last place is through with n rows. */
static double longest(const uint8_t *place, int n, const double *speed, int n_place)
{
    double work[MAX_PLACE] = {0}, most = 0;
    for (int i = 0; i < n; i++)
        work[place[i]]++;
    for (int i = 0; i < n_place; i++)
        most = fmax(most, work[i] / speed[i]);
    return most;
}

/* The share of replicas goes from few to all. */
static void calls_are_never_longer_with_replicas_and_often_shorter(void **state)
{
    int n_call = 0, n_shorter = 0;
    for (uint64_t seed = 0; seed < 4 * N_CASE; seed++) {
        struct problem p = make_problem(seed);
        struct random r = random_seed(seed);
        struct division d;
        double speed[MAX_PLACE];
        const struct split split = {.kind = seed % 2 ? SPLIT_EXPERTS : SPLIT_RANDOM,
                                    .seed = seed,
                                    .replica_share = 0.1 + 0.9 * (double)below(&r, 100) / 100};
        division_speeds(p.places, p.n_place, speed);
        assert_int_equal(divide(&p, &split, &d), ERR_OK);
        for (int l = 0; l < p.n_layer; l++) {
            int n = 1 + (int)below(&r, 100);
            int32_t ids[100];
            uint8_t place[100], again[100], home[100];
            for (int i = 0; i < n; i++) {
                ids[i] = (int32_t)below(&r, p.layers[l].n_expert);
                home[i] = d.home[l * d.n_expert + ids[i]];
            }
            division_choose(&d, speed, l, ids, n, place);
            division_choose(&d, speed, l, ids, n, again); /* a function of ids and speeds alone */
            assert_memory_equal(place, again, (size_t)n);
            double with = longest(place, n, speed, p.n_place), without = longest(home, n, speed, p.n_place);
            assert_true(with <= without);
            n_shorter += with < without;
            n_call += p.n_place > 1;
        }
        division_close(&d);
        usage_close(&p.past);
    }
    assert_true(n_shorter > n_call / 2);
}

/* The eight experts of a token on two places of one speed that have all of them. */
static void a_token_is_halved_where_both_have_all(void **state)
{
    struct problem p = two_places();
    struct division d;
    struct random r = random_seed(7);
    const double speed[2] = {1, 0.9};
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS, .replica_share = 1}, &d), ERR_OK);
    for (int k = 0; k < N_CASE; k++) {
        int32_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        uint8_t place[8];
        int n = 1 + (int)below(&r, 8), n_second = 0;
        for (int i = 7; i > 0; i--) {
            int j = (int)below(&r, i + 1);
            int32_t id = ids[i];
            ids[i] = ids[j];
            ids[j] = id;
        }
        division_choose(&d, speed, 0, ids, n, place);
        for (int i = 0; i < n; i++)
            n_second += place[i];
        assert_int_equal(n_second, n / 2);
    }
    division_close(&d);
    usage_close(&p.past);
}

/* Eight of 128 experts, chosen alike, on two equal places: the longer part over half of all, as docs/places.md has it.
 */
static void a_quarter_of_replicas_makes_two_places_nearly_even(void **state)
{
    enum { N = 128, K = 8, N_DRAW = 4000 };
    static const double shares[] = {0, 0.1, 0.25, 0.5, 1}, want[] = {1.26, 1.18, 1.08, 1.013, 1};
    const struct expert_layer layer = {.n_expert = N, .n_used = K};
    const size_t slot_bytes = SLOT;
    const double speed[2] = {1, 1};
    struct problem p = two_places();
    for (int s = 0; s < 5; s++) {
        struct random r = random_seed(5);
        struct division d;
        double sum = 0;
        const struct split split = {.kind = SPLIT_EXPERTS, .replica_share = shares[s]};
        assert_int_equal(division_make(&d, &layer, &slot_bytes, 1, p.places, 2, &split, NULL, &p.e), ERR_OK);
        for (int i = 0; i < N_DRAW; i++) {
            int32_t ids[K];
            uint8_t place[K];
            bool is_chosen[N] = {0};
            for (int k = 0; k < K; k++) {
                do
                    ids[k] = (int32_t)below(&r, N);
                while (is_chosen[ids[k]]);
                is_chosen[ids[k]] = true;
            }
            division_choose(&d, speed, 0, ids, K, place);
            sum += longest(place, K, speed, 2) / (K / 2);
        }
        assert_float_equal(sum / N_DRAW, want[s], 0.01);
        division_close(&d);
    }
    usage_close(&p.past);
}

static void note(struct place_speeds *s, int place, bool is_decode, int n, int64_t n_row, int64_t ns)
{
    for (int i = 0; i < n; i++)
        place_speeds_note(s, place, is_decode, n_row, ns);
}

static double ratio(struct place_speeds *s, bool is_decode)
{
    const double *speed = place_speeds_of(s, is_decode);
    return speed[1] / speed[0];
}

static void places_are_as_fast_as_they_were_timed(void **state)
{
    struct problem p = two_places();
    struct division d;
    struct place_speeds s;
    p.places[1].bytes_per_s = 4; /* which is not so */
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_OK);
    place_speeds_init(&s, &d, p.places, false);
    note(&s, 0, true, 100, 4, 1000);
    note(&s, 1, true, 3, 2, 1000);
    note(&s, 1, true, 100, 0, 500); /* neither of these is a time */
    note(&s, 1, true, 100, 5, 0);
    assert_float_equal(ratio(&s, true), 4, 1e-9); /* the second one has hardly been timed */
    note(&s, 1, true, 30, 2, 1000);
    assert_float_equal(ratio(&s, true), 0.5, 1e-9);
    assert_float_equal(ratio(&s, false), 4, 1e-9); /* prompts are apart */
    note(&s, 0, true, 1, 1, INT64_MAX);            /* the thread did not run */
    assert_true(ratio(&s, true) > 0.5 && ratio(&s, true) < 0.53);
    note(&s, 0, true, 400, 1, 1000);
    assert_float_equal(ratio(&s, true), 2, 0.01);
    note(&s, 0, true, 400, 0, 0); /* nothing goes there: it is tried again */
    assert_float_equal(ratio(&s, true), 4, 0.01);
    place_speeds_init(&s, &d, p.places, true);
    note(&s, 0, true, 100, 4, 1000);
    note(&s, 1, true, 100, 2, 1000);
    assert_float_equal(ratio(&s, true), 4, 1e-9);
    division_close(&d);
    usage_close(&p.past);
}

/* One that has nothing need not be timed. */
static void speeds_are_of_places_that_have_experts(void **state)
{
    struct problem p = two_places();
    struct division d;
    struct place_speeds s;
    p.places[0].share = 1;
    assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_EXPERTS}, &d), ERR_OK);
    place_speeds_init(&s, &d, p.places, false);
    note(&s, 0, false, 100, 4, 1000);
    assert_float_equal(place_speeds_of(&s, false)[0], 4e6, 1);
    division_close(&d);
    usage_close(&p.past);
}

static void calls_go_to_holders_and_keep_an_expert_together(void **state)
{
    for (uint64_t seed = 0; seed < N_CASE; seed++) {
        struct problem p = make_problem(seed);
        struct random r = random_seed(seed);
        struct division d;
        int32_t ids[200];
        uint8_t place[200];
        double speed[MAX_PLACE];
        const struct split split = {.kind = SPLIT_RANDOM, .seed = seed, .replica_share = 0.25};
        division_speeds(p.places, p.n_place, speed);
        assert_int_equal(divide(&p, &split, &d), ERR_OK);
        for (int l = 0; l < p.n_layer; l++) {
            for (int i = 0; i < 200; i++)
                ids[i] = (int32_t)below(&r, p.layers[l].n_expert);
            division_choose(&d, speed, l, ids, 200, place);
            for (int i = 0; i < 200; i++) {
                assert_true(place[i] < p.n_place && has(&d, place[i], l, ids[i]));
                assert_int_equal(place[i], place[ids[i] == ids[0] ? 0 : i]);
            }
        }
        division_close(&d);
        usage_close(&p.past);
    }
}

/* The first place holds nothing and may have anything; the others are divided among as without it. */
static void a_cache_leaves_all_experts_to_the_others(void **state)
{
    bool is_here[MAX_EXPERT];
    for (uint64_t seed = 0; seed < N_CASE; seed++) {
        struct problem p = make_problem(seed), others = make_problem(seed);
        struct division d, want;
        if (p.n_place > 1) {
            others.n_place--;
            memmove(others.places, others.places + 1, sizeof others.places - sizeof *others.places);
            p.places[0].room_bytes = seed % 2 ? 0 : SIZE_MAX;
            assert_int_equal(divide(&p, &(struct split){.kind = SPLIT_CACHE, .cache_share = 0.5}, &d), ERR_OK);
            assert_int_equal(divide(&others, &(struct split){.kind = SPLIT_EXPERTS}, &want), ERR_OK);
            assert_true(d.has_cache && d.cache_share == 0.5 && !want.has_cache);
            for (int l = 0; l < p.n_layer; l++) {
                division_is_here(&d, 0, l, is_here);
                for (int64_t k = 0; k < d.n_expert; k++) {
                    assert_int_equal(division_holders(&d, l, (int32_t)k), want.holders[l * d.n_expert + k] << 1);
                    assert_int_equal(is_here[k], k < p.layers[l].n_expert);
                }
            }
            division_close(&d);
            division_close(&want);
        }
        usage_close(&p.past);
        usage_close(&others.past);
    }
}

static void splits_are_read(void **state)
{
    struct split s;
    struct err e;
    double shares[DIVISION_MAX_PLACE];
    int n;
    assert_int_equal(split_parse("experts", &s, shares, &n, &e), ERR_OK);
    assert_true(s.kind == SPLIT_EXPERTS && n == 0 && s.replica_share == 0 && s.replica_bytes == 0);
    assert_int_equal(split_parse("layers:3,1,0.5", &s, shares, &n, &e), ERR_OK);
    assert_true(s.kind == SPLIT_LAYERS && n == 3 && shares[0] == 3 && shares[1] == 1 && shares[2] == 0.5);
    assert_int_equal(split_parse("gate:25%", &s, shares, &n, &e), ERR_OK);
    assert_true(s.kind == SPLIT_GATE && n == 0 && s.cache_share == 0.25);
    assert_int_equal(split_parse("last:12", &s, shares, &n, &e), ERR_OK);
    assert_true(s.kind == SPLIT_LAST && s.n_last == 12 && n == 0);
    assert_int_equal(split_parse("random:17", &s, shares, &n, &e), ERR_OK);
    assert_true(s.kind == SPLIT_RANDOM && n == 0 && s.seed == 17);
    assert_int_equal(split_parse("cache", &s, shares, &n, &e), ERR_OK);
    assert_true(s.kind == SPLIT_CACHE && n == 0 && s.cache_share == 0);
    assert_int_equal(split_parse("cache:12.5%", &s, shares, &n, &e), ERR_OK);
    assert_true(s.kind == SPLIT_CACHE && n == 0 && s.cache_share == 0.125);
}

static void other_splits_are_refused(void **state)
{
    static const char *const wrong[][2] = {{"", "experts, layers, stages, last, random, cache or gate"},
                                           {"expert", "experts, layers, stages, last, random, cache or gate"},
                                           {"layersx", "experts, layers, stages, last, random, cache or gate"},
                                           {"layers:", "a number for each device"},
                                           {"last", "last:N"},
                                           {"last:", "last:N"},
                                           {"last:-1", "last:N"},
                                           {"layers:1,", "a number for each device"},
                                           {"layers:1,-1", "a number for each device"},
                                           {"layers:1;2", "a number for each device"},
                                           {"experts:0x1", "a number for each device"},
                                           {"experts:1.2.3", "a number for each device"},
                                           {"experts:nan", "a number for each device"},
                                           {"experts:0,0", "above 0"},
                                           {"cache:", "cache:N%"},
                                           {"cache:5", "cache:N%"},
                                           {"cache:0%", "cache:N%"},
                                           {"cache:101%", "cache:N%"},
                                           {"cache:-5%", "cache:N%"},
                                           {"cache:5%,3%", "cache:N%"},
                                           {"cache:1e1%", "cache:N%"},
                                           {"random:", "a seed"},
                                           {"random:1,2", "a seed"},
                                           {"random:-1", "a seed"},
                                           {"random:1234567890123456789", "18 digits"}};
    struct split s;
    struct err e;
    double shares[DIVISION_MAX_PLACE];
    char many[4 * DIVISION_MAX_PLACE] = "experts:1";
    int n;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(split_parse(wrong[i][0], &s, shares, &n, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, wrong[i][1]));
    }
    for (int i = 0; i < DIVISION_MAX_PLACE; i++)
        memcpy(many + 9 + 2 * (ptrdiff_t)i, ",1", 3);
    assert_int_equal(split_parse(many, &s, shares, &n, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "64 at most"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_expert_has_a_holder),
        cmocka_unit_test(rooms_that_suffice_are_kept),
        cmocka_unit_test(rooms_that_do_not_suffice_are_filled_alike),
        cmocka_unit_test(what_has_no_room_goes_to_fast_drives),
        cmocka_unit_test(a_place_without_room_for_a_choice_reads_nothing_again),
        cmocka_unit_test(the_fastest_place_has_the_hottest),
        cmocka_unit_test(places_are_through_at_the_same_time),
        cmocka_unit_test(replicas_fill_what_room_is_left),
        cmocka_unit_test(shares_are_given_in_each_layer),
        cmocka_unit_test(experts_of_a_layer_stay_together_where_layers_are_divided),
        cmocka_unit_test(the_last_layers_go_to_the_last_place),
        cmocka_unit_test(random_divisions_differ_by_seed_alone),
        cmocka_unit_test(a_place_without_room_for_what_a_token_chooses_is_refused),
        cmocka_unit_test(replicas_keep_within_what_is_asked_for),
        cmocka_unit_test(the_hottest_experts_have_replicas),
        cmocka_unit_test(calls_balance_over_replicas),
        cmocka_unit_test(calls_are_never_longer_with_replicas_and_often_shorter),
        cmocka_unit_test(a_token_is_halved_where_both_have_all),
        cmocka_unit_test(a_quarter_of_replicas_makes_two_places_nearly_even),
        cmocka_unit_test(places_are_as_fast_as_they_were_timed),
        cmocka_unit_test(speeds_are_of_places_that_have_experts),
        cmocka_unit_test(calls_go_to_holders_and_keep_an_expert_together),
        cmocka_unit_test(a_cache_leaves_all_experts_to_the_others),
        cmocka_unit_test(splits_are_read),
        cmocka_unit_test(other_splits_are_refused),
    };
    return cmocka_run_group_tests_name("division", tests, NULL, NULL);
}
