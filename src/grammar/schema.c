#include "grammar/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"

enum {
    MAX_PATTERN_CODE = NFA_MAX_CODE / 8 * 7, /* the rest is for rules around the schemas */
    MAX_PATTERN_WORK = 8 * NFA_MAX_CODE,     /* with the instructions of patterns that were given up */
    MAX_POINTER = 400,                       /* bytes; each schema has one, and names may be long */
    MAX_PASSES = 64,                         /* of loosen */
};

/* ---- parts of a compiler --------------------------------------------------------------------------------------- */

err_code schema_no_memory(const struct schema_compiler *c)
{
    return err_nomem(c->e, sizeof(struct schema) * c->p->schemas.n, "a schema");
}

static const char *shown(const char *pointer)
{
    return *pointer ? pointer : "its root";
}

err_code schema_bad(const struct schema_draft *d, const char *keyword, const char *expected)
{
    return err_set(d->c->e, ERR_FORMAT, "schema, at %s: %s must be %s", shown(d->pointer), keyword, expected);
}

const json_t *schema_keyword(const struct schema_draft *d, const char *keyword)
{
    const json_t *value = json_object_get(d->json, keyword);
    return json_is_null(value) ? NULL : value;
}

err_code schema_unenforced(struct schema_draft *d, const char *keyword, const char *why)
{
    struct schema_compiler *c = d->c;
    const char *pointer = pointer_to(c, d->pointer, keyword);
    if (!pointer)
        return schema_no_memory(c);
    if (!c->lenient)
        return err_set(c->e, ERR_UNSUPPORTED, "schema, at %s: %s can't be enforced: %s", shown(d->pointer), keyword,
                       why);
    struct unenforced u = {arena_strndup(&c->p->arena, keyword, strlen(keyword)),
                           arena_strndup(&c->p->arena, pointer, strlen(pointer))};
    return u.keyword && u.pointer && LIST_PUSH(&c->p->unenforced, u) ? ERR_OK : schema_no_memory(c);
}

const char *pointer_to(struct schema_compiler *c, const char *pointer, const char *key)
{
    static const char cut[] = "/...";
    size_t n = strlen(pointer), n_cut = sizeof cut - 1, at = n;
    if (n >= n_cut && !strcmp(pointer + n - n_cut, cut))
        return pointer;
    bool is_long = n + 2 * strlen(key) > MAX_POINTER;
    char *s = arena_alloc(&c->arena, n + (is_long ? n_cut : 2 * strlen(key)) + 2);
    if (!s)
        return NULL;
    memcpy(s, pointer, n);
    if (is_long) {
        memcpy(s + n, cut, sizeof cut);
        return s;
    }
    s[at++] = '/';
    for (; *key; key++) {
        if (*key == '~' || *key == '/') {
            s[at++] = '~';
            s[at++] = *key == '~' ? '0' : '1';
        } else
            s[at++] = *key;
    }
    s[at] = '\0';
    return s;
}

static const char *pointer_to_index(struct schema_compiler *c, const char *pointer, size_t index)
{
    char text[24];
    snprintf(text, sizeof text, "%zu", index);
    return pointer ? pointer_to(c, pointer, text) : NULL;
}

/* The number of the schema that a JSON value is, which is compiled later if it is new. */
static err_code schema_number(struct schema_compiler *c, const json_t *json, const char *pointer, uint32_t *schema)
{
    uint32_t words[2] = {(uint32_t)(uintptr_t)json, (uint32_t)((uint64_t)(uintptr_t)json >> 32)};
    if (!pointer)
        return schema_no_memory(c);
    if (json_is_boolean(json)) {
        *schema = json_is_true(json) ? SCHEMA_ANY : SCHEMA_NEVER;
        return ERR_OK;
    }
    if (!json_is_object(json))
        return err_set(c->e, ERR_FORMAT, "schema, at %s: a schema must be an object, true or false", shown(pointer));
    uint32_t place = intern_add(&c->places, words, 2);
    if (place == INTERN_NONE)
        return schema_no_memory(c);
    if (place < c->place_schemas.n) {
        *schema = c->place_schemas.at[place];
        return ERR_OK;
    }
    struct schema empty = {.types = KINDS_ALL};
    TRY(schema_add(c, &empty, NULL, 0, schema));
    if (!LIST_PUSH(&c->place_schemas, *schema) || !LIST_PUSH(&c->work, (struct schema_work){json, pointer, *schema}))
        return schema_no_memory(c);
    return ERR_OK;
}

