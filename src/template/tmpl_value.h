/* The values of templates, and the state of one rendering.
 *
 * A rendering keeps its first failure in `code`. After that, functions that return values return undefined, and every
 * loop of the interpreter checks `code`. Values are immutable, except namespaces and lists that grow (append), so that
 * copies of a value share what it points to, as in Python. All memory belongs to the rendering's arena. */
#ifndef TEMPLATE_TMPL_VALUE_H
#define TEMPLATE_TMPL_VALUE_H

#include "template/tmpl_syntax.h"

enum {
    /* Bytes of values and texts in one rendering: TMPL_MAX_BYTES, and TMPL_BYTES_PER_INPUT for each byte of the
     * variables, but at most TMPL_MOST_BYTES, as lengths of texts have 32 bits. */
    TMPL_MAX_BYTES = 64 << 20,
    TMPL_BYTES_PER_INPUT = 32,
    TMPL_MOST_BYTES = 1 << 30,
    /* Steps of one rendering, which are evaluated nodes and work on long texts and lists in units of 32 bytes:
     * TMPL_MAX_STEPS, and TMPL_STEPS_PER_INPUT for each byte of the variables. */
    TMPL_MAX_STEPS = 10 << 20,
    TMPL_STEPS_PER_INPUT = 16,
    TMPL_MAX_DEPTH = 1500,         /* of evaluation; a macro that calls itself takes about seven for each call */
    TMPL_MAX_RANGE = 100000,       /* numbers in one range(), as in jinja2's sandbox */
    TMPL_MAX_JSON = 64 << 20,      /* bytes of one variable */
    TMPL_MAX_JSON_VALUES = 300000, /* values in one variable */
    TMPL_MAX_VALUE_NESTING = 200   /* of lists and dictionaries */
};

