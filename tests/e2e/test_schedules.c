/* Random schedules of many texts: chunks, joins, leaves, forks, going back, parking, drafts that are rejected, in
 * batches of up to 16 sessions, on one device or with the experts divided among up to three, or in a cache and on up to
 * two. Each text's logits must be, to the bit, those that it has alone, fed in one piece. usage: test_schedules
 * FOLDER-OF-MODELS|MODEL.gguf... ; MOEBIUS_SCHEDULES: how many for each model (1; with sanitizers, of a folder, every
 * other model without it); MOEBIUS_SEED: the first one's. */
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/random.h"
#include "moebius/moebius.h"
#include "../unit/temp_folder.h"

enum { MAX_TEXTS = 16, MAX_LINES = 256, N_CTX = 1400, N_STEP = 60, MAX_CHUNK = 700, MAX_DRAFT = 12 };

/* A line of tokens, which texts share until they branch: token i is `parent`'s below `branch`, else made of the number
 * of the line. */
struct line {
    int parent, branch;
    int longest;         /* tokens that any text has had of it */
    uint32_t crc[N_CTX]; /* of the logits that were seen after token i; 0: none were */
};

struct text {
    moebius_session *session;
    int line;
};

struct schedule {
    const char *path;
    uint64_t seed;
    struct random random;
    moebius_engine *engine;
    moebius_kv_type kv;
    struct text texts[MAX_TEXTS];
    int n_text;
    struct line *lines; /* [MAX_LINES] */
    int n_line;
    int n_seen, n_draft, n_fork, n_back, n_park, n_guess;
};

static struct temp_folder folder;

static void remove_folder(void)
{
    temp_folder_remove(&folder);
}

static _Noreturn void die(const struct schedule *s, const char *what)
{
    fprintf(stderr, "%s: seed %llu: %s\n", s->path, (unsigned long long)s->seed, what);
    exit(1);
}

static int below(struct schedule *s, int n)
{
    return (int)(random_u32(&s->random) % (uint32_t)n);
}

static int32_t token(const struct schedule *s, int line, int i)
{
    while (line > 0 && i < s->lines[line].branch)
        line = s->lines[line].parent;
    uint32_t x = (uint32_t)(line * 7919 + i * 104729 + (i / 5) * 31);
    return (int32_t)((x ^ x >> 7) % (uint32_t)moebius_n_vocab(s->engine));
}

static int pos_of(const struct text *t)
{
    return (int)moebius_session_pos(t->session);
}

static int new_line(struct schedule *s, int parent, int branch)
{
    struct line *l = &s->lines[s->n_line];
    memset(l, 0, sizeof *l);
    l->parent = parent;
    l->branch = branch;
    return s->n_line++;
}

/* Notes the logits after a text's token i, or holds them against those that were seen there before. */
static void see(struct schedule *s, const struct text *t, int i, const float *logits)
{
    uint32_t crc = crc32c(0, logits, (size_t)moebius_n_vocab(s->engine) * sizeof *logits) | 1, *known;
    int line = t->line;
    while (line > 0 && i < s->lines[line].branch)
        line = s->lines[line].parent;
    known = &s->lines[line].crc[i];
    if (*known && *known != crc)
        die(s, "two texts with the same tokens have different logits");
    *known = crc;
    s->n_seen++;
}

/* ---- what a schedule does ---------------------------------------------------------------------------------------- */

static void join_text(struct schedule *s)
{
    moebius_error error;
    const moebius_session_options o = {.n_ctx = N_CTX, .n_batch = below(s, 2) ? 512 : 64, .kv = s->kv};
    struct text *t = &s->texts[s->n_text];
    if (s->n_text == MAX_TEXTS || s->n_line == MAX_LINES)
        return;
    if (moebius_session_open(&t->session, s->engine, &o, &error) != MOEBIUS_OK)
        die(s, error.text);
    t->line = new_line(s, -1, 0);
    s->n_text++;
}

static void leave(struct schedule *s, int i)
{
    moebius_session_close(&s->texts[i].session);
    s->texts[i] = s->texts[--s->n_text];
}

static void fork_text(struct schedule *s)
{
    moebius_error error;
    const struct text *from = &s->texts[below(s, s->n_text)];
    struct text *t = &s->texts[s->n_text];
    if (s->n_text == MAX_TEXTS || s->n_line == MAX_LINES)
        return;
    if (moebius_session_fork(&t->session, from->session, &error) != MOEBIUS_OK)
        die(s, error.text);
    t->line = new_line(s, from->line, pos_of(from));
    if (moebius_session_logits(t->session) && pos_of(t) > 0)
        see(s, t, pos_of(t) - 1, moebius_session_logits(t->session));
    s->n_text++;
    s->n_fork++;
}