err_code schema_name(struct schema_compiler *c, const char *s, size_t n, uint32_t *name)
{
    *name = intern_text(&c->p->name_numbers, s, n);
    if (*name == INTERN_NONE)
        return schema_no_memory(c);
    if (*name < c->p->names.n)
        return ERR_OK;
    struct text_ref copy = {arena_strndup(&c->p->arena, s, n), (uint32_t)n};
    return copy.s && LIST_PUSH(&c->p->names, copy) ? ERR_OK : schema_no_memory(c);
}

err_code schema_add_term(struct schema_draft *d, uint32_t types, uint32_t t, bool negated)
{
    return LIST_PUSH(&d->terms, (struct schema_term){types, t, negated}) ? ERR_OK : schema_no_memory(d->c);
}

static err_code add_ids(struct schema_compiler *c, const uint32_t *ids, uint32_t n, uint32_t *first)
{
    *first = c->p->ids.n;
    for (uint32_t i = 0; i < n; i++)
        if (!LIST_PUSH(&c->p->ids, ids[i]))
            return schema_no_memory(c);
    return ERR_OK;
}

err_code schema_add_group(struct schema_draft *d, enum group_kind kind, uint32_t types, const uint32_t *ids, uint32_t n,
                          uint32_t name)
{
    struct schema_group g = {.kind = kind, .types = types, .n = n, .name = name};
    TRY(add_ids(d->c, ids, n, &g.first));
    return LIST_PUSH(&d->groups, g) ? ERR_OK : schema_no_memory(d->c);
}

static err_code schema_add_count(struct schema_draft *d, uint32_t types, uint32_t min, uint32_t max)
{
    struct program *p = d->c->p;
    if (min > max)
        d->s.types &= ~types; /* nothing of that kind */
    if (min > max || (min == 0 && max == COUNT_MANY))
        return ERR_OK;
    if (!LIST_PUSH(&p->counts, (struct count_range){min, max}))
        return schema_no_memory(d->c);
    return schema_add_term(d, types, term(TERM_COUNT, p->counts.n - 1), false);
}

err_code schema_add(struct schema_compiler *c, const struct schema *s, const struct schema_term *terms, uint32_t n_term,
                    uint32_t *schema)
{
    struct program *p = c->p;
    struct schema copy = *s;
    if (p->schemas.n >= SCHEMA_MAX_SCHEMAS)
        return err_set(c->e, ERR_LIMIT, "schema: it has more than %d schemas in it", SCHEMA_MAX_SCHEMAS);
    copy.terms = p->terms.n;
    copy.n_term = n_term;
    for (uint32_t i = 0; i < n_term; i++)
        if (!LIST_PUSH(&p->terms, terms[i]))
            return schema_no_memory(c);
    *schema = p->schemas.n;
    return LIST_PUSH(&p->schemas, copy) && LIST_PUSH(&c->weak, false) ? ERR_OK : schema_no_memory(c);
}

/* ---- keywords -------------------------------------------------------------------------------------------------- */

/* A count: a whole number, which may be written as 2.0. Fallback where the keyword is missing. */
static err_code read_count(const struct schema_draft *d, const char *keyword, uint32_t fallback, uint32_t *out)
{
    const json_t *j = schema_keyword(d, keyword);
    double x = json_number_value(j);
    *out = fallback;
    if (!j)
        return ERR_OK;
    if (!json_is_number(j) || x < 0 || x != trunc(x))
        return schema_bad(d, keyword, "a number of things, 0 or more");
    *out = x >= COUNT_MANY ? COUNT_MANY - 1 : (uint32_t)x;
    return ERR_OK;
}

