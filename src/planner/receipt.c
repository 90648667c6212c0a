/* A receipt as a line of JSON. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "planner/receipts.h"

/* ---- the keys ---------------------------------------------------------------------------------------------------- */

enum key_kind { KEY_TEXT, KEY_COUNT, KEY_RATE };

/* A key, and the offset of its value in the struct. Values that are zero or empty are not written. */
struct key {
    const char *name;
    enum key_kind kind;
    size_t at;
    double max; /* largest value of a number; bytes of a text's buffer */
};

#define TEXT(name, field)                                                                                              \
    {                                                                                                                  \
        name, KEY_TEXT, offsetof(struct receipt, field), sizeof((struct receipt *)0)->field                            \
    }
#define COUNT(name, field, max)                                                                                        \
    {                                                                                                                  \
        name, KEY_COUNT, offsetof(struct receipt, field), max                                                          \
    }
#define RATE(name, field, max)                                                                                         \
    {                                                                                                                  \
        name, KEY_RATE, offsetof(struct receipt, field), max                                                           \
    }

static const struct key keys[] = {
    COUNT("time", time_s, 1e12),
    TEXT("machine", machine),
    TEXT("model", model),
    TEXT("arch", arch),
    TEXT("method", method),
    TEXT("settings", settings),
    RATE("at", at, 1),
    COUNT("threads", n_threads, 1e6),
    COUNT("texts", n_texts, 1e6),
    COUNT("ctx", n_ctx, 1e12),
    COUNT("prompt", n_prompt, 1e12),
    COUNT("prompt_from", prompt_from, 1e12),
    RATE("memory", rates[MACHINE_MEMORY], 1e18),
    RATE("units", rates[MACHINE_UNITS], 1e18),
    RATE("drive", rates[MACHINE_DRIVE], 1e18),
    RATE("decode", measured[SPEED_DECODE], 1e12),
    RATE("decode_ceiling", ceiling[SPEED_DECODE], 1e12),
    RATE("decode_low", forecast_low[SPEED_DECODE], 1e12),
    RATE("decode_high", forecast_high[SPEED_DECODE], 1e12),
    RATE("prefill", measured[SPEED_PREFILL], 1e12),
    RATE("prefill_ceiling", ceiling[SPEED_PREFILL], 1e12),
    RATE("prefill_low", forecast_low[SPEED_PREFILL], 1e12),
    RATE("prefill_high", forecast_high[SPEED_PREFILL], 1e12),
    RATE("decode_products", part[SPEED_DECODE][PART_PRODUCTS], 1e12),
    RATE("decode_state", part[SPEED_DECODE][PART_STATE], 1e12),
    RATE("decode_beside", part[SPEED_DECODE][PART_BESIDE], 1e12),
    RATE("decode_reads", part[SPEED_DECODE][PART_READS], 1e12),
    RATE("prefill_products", part[SPEED_PREFILL][PART_PRODUCTS], 1e12),
    RATE("prefill_state", part[SPEED_PREFILL][PART_STATE], 1e12),
    RATE("prefill_beside", part[SPEED_PREFILL][PART_BESIDE], 1e12),
    RATE("prefill_reads", part[SPEED_PREFILL][PART_READS], 1e12),
    RATE("floor", floor, 1e12),
    COUNT("planned_bytes", planned_bytes, 1e18),
    COUNT("peak_bytes", peak_bytes, 1e18),
    COUNT("hit_bytes", hit_bytes, 9e18),
    COUNT("read_bytes", read_bytes, 9e18),
};

enum { N_KEY = sizeof keys / sizeof *keys };

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The value as JSON; NULL: it is zero or empty, or there is no memory. */
static json_t *value_of(const struct receipt *r, const struct key *k)
{
    const void *p = (const char *)r + k->at;
    if (k->kind == KEY_TEXT)
        return *(const char *)p ? json_text(p, strlen(p)) : NULL;
    if (k->kind == KEY_COUNT)
        return *(const int64_t *)p ? json_integer(*(const int64_t *)p) : NULL;
    return *(const double *)p > 0 ? json_real(*(const double *)p) : NULL;
}