/* Goes back by a little or by a lot, and on with the same tokens or with others. */
static void go_back(struct schedule *s)
{
    struct text *t = &s->texts[below(s, s->n_text)];
    int pos = pos_of(t), back = below(s, 3) ? below(s, 80) : below(s, N_CTX), to = back > pos ? 0 : pos - back;
    if (s->n_line == MAX_LINES)
        return;
    to = (int)moebius_session_truncate(t->session, to);
    if (to != pos_of(t) || to > pos)
        die(s, "going back ended elsewhere");
    if (below(s, 2))
        t->line = new_line(s, t->line, to);
    s->n_back++;
}

/* A new session has what another saved. */
static moebius_session *save_and_load(const struct schedule *s, moebius_session *from, moebius_error *error)
{
    moebius_session *to;
    const struct temp_path path = temp_path(&folder, "session");
    const moebius_session_options o = {.n_ctx = N_CTX, .n_batch = 512, .kv = s->kv};
    if (moebius_session_save(from, path.s, error) != MOEBIUS_OK ||
        moebius_session_open(&to, s->engine, &o, error) != MOEBIUS_OK ||
        moebius_session_load(to, path.s, error) != MOEBIUS_OK)
        die(s, error->text);
    return to;
}

/* Moves a text's state out of the engine's memory until it is used again, or into another session by a file. */
static void park(struct schedule *s)
{
    moebius_error error;
    struct text *t = &s->texts[below(s, s->n_text)];
    if (below(s, 2)) {
        if (moebius_session_park(t->session, NULL, &error) != MOEBIUS_OK)
            die(s, error.text);
    } else {
        moebius_session *loaded = save_and_load(s, t->session, &error);
        moebius_session_close(&t->session);
        t->session = loaded;
    }
    s->n_park++;
}

/* Guesses how some texts go on, of which nothing remains. */
static void guess(struct schedule *s)
{
    moebius_error error;
    moebius_guess_item items[MAX_TEXTS];
    int32_t ids[MAX_TEXTS][MAX_DRAFT];
    size_t n_got[MAX_TEXTS], n = 0;
    for (int i = 0; i < s->n_text; i++) {
        const struct text *t = &s->texts[i];
        int room = N_CTX - pos_of(t), most = 1 + below(s, MAX_DRAFT);
        if (below(s, 3) == 0 || room == 0)
            continue;
        items[n] = (moebius_guess_item){.session = t->session,
                                        .id = token(s, t->line, pos_of(t)),
                                        .most = (size_t)(most < room ? most : room),
                                        .least = (float)below(s, 3) * 0.1f,
                                        .ids = ids[n],
                                        .n = &n_got[n]};
        n++;
    }
    if (moebius_guess_batch(s->engine, items, n, &error) != MOEBIUS_OK)
        die(s, error.text);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n_got[i]; k++)
            if (ids[i][k] < 0 || ids[i][k] >= moebius_n_vocab(s->engine))
                die(s, "a guess is no token");
        s->n_guess += (int)n_got[i];
    }
}

/* A text's part in a batch. */
struct part {
    struct schedule *s;
    struct text *t;
    int first, n; /* tokens of the text */
    int n_right;  /* of these, from the first on: the others are wrong guesses */
    bool is_draft;
    bool sees_all; /* all logits are looked at, else the last ones */
    int32_t ids[MAX_CHUNK];
};

static bool see_each(void *user, size_t i, const float *logits)
{
    struct part *p = user;
    if ((int)i < p->n_right)
        see(p->s, p->t, p->first + (int)i, logits);
    return true;
}

static void fill_part(struct schedule *s, struct text *t, struct part *p)
{
    int room = N_CTX - pos_of(t), kind = below(s, 10);
    int n = kind < 5 ? 1 : kind < 7 ? 1 + below(s, MAX_DRAFT) : 1 + below(s, below(s, 4) ? 100 : MAX_CHUNK);
    *p = (struct part){.s = s, .t = t, .first = pos_of(t), .n = n < room ? n : room, .sees_all = kind >= 5};
    p->is_draft = kind == 5 || kind == 6;
    p->n_right = p->is_draft ? below(s, p->n + 1) : p->n;
    for (int i = 0; i < p->n; i++)
        p->ids[i] = i < p->n_right ? token(s, t->line, p->first + i)
                                   : (token(s, t->line, p->first + i) + 1 + i) % moebius_n_vocab(s->engine);
}