static err_code compile_counts(struct schema_draft *d)
{
    static const struct {
        const char *min, *max;
        uint32_t types;
    } counts[] = {{"minLength", "maxLength", KINDS_STRING},
                  {"minItems", "maxItems", 1 << KIND_ARRAY},
                  {"minProperties", "maxProperties", 1 << KIND_OBJECT}};
    for (unsigned i = 0; i < 3; i++) {
        uint32_t min, max;
        TRY(read_count(d, counts[i].min, 0, &min));
        TRY(read_count(d, counts[i].max, COUNT_MANY, &max));
        TRY(schema_add_count(d, counts[i].types, min, max));
    }
    return ERR_OK;
}

static err_code add_type(struct schema_draft *d, const json_t *name, bool *integer)
{
    static const struct {
        const char *name;
        uint32_t types;
    } types[] = {{"null", 1 << KIND_NULL},     {"boolean", 1 << KIND_FALSE | 1 << KIND_TRUE},
                 {"number", 1 << KIND_NUMBER}, {"integer", 1 << KIND_NUMBER},
                 {"string", KINDS_STRING},     {"array", 1 << KIND_ARRAY},
                 {"object", 1 << KIND_OBJECT}};
    const char *s = json_string_value(name);
    for (unsigned i = 0; s && i < sizeof types / sizeof *types; i++)
        if (!strcmp(s, types[i].name)) {
            *integer &= strcmp(s, "number") != 0;
            d->s.types |= types[i].types;
            return ERR_OK;
        }
    if (s && !strcmp(s, "any")) { /* of draft 3, and still met */
        d->s.types = KINDS_ALL;
        *integer = false;
        return ERR_OK;
    }
    return schema_bad(d, "type", "null, boolean, number, integer, string, array, object or a list of these");
}

static err_code compile_type(struct schema_draft *d)
{
    const json_t *type = schema_keyword(d, "type"), *one;
    size_t i;
    bool integer = true;
    if (!type)
        return ERR_OK;
    d->s.types = 0;
    if (json_is_array(type)) {
        json_array_foreach(type, i, one) TRY(add_type(d, one, &integer));
    } else
        TRY(add_type(d, type, &integer));
    if (integer && d->s.types & 1 << KIND_NUMBER)
        return schema_add_term(d, 1 << KIND_NUMBER, term(TERM_INTEGER, 0), false);
    return ERR_OK;
}

/* The terms that a pattern is. `keyword`: to be listed under. *known: it can be enforced. */
static err_code compile_pattern(struct schema_draft *d, const char *keyword, const char *s, size_t n, bool *known)
{
    struct regex_parts parts;
    struct nfa *nfa = &d->c->p->nfa;
    const uint32_t n_code = nfa->code.n, n_set = nfa->sets.n;
    struct err e = {0};
    bool is_over = d->c->n_pattern_code > MAX_PATTERN_WORK;
    err_code code = is_over ? ERR_OK : regex_compile(nfa, s, n, false, &parts, &e);
    d->c->n_pattern_code += nfa->code.n - n_code;
    if (code == ERR_OK && (is_over || nfa->code.n > MAX_PATTERN_CODE))
        code = err_set(&e, ERR_LIMIT, "the schema's patterns are too large together");
    *known = code == ERR_OK;
    if (code != ERR_OK) { /* it takes no room from the others */
        nfa->code.n = n_code;
        nfa->sets.n = n_set;
    }
    if (code == ERR_UNSUPPORTED || code == ERR_LIMIT || code == ERR_FORMAT)
        return schema_unenforced(d, keyword, e.text);
    if (code != ERR_OK) {
        *d->c->e = e;
        return code;
    }
    for (int i = 0; i < parts.n; i++)
        TRY(schema_add_term(d, KINDS_STRING, term(TERM_REGEX, parts.begin[i]), parts.negated[i]));
    return ERR_OK;
}

