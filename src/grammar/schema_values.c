#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_compiler.h"

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* The number as the schema wrote it, as far as a double keeps that. */
static void number_text(const json_t *j, char text[40])
{
    if (json_is_integer(j)) {
        snprintf(text, 40, "%" JSON_INTEGER_FORMAT, json_integer_value(j));
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, 40, "%.*g", digits, json_real_value(j));
        if (strtod(text, NULL) == json_real_value(j)) /* NOLINT: equal to the bit */
            return;
    }
}

static err_code add_bound(struct schema_draft *d, const char *keyword, const json_t *j, unsigned allowed, uint32_t *t)
{
    struct bound b = {.allowed = allowed, .is_real = json_is_real(j)};
    char text[40];
    number_text(j, text);
    *t = UINT32_MAX;
    if (!decimal_parse(&b.value, text)) {
        /* with so many digits it is beyond what numbers without exponents are allowed to have */
        return schema_unenforced(d, keyword, "the number has too many digits");
    }
    if (!LIST_PUSH(&d->c->p->bounds, b))
        return schema_no_memory(d->c);
    *t = term(TERM_BOUND, d->c->p->bounds.n - 1);
    return ERR_OK;
}

static err_code compile_multiple(struct schema_draft *d)
{
    const json_t *j = schema_keyword(d, "multipleOf");
    struct decimal m;
    char text[40];
    uint64_t of = 0;
    if (!j)
        return ERR_OK;
    if (!json_is_number(j) || json_number_value(j) <= 0)
        return schema_bad(d, "multipleOf", "a number above 0");
    number_text(j, text);
    bool known = decimal_parse(&m, text);
    for (int i = 0; known && i < m.n_int + m.n_frac && of < 100000000; i++)
        of = of * 10 + (uint64_t)(m.digits[i] - '0');
    if (!known || of > 1000000)
        return schema_unenforced(d, "multipleOf", "the number has too many digits");
    if (!LIST_PUSH(&d->c->p->multiples, (struct multiple){(uint32_t)of, m.n_frac}))
        return schema_no_memory(d->c);
    return schema_add_term(d, 1 << KIND_NUMBER, term(TERM_MULTIPLE, d->c->p->multiples.n - 1), false);
}

err_code schema_compile_numbers(struct schema_draft *d)
{
    static const struct {
        const char *keyword, *exclusive;
        unsigned side;
    } bounds[] = {{"minimum", "exclusiveMinimum", DECIMAL_GREATER}, {"maximum", "exclusiveMaximum", DECIMAL_LESS}};
    uint32_t t;
    for (unsigned i = 0; i < 2; i++) {
        const json_t *j = schema_keyword(d, bounds[i].keyword);
        const json_t *exclusive = schema_keyword(d, bounds[i].exclusive);
        if (j && !json_is_number(j))
            return schema_bad(d, bounds[i].keyword, "a number");
        if (exclusive && !json_is_number(exclusive) && !json_is_boolean(exclusive))
            return schema_bad(d, bounds[i].exclusive, "a number");
        if (j) { /* draft 4 had a boolean beside it */
            unsigned equal = json_is_true(exclusive) ? 0 : DECIMAL_EQUAL;
            TRY(add_bound(d, bounds[i].keyword, j, bounds[i].side | equal, &t));
            if (t != UINT32_MAX)
                TRY(schema_add_term(d, 1 << KIND_NUMBER, t, false));
        }
        if (json_is_number(exclusive)) {
            TRY(add_bound(d, bounds[i].exclusive, exclusive, bounds[i].side, &t));
            if (t != UINT32_MAX)
                TRY(schema_add_term(d, 1 << KIND_NUMBER, t, false));
        }
    }
    return compile_multiple(d);
}

/* ---- constants ------------------------------------------------------------------------------------------------- */

static err_code add_set(struct schema_compiler *c, struct text_ref *strings, uint32_t n, uint32_t *t)
{
    struct string_tree tree;
    uint32_t kept = 0;
    if (n)
        qsort(strings, n, sizeof *strings, text_ref_compare);
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || text_ref_compare(&strings[i], &strings[kept - 1]) != 0)
            strings[kept++] = strings[i];
    if (!tree_build(&tree, strings, kept))
        return schema_no_memory(c);
    if (!LIST_PUSH(&c->p->sets, tree)) {
        mem_free(tree.nodes);
        return schema_no_memory(c);
    }
    *t = term(TERM_SET, c->p->sets.n - 1);
    return ERR_OK;
}

static err_code constant(struct schema_draft *d, const json_t *j, int depth, uint32_t *schema);

static err_code constant_array(struct schema_draft *d, const json_t *j, int depth, uint32_t *schema)
{
    struct schema_compiler *c = d->c;
    uint32_t n = (uint32_t)json_array_size(j), *ids = mem_calloc(n + 1, sizeof *ids);
    struct schema s = {.types = 1 << KIND_ARRAY, .n_prefix = n, .items = SCHEMA_NEVER, .has_items = true};
    struct schema_term count = {1 << KIND_ARRAY, term(TERM_COUNT, c->p->counts.n), false};
    if (!ids)
        return schema_no_memory(c);
    err_code code = LIST_PUSH(&c->p->counts, (struct count_range){n, n}) ? ERR_OK : schema_no_memory(c);
    for (uint32_t i = 0; code == ERR_OK && i < n; i++)
        code = constant(d, json_array_get(j, i), depth + 1, &ids[i]);
    s.prefix = c->p->ids.n;
    for (uint32_t i = 0; code == ERR_OK && i < n; i++)
        if (!LIST_PUSH(&c->p->ids, ids[i]))
            code = schema_no_memory(c);
    mem_free(ids);
    return code == ERR_OK ? schema_add(c, &s, &count, 1, schema) : code;
}