/* After a batch: what was seen, and rejected guesses. */
static void end_part(struct schedule *s, struct part *p)
{
    struct line *l = &s->lines[p->t->line];
    int end = p->first + p->n_right;
    if (pos_of(p->t) != p->first + p->n)
        die(s, "a session is not where it should be");
    if (p->n_right == p->n && !p->sees_all)
        see(s, p->t, end - 1, moebius_session_logits(p->t->session));
    l->longest = end > l->longest ? end : l->longest;
    if (p->n_right == p->n)
        return;
    s->n_draft++;
    if (moebius_session_truncate(p->t->session, end) != end)
        die(s, "a draft was not taken back");
}

static void run_batch(struct schedule *s, struct part *parts)
{
    moebius_error error;
    moebius_batch_item items[MAX_TEXTS];
    size_t n = 0;
    for (int i = 0; i < s->n_text; i++) {
        struct part *p = &parts[n];
        if (below(s, 4) == 0 || pos_of(&s->texts[i]) == N_CTX)
            continue;
        fill_part(s, &s->texts[i], p);
        items[n] = (moebius_batch_item){.session = p->t->session,
                                        .ids = p->ids,
                                        .n = (size_t)p->n,
                                        .is_draft = p->is_draft,
                                        .logits = p->sees_all ? see_each : NULL,
                                        .user = p};
        n++;
    }
    if (n == 0)
        return;
    moebius_status status = moebius_eval_batch(s->engine, items, n, &error);
    if (status != MOEBIUS_OK)
        die(s, error.text);
    for (size_t i = 0; i < n; i++)
        end_part(s, &parts[i]);
}

/* ---- one text alone ---------------------------------------------------------------------------------------------- */

struct alone {
    const struct schedule *s;
    int line;
};

static bool compare(void *user, size_t i, const float *logits)
{
    const struct alone *a = user;
    const struct line *l = &a->s->lines[a->line];
    uint32_t crc = crc32c(0, logits, (size_t)moebius_n_vocab(a->s->engine) * sizeof *logits) | 1;
    if (l->crc[i] && l->crc[i] != crc) {
        fprintf(stderr, "line %d, token %zu\n", a->line, i);
        die(a->s, "logits differ from those of the text alone");
    }
    return true;
}

/* Feeds a line in one piece to a session of its own, with all experts in memory and one thread. */
static void check_line(const struct schedule *s, moebius_engine *engine, int line)
{
    moebius_error error;
    moebius_session *session;
    const moebius_session_options o = {.n_ctx = N_CTX, .n_batch = N_CTX, .kv = s->kv};
    struct alone a = {s, line};
    int32_t ids[N_CTX];
    int n = s->lines[line].longest;
    if (n == 0)
        return;
    for (int i = 0; i < n; i++)
        ids[i] = token(s, line, i);
    if (moebius_session_open(&session, engine, &o, &error) != MOEBIUS_OK ||
        moebius_session_eval_each(session, ids, (size_t)n, 0, compare, &a, &error) != MOEBIUS_OK)
        die(s, error.text);
    moebius_session_close(&session);
}

/* How experts, or layers, are divided where there are several devices. Models of one type of weights have one layer. */
static void write_split(const struct schedule *s, const char *devices, char *split, size_t n)
{
    uint64_t which = (s->seed + s->seed / 1000) % 3;
    if (which == 0 && !strstr(s->path, "/q_") && devices && !strcmp(devices, "cpu:1,cpu:1"))
        snprintf(split, n, "stages");
    else if (which == 1)
        snprintf(split, n, "cache:%d%%", 10 + (int)(s->seed / 2 * 30 % 90));
    else
        snprintf(split, n, "random:%llu", (unsigned long long)s->seed);
}

/* devices: NULL for one with all threads. share: of the experts, 0 for all; more where a layer needs more. mtp: with
 * multi-token prediction. */
static moebius_engine *open_engine(const struct schedule *s, int n_threads, const char *devices, double share, bool mtp)
{
    moebius_error error;
    moebius_engine *e;
    char split[32];
    write_split(s, devices, split, sizeof split);
    moebius_engine_options o = {.n_threads = devices ? 0 : n_threads,
                                .devices = devices,
                                .split = devices ? split : NULL,
                                .expert_ram_share = share,
                                .mtp = mtp,
                                .checkpoint_interval = 64};
    moebius_status status = moebius_engine_open(&e, s->path, &o, &error);
    while (status == MOEBIUS_LIMIT && o.expert_ram_share < 1) {
        o.expert_ram_share = o.expert_ram_share < 0.9 ? o.expert_ram_share + 0.1 : 1;
        status = moebius_engine_open(&e, s->path, &o, &error);
    }
    if (status != MOEBIUS_OK)
        die(s, error.text);
    return e;
}