static err_code compile_strings(struct schema_draft *d)
{
    const json_t *pattern = schema_keyword(d, "pattern"), *format = schema_keyword(d, "format");
    const char *known = json_is_string(format) ? schema_format(json_string_value(format)) : NULL;
    bool unused;
    if (pattern && !json_is_string(pattern))
        return schema_bad(d, "pattern", "a string");
    if (pattern)
        TRY(compile_pattern(d, "pattern", json_string_value(pattern), json_string_length(pattern), &unused));
    if (known && !*known)
        return schema_unenforced(d, "format", "no automaton decides it");
    return known ? compile_pattern(d, "format", known, strlen(known), &unused) : ERR_OK;
}

/* Numbers of the schemas in an array. */
static err_code read_schemas(struct schema_draft *d, const char *keyword, const json_t *list, uint32_t *first)
{
    const char *pointer = pointer_to(d->c, d->pointer, keyword);
    const json_t *one;
    size_t i;
    uint32_t schema;
    struct schema_compiler *c = d->c;
    LIST(uint32_t) ids = {0};
    err_code code = ERR_OK;
    json_array_foreach(list, i, one)
    {
        code = schema_number(c, one, pointer_to_index(c, pointer, i), &schema);
        if (code == ERR_OK && !LIST_PUSH(&ids, schema))
            code = schema_no_memory(c);
        if (code != ERR_OK)
            break;
    }
    if (code == ERR_OK)
        code = add_ids(c, ids.at, ids.n, first);
    LIST_CLOSE(&ids);
    return code;
}

/* The schema of a keyword, or `fallback`. */
static err_code read_schema(struct schema_draft *d, const char *keyword, uint32_t fallback, uint32_t *schema)
{
    const json_t *j = schema_keyword(d, keyword);
    *schema = fallback;
    return j ? schema_number(d->c, j, pointer_to(d->c, d->pointer, keyword), schema) : ERR_OK;
}

static err_code compile_groups(struct schema_draft *d)
{
    static const struct {
        const char *keyword;
        enum group_kind kind;
    } lists[] = {{"allOf", GROUP_ALL}, {"anyOf", GROUP_ANY}, {"oneOf", GROUP_ONE}};
    uint32_t ids[3], first;
    for (unsigned i = 0; i < 3; i++) {
        const json_t *list = schema_keyword(d, lists[i].keyword);
        if (list && (!json_is_array(list) || json_array_size(list) == 0))
            return schema_bad(d, lists[i].keyword, "a list of schemas");
        if (!list)
            continue;
        TRY(read_schemas(d, lists[i].keyword, list, &first));
        struct schema_group g = {.kind = lists[i].kind, KINDS_ALL, first, (uint32_t)json_array_size(list), 0};
        if (!LIST_PUSH(&d->groups, g))
            return schema_no_memory(d->c);
    }
    if (schema_keyword(d, "not")) {
        TRY(read_schema(d, "not", SCHEMA_NEVER, &ids[0]));
        TRY(schema_add_group(d, GROUP_NOT, KINDS_ALL, ids, 1, 0));
    }
    if (schema_keyword(d, "if") && d->c->draft != 4 && d->c->draft != 6) { /* these drafts knew no if */
        TRY(read_schema(d, "if", SCHEMA_ANY, &ids[0]));
        TRY(read_schema(d, "then", SCHEMA_ANY, &ids[1]));
        TRY(read_schema(d, "else", SCHEMA_ANY, &ids[2]));
        TRY(schema_add_group(d, GROUP_IF, KINDS_ALL, ids, 3, 0));
    }
    return ERR_OK;
}

static err_code compile_ref(struct schema_draft *d)
{
    static const char *const elsewhere[] = {"$dynamicRef", "$recursiveRef"};
    const json_t *ref = schema_keyword(d, "$ref"), *json = NULL;
    const char *pointer;
    uint32_t schema;
    for (unsigned i = 0; i < 2; i++)
        if (schema_keyword(d, elsewhere[i]))
            TRY(schema_unenforced(d, elsewhere[i], "what it means depends on the path that leads to it"));
    if (!ref)
        return ERR_OK;
    if (!json_is_string(ref))
        return schema_bad(d, "$ref", "a string");
    TRY(schema_resolve(d, json_string_value(ref), &json, &pointer));
    if (!json)
        return schema_unenforced(d, "$ref", "it leads to nothing in this document");
    TRY(schema_number(d->c, json, pointer, &schema));
    return schema_add_group(d, GROUP_ALL, KINDS_ALL, &schema, 1, 0);
}

