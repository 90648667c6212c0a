/* Texts' beginnings in a folder: found again, bounded, and none the worse for kills, damage and loss.
 * usage: test_prefix_files GOLDEN_DIRECTORY
 * MOEBIUS_KILLS: how often a process that writes is killed (10). */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/random.h"
#include "session_fixture.h"
#include "texts/prefix_files.h"

enum { N_CTX = 1500, MOST = 1 << 28 };

static int n_lines; /* of the log */
static char last_line[512];

static void hear(void *user, enum log_level level, const char *line)
{
    n_lines++;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static const struct log ear = {hear, NULL};

static int64_t below(struct random *r, int64_t n)
{
    return (int64_t)(random_u32(r) % (uint32_t)n);
}

static struct temp_path make_folder(void)
{
    static int n;
    char name[32];
    snprintf(name, sizeof name, "folder%d", n++);
    return temp_path(&folder, name);
}

static struct prefix_files *open_folder(const char *dir, uint64_t max_bytes)
{
    struct err e;
    struct prefix_files *f;
    if (prefix_files_open(&f, dir, max_bytes, &ear, &e) != ERR_OK)
        fail_msg("%s", e.text);
    return f;
}

/* What is in a folder beside its lock. */
struct listing {
    char names[256][300];
    int n;
    uint64_t n_bytes; /* of files ending in .part */
};

static struct listing list_folder(const char *dir)
{
    struct listing x = {.n = 0};
    DIR *d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        struct stat st;
        if (f->d_name[0] == '.' || strcmp(f->d_name, "lock") == 0)
            continue;
        assert_true(x.n < 256);
        snprintf(x.names[x.n++], sizeof x.names[0], "%s", f->d_name);
        assert_int_equal(fstatat(dirfd(d), f->d_name, &st, 0), 0);
        x.n_bytes += strstr(f->d_name, ".part") ? (uint64_t)st.st_size : 0;
    }
    closedir(d);
    return x;
}

static void expect_books(const struct prefix_files *f, const char *dir, uint64_t max_bytes)
{
    struct prefix_files_stats s = prefix_files_stats(f);
    struct listing x = list_folder(dir);
    assert_int_equal(x.n, s.n_parts);
    assert_int_equal(x.n_bytes, s.n_bytes);
    assert_true(s.n_bytes <= max_bytes);
}

/* Tokens of text number `which`: all begin alike, and each goes its own way from some position on. */
static void get_ids(const moebius_engine *e, int which, int32_t *ids)
{
    int64_t own = which * 130 % 700;
    for (int64_t i = 0; i < N_CTX; i++)
        ids[i] = (int32_t)((i * 37 + i / 11 * 5 + (i >= own ? which * (i % 7) : 0)) % moebius_n_vocab(e));
}

static void append_ids(moebius_session *s, const int32_t *ids, int64_t to)
{
    int64_t pos = moebius_session_pos(s);
    if (to > pos)
        assert_int_equal(moebius_session_eval(s, ids + pos, (size_t)(to - pos), NULL), MOEBIUS_OK);
}

static void save_all(struct prefix_files *f, moebius_session *s)
{
    while (prefix_files_save(f, s, (size_t)moebius_session_pos(s)))
        ;
}

static void load_all(struct prefix_files *f, moebius_session *s, const int32_t *ids, size_t n)
{
    while (prefix_files_load(f, s, ids, n))
        assert_memory_equal(moebius_session_tokens(s), ids, (size_t)moebius_session_pos(s) * sizeof *ids);
    assert_true((size_t)moebius_session_pos(s) <= n);
    assert_memory_equal(moebius_session_tokens(s), ids, (size_t)moebius_session_pos(s) * sizeof *ids);
}

/* A session goes on as the text alone. */
static void expect_text(moebius_engine *e, moebius_kv_type kv, moebius_session *s, const int32_t *ids)
{
    int64_t to = moebius_session_pos(s) + 10;
    moebius_session *alone = open_session(e, kv, N_CTX, 512);
    append_ids(alone, ids, to);
    append_ids(s, ids, to);
    expect_logits(s, e, moebius_session_logits(alone));
    moebius_session_close(&alone);
}

