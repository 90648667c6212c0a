/* Values and one rendering of a template.
 *
 * A rendering fails once: the first failure is kept in `code`, functions that return values then return undefined, and
 * every loop of the interpreter looks at `code`. Values do not change, but for namespaces and lists that grow (append),
 * so they share what they point to, as in Python; all of it belongs to the rendering's arena and goes with it. */
#ifndef TEMPLATE_TMPL_VALUE_H
#define TEMPLATE_TMPL_VALUE_H

#include "template/tmpl_syntax.h"

enum {
    TMPL_MAX_BYTES = 64 << 20,     /* of values and texts in one rendering, and */
    TMPL_BYTES_PER_INPUT = 32,     /* so many more for each byte of the variables, but */
    TMPL_MOST_BYTES = 1 << 30,     /* not more than this: lengths of texts have 32 bits */
    TMPL_MAX_STEPS = 10 << 20,     /* nodes evaluated, and work on long texts and lists in units of 32 bytes, and */
    TMPL_STEPS_PER_INPUT = 16,     /* so many more */
    TMPL_MAX_DEPTH = 1500,         /* of evaluation: a macro that calls itself takes about seven a call */
    TMPL_MAX_RANGE = 100000,       /* numbers in one range(), as in jinja2's sandbox */
    TMPL_MAX_JSON = 64 << 20,      /* bytes of one variable, and */
    TMPL_MAX_JSON_VALUES = 300000, /* values in it */
    TMPL_MAX_VALUE_NESTING = 200   /* lists in lists */
};

enum value_kind {
    V_UNDEFINED, /* text: a name or, as `of` says, a sentence or an attribute of a value of kind `of` */
    V_MISSING,   /* an argument that was not given; never seen by templates */
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_RANGE,
    V_VIEW,     /* a dictionary's keys(), values() or items() */
    V_ITERATOR, /* can be walked once */
    V_DICT,
    V_NAMESPACE,
    V_MACRO,
    V_METHOD,
    V_FUNCTION,
    V_LOOP,
    V_CYCLER,
    V_JOINER,
};

enum { UNDEFINED_NAME = 255, UNDEFINED_SENTENCE = 254 };

struct value {
    uint8_t kind;
    uint8_t of;       /* V_UNDEFINED */
    bool markup;      /* V_STRING: safe; what is added to it gets escaped, as markupsafe does */
    uint32_t n;       /* V_STRING, V_UNDEFINED: bytes at s */
    uint32_t trusted; /* V_STRING: as in struct span */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *s;
        struct seq *seq;   /* V_LIST .. V_ITERATOR, V_CYCLER */
        struct dict *dict; /* V_DICT, V_NAMESPACE */
        struct macro *macro;
        struct method *method;
        const struct function *function;
        struct loop *loop;
        struct joiner *joiner;
    };
};

struct seq {
    struct value *items;
    uint32_t n, capacity;
    uint32_t at;               /* V_ITERATOR and V_CYCLER: the next item */
    char view;                 /* V_VIEW: 'k', 'v' or 'i' */
    int64_t start, stop, step; /* V_RANGE */
};

struct dict { /* in the order of insertion */
    struct value *keys, *values;
    uint32_t n, capacity;
};

struct frame_slot {
    int32_t symbol;
    struct value value;
};

/* The names of a scope. */
struct frame {
    struct frame *parent;
    struct frame_slot *slots;
    uint32_t n, capacity;
    bool kept; /* a macro refers to it */
};

struct macro {
    const struct node *node;
    struct frame *frame; /* where it was defined */
};

struct joiner {
    struct span separator;
    bool used;
};

struct argument {
    struct span name;
    struct value value;
};

/* What a call hands over: positional ones, then those with names. */
struct arguments {
    struct value *items;
    struct argument *named;
    uint32_t n, n_named;
};

struct render;

enum { MAX_PARAMETERS = 6 };

/* A filter, method or global function. Its parameters are matched to `names` before it runs; argv holds V_MISSING where
 * none was given. With no names (`any`), it gets the arguments as they are. */