static err_code compile_items(struct schema_draft *d)
{
    struct schema *s = &d->s;
    const json_t *prefix = schema_keyword(d, "prefixItems"), *items = schema_keyword(d, "items");
    const json_t *unique = schema_keyword(d, "uniqueItems");
    const char *prefix_name = "prefixItems", *rest = "items";
    uint32_t max;
    if (json_is_array(items)) { /* as until 2019 */
        prefix = items;
        prefix_name = "items";
        rest = "additionalItems";
    }
    if (prefix && !json_is_array(prefix))
        return schema_bad(d, prefix_name, "a list of schemas");
    if (prefix) {
        TRY(read_schemas(d, prefix_name, prefix, &s->prefix));
        s->n_prefix = (uint32_t)json_array_size(prefix);
    }
    TRY(read_schema(d, rest, SCHEMA_ANY, &s->items));
    s->has_items = s->n_prefix > 0 || s->items != SCHEMA_ANY;
    s->has_contains = schema_keyword(d, "contains") != NULL;
    TRY(read_schema(d, "contains", SCHEMA_ANY, &s->contains));
    TRY(read_count(d, "minContains", 1, &s->n_contains.min));
    TRY(read_count(d, "maxContains", COUNT_MANY, &s->n_contains.max));
    TRY(read_count(d, "maxItems", COUNT_MANY, &max));
    if (json_is_true(unique) && max > 1)
        return schema_unenforced(d, "uniqueItems", "items are not compared with each other");
    return ERR_OK;
}

/* ---- objects --------------------------------------------------------------------------------------------------- */

static err_code read_names(struct schema_draft *d, const char *keyword, const json_t *list, uint32_t *first,
                           uint32_t *n)
{
    const json_t *one;
    size_t i;
    uint32_t name;
    *first = d->c->p->ids.n;
    json_array_foreach(list, i, one)
    {
        if (!json_is_string(one))
            return schema_bad(d, keyword, "a list of names");
        TRY(schema_name(d->c, json_string_value(one), json_string_length(one), &name));
        if (!LIST_PUSH(&d->c->p->ids, name))
            return schema_no_memory(d->c);
    }
    *n = d->c->p->ids.n - *first;
    return ERR_OK;
}

static err_code compile_properties(struct schema_draft *d)
{
    const json_t *props = schema_keyword(d, "properties");
    const char *pointer = pointer_to(d->c, d->pointer, "properties");
    if (props && !json_is_object(props))
        return schema_bad(d, "properties", "an object of schemas");
    /* schemas first: the program's list of properties must not get others' between these */
    d->s.props = d->c->p->props.n;
    for (void *i = json_object_iter((json_t *)props); i; i = json_object_iter_next((json_t *)props, i)) {
        struct schema_prop prop;
        const char *name = json_object_iter_key(i);
        TRY(schema_name(d->c, name, json_object_iter_key_len(i), &prop.name));
        TRY(schema_number(d->c, json_object_iter_value(i), pointer ? pointer_to(d->c, pointer, name) : NULL,
                          &prop.schema));
        if (!LIST_PUSH(&d->c->p->props, prop))
            return schema_no_memory(d->c);
    }
    d->s.n_prop = d->c->p->props.n - d->s.props;
    if (d->s.n_prop)
        qsort(d->c->p->props.at + d->s.props, d->s.n_prop, sizeof(struct schema_prop), schema_prop_compare);
    return ERR_OK;
}