/* Takes what the folder has of a text, and returns how much that was. */
static int64_t take(struct prefix_files *f, moebius_engine *e, moebius_kv_type kv, const int32_t *ids, size_t n)
{
    moebius_session *s = open_session(e, kv, N_CTX, 64);
    int64_t n_found = (int64_t)prefix_files_find(f, s, ids, n);
    load_all(f, s, ids, n);
    int64_t pos = moebius_session_pos(s);
    assert_true(pos <= n_found);
    expect_text(e, kv, s, ids);
    moebius_session_close(&s);
    return pos;
}

static void write_text(struct prefix_files *f, moebius_engine *e, moebius_kv_type kv, const int32_t *ids, int64_t n)
{
    moebius_session *s = open_session(e, kv, N_CTX, 64);
    append_ids(s, ids, n);
    save_all(f, s);
    moebius_session_close(&s);
}

/* ---- finding again ------------------------------------------------------------------------------------------- */

/* A conversation of two turns, of which another run takes all, or as much as another text has in common. */
static void check_found(const struct kind *k, moebius_kv_type kv)
{
    enum { TURN = 700, END = 900, OTHER = 611 };
    int32_t ids[N_CTX], other[N_CTX];
    struct temp_path dir = make_folder();
    moebius_engine *e = open_engine(k->name);
    struct prefix_files *f = open_folder(dir.s, MOST);
    moebius_session *s = open_session(e, kv, N_CTX, 64);
    get_ids(e, 0, ids);
    get_ids(e, 0, other);
    for (int i = OTHER; i < N_CTX; i++)
        other[i] = (ids[i] + 1) % moebius_n_vocab(e);
    append_ids(s, ids, TURN);
    save_all(f, s);
    assert_int_equal(prefix_files_find(f, s, ids, N_CTX), TURN);
    append_ids(s, ids, TURN + PREFIX_LEAST_TOKENS - 1);
    assert_false(prefix_files_save(f, s, N_CTX)); /* too little */
    append_ids(s, ids, END);
    save_all(f, s);
    assert_false(prefix_files_save(f, s, N_CTX)); /* all is there */
    expect_books(f, dir.s, MOST);
    moebius_session_close(&s);
    prefix_files_close(&f);

    f = open_folder(dir.s, MOST);
    expect_books(f, dir.s, MOST);
    assert_int_equal(take(f, e, kv, ids, END), END);
    assert_int_equal(take(f, e, kv, ids, N_CTX - 20), END);
    int64_t n = take(f, e, kv, other, N_CTX - 20);
    if (k->recurrent || k->windowed)
        assert_true(n == 0 || n == PREFIX_PART_TOKENS);
    else
        assert_int_equal(n, OTHER);
    assert_int_equal(prefix_files_stats(f).n_written, 0);
    assert_true(prefix_files_stats(f).n_read > 0);
    prefix_files_close(&f);
    moebius_engine_close(&e);
}

static void texts_go_on_from_the_folder_with_the_same_bits(void **state)
{
    n_lines = 0;
    for (int i = 0; i < N_KIND; i++) {
        check_found(&kinds[i], MOEBIUS_KV_F16);
        check_found(&kinds[i], kinds[i].q8_0 ? MOEBIUS_KV_Q8_0 : MOEBIUS_KV_F32);
    }
    assert_int_equal(n_lines, 0);
}

/* The part that was used last is there after the next run, too, and the others are not. */
static void what_was_of_use_stays_longest(void **state)
{
    enum { N = 4, EACH = 300 };
    int32_t ids[N_CTX] = {0};
    struct temp_path dir = make_folder();
    moebius_engine *e = open_engine("q_q4_0");
    for (int used = 0; used < N; used++) {
        struct prefix_files *f = open_folder(dir.s, MOST);
        for (int i = 0; i < N; i++) {
            ids[0] = i;
            write_text(f, e, MOEBIUS_KV_F16, ids, EACH);
        }
        clock_sleep_ns(20 * 1000000); /* file systems count time in steps */
        ids[0] = used;
        assert_int_equal(take(f, e, MOEBIUS_KV_F16, ids, EACH), EACH);
        uint64_t n_bytes = prefix_files_stats(f).n_bytes;
        prefix_files_close(&f);
        f = open_folder(dir.s, n_bytes / N);
        assert_int_equal(prefix_files_stats(f).n_parts, 1);
        assert_int_equal(take(f, e, MOEBIUS_KV_F16, ids, EACH), EACH);
        prefix_files_close(&f);
    }
    moebius_engine_close(&e);
}

