#include "tokenizer/split.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"
#include "base/utf8.h"

enum { MAX_PATTERNS = 8, MAX_SETS = 4, PATTERN_BYTES = 16384, N_CODES = 0x110000 };

/* The byte of a character beyond ASCII: 0x80, its category, and a bit for each set that it is in. */
enum category { CAT_OTHER, CAT_L, CAT_M, CAT_N, CAT_P, CAT_S };
enum { CLASS_BASE = 0x80, CATEGORY_MASK = 7, SET_SHIFT = 3, CLASS_SPACE = '\v' };

#define RULE(name, ...) static const char *const rule_##name[] = {__VA_ARGS__, NULL};
#include "tokenizer/split_rules.def"

static const struct split_pre pres[] = {
#define PRE(name, rule, flags) {name, rule_##rule, flags},
#include "tokenizer/split_rules.def"
};

static const struct {
    const char *name, *ranges;
} sets[] = {
#define SET(name, ranges) {#name, ranges},
#include "tokenizer/split_rules.def"
};

static const struct {
    uint32_t first;
    enum category category;
} class_runs[] = {
#define CLASS(first, category) {first, CAT_##category},
#include "tokenizer/unicode_classes.def"
#undef CLASS
};

/* White_Space beyond ASCII. */
static const struct {
    uint32_t first, last;
} spaces[] = {{0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
              {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};

#define N_OF(array) (sizeof(array) / sizeof(array)[0])

struct splitter {
    uint8_t class_of[N_CODES];
    pcre2_general_context *memory;
    pcre2_code *patterns[MAX_PATTERNS];
    int n_patterns;
    int set_index[MAX_SETS]; /* into `sets`; the position is the set's bit */
    int n_sets;
};

const struct split_pre *split_pre_find(const char *name, size_t n)
{
    for (size_t i = 0; i < N_OF(pres); i++)
        if (strlen(pres[i].name) == n && memcmp(pres[i].name, name, n) == 0)
            return &pres[i];
    return NULL;
}

err_code split_pre_unknown(const char *name, size_t n, struct err *e)
{
    char known[ERR_TEXT_BYTES] = "";
    size_t used = 0;
    for (size_t i = 0; i < N_OF(pres) && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", pres[i].name);
    return err_set(e, ERR_UNSUPPORTED, "tokenizer.ggml.pre is \"%.*s\"; known: %s", n < 64 ? (int)n : 64, name, known);
}

/* The code point at s (n > 0 bytes are there); returns its length. A byte that begins no character is U+FFFD, alone.
 * Surrogates pass: they have a category, and their bytes are kept. */
static inline unsigned code_read(const char *s, size_t n, uint32_t *code)
{
    *code = 0xfffd;
    unsigned length = utf8_decode_surrogates(s, n, code);
    return length ? length : 1;
}

/* Members of a set, one "a" or "a-b" after the other. */
static const char *range_next(const char *s, uint32_t *first, uint32_t *last)
{
    s += code_read(s, strlen(s), first);
    *last = *first;
    if (*s == '-' && s[1] != '\0') {
        s++;
        s += code_read(s, strlen(s), last);
    }
    return s;
}

static void classes_fill(struct splitter *s)
{
    for (size_t i = 0; i < N_OF(class_runs); i++) {
        uint32_t end = i + 1 < N_OF(class_runs) ? class_runs[i + 1].first : N_CODES;
        memset(s->class_of + class_runs[i].first, CLASS_BASE + (int)class_runs[i].category, end - class_runs[i].first);
    }
    for (int i = 0; i < s->n_sets; i++) {
        uint32_t first, last;
        for (const char *r = sets[s->set_index[i]].ranges; *r;) {
            r = range_next(r, &first, &last);
            for (uint32_t c = first; c <= last; c++)
                s->class_of[c] |= (uint8_t)(1 << (SET_SHIFT + i));
        }
    }
    for (size_t i = 0; i < N_OF(spaces); i++)
        memset(s->class_of + spaces[i].first, CLASS_SPACE, spaces[i].last - spaces[i].first + 1);
    for (int c = 0; c < CLASS_BASE; c++)
        s->class_of[c] = (uint8_t)c;
}

static int set_bit(struct splitter *s, const char *name, size_t n)
{
    size_t i = 0;
    while (strlen(sets[i].name) != n || memcmp(sets[i].name, name, n) != 0) {
        i++;
        assert(i < N_OF(sets));
    }
    for (int bit = 0; bit < s->n_sets; bit++)
        if (s->set_index[bit] == (int)i)
            return bit;
    assert(s->n_sets < MAX_SETS);
    s->set_index[s->n_sets] = (int)i;
    return s->n_sets++;
}

/* The bytes that a category or set stands for. */
static void members_find(struct splitter *s, const char *name, size_t n, bool member[256])
{
    memset(member, 0, 256 * sizeof *member);
    const char *category = n == 1 ? strchr("LMNPS", *name) : NULL;
    if (category) {
        enum category wanted = (enum category)(category - "LMNPS") + CAT_L;
        for (size_t i = 0; class_runs[i].first < CLASS_BASE; i++)
            for (uint32_t c = class_runs[i].first; c < class_runs[i + 1].first && c < CLASS_BASE; c++)
                member[c] = class_runs[i].category == wanted;
        for (unsigned c = CLASS_BASE; c < 256; c++)
            member[c] = (c & CATEGORY_MASK) == (unsigned)wanted;
        return;
    }
    int bit = set_bit(s, name, n);
    for (unsigned c = CLASS_BASE; c < 256; c++)
        member[c] = c >> (SET_SHIFT + bit) & 1;
    uint32_t first, last;
    for (const char *r = sets[s->set_index[bit]].ranges; *r;) {
        r = range_next(r, &first, &last);
        for (uint32_t c = first; c <= last && c < CLASS_BASE; c++)
            member[c] = true;
    }
}

/* Replaces the \p{NAME} at `in` (and \p{A-B}, A without B) by bytes; returns what follows it. */
static const char *property_translate(struct splitter *s, const char *in, char **out)
{
    const char *name = in + 3, *end = strchr(name, '}'), *minus = memchr(name, '-', (size_t)(end - name));
    bool member[256], without[256] = {false};
    members_find(s, name, (size_t)((minus ? minus : end) - name), member);
    if (minus)
        members_find(s, minus + 1, (size_t)(end - minus - 1), without);
    for (unsigned c = 0; c < 256; c++)
        if (member[c] && !without[c])
            *out += sprintf(*out, "\\x%02x", c);
    return end + 1;
}

static void pattern_translate(struct splitter *s, const char *in, char out[PATTERN_BYTES])
{
    char *start = out;
    bool inside = false; /* a bracket expression */
    while (*in) {
        assert(out - start < PATTERN_BYTES - 1100);
        if (in[0] == '\\' && in[1] == 'p') {
            if (!inside)
                *out++ = '[';
            in = property_translate(s, in, &out);
            if (!inside)
                *out++ = ']';
            continue;
        }
        if (*in == '\\')
            *out++ = *in++;
        else if (*in == '[' || *in == ']')
            inside = *in == '[';
        *out++ = *in++;
    }
    *out = '\0';
}

static void *pcre_alloc(size_t n, void *user)
{
    return mem_alloc(n);
}

static void pcre_free(void *p, void *user)
{
    mem_free(p);
}

err_code splitter_open(struct splitter **out, const struct split_pre *pre, struct err *e)
{
    *out = NULL;
    err_code code = ERR_OK;
    struct splitter *s = mem_calloc(1, sizeof *s);
    char *bytes = mem_alloc(PATTERN_BYTES);
    if (!s || !bytes) {
        code = err_nomem(e, sizeof *s + PATTERN_BYTES, "the splitter");
        goto out;
    }
    s->memory = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *context = s->memory ? pcre2_compile_context_create(s->memory) : NULL;
    if (!context) {
        code = err_nomem(e, 0, "the split pattern");
        goto out;
    }
    for (; pre->patterns[s->n_patterns]; s->n_patterns++) {
        assert(s->n_patterns < MAX_PATTERNS);
        int error;
        PCRE2_SIZE at;
        pattern_translate(s, pre->patterns[s->n_patterns], bytes);
        pcre2_code *p =
            pcre2_compile((PCRE2_SPTR)bytes, PCRE2_ZERO_TERMINATED, PCRE2_DOLLAR_ENDONLY, &error, &at, context);
        if (!p) {
            code = err_set(e, ERR_FAIL, "split pattern %d of %s does not compile (PCRE2 error %d)", s->n_patterns,
                           pre->name, error);
            break;
        }
        pcre2_jit_compile(p, PCRE2_JIT_COMPLETE); /* if it can; matching works without, too */
        s->patterns[s->n_patterns] = p;
    }
    pcre2_compile_context_free(context);
    classes_fill(s);
out:
    mem_free(bytes);
    if (code != ERR_OK)
        splitter_close(&s);
    *out = s;
    return code;
}

void splitter_close(struct splitter **s)
{
    if (!*s)
        return;
    for (int i = 0; i < (*s)->n_patterns; i++)
        pcre2_code_free((*s)->patterns[i]);
    pcre2_general_context_free((*s)->memory);
    mem_free(*s);
    *s = NULL;
}

void split_work_close(struct split_work *w)
{
    mem_free(w->char_bytes);
    mem_free(w->starts);
    mem_free(w->classes);
    pcre2_match_data_free(w->match_data);
    pcre2_match_context_free(w->match_context);
    *w = (struct split_work){0};
}

static err_code work_reserve(const struct splitter *s, struct split_work *w, size_t n, struct err *e)
{
    if (!w->match_data)
        w->match_data = pcre2_match_data_create(1, s->memory);
    if (!w->match_context)
        w->match_context = pcre2_match_context_create(s->memory);
    if (!w->match_data || !w->match_context)
        return err_nomem(e, 0, "splitting text");
    /* Patterns backtrack at most a few times a character; interpreted ones keep little on the heap. */
    uint64_t limit = 10000000u + 64 * (uint64_t)n;
    pcre2_set_match_limit(w->match_context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    pcre2_set_heap_limit(w->match_context, 1u << 18); /* KiB */
    if (n < w->capacity)
        return ERR_OK;
    size_t capacity = n + n / 2 + 64;
    mem_free(w->char_bytes);
    mem_free(w->starts);
    mem_free(w->classes);
    w->char_bytes = mem_alloc(capacity);
    w->starts = mem_alloc(capacity);
    w->classes = mem_alloc(capacity);
    w->capacity = w->char_bytes && w->starts && w->classes ? capacity : 0;
    return w->capacity ? ERR_OK : err_nomem(e, 3 * capacity, "splitting text");
}

static err_code piece_match(const pcre2_code *pattern, struct split_work *w, size_t start, size_t end, struct err *e)
{
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(w->match_data);
    PCRE2_SPTR subject = w->classes + start;
    for (size_t pos = 0; pos < end - start; pos = at[1]) {
        uint32_t options = PCRE2_NOTEMPTY;
        int n = pcre2_match(pattern, subject, end - start, pos, options, w->match_data, w->match_context);
        if (n == PCRE2_ERROR_JIT_STACKLIMIT)
            n = pcre2_match(pattern, subject, end - start, pos, options | PCRE2_NO_JIT, w->match_data,
                            w->match_context);
        if (n == PCRE2_ERROR_NOMATCH)
            break;
        if (n < 0)
            return err_set(e, n == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT,
                           "the text cannot be split into words within bounds (PCRE2 error %d)", n);
        w->starts[start + at[0]] = 1;
        w->starts[start + at[1]] = 1;
    }
    return ERR_OK;
}

err_code splitter_run(const struct splitter *s, struct split_work *w, const char *text, size_t n, struct err *e)
{
    TRY(work_reserve(s, w, n, e));
    w->n_chars = 0;
    for (size_t i = 0; i < n; w->n_chars++) {
        uint32_t c;
        unsigned n_bytes = code_read(text + i, n - i, &c);
        w->char_bytes[w->n_chars] = (uint8_t)n_bytes;
        w->classes[w->n_chars] = s->class_of[c];
        i += n_bytes;
    }
    memset(w->starts, 0, w->n_chars);
    w->starts[0] = 1;
    w->starts[w->n_chars] = 1;
    for (int i = 0; i < s->n_patterns; i++) {
        for (size_t start = 0, end; start < w->n_chars; start = end) {
            uint8_t *next = memchr(w->starts + start + 1, 1, w->n_chars - start);
            end = (size_t)(next - w->starts);
            TRY(piece_match(s->patterns[i], w, start, end, e));
        }
    }
    return ERR_OK;
}
