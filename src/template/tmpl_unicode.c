#include "template/tmpl_unicode.h"

#include <string.h>

unsigned code_next(const char *s, size_t n, uint32_t *code)
{
    *code = (unsigned char)s[0];
    unsigned length = utf8_decode(s, n, code);
    return length ? length : 1;
}

size_t code_offset(struct span s, size_t index)
{
    size_t i = 0;
    for (; i < s.n; i++)
        if (!utf8_is_tail(s.s[i]) && index-- == 0)
            return i;
    return s.n;
}

unsigned code_properties(uint32_t code)
{
    static const struct {
        uint32_t first;
        uint8_t properties;
    } runs[] = {
#define CODES(first, properties) {first, properties},
#include "template/tmpl_unicode.def"
#undef CODES
    };
    size_t low = 0, high = sizeof runs / sizeof *runs;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (runs[middle].first <= code)
            low = middle;
        else
            high = middle;
    }
    return runs[low].properties;
}

bool code_is_space(uint32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x1f);
    return code_properties(code) & CODE_SPACE;
}

struct case_run {
    uint32_t first, last;
    int32_t step, delta;
};

static uint32_t map_case(const struct case_run *runs, size_t n, uint32_t code)
{
    size_t low = 0, high = n;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (runs[middle].first <= code)
            low = middle;
        else
            high = middle;
    }
    const struct case_run *r = &runs[low];
    bool in = code >= r->first && code <= r->last && (code - r->first) % (uint32_t)r->step == 0;
    return in ? (uint32_t)((int64_t)code + r->delta) : code;
}

unsigned code_upper(uint32_t code, char *out)
{
    static const struct case_run runs[] = {
#define UPPER(first, last, step, delta) {first, last, step, delta},
#include "template/tmpl_unicode.def"
#undef UPPER
    };
    static const struct {
        uint32_t code;
        char text[CODE_CASE_BYTES];
    } many[] = {
#define UPPER_MANY(code, text) {code, text},
#include "template/tmpl_unicode.def"
#undef UPPER_MANY
    };
    for (size_t i = 0; code >= many[0].code && i < sizeof many / sizeof *many; i++)
        if (many[i].code == code) {
            unsigned n = (unsigned)strlen(many[i].text);
            memcpy(out, many[i].text, n);
            return n;
        }
    return utf8_encode(map_case(runs, sizeof runs / sizeof *runs, code), out);
}

unsigned code_lower(uint32_t code, char *out)
{
    static const struct case_run runs[] = {
#define LOWER(first, last, step, delta) {first, last, step, delta},
#include "template/tmpl_unicode.def"
#undef LOWER
    };
    if (code == 0x130) { /* the one letter whose small form is two characters */
        memcpy(out, "i\xcc\x87", 3);
        return 3;
    }
    return utf8_encode(map_case(runs, sizeof runs / sizeof *runs, code), out);
}

struct span span_rstrip_space(struct span s)
{
    while (s.n) {
        size_t last = s.n - 1;
        while (last > 0 && utf8_is_tail(s.s[last]))
            last--;
        uint32_t code;
        code_next(s.s + last, s.n - last, &code);
        if (!code_is_space(code))
            break;
        s.n = last;
    }
    return s;
}