/* The sizes are those of 512 tokens of Qwen3-30B-A3B, Qwen3-Next-80B-A3B, and of a state without caches. */
static void no_part_is_much_longer_than_the_state_that_comes_with_it(void **state)
{
    const int64_t mb = 1000000;
    assert_int_equal(prefix_part_tokens(mb / 10, 50 * mb, 512), 512);
    assert_in_range(prefix_part_tokens(75 * mb, 88 * mb, 512), 2900, 3000);
    assert_int_equal(prefix_part_tokens(75 * mb, 75 * mb, 512), INT64_MAX);
    assert_int_equal(prefix_part_tokens(75 * mb, 150 * mb, 512), 512);
    assert_int_equal(prefix_part_tokens(75 * mb, 80 * mb, 0), INT64_MAX);
}

static void models_and_types_share_a_folder_and_nothing_in_it(void **state)
{
    int32_t ids[N_CTX] = {0};
    struct temp_path dir = make_folder();
    struct prefix_files *f = open_folder(dir.s, MOST);
    moebius_engine *e = open_engine("q_q4_0"), *other = open_engine("qwen3moe");
    for (int i = 0; i < N_CTX; i++)
        ids[i] = i % 50;
    write_text(f, e, MOEBIUS_KV_F16, ids, 600);
    assert_int_equal(take(f, e, MOEBIUS_KV_F32, ids, 600), 0);
    assert_int_equal(take(f, other, MOEBIUS_KV_F16, ids, 600), 0);
    write_text(f, e, MOEBIUS_KV_F32, ids, 500);
    write_text(f, other, MOEBIUS_KV_F16, ids, 400);
    assert_int_equal(take(f, e, MOEBIUS_KV_F16, ids, 900), 600);
    assert_int_equal(take(f, e, MOEBIUS_KV_F32, ids, 900), 500);
    assert_int_equal(take(f, other, MOEBIUS_KV_F16, ids, 900), 400);
    prefix_files_close(&f);
    moebius_engine_close(&e);
    moebius_engine_close(&other);
}

/* ---- the bound ----------------------------------------------------------------------------------------------- */

static void a_folder_keeps_within_its_bytes(void **state)
{
    enum { N_ROUND = 60 };
    struct random r = random_seed(5);
    int32_t ids[N_CTX];
    struct temp_path dir = make_folder();
    moebius_engine *e = open_engine("q_q4_0");
    struct prefix_files *f = open_folder(dir.s, MOST);
    get_ids(e, 0, ids);
    write_text(f, e, MOEBIUS_KV_F16, ids, 1000);
    uint64_t max_bytes = prefix_files_stats(f).n_bytes * 3, n_dropped = 0, n_read = 0;
    for (int i = 0; i < N_ROUND; i++) {
        if (i % 20 == 0) {
            prefix_files_close(&f);
            f = open_folder(dir.s, max_bytes);
        }
        get_ids(e, (int)below(&r, 9), ids);
        take(f, e, MOEBIUS_KV_F16, ids, N_CTX - 20);
        write_text(f, e, MOEBIUS_KV_F16, ids, 1 + below(&r, 1300));
        expect_books(f, dir.s, max_bytes);
        n_dropped = prefix_files_stats(f).n_dropped;
        n_read += prefix_files_stats(f).n_read;
    }
    assert_true(n_dropped > 0 && n_read > 0);
    prefix_files_close(&f);
    f = open_folder(dir.s, max_bytes / 5); /* a smaller bound than before */
    expect_books(f, dir.s, max_bytes / 5);
    get_ids(e, 0, ids);
    write_text(f, e, MOEBIUS_KV_F16, ids, 1400); /* more than there is room for: its beginning */
    expect_books(f, dir.s, max_bytes / 5);
    assert_true(take(f, e, MOEBIUS_KV_F16, ids, 1400) > 0);
    prefix_files_close(&f);
    f = open_folder(dir.s, 10);
    assert_int_equal(prefix_files_stats(f).n_parts, 0);
    write_text(f, e, MOEBIUS_KV_F16, ids, 600);
    expect_books(f, dir.s, 10);
    prefix_files_close(&f);
    moebius_engine_close(&e);
}

/* ---- what can happen to a folder ----------------------------------------------------------------------------- */

