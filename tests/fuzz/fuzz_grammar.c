/* Any bytes as a schema, as GBNF or as a regular expression (by the first byte), and behind a zero byte as a text that
 * goes through a matcher: by tokens as by bytes, and wherever it comes the mask is what single tokens say. */
#include "fuzz.h"

#include <assert.h>
#include <string.h>

#include "../unit/grammar_vocab.h"
#include "base/mem.h"

/* Whether the mask and the tokens one by one agree. */
static void check_mask(struct grammar_matcher *m)
{
    uint64_t mask[GRAMMAR_N_TOKEN / 64 + 1];
    struct err e;
    grammar_matcher_mask(m, mask);
    for (int32_t id = 0; id < GRAMMAR_N_TOKEN; id++) {
        bool allowed = grammar_matcher_allows(m, id);
        assert((mask[id / 64] >> id % 64 & 1) == allowed || grammar_matcher_error(m, &e) != ERR_OK);
    }
}

/* The longest token that the text begins with. */
static int32_t next_token(const char *text, size_t n)
{
    int32_t best = (uint8_t)text[0];
    size_t n_best = 1;
    for (int32_t i = 0; i < GRAMMAR_N_TEXT; i++) {
        size_t n_text = strlen(grammar_texts[i]);
        if (n_text > n_best && n_text <= n && !memcmp(grammar_texts[i], text, n_text)) {
            best = 256 + i;
            n_best = n_text;
        }
    }
    return best;
}

static void run_text(struct grammar *g, const struct grammar_vocab *vocab, const char *text, size_t n)
{
    enum { MASKS = 8 };
    struct grammar_matcher *by_byte, *by_token;
    struct err e;
    size_t n_fit, at = 0, n_token, n_mask = 0;
    if (grammar_matcher_open(&by_byte, g, NULL, &e) != ERR_OK)
        return;
    if (grammar_matcher_open(&by_token, g, vocab, &e) == ERR_OK) {
        bool fits = grammar_matcher_feed(by_byte, text, n, &n_fit), ok = true;
        for (; ok && at < n; at += ok ? n_token : 0) {
            int32_t id = next_token(text + at, n - at);
            n_token = id < 256 ? 1 : strlen(grammar_texts[id - 256]);
            if (n_mask++ < MASKS)
                check_mask(by_token);
            ok = grammar_matcher_accept(by_token, id);
            assert(ok == (at + n_token <= n_fit) || grammar_matcher_error(by_token, &e) != ERR_OK);
        }
        if (fits && ok && grammar_matcher_error(by_token, &e) == ERR_OK)
            assert(grammar_matcher_may_end(by_byte) == grammar_matcher_may_end(by_token));
        grammar_matcher_close(&by_token);
    }
    grammar_matcher_close(&by_byte);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct grammar_vocab *vocab; /* once: it takes longer than the rest */
    struct err e = {0};
    struct grammar *g;
    if (!vocab)
        vocab = grammar_vocab_make();
    if (size == 0 || !vocab)
        return 0;
    const char *text = (const char *)data + 1, *zero = memchr(text, 0, size - 1);
    size_t n = zero ? (size_t)(zero - text) : size - 1, n_rest = zero ? size - 2 - n : 0;
    enum grammar_kind kind = (enum grammar_kind)(data[0] % 3);
    err_code code = grammar_open(&g, vocab, kind, text, n, data[0] & 4, &e);
    assert((code == ERR_OK) == (g != NULL) && (code == ERR_OK || e.text[0]));
    if (g)
        run_text(g, vocab, zero ? zero + 1 : "{\"a\": [1, \"b\"]}", zero ? n_rest : 15);
    grammar_close(&g);
    return 0;
}