struct function {
    const char *name;
    struct value (*run)(struct render *r, struct value self, const struct value *argv);
    struct value (*run_any)(struct render *r, struct value self, const struct arguments *args);
    const char *names[MAX_PARAMETERS];
    int n_required;
};

struct method {
    const struct function *function;
    struct value self;
};

struct iterator {
    struct value of;
    size_t at;
    struct seq *seq;
};
struct loop {
    const struct node *node; /* NODE_FOR */
    struct frame *outer;     /* where it stands */
    struct iterator source;
    struct seq *items; /* those that were fetched from the source so far */
    bool complete;     /* that was all */
    int64_t index0, depth0;
    struct value changed; /* the last arguments of loop.changed(), a tuple */
};

/* A text that grows. */
struct text_builder {
    char *s;
    size_t n, capacity, trusted; /* the last as in struct span: the capacity, or 0 as long as no byte is trusted */
};

enum { N_TAIL = 4 };

struct render {
    const struct template *t;
    struct err *e;
    err_code code;
    uint32_t pos; /* of what is being evaluated, for messages */
    struct arena arena;
    char *bump; /* of the arena's last piece */
    size_t bump_left, n_bytes;
    int64_t n_steps, max_steps;
    size_t max_bytes;
    int depth;
    struct frame *frame;
    struct text_builder *out;
    struct value body;                /* what the innermost block captured */
    struct text_builder tail[N_TAIL]; /* the last texts that were joined, the latest first: they grow in place */
};

/* ---- tmpl_value.c -------------------------------------------------------------------------------------------- */

struct value fail(struct render *r, const char *fmt, ...) PRINTF_LIKE(2, 3); /* ERR_FORMAT, at r->pos */
void fail_limit(struct render *r, const char *what);
void *render_alloc(struct render *r, size_t n_bytes); /* zeroed; NULL and a failure beyond the limit */
bool charge(struct render *r, size_t n_bytes);        /* work on so many bytes; false after a failure */

static inline struct span value_span(struct value v)
{
    return (struct span){v.s, v.n, v.trusted};
}
static inline bool is_number(struct value v)
{
    return v.kind == V_BOOL || v.kind == V_INT || v.kind == V_FLOAT;
}
static inline bool is_seq(struct value v)
{
    return v.kind >= V_LIST && v.kind <= V_ITERATOR;
}

struct value value_none(void);
struct value value_bool(bool b);
struct value value_int(int64_t i);
struct value value_float(double f);
struct value value_string(struct span s); /* borrowed; must live as long as the rendering */
struct value value_copy_string(struct render *r, const char *s, size_t n);
struct value value_seq(struct render *r, enum value_kind kind, uint32_t n); /* room for n items */
struct value value_dict(struct render *r, enum value_kind kind);
struct value value_undefined(struct span name);
struct value value_undefined_sentence(const char *sentence);
struct value value_undefined_attribute(struct value object, struct span name);
struct value value_method(struct render *r, const struct function *f, struct value self);

bool value_push(struct render *r, struct value seq, struct value item);
/* Lists and dictionaries can't be keys: false and a failure. */
bool value_check_key(struct render *r, struct value v);
bool dict_set(struct render *r, struct dict *d, struct value key, struct value value);
const struct value *dict_find(struct render *r, const struct dict *d, struct value key);
const struct value *dict_find_text(struct render *r, const struct dict *d, struct span key);

const char *value_type_name(struct value v); /* as Python says it */
struct value fail_undefined(struct render *r, struct value v);
bool value_is_true(struct render *r, struct value v);
bool text_equal(struct render *r, struct span a, struct span b);
/* The first or last place of a text in another; NULL when there is none. Charges for each place where its first byte is
 * found, as a comparison may take as long as `what`; going through `s` once is paid for by the caller. */
const char *text_find(struct render *r, struct span s, struct span what, bool last);
bool value_as_int(struct value v, int64_t *i); /* of integers and booleans */
double value_as_float(struct value v);         /* of numbers */
bool value_equal(struct render *r, struct value a, struct value b);
bool value_less(struct render *r, struct value a, struct value b);
bool value_in(struct render *r, struct value item, struct value container);
int64_t value_length(struct render *r, struct value v); /* -1 and no failure where there is none */