/* Something happens to one part's file. */
static void harm(const char *path, struct random *r)
{
    size_t n;
    char *bytes = read_file(path, &n);
    switch (below(r, 4)) {
    case 0:
        bytes[below(r, (int64_t)n)] ^= (char)(1 << below(r, 8));
        write_file(path, bytes, n);
        break;
    case 1: write_file(path, bytes, (size_t)below(r, (int64_t)n)); break;
    case 2: write_file(path, "", 0); break;
    default: remove(path);
    }
    free(bytes);
}

static void check_harmed(const char *name, bool is_open, uint64_t seed)
{
    struct random r = random_seed(seed);
    int32_t ids[N_CTX];
    struct temp_path dir = make_folder();
    moebius_engine *e = open_engine(name);
    struct prefix_files *f = open_folder(dir.s, MOST);
    for (int i = 0; i < 4; i++) {
        get_ids(e, i, ids);
        write_text(f, e, MOEBIUS_KV_F16, ids, 1200);
    }
    if (!is_open)
        prefix_files_close(&f);
    struct listing x = list_folder(dir.s);
    struct temp_path in_folder;
    for (int i = 0; i < x.n; i++) {
        snprintf(in_folder.s, sizeof in_folder.s, "%.200s/%.200s", dir.s, x.names[i]);
        if (below(&r, 3) == 0)
            harm(in_folder.s, &r);
    }
    if (!is_open)
        f = open_folder(dir.s, MOST);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 4; i++) {
            get_ids(e, i, ids);
            int64_t n = take(f, e, MOEBIUS_KV_F16, ids, 1200);
            write_text(f, e, MOEBIUS_KV_F16, ids, 1200);
            assert_true(n <= 1200 && (round == 0 || n == 1200));
        }
    prefix_files_close(&f);
    f = open_folder(dir.s, MOST);
    expect_books(f, dir.s, MOST);
    prefix_files_close(&f);
    moebius_engine_close(&e);
}

static void harmed_files_are_left_out(void **state)
{
    static const char *const names[] = {"q_q4_0", "gpt_oss", "qwen3next"};
    for (uint64_t i = 0; i < 12; i++)
        check_harmed(names[i % 3], i / 3 % 2, i + 1);
}