static err_code constant_object(struct schema_draft *d, const json_t *j, int depth, uint32_t *schema)
{
    struct schema_compiler *c = d->c;
    uint32_t n = (uint32_t)json_object_size(j), at = 0;
    struct schema_prop *props = mem_calloc(n + 1, sizeof *props);
    struct schema s = {.types = 1 << KIND_OBJECT, .additional = SCHEMA_NEVER, .has_props = true};
    err_code code = ERR_OK;
    if (!props)
        return schema_no_memory(c);
    for (void *i = json_object_iter((json_t *)j); i && code == ERR_OK;
         i = json_object_iter_next((json_t *)j, i), at++) {
        code = schema_name(c, json_object_iter_key(i), json_object_iter_key_len(i), &props[at].name);
        if (code == ERR_OK)
            code = constant(d, json_object_iter_value(i), depth + 1, &props[at].schema);
    }
    s.props = c->p->props.n;
    s.required = c->p->ids.n;
    s.n_prop = s.n_required = n;
    if (n)
        qsort(props, n, sizeof *props, schema_prop_compare);
    for (uint32_t i = 0; code == ERR_OK && i < n; i++)
        if (!LIST_PUSH(&c->p->props, props[i]) || !LIST_PUSH(&c->p->ids, props[i].name))
            code = schema_no_memory(c);
    mem_free(props);
    return code == ERR_OK ? schema_add(c, &s, NULL, 0, schema) : code;
}

/* The schema of values that equal a constant. */
static err_code constant(struct schema_draft *d, const json_t *j, int depth, uint32_t *schema)
{
    struct schema_compiler *c = d->c;
    struct schema s = {0};
    struct schema_term t = {KINDS_ALL, UINT32_MAX, false};
    struct text_ref text = {json_string_value(j), (uint32_t)json_string_length(j)};
    if (depth > SCHEMA_MAX_DEPTH)
        return err_set(c->e, ERR_LIMIT, "schema, at %s: a constant is nested more than %d deep", d->pointer,
                       SCHEMA_MAX_DEPTH);
    switch (json_typeof(j)) {
    case JSON_OBJECT: return constant_object(d, j, depth, schema);
    case JSON_ARRAY: return constant_array(d, j, depth, schema);
    case JSON_STRING:
        s.types = KINDS_STRING;
        TRY(add_set(c, &text, 1, &t.term));
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        s.types = 1 << KIND_NUMBER;
        TRY(add_bound(d, "enum", j, DECIMAL_EQUAL, &t.term));
        break;
    case JSON_TRUE: s.types = 1 << KIND_TRUE; break;
    case JSON_FALSE: s.types = 1 << KIND_FALSE; break;
    case JSON_NULL: s.types = 1 << KIND_NULL; break;
    }
    return schema_add(c, &s, &t, t.term != UINT32_MAX, schema);
}

/* Numbers, arrays and objects: a group of schemas, one for each. */
static err_code group_constants(struct schema_draft *d, const json_t *list, const uint32_t types)
{
    LIST(uint32_t) ids = {0};
    const json_t *one;
    size_t i;
    uint32_t schema = SCHEMA_NEVER;
    err_code code = ERR_OK;
    json_array_foreach(list, i, one)
    {
        bool wanted = types & 1 << KIND_NUMBER ? json_is_number(one) : json_is_array(one) || json_is_object(one);
        if (!wanted)
            continue;
        code = constant(d, one, 0, &schema);
        if (code == ERR_OK && !LIST_PUSH(&ids, schema))
            code = schema_no_memory(d->c);
        if (code != ERR_OK)
            break;
    }
    if (code == ERR_OK && ids.n)
        code = schema_add_group(d, GROUP_ANY, types, ids.at, ids.n, 0);
    LIST_CLOSE(&ids);
    return code;
}

static err_code compile_values(struct schema_draft *d, const json_t *list)
{
    const uint32_t numbers = 1 << KIND_NUMBER, containers = 1 << KIND_ARRAY | 1 << KIND_OBJECT;
    LIST(struct text_ref) strings = {0};
    uint32_t types = 0, t = 0;
    const json_t *one;
    size_t i;
    err_code code = ERR_OK;
    json_array_foreach(list, i, one)
    {
        types |= json_is_null(one)     ? 1u << KIND_NULL
                 : json_is_true(one)   ? 1u << KIND_TRUE
                 : json_is_false(one)  ? 1u << KIND_FALSE
                 : json_is_number(one) ? numbers
                 : json_is_string(one) ? (uint32_t)KINDS_STRING
                 : json_is_array(one)  ? 1u << KIND_ARRAY
                                       : 1u << KIND_OBJECT;
        struct text_ref s = {json_string_value(one), (uint32_t)json_string_length(one)};
        if (s.s && !LIST_PUSH(&strings, s))
            code = schema_no_memory(d->c);
    }
    d->s.types &= types;
    if (code == ERR_OK && strings.n)
        code = add_set(d->c, strings.at, strings.n, &t);
    if (code == ERR_OK && strings.n)
        code = schema_add_term(d, KINDS_STRING, t, false);
    LIST_CLOSE(&strings);
    TRY(code);
    TRY(group_constants(d, list, numbers));
    return group_constants(d, list, containers);
}

err_code schema_compile_enum(struct schema_draft *d)
{
    const json_t *values = schema_keyword(d, "enum");
    json_t *one = json_object_get(d->json, "const");
    if (values && !json_is_array(values))
        return schema_bad(d, "enum", "a list of values");
    if (values)
        TRY(compile_values(d, values));
    if (!one)
        return ERR_OK;
    json_t *list = json_pack("[O]", one);
    err_code code = list ? compile_values(d, list) : schema_no_memory(d->c);
    json_decref(list);
    return code;
}