err_code receipt_write(const struct receipt *r, char **line, struct err *e)
{
    char fingerprint[17];
    json_t *j = json_pack("{s:s}", "regime", regime_name(r->regime));
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, r->fingerprint);
    if (j && r->fingerprint)
        json_object_set_new(j, "fingerprint", json_string(fingerprint));
    for (int i = 0; j && i < N_KEY; i++) {
        json_t *value = value_of(r, &keys[i]);
        if (value)
            json_object_set_new(j, keys[i].name, value);
    }
    *line = j ? json_write(j, JSON_COMPACT | JSON_REAL_PRECISION(8), NULL) : NULL;
    json_decref(j);
    return *line ? ERR_OK : err_nomem(e, sizeof *r, "a receipt");
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static err_code wrong(const char *name, const char *key, const char *expected, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: key \"%s\": expected %s", name, key, expected);
}

static err_code read_value(const struct key *k, const json_t *j, struct receipt *r, const char *name, struct err *e)
{
    void *p = (char *)r + k->at;
    char expected[64];
    double x = json_number_value(j);
    if (k->kind == KEY_TEXT) {
        snprintf(expected, sizeof expected, "a text of less than %.0f bytes", k->max);
        if (!json_is_string(j) || json_string_length(j) >= (size_t)k->max)
            return wrong(name, k->name, expected, e);
        memcpy(p, json_string_value(j), json_string_length(j) + 1);
        return ERR_OK;
    }
    bool is_count = k->kind == KEY_COUNT;
    snprintf(expected, sizeof expected, "%s from 0 to %g", is_count ? "an integer" : "a number", k->max);
    if ((is_count ? !json_is_integer(j) : !json_is_number(j)) || !(x >= 0 && x <= k->max))
        return wrong(name, k->name, expected, e);
    if (is_count)
        *(int64_t *)p = json_integer_value(j);
    else
        *(double *)p = x;
    return ERR_OK;
}

static err_code read_object(struct receipt *r, const json_t *j, const char *name, struct err *e)
{
    const char *regime = json_string_value(json_object_get(j, "regime"));
    const json_t *fingerprint = json_object_get(j, "fingerprint");
    int found = regime ? regime_find(regime) : -1, n = 0;
    if (found < 0)
        return wrong(name, "regime", "ram, stream, vram, offload, tiered or ranks", e);
    r->regime = (enum regime)found;
    if (fingerprint && (!json_is_string(fingerprint) || json_string_length(fingerprint) != 16 ||
                        sscanf(json_string_value(fingerprint), "%16" SCNx64 "%n", &r->fingerprint, &n) != 1 || n != 16))
        return wrong(name, "fingerprint", "16 hexadecimal digits", e);
    for (int i = 0; i < N_KEY; i++) {
        const json_t *value = json_object_get(j, keys[i].name);
        if (value)
            TRY(read_value(&keys[i], value, r, name, e));
    }
    return *r->method ? ERR_OK : wrong(name, "method", "how it was measured", e);
}

err_code receipt_parse(struct receipt *r, const char *text, size_t n, const char *name, struct err *e)
{
    json_error_t why = {0};
    json_t *j = json_read(text, n, JSON_REJECT_DUPLICATES, &why);
    *r = (struct receipt){0};
    if (!j && !*why.text)
        return err_nomem(e, n, name);
    err_code code = ERR_OK;
    if (!json_is_object(j))
        code = err_set(e, ERR_FORMAT, "%s: expected a JSON object%s%s", name, j ? "" : ": ", j ? "" : why.text);
    else
        code = read_object(r, j, name, e);
    json_decref(j);
    return code;
}

/* ---- what it says ------------------------------------------------------------------------------------------------ */

double receipt_share(const struct receipt *r, enum speed_of of)
{
    return r->ceiling[of] > 0 && r->measured[of] > 0 ? r->measured[of] / r->ceiling[of] : 0;
}

bool receipt_is_inside(const struct receipt *r, enum speed_of of)
{
    return r->forecast_high[of] <= 0 || r->measured[of] <= 0 ||
           (r->measured[of] >= r->forecast_low[of] && r->measured[of] <= r->forecast_high[of]);
}
