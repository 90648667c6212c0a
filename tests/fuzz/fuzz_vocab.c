/* Any bytes as a GGUF file that holds a vocabulary: opens the tokenizer and uses it. */
#include "fuzz.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

static void tokenizer_use(const struct tokenizer *t)
{
    static const char text[] = " aab It's\n\n 123 <s></s> \xff\xc3\xa9\xf0\x9f\x98\x80 \u2581a";
    struct err e = {0};
    for (unsigned flags = 0; flags < 4; flags++) {
        struct token_list list = {0};
        char *back = NULL;
        size_t n;
        if (tokenizer_encode(t, text, sizeof text, flags, &list, &e) == ERR_OK)
            for (size_t i = 0; i < list.n; i++)
                assert(list.ids[i] >= 0 && list.ids[i] < tokenizer_n_vocab(t));
        if (tokenizer_decode(t, list.ids, list.n, flags & 1, &back, &n, &e) == ERR_OK)
            assert(back[n] == '\0');
        mem_free(back);
        token_list_close(&list);
    }
    for (int32_t id = -1; id <= tokenizer_n_vocab(t) && id < 1000; id++) {
        size_t n;
        const char *piece = tokenizer_piece(t, id, true, &n);
        unsigned sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += (unsigned char)piece[i];
        volatile unsigned sink = sum;
        (void)sink;
        (void)tokenizer_is_end(t, id);
        (void)tokenizer_is_special(t, id);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    if (gguf_open_memory(&g, data, size, "fuzz", &e) != ERR_OK)
        return 0;
    err_code code = tokenizer_open(&t, g, &e);
    assert((code == ERR_OK) == (t != NULL) && (code == ERR_OK || e.text[0] != '\0'));
    gguf_close(&g); /* the tokenizer owns what it needs */
    if (t)
        tokenizer_use(t);
    tokenizer_close(&t);
    return 0;
}