bool iterator_open(struct render *r, struct iterator *it, struct value of); /* false and a failure: can't be walked */
bool iterator_next(struct render *r, struct iterator *it, struct value *item);
struct value value_list_of(struct render *r, struct value v); /* all its items, as a new list */

/* ---- tmpl_text.c: texts of values ---------------------------------------------------------------------------- */

void text_add(struct render *r, struct text_builder *t, const char *s, size_t n); /* not trusted, nor is: */
void text_add_string(struct render *r, struct text_builder *t, const char *s);
void text_add_span(struct render *r, struct text_builder *t, struct span s); /* as trusted as it is */
void text_add_fill(struct render *r, struct text_builder *t, struct span fill, int64_t times);
void text_add_escaped(struct render *r, struct text_builder *t, struct span s); /* for HTML */
void text_trust(struct render *r, struct text_builder *t, size_t from); /* what was added from there on is trusted */
struct span text_span(struct text_builder t);
struct value text_value(struct text_builder t);
void text_add_value(struct render *r, struct text_builder *t, struct value v); /* str() */
void text_add_repr(struct render *r, struct text_builder *t, struct value v);  /* repr() */
void text_add_float(struct render *r, struct text_builder *t, double f);
struct value value_to_string(struct render *r, struct value v); /* str() as a string, itself if it is one */
struct value join_strings(struct render *r, struct value a, struct value b);

/* ---- tmpl_ops.c ---------------------------------------------------------------------------------------------- */

struct value op_binary(struct render *r, enum binary_op op, struct value a, struct value b);
struct value op_negate(struct render *r, struct value v, bool minus);
struct value op_compare(struct render *r, enum compare_op op, struct value a, struct value b);
struct value op_item(struct render *r, struct value object, struct value index);
struct value op_own_attribute(struct render *r, struct value object, struct span name); /* getattr(); or V_MISSING */
struct value op_attribute(struct render *r, struct value object, struct span name);
struct value op_slice(struct render *r, struct value object, const struct value bounds[3]);

/* ---- tmpl_format.c ------------------------------------------------------------------------------------------- */

struct value format_percent(struct render *r, struct value format, struct value values);
struct value format_braces(struct render *r, struct value self, const struct arguments *args);

/* ---- tmpl_json.c --------------------------------------------------------------------------------------------- */

struct value json_parse(struct render *r, const char *name, const char *json);
struct value filter_tojson(struct render *r, struct value v, const struct value *argv);

/* ---- tmpl_eval.c --------------------------------------------------------------------------------------------- */

void render_body(struct render *r);
void loop_fetch(struct render *r, struct loop *l, int64_t index0); /* until there is an item with this index, if any */
void frame_set(struct render *r, struct frame *f, int32_t symbol, struct value v);
const struct argument *find_argument(struct render *r, const struct arguments *args, struct span name); /* or NULL */
struct value call_value(struct render *r, struct value callee, const struct arguments *args);
/* Calls what templates may call, and charges for the texts handed over: so a function that looks at each of their bytes
 * a few times is paid for. One that goes through characters, or through texts again and again, charges for that. */
struct value call_function(struct render *r, const struct function *f, struct value self, const struct arguments *args);

/* ---- tables -------------------------------------------------------------------------------------------------- */

const struct function *find_function(const struct function *table, size_t n, struct span name);
const struct function *find_filter(struct span name);
const struct function *find_test(struct span name);
const struct function *find_method(struct value self, struct span name, bool *hidden); /* hidden: would modify it */
const struct function *find_global(struct span name);
struct value loop_attribute(struct render *r, struct loop *l, struct span name); /* V_MISSING: there is none */
struct value run_filter(struct render *r, struct span name, struct value v, const struct arguments *args);
bool run_test(struct render *r, struct span name, struct value v, const struct arguments *args);

#endif