enum value_kind {
    V_UNDEFINED, /* its text is a name, a sentence, or the name of an attribute of a value of kind `of` (see `of`) */
    V_MISSING,   /* an argument that was not given; templates never see it */
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

enum { UNDEFINED_NAME = 255, UNDEFINED_SENTENCE = 254 }; /* values of `of` beside those of enum value_kind */

struct value {
    uint8_t kind;
    uint8_t of;       /* V_UNDEFINED */
    bool markup;      /* V_STRING: marked safe; strings that are added to it are escaped, as markupsafe does */
    uint32_t n;       /* V_STRING, V_UNDEFINED: number of bytes at s */
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
    bool kept; /* a macro refers to it, so its memory is not reused */
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

/* The arguments of a call: positional ones, and those with names. */
struct arguments {
    struct value *items;
    struct argument *named;
    uint32_t n, n_named;
};

struct render;

enum { MAX_PARAMETERS = 6 };

/* A filter, method or global function. It has either `run`, for which arguments are matched to the parameters in
 * `names` (argv has V_MISSING where none was given), or `run_any`, which gets the arguments as they are. */
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
    struct seq *items; /* items fetched from the source so far */
    bool complete;     /* these are all */
    int64_t index0, depth0;
    struct value changed; /* the last arguments of loop.changed(), a tuple */
};

/* A text that grows. */
struct text_builder {
    char *s;
    size_t n, capacity;
    size_t trusted; /* as in struct span: equal to the capacity, or 0 as long as no byte is trusted */
};

enum { N_TAIL = 4 };

struct render {
    const struct template *t;
    struct err *e;
    err_code code;
    uint32_t pos; /* position in the source of what is being evaluated, for messages */
    struct arena arena;
    char *bump;       /* free memory in the last piece that was taken from the arena */
    size_t bump_left; /* bytes of it */
    size_t n_bytes;   /* memory used so far */
    int64_t n_steps, max_steps;
    size_t max_bytes;
    int depth;
    struct frame *frame;
    struct text_builder *out;
    struct value body; /* the text that the innermost block captured */
    struct text_builder
        tail[N_TAIL]; /* the texts that were joined last, the latest first, so that they grow in place */
};

/* ---- tmpl_value.c -------------------------------------------------------------------------------------------- */

struct value fail(struct render *r, const char *fmt, ...) PRINTF_LIKE(2, 3); /* ERR_FORMAT, at r->pos */
void fail_limit(struct render *r, const char *what);
void *render_alloc(struct render *r, size_t n_bytes); /* zeroed; NULL and a failure beyond the limit */
bool charge(struct render *r, size_t n_bytes);        /* counts steps for work on n_bytes; false after a failure */

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
/* False, and a failure, for lists and dictionaries, which can't be keys. */
bool value_check_key(struct render *r, struct value v);
bool dict_set(struct render *r, struct dict *d, struct value key, struct value value);
const struct value *dict_find(struct render *r, const struct dict *d, struct value key);
const struct value *dict_find_text(struct render *r, const struct dict *d, struct span key);

const char *value_type_name(struct value v); /* Python's name of the type */
struct value fail_undefined(struct render *r, struct value v);
bool value_is_true(struct render *r, struct value v);
bool text_equal(struct render *r, struct span a, struct span b);
/* Finds the first or last occurrence of `what` in s; NULL: there is none. Charges for each place where its first byte
 * occurs, as comparing may take as long as `what`. The caller must have charged for going through s once. */
const char *text_find(struct render *r, struct span s, struct span what, bool last);
bool value_as_int(struct value v, int64_t *i); /* of integers and booleans */
double value_as_float(struct value v);         /* of numbers */
bool value_equal(struct render *r, struct value a, struct value b);
bool value_less(struct render *r, struct value a, struct value b);
bool value_in(struct render *r, struct value item, struct value container);
int64_t value_length(struct render *r, struct value v); /* -1, without a failure: the value has no length */

bool iterator_open(struct render *r, struct iterator *it, struct value of); /* false, and a failure: not iterable */
bool iterator_next(struct render *r, struct iterator *it, struct value *item);
struct value value_list_of(struct render *r, struct value v); /* all its items, as a new list */

/* ---- tmpl_text.c: texts of values ---------------------------------------------------------------------------- */

void text_add(struct render *r, struct text_builder *t, const char *s, size_t n); /* not trusted */
void text_add_string(struct render *r, struct text_builder *t, const char *s);
void text_add_span(struct render *r, struct text_builder *t, struct span s); /* with its marks */
void text_add_fill(struct render *r, struct text_builder *t, struct span fill, int64_t times);
void text_add_escaped(struct render *r, struct text_builder *t, struct span s); /* for HTML */
void text_trust(struct render *r, struct text_builder *t, size_t from); /* marks the bytes from `from` on as trusted */
struct span text_span(struct text_builder t);
struct value text_value(struct text_builder t);
void text_add_value(struct render *r, struct text_builder *t, struct value v); /* str() */
void text_add_repr(struct render *r, struct text_builder *t, struct value v);  /* repr() */
void text_add_float(struct render *r, struct text_builder *t, double f);
struct value value_to_string(struct render *r, struct value v); /* str(); a string is returned as it is */
struct value join_strings(struct render *r, struct value a, struct value b);

/* ---- tmpl_ops.c ---------------------------------------------------------------------------------------------- */

struct value op_binary(struct render *r, enum binary_op op, struct value a, struct value b);
struct value op_negate(struct render *r, struct value v, bool minus);
struct value op_compare(struct render *r, enum compare_op op, struct value a, struct value b);
struct value op_item(struct render *r, struct value object, struct value index);
struct value op_own_attribute(struct render *r, struct value object,
                              struct span name); /* an attribute, no item; V_MISSING: there is none */
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
void loop_fetch(struct render *r, struct loop *l,
                int64_t index0); /* fetches items up to this index, if there are as many */
void frame_set(struct render *r, struct frame *f, int32_t symbol, struct value v);
const struct argument *find_argument(struct render *r, const struct arguments *args, struct span name); /* or NULL */
struct value call_value(struct render *r, struct value callee, const struct arguments *args);
/* Calls a function, and charges for the bytes of all strings among its arguments. This covers a function that looks at
 * each of these bytes a few times; one that goes through characters, or often through a text, must charge for that. */
struct value call_function(struct render *r, const struct function *f, struct value self, const struct arguments *args);

/* ---- tables -------------------------------------------------------------------------------------------------- */

const struct function *find_function(const struct function *table, size_t n, struct span name);
const struct function *find_filter(struct span name);
const struct function *find_test(struct span name);
const struct function *find_method(struct value self, struct span name,
                                   bool *hidden); /* hidden: it would modify the value */
const struct function *find_global(struct span name);
struct value loop_attribute(struct render *r, struct loop *l, struct span name); /* V_MISSING: there is none */
struct value run_filter(struct render *r, struct span name, struct value v, const struct arguments *args);
bool run_test(struct render *r, struct span name, struct value v, const struct arguments *args);

#endif