static err_code compile_patterns(struct schema_draft *d)
{
    const json_t *patterns = schema_keyword(d, "patternProperties");
    const char *pointer = pointer_to(d->c, d->pointer, "patternProperties");
    struct program *p = d->c->p;
    if (patterns && !json_is_object(patterns))
        return schema_bad(d, "patternProperties", "an object of schemas");
    d->s.patterns = p->patterns.n;
    for (void *i = json_object_iter((json_t *)patterns); i; i = json_object_iter_next((json_t *)patterns, i)) {
        struct schema_pattern pattern = {.first = p->terms.n};
        const char *text = json_object_iter_key(i);
        uint32_t n_own = d->terms.n;
        bool known;
        TRY(compile_pattern(d, "patternProperties", text, json_object_iter_key_len(i), &known));
        if (!known) { /* nobody knows which properties are others, then */
            d->s.additional = SCHEMA_ANY;
            continue;
        }
        for (; d->terms.n > n_own; d->terms.n--)
            if (!LIST_PUSH(&p->terms, d->terms.at[d->terms.n - 1]))
                return schema_no_memory(d->c);
        pattern.n = p->terms.n - pattern.first;
        TRY(schema_number(d->c, json_object_iter_value(i), pointer ? pointer_to(d->c, pointer, text) : NULL,
                          &pattern.schema));
        if (!LIST_PUSH(&p->patterns, pattern))
            return schema_no_memory(d->c);
    }
    d->s.n_pattern = p->patterns.n - d->s.patterns;
    return ERR_OK;
}

/* dependencies, dependentRequired, dependentSchemas: if NAME is there, then a schema holds or other names are there. */
static err_code compile_dependencies(struct schema_draft *d, const char *keyword)
{
    const json_t *list = schema_keyword(d, keyword);
    const char *pointer = pointer_to(d->c, d->pointer, keyword);
    if (list && !json_is_object(list))
        return schema_bad(d, keyword, "an object");
    for (void *i = json_object_iter((json_t *)list); i; i = json_object_iter_next((json_t *)list, i)) {
        const char *text = json_object_iter_key(i);
        const json_t *value = json_object_iter_value(i), *array = NULL;
        uint32_t name, schema;
        TRY(schema_name(d->c, text, json_object_iter_key_len(i), &name));
        if (json_is_string(value) || json_is_array(value)) {
            struct schema s = {.types = KINDS_ALL, .has_props = true};
            array = json_is_array(value) ? json_incref((json_t *)value) : json_pack("[O]", value);
            err_code code = array ? read_names(d, keyword, array, &s.required, &s.n_required) : schema_no_memory(d->c);
            json_decref((json_t *)array);
            TRY(code);
            TRY(schema_add(d->c, &s, NULL, 0, &schema));
        } else
            TRY(schema_number(d->c, value, pointer ? pointer_to(d->c, pointer, text) : NULL, &schema));
        TRY(schema_add_group(d, GROUP_PRESENT, 1 << KIND_OBJECT, &schema, 1, name));
    }
    return ERR_OK;
}

static err_code compile_object(struct schema_draft *d)
{
    struct schema *s = &d->s;
    const json_t *required = schema_keyword(d, "required");
    TRY(compile_properties(d));
    TRY(read_schema(d, "additionalProperties", SCHEMA_ANY, &s->additional));
    TRY(compile_patterns(d));
    TRY(read_schema(d, "propertyNames", SCHEMA_ANY, &s->names));
    if (json_is_array(required)) /* draft 3 had it as a boolean, and some schemas have it so still */
        TRY(read_names(d, "required", required, &s->required, &s->n_required));
    else if (required && !json_is_boolean(required))
        return schema_bad(d, "required", "a list of names");
    s->has_props = s->n_prop || s->n_pattern || s->n_required || s->additional != SCHEMA_ANY || s->names != SCHEMA_ANY;
    TRY(compile_dependencies(d, "dependencies"));
    TRY(compile_dependencies(d, "dependentRequired"));
    TRY(compile_dependencies(d, "dependentSchemas"));
    static const char *const unevaluated[] = {"unevaluatedProperties", "unevaluatedItems"};
    for (unsigned i = 0; i < 2; i++) {
        const json_t *j = schema_keyword(d, unevaluated[i]);
        if (j && !json_is_true(j))
            TRY(schema_unenforced(d, unevaluated[i], "what other schemas evaluated is not kept"));
    }
    return ERR_OK;
}

/* ---- schemas --------------------------------------------------------------------------------------------------- */