static void other_files_stay_and_unfinished_ones_go(void **state)
{
    static const char *const stay[] = {"README", "x.part", "0123456789abcdef0123456789abcdef.part.txt",
                                       "0123456789abcdef0123456789abcdeg.part"};
    static const char *const go[] = {"0123456789abcdef0123456789abcdef.part",
                                     "0123456789abcdef0123456789abcdef.part.0123456789abcdef.tmp"};
    struct temp_path dir = make_folder(), p;
    struct prefix_files *f = open_folder(dir.s, MOST);
    struct stat st;
    assert_int_equal(stat(dir.s, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    prefix_files_close(&f);
    for (int i = 0; i < 6; i++) {
        snprintf(p.s, sizeof p.s, "%.200s/%s", dir.s, i < 4 ? stay[i] : go[i - 4]);
        write_file(p.s, "abc", 3);
    }
    n_lines = 0;
    f = open_folder(dir.s, 0);
    assert_int_equal(n_lines, 1);
    assert_non_null(strstr(last_line, "no saved session"));
    assert_int_equal(list_folder(dir.s).n, 4);
    assert_int_equal(prefix_files_stats(f).n_parts, 0);
    prefix_files_close(&f);
}

static void a_folder_has_one_process(void **state)
{
    struct err e;
    struct temp_path dir = make_folder();
    struct prefix_files *f = open_folder(dir.s, MOST), *second;
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(prefix_files_open(&second, dir.s, MOST, NULL, &e) == ERR_OK || !strstr(e.text, dir.s));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    prefix_files_close(&f);
    f = open_folder(dir.s, MOST);
    prefix_files_close(&f);
    struct temp_path nowhere = temp_path(&folder, "not/here"), file = temp_path(&folder, "file");
    write_file(file.s, "", 0);
    assert_int_equal(prefix_files_open(&f, nowhere.s, MOST, NULL, &e), ERR_IO);
    assert_null(f);
    assert_int_equal(prefix_files_open(&f, file.s, MOST, NULL, &e), ERR_IO);
    prefix_files_close(&f);
}

static void a_folder_that_cannot_be_written_is_let_alone_for_a_while(void **state)
{
    int32_t ids[N_CTX];
    struct temp_path dir = make_folder();
    moebius_engine *e = open_engine("q_q4_0");
    struct prefix_files *f = open_folder(dir.s, MOST);
    get_ids(e, 0, ids);
    write_text(f, e, MOEBIUS_KV_F16, ids, 600);
    struct temp_folder gone;
    snprintf(gone.path, sizeof gone.path, "%.250s", dir.s);
    temp_folder_remove(&gone);
    n_lines = 0;
    moebius_session *s = open_session(e, MOEBIUS_KV_F16, N_CTX, 64);
    append_ids(s, ids, 1200);
    for (int i = 0; i < 5; i++)
        assert_false(prefix_files_save(f, s, 1200));
    assert_int_equal(n_lines, 1);
    moebius_session_close(&s);
    assert_int_equal(take(f, e, MOEBIUS_KV_F16, ids, 1200), 0);
    assert_int_equal(prefix_files_stats(f).n_parts, 0);
    prefix_files_close(&f);
    moebius_engine_close(&e);
}

/* ---- kills --------------------------------------------------------------------------------------------------- */

/* Writes and takes texts until it is killed. */
static void work(const char *name, const char *dir, uint64_t max_bytes, uint64_t seed)
{
    struct random r = random_seed(seed);
    int32_t ids[N_CTX];
    moebius_engine *e = open_engine(name);
    struct prefix_files *f = open_folder(dir, max_bytes);
    for (;;) {
        moebius_session *s = open_session(e, MOEBIUS_KV_F16, N_CTX, 64);
        int64_t n = 1 + below(&r, 1300);
        get_ids(e, (int)below(&r, 9), ids);
        load_all(f, s, ids, (size_t)n);
        append_ids(s, ids, n);
        save_all(f, s);
        moebius_session_close(&s);
    }
}

/* Whether a part is there, while another process writes. */
static bool has_part(const char *dir)
{
    bool has = false;
    DIR *d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        size_t n = strlen(f->d_name);
        has |= n > 5 && !strcmp(f->d_name + n - 5, ".part");
    }
    if (d)
        closedir(d);
    return has;
}

static void check_kills(const char *name, int n_kill)
{
    enum { LEAST_MS = 20, MORE_MS = 80, PATIENCE_MS = 60000 };
    struct random r = random_seed(9);
    int32_t ids[N_CTX];
    struct temp_path dir = make_folder();
    uint64_t max_bytes = 1 << 20;
    int64_t n_taken = 0;
    for (int i = 0; i < n_kill; i++) {
        pid_t child = fork();
        if (child == 0)
            work(name, dir.s, max_bytes, (uint64_t)i);
        for (int ms = 0; i == 0 && !has_part(dir.s) && ms < PATIENCE_MS; ms++) /* on a busy machine, too */
            clock_sleep_ns(1000000);
        clock_sleep_ns((LEAST_MS + below(&r, MORE_MS)) * 1000000);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        n_lines = 0;
        moebius_engine *e = open_engine(name);
        struct prefix_files *f = open_folder(dir.s, max_bytes);
        assert_int_equal(n_lines, 0);
        expect_books(f, dir.s, max_bytes);
        for (int j = 0; j < 9; j++) {
            get_ids(e, j, ids);
            n_taken += take(f, e, MOEBIUS_KV_F16, ids, 1300);
        }
        assert_int_equal(n_lines, 0);
        prefix_files_close(&f);
        moebius_engine_close(&e);
    }
    assert_true(n_taken > 0);
}

static void a_killed_process_leaves_parts_that_are_whole(void **state)
{
    const char *value = getenv("MOEBIUS_KILLS");
    int n = value ? atoi(value) : 10;
    check_kills("q_q4_0", n);
    check_kills("qwen3next", n);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 1;
    golden = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_go_on_from_the_folder_with_the_same_bits),
        cmocka_unit_test(no_part_is_much_longer_than_the_state_that_comes_with_it),
        cmocka_unit_test(models_and_types_share_a_folder_and_nothing_in_it),
        cmocka_unit_test(a_folder_keeps_within_its_bytes),
        cmocka_unit_test(what_was_of_use_stays_longest),
        cmocka_unit_test(harmed_files_are_left_out),
        cmocka_unit_test(other_files_stay_and_unfinished_ones_go),
        cmocka_unit_test(a_folder_has_one_process),
        cmocka_unit_test(a_folder_that_cannot_be_written_is_let_alone_for_a_while),
        cmocka_unit_test(a_killed_process_leaves_parts_that_are_whole),
    };
    return cmocka_run_group_tests_name("prefix files", tests, folder_setup, folder_teardown);
}