static bool has_q8_0(const struct schedule *s)
{
    moebius_session *session;
    const moebius_session_options o = {.n_ctx = 64, .kv = MOEBIUS_KV_Q8_0};
    bool ok = moebius_session_open(&session, s->engine, &o, NULL) == MOEBIUS_OK;
    moebius_session_close(&session);
    return ok;
}

static void run_schedule(const char *path, uint64_t seed)
{
    struct schedule s = {.path = path, .seed = seed, .random = random_seed(seed)};
    static const char *const devices[] = {NULL, NULL, "cpu:1,cpu:1", "cpu:1,cpu:2,cpu:1"};
    int n_threads = 1 + below(&s, 4), is_streaming = below(&s, 2), which = below(&s, 4);
    struct part *parts = calloc(MAX_TEXTS, sizeof *parts);
    char split[32];
    s.lines = calloc(MAX_LINES, sizeof *s.lines);
    s.engine = open_engine(&s, n_threads, devices[which], is_streaming ? 0.25 : 0, seed % 4 != 0);
    s.kv = (moebius_kv_type)below(&s, 3);
    if (s.kv == MOEBIUS_KV_Q8_0 && !has_q8_0(&s))
        s.kv = MOEBIUS_KV_F32;
    for (int i = 0; i < N_STEP; i++) {
        int what = below(&s, 12);
        if (s.n_text == 0 || what == 0)
            join_text(&s);
        else if (what == 1)
            leave(&s, below(&s, s.n_text));
        else if (what == 2)
            fork_text(&s);
        else if (what == 3)
            go_back(&s);
        else if (what == 4)
            park(&s);
        else if (what == 5 && moebius_has_mtp(s.engine))
            guess(&s);
        else
            run_batch(&s, parts);
    }
    while (s.n_text)
        leave(&s, 0);
    if (moebius_engine_counters(s.engine).context_bytes)
        die(&s, "memory for state is still in use");
    write_split(&s, devices[which], split, sizeof split);
    moebius_engine *alone = open_engine(&s, 1, NULL, 0, false);
    for (int i = 0; i < s.n_line; i++)
        check_line(&s, alone, i);
    printf("%s: seed %llu: %d threads, devices %s, %s, experts %s, cache %d: %d logits, %d forks, %d times back, %d "
           "times parked, %d drafts, %d guesses\n",
           path, (unsigned long long)seed, n_threads, devices[which] ? devices[which] : "one",
           devices[which] ? split : "whole", is_streaming ? "25%" : "all", (int)s.kv, s.n_seen, s.n_fork, s.n_back,
           s.n_park, s.n_draft, s.n_guess);
    moebius_engine_close(&alone);
    moebius_engine_close(&s.engine);
    free(s.lines);
    free(parts);
}

/* Whether number i of a folder's models has its turn where nobody says how many schedules: each model has it in one of
 * the builds of `make check`, and some with ThreadSanitizer, too. */
static bool has_turn(size_t i)
{
#if defined __SANITIZE_ADDRESS__
    return i % 2 == 0;
#elif defined __SANITIZE_THREAD__
    return i % 4 == 1;
#else
    return i % 2 == 1;
#endif
}

/* The models of a folder, or one. n: schedules for each; 0: one, of those that have a turn. */
static void run_models(const char *path, uint64_t seed, int n)
{
    char pattern[1024];
    glob_t found;
    snprintf(pattern, sizeof pattern, strstr(path, ".gguf") ? "%s" : "%s/*.gguf", path);
    if (glob(pattern, 0, NULL, &found) != 0) {
        fprintf(stderr, "%s: no models\n", pattern);
        exit(1);
    }
    for (size_t i = 0; i < found.gl_pathc; i++)
        for (int k = 0; k < (n > 0 ? n : found.gl_pathc == 1 || has_turn(i)); k++)
            run_schedule(found.gl_pathv[i], seed + i * 1000 + (uint64_t)k);
    globfree(&found);
}

int main(int argc, char **argv)
{
    const char *n = getenv("MOEBIUS_SCHEDULES"), *seed = getenv("MOEBIUS_SEED");
    if (temp_folder_make(&folder) != 0 || atexit(remove_folder) != 0) {
        perror(folder.path);
        return 1;
    }
    for (int i = 1; i < argc; i++)
        run_models(argv[i], seed ? strtoull(seed, NULL, 10) : 1, n ? atoi(n) : 0);
    return 0;
}