static err_code compile_keywords(struct schema_draft *d)
{
    TRY(compile_ref(d));
    if (schema_keyword(d, "$ref") && d->c->draft >= 4 && d->c->draft <= 7)
        return ERR_OK; /* what stands beside it means nothing */
    TRY(compile_type(d));
    TRY(schema_compile_enum(d));
    TRY(schema_compile_numbers(d));
    TRY(compile_counts(d));
    TRY(compile_strings(d));
    TRY(compile_items(d));
    TRY(compile_object(d));
    return compile_groups(d);
}

static err_code compile_one(struct schema_compiler *c, struct schema_work w)
{
    struct program *p = c->p;
    struct schema_draft d = {.c = c, .s = {.types = KINDS_ALL}, .json = w.json, .pointer = w.pointer};
    uint32_t n_unenforced = p->unenforced.n;
    err_code code = compile_keywords(&d);
    d.s.terms = p->terms.n;
    d.s.n_term = d.terms.n;
    for (uint32_t i = 0; code == ERR_OK && i < d.terms.n; i++)
        if (!LIST_PUSH(&p->terms, d.terms.at[i]))
            code = schema_no_memory(c);
    d.s.groups = p->groups.n;
    d.s.n_group = d.groups.n;
    for (uint32_t i = 0; code == ERR_OK && i < d.groups.n; i++)
        if (!LIST_PUSH(&p->groups, d.groups.at[i]))
            code = schema_no_memory(c);
    LIST_CLOSE(&d.terms);
    LIST_CLOSE(&d.groups);
    if (code == ERR_OK) {
        p->schemas.at[w.schema] = d.s;
        c->weak.at[w.schema - c->first] = p->unenforced.n > n_unenforced;
    }
    return code;
}

/* ---- what needs all schemas ------------------------------------------------------------------------------------ */

/* Schemas that apply to the same value must not go round in circles. seen: 0 not yet, 1 on the way here, 2 done. */
static err_code check_circles(const struct schema_compiler *c, uint32_t schema, uint8_t *seen, int depth)
{
    const struct program *p = c->p;
    if (schema < c->first || seen[schema - c->first] == 2)
        return ERR_OK;
    if (seen[schema - c->first] == 1)
        return err_set(c->e, ERR_FORMAT, "schema: a $ref leads back to itself without any value between");
    if (depth > SCHEMA_MAX_DEPTH)
        return err_set(c->e, ERR_LIMIT, "schema: more than %d schemas that apply to the same value are nested",
                       SCHEMA_MAX_DEPTH);
    seen[schema - c->first] = 1;
    const struct schema *s = &p->schemas.at[schema];
    for (uint32_t i = 0; i < s->n_group; i++) {
        const struct schema_group *g = &p->groups.at[s->groups + i];
        for (uint32_t k = 0; k < g->n; k++)
            TRY(check_circles(c, p->ids.at[g->first + k], seen, depth + 1));
    }
    seen[schema - c->first] = 2;
    return ERR_OK;
}

static bool is_weak(const struct schema_compiler *c, uint32_t schema)
{
    return schema >= c->first && c->weak.at[schema - c->first];
}

/* Of the n schemas in the program's ids from `first` on. */
static bool has_weak(const struct schema_compiler *c, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (is_weak(c, c->p->ids.at[first + i]))
            return true;
    return false;
}

static bool becomes_weak(const struct schema_compiler *c, const struct schema *s)
{
    const struct program *p = c->p;
    bool weak = is_weak(c, s->items) || is_weak(c, s->contains) || is_weak(c, s->additional) || is_weak(c, s->names) ||
                has_weak(c, s->prefix, s->n_prefix);
    for (uint32_t i = 0; i < s->n_prop && !weak; i++)
        weak = is_weak(c, p->props.at[s->props + i].schema);
    for (uint32_t i = 0; i < s->n_pattern && !weak; i++)
        weak = is_weak(c, p->patterns.at[s->patterns + i].schema);
    for (uint32_t i = 0; i < s->n_group && !weak; i++)
        weak = has_weak(c, p->groups.at[s->groups + i].first, p->groups.at[s->groups + i].n);
    return weak;
}

/* Marks all schemas that depend on a weak one. Parts of a schema mostly come behind it, so the first pass goes
 * backwards; a chain that still winds after MAX_PASSES counts as weak as a whole, which enforces less, but nothing
 * wrong. */
static void spread_weakness(struct schema_compiler *c)
{
    const struct program *p = c->p;
    bool again = true;
    for (int pass = 0; again; pass++) {
        again = false;
        for (uint32_t k = c->first; k < p->schemas.n; k++) {
            uint32_t i = pass % 2 ? k : p->schemas.n - 1 - (k - c->first);
            if (!is_weak(c, i) && (pass >= MAX_PASSES || becomes_weak(c, &p->schemas.at[i])))
                c->weak.at[i - c->first] = again = true;
        }
    }
}

/* A schema of which something is left out accepts too much. Where that would make another one accept too little (under
 * not, in oneOf, as a condition), that keyword is loosened, too. */
static void loosen(struct schema_compiler *c)
{
    struct program *p = c->p;
    spread_weakness(c);
    for (uint32_t i = c->first; i < p->schemas.n; i++) {
        struct schema *s = &p->schemas.at[i];
        if (is_weak(c, s->contains))
            s->n_contains.max = COUNT_MANY;
        for (uint32_t k = 0; k < s->n_group; k++) {
            struct schema_group *g = &p->groups.at[s->groups + k];
            if (!has_weak(c, g->first, g->n))
                continue;
            if (g->kind == GROUP_ONE)
                g->kind = GROUP_ANY;
            else if (g->kind == GROUP_NOT || (g->kind == GROUP_IF && is_weak(c, p->ids.at[g->first])))
                *g = (struct schema_group){.kind = GROUP_ALL, .types = KINDS_ALL};
        }
    }
}

static err_code finish(struct schema_compiler *c)
{
    uint32_t n = c->p->schemas.n - c->first;
    uint8_t *seen = mem_calloc(n + 1, 1);
    err_code code = seen ? ERR_OK : schema_no_memory(c);
    for (uint32_t i = 0; code == ERR_OK && i < n; i++)
        code = check_circles(c, c->first + i, seen, 0);
    mem_free(seen);
    if (code == ERR_OK && c->p->unenforced.n > 0)
        loosen(c);
    return code;
}

static int draft_of(const json_t *root)
{
    const char *s = json_string_value(json_object_get(root, "$schema"));
    static const struct {
        const char *text;
        int draft;
    } drafts[] = {{"draft-03", 4}, {"draft-04", 4}, {"draft-06", 6}, {"draft-07", 7}, {"2019-09", 2019}};
    for (unsigned i = 0; s && i < sizeof drafts / sizeof *drafts; i++)
        if (strstr(s, drafts[i].text))
            return drafts[i].draft;
    return 0;
}

static err_code parse_json(const char *text, size_t n, json_t **root, struct err *e)
{
    json_error_t error;
    *root = json_read(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (*root)
        return ERR_OK;
    if (json_error_code(&error) == json_error_out_of_memory)
        return err_nomem(e, n, "a schema");
    return err_set(e, ERR_FORMAT, "schema, line %d: not JSON: %s", error.line, error.text);
}

err_code schema_compile(struct program *p, const char *text, size_t n, bool lenient, uint32_t *schema, struct err *e)
{
    struct schema_compiler c = {.p = p, .lenient = lenient, .first = p->schemas.n, .e = e};
    err_code code = parse_json(text, n, &c.root, e);
    if (code != ERR_OK)
        return code;
    c.draft = draft_of(c.root);
    code = schema_number(&c, c.root, "", schema);
    for (uint32_t i = 0; code == ERR_OK && i < c.work.n; i++)
        code = compile_one(&c, c.work.at[i]);
    if (code == ERR_OK)
        code = finish(&c);
    json_decref(c.root);
    intern_close(&c.places);
    intern_close(&c.anchors);
    LIST_CLOSE(&c.anchored);
    LIST_CLOSE(&c.work);
    LIST_CLOSE(&c.place_schemas);
    LIST_CLOSE(&c.weak);
    arena_close(&c.arena);
    return code;
}
