/* Walking the tree: expressions to values, statements to text. */
#include <string.h>

#include "template/tmpl_value.h"

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static struct value eval(struct render *r, const struct node *n);
static enum flow run_body(struct render *r, const struct node *first);

/* ---- names --------------------------------------------------------------------------------------------------- */

void frame_set(struct render *r, struct frame *f, int32_t symbol, struct value v)
{
    charge(r, f->n);
    for (uint32_t i = 0; i < f->n; i++)
        if (f->slots[i].symbol == symbol) {
            f->slots[i].value = v;
            return;
        }
    if (f->n == f->capacity) {
        uint32_t capacity = f->capacity ? 2 * f->capacity : 4;
        struct frame_slot *slots = render_alloc(r, capacity * sizeof *slots);
        if (!slots)
            return;
        if (f->n)
            memcpy(slots, f->slots, f->n * sizeof *slots);
        f->slots = slots;
        f->capacity = capacity;
    }
    f->slots[f->n++] = (struct frame_slot){symbol, v};
}

static struct value lookup(struct render *r, int32_t symbol)
{
    for (const struct frame *f = r->frame; f; f = f->parent) {
        charge(r, f->n);
        for (uint32_t i = 0; i < f->n; i++)
            if (f->slots[i].symbol == symbol)
                return f->slots[i].value;
    }
    struct span name = r->t->symbols.names[symbol];
    const struct function *global = find_global(name);
    return global ? (struct value){.kind = V_FUNCTION, .function = global} : value_undefined(name);
}

static struct frame *frame_open(struct render *r, struct frame *parent)
{
    struct frame *f = render_alloc(r, sizeof *f);
    if (f)
        f->parent = parent;
    return f;
}

/* A macro refers to the scopes around it: they are not used again for another round of their loop. */
static void frame_keep(struct frame *f)
{
    for (; f && !f->kept; f = f->parent)
        f->kept = true;
}

static void assign_items(struct render *r, const struct node *target, struct value v);

static void assign(struct render *r, const struct node *target, struct value v)
{
    r->pos = target->pos;
    if (target->kind == NODE_NAME) {
        frame_set(r, r->frame, target->symbol, v);
    } else if (target->kind == NODE_TUPLE) {
        assign_items(r, target, v);
    } else {
        struct value space = lookup(r, target->symbol);
        if (space.kind == V_NAMESPACE)
            dict_set(r, space.dict, value_string(target->text), v);
        else
            fail(r, "attributes can be set on a namespace() only, not on '%s'", value_type_name(space));
    }
}

static void assign_items(struct render *r, const struct node *target, struct value v)
{
    struct iterator it;
    struct value item;
    if (!iterator_open(r, &it, v))
        return;
    for (const struct node *part = target->a; part; part = part->next) {
        if (!iterator_next(r, &it, &item)) {
            fail(r, "not enough values to unpack");
            return;
        }
        assign(r, part, item);
        r->pos = target->pos;
    }
    if (iterator_next(r, &it, &item))
        fail(r, "too many values to unpack");
}

/* ---- calls --------------------------------------------------------------------------------------------------- */

const struct argument *find_argument(struct render *r, const struct arguments *args, struct span name)
{
    charge(r, args->n_named);
    for (uint32_t i = 0; i < args->n_named; i++)
        if (text_equal(r, args->named[i].name, name))
            return &args->named[i];
    return NULL;
}

static void add_named(struct render *r, struct arguments *args, uint32_t *room, struct span name, struct value v)
{
    if (args->n_named == *room) {
        *room = *room ? 2 * *room : 4;
        struct argument *more = render_alloc(r, *room * sizeof *more);
        if (!more)
            return;
        if (args->n_named)
            memcpy(more, args->named, args->n_named * sizeof *more);
        args->named = more;
    }
    if (find_argument(r, args, name))
        fail(r, "got several values for the argument '%.*s'", (int)name.n, name.s);
    if (r->code == ERR_OK)
        args->named[args->n_named++] = (struct argument){name, v};
}

static void add_dictionary(struct render *r, struct arguments *args, uint32_t *room, struct value v)
{
    if (v.kind != V_DICT)
        fail(r, "the argument after ** must be a dict, not '%s'", value_type_name(v));
    for (uint32_t i = 0; r->code == ERR_OK && i < v.dict->n; i++) {
        if (v.dict->keys[i].kind != V_STRING)
            fail(r, "keywords must be strings");
        else
            add_named(r, args, room, value_span(v.dict->keys[i]), v.dict->values[i]);
    }
}

static struct arguments eval_arguments(struct render *r, const struct node *first)
{
    struct arguments args = {0};
    uint32_t room = 0;
    if (!first)
        return args;
    struct value list = value_seq(r, V_LIST, 0), item;
    for (const struct node *n = first; n && r->code == ERR_OK; n = n->next) {
        struct value v = eval(r, n->a);
        struct iterator it;
        r->pos = n->pos;
        if (n->text.n) {
            add_named(r, &args, &room, n->text, v);
        } else if (n->op == 'k') {
            add_dictionary(r, &args, &room, v);
        } else if (n->op == '*') {
            if (iterator_open(r, &it, v))
                while (iterator_next(r, &it, &item) && value_push(r, list, item))
                    ;
        } else {
            value_push(r, list, v);
        }
    }
    if (r->code == ERR_OK) {
        args.items = list.seq->items;
        args.n = list.seq->n;
    }
    return args;
}

/* Matches arguments to the names of a function; false and a failure when they don't fit. */
static bool bind(struct render *r, const struct function *f, const struct arguments *args, struct value *argv)
{
    int n_names = 0;
    while (n_names < MAX_PARAMETERS && f->names[n_names])
        n_names++;
    if (args->n > (uint32_t)n_names)
        fail(r, "%s takes at most %d arguments, not %u", f->name, n_names, args->n);
    for (int i = 0; i < MAX_PARAMETERS; i++)
        argv[i] = i < n_names && (uint32_t)i < args->n ? args->items[i] : (struct value){.kind = V_MISSING};
    for (uint32_t j = 0; j < args->n_named && r->code == ERR_OK; j++) {
        struct span name = args->named[j].name;
        int i = 0;
        while (i < n_names && !span_is(name, f->names[i]))
            i++;
        if (i == n_names || argv[i].kind != V_MISSING)
            fail(r, "%s got an unexpected argument '%.*s'", f->name, (int)name.n, name.s);
        else
            argv[i] = args->named[j].value;
    }
    for (int i = 0; i < f->n_required; i++)
        if (argv[i].kind == V_MISSING)
            fail(r, "%s needs the argument '%s'", f->name, f->names[i]);
    return r->code == ERR_OK;
}

static size_t text_bytes(struct value v)
{
    return v.kind == V_STRING ? v.n : 0;
}

struct value call_function(struct render *r, const struct function *f, struct value self, const struct arguments *args)
{
    struct value argv[MAX_PARAMETERS], result = {0};
    size_t n_bytes = text_bytes(self) + args->n + args->n_named;
    for (uint32_t i = 0; i < args->n; i++)
        n_bytes += text_bytes(args->items[i]);
    for (uint32_t i = 0; i < args->n_named; i++)
        n_bytes += text_bytes(args->named[i].value);
    if (++r->depth > TMPL_MAX_DEPTH)
        fail_limit(r, "calls are nested too deeply");
    if (charge(r, n_bytes) && f->run_any)
        result = f->run_any(r, self, args);
    else if (r->code == ERR_OK && bind(r, f, args, argv))
        result = f->run(r, self, argv);
    r->depth--;
    return result;
}

/* The parameters of a macro that were not given by position: by name, by default, or undefined. */
static void bind_parameters(struct render *r, const struct node *macro, const struct arguments *args)
{
    uint32_t i = 0, n_used = 0;
    bool takes_caller = false;
    for (const struct node *p = macro->a; p && r->code == ERR_OK; p = p->next, i++) {
        const struct argument *named = find_argument(r, args, p->text);
        struct value v;
        takes_caller = takes_caller || p->symbol == r->t->sym_caller;
        if (i < args->n && named)
            fail(r, "macro '%.*s' got two values for '%.*s'", (int)macro->text.n, macro->text.s, (int)p->text.n,
                 p->text.s);
        if (i < args->n)
            v = args->items[i];
        else if (named)
            v = named->value;
        else if (p->a)
            v = eval(r, p->a);
        else
            v = value_undefined_sentence("a parameter of the macro was not provided");
        n_used += named != NULL;
        frame_set(r, r->frame, p->symbol, v);
    }
    const struct argument *caller = find_argument(r, args, SPAN("caller"));
    if ((macro->op & USES_CALLER) && !takes_caller) {
        frame_set(r, r->frame, r->t->sym_caller, caller ? caller->value : value_undefined(SPAN("caller")));
        n_used += caller != NULL;
    }
    if (macro->op & USES_KWARGS) {
        struct value kwargs = value_dict(r, V_DICT);
        for (uint32_t j = 0; j < args->n_named && r->code == ERR_OK; j++) {
            bool is_parameter = span_is(args->named[j].name, "caller") && (macro->op & USES_CALLER);
            charge(r, i);
            for (const struct node *p = macro->a; p; p = p->next)
                is_parameter = is_parameter || text_equal(r, p->text, args->named[j].name);
            if (!is_parameter)
                dict_set(r, kwargs.dict, value_string(args->named[j].name), args->named[j].value);
        }
        frame_set(r, r->frame, r->t->sym_kwargs, kwargs);
    } else if (n_used < args->n_named) {
        fail(r, "macro '%.*s' was given a keyword argument that it does not take", (int)macro->text.n, macro->text.s);
    }
    if (macro->op & USES_VARARGS) {
        struct value varargs = value_seq(r, V_TUPLE, 0);
        for (uint32_t j = i; j < args->n && value_push(r, varargs, args->items[j]); j++)
            ;
        frame_set(r, r->frame, r->t->sym_varargs, varargs);
    } else if (args->n > i) {
        fail(r, "macro '%.*s' takes not more than %u arguments", (int)macro->text.n, macro->text.s, i);
    }
}

/* The text that a body makes, with names of its own. */
static struct value capture(struct render *r, const struct node *body, struct frame *frame)
{
    struct text_builder text = {0}, *outer_out = r->out;
    struct frame *outer_frame = r->frame;
    if (!frame)
        return (struct value){0};
    r->out = &text;
    r->frame = frame;
    run_body(r, body);
    r->out = outer_out;
    r->frame = outer_frame;
    return text_value(text);
}

static struct value call_macro(struct render *r, const struct macro *m, const struct arguments *args)
{
    struct frame *outer = r->frame, *frame = frame_open(r, m->frame);
    if (!frame)
        return (struct value){0};
    r->frame = frame;
    bind_parameters(r, m->node, args);
    r->frame = outer;
    return capture(r, m->node->b, frame);
}

static enum flow run_loop(struct render *r, const struct node *n, struct frame *outer, struct value items,
                          int64_t depth0);

/* loop(items) in a recursive loop. */
static struct value call_loop(struct render *r, const struct loop *l, const struct arguments *args)
{
    struct text_builder text = {0}, *outer_out = r->out;
    if (!l->node->flag)
        return fail(r, "the loop must have the 'recursive' marker to be called");
    if (args->n != 1 || args->n_named)
        return fail(r, "loop() takes one argument, the items to loop over");
    r->out = &text;
    run_loop(r, l->node, l->outer, args->items[0], l->depth0 + 1);
    r->out = outer_out;
    return text_value(text);
}

struct value call_value(struct render *r, struct value callee, const struct arguments *args)
{
    struct value result = {0};
    if (++r->depth > TMPL_MAX_DEPTH)
        fail_limit(r, "calls are nested too deeply: is there a macro that calls itself without an end?");
    if (r->code == ERR_OK) {
        switch ((enum value_kind)callee.kind) {
        case V_MACRO: result = call_macro(r, callee.macro, args); break;
        case V_METHOD: result = call_function(r, callee.method->function, callee.method->self, args); break;
        case V_FUNCTION: result = call_function(r, callee.function, value_none(), args); break;
        case V_LOOP: result = call_loop(r, callee.loop, args); break;
        case V_JOINER:
            result = value_string(callee.joiner->used ? callee.joiner->separator : SPAN(""));
            callee.joiner->used = true;
            break;
        case V_UNDEFINED: fail_undefined(r, callee); break;
        default: fail(r, "'%s' object is not callable", value_type_name(callee));
        }
    }
    r->depth--;
    return result;
}

/* ---- expressions --------------------------------------------------------------------------------------------- */

static struct value eval_items(struct render *r, const struct node *n)
{
    struct value list = value_seq(r, n->kind == NODE_LIST ? V_LIST : V_TUPLE, 0);
    for (const struct node *item = n->a; item && r->code == ERR_OK; item = item->next)
        value_push(r, list, eval(r, item));
    return list;
}

static struct value eval_dict(struct render *r, const struct node *n)
{
    struct value dict = value_dict(r, V_DICT);
    for (const struct node *pair = n->a; pair && r->code == ERR_OK; pair = pair->next) {
        struct value key = eval(r, pair->a), value = eval(r, pair->b);
        r->pos = pair->pos;
        if (r->code == ERR_OK)
            dict_set(r, dict.dict, key, value);
    }
    return dict;
}

static struct value eval_concat(struct render *r, const struct node *n)
{
    struct value all = value_string(SPAN(""));
    for (const struct node *part = n->a; part && r->code == ERR_OK; part = part->next) {
        struct value v = eval(r, part);
        r->pos = n->pos;
        all = join_strings(r, all, value_to_string(r, v));
        all.markup = false;
    }
    return all;
}

/* a < b < c: the operands once each, from the left, as far as needed. */
static struct value eval_compare(struct render *r, const struct node *n)
{
    struct value left = eval(r, n->a), result = value_bool(true);
    for (const struct node *to = n->b; to && r->code == ERR_OK; to = to->next) {
        struct value right = eval(r, to->a);
        r->pos = n->pos;
        if (r->code == ERR_OK)
            result = op_compare(r, (enum compare_op)to->op, left, right);
        if (!value_is_true(r, result))
            break;
        left = right;
    }
    return result;
}

static struct value eval_slice(struct render *r, const struct node *n)
{
    struct value object = eval(r, n->a);
    const struct value bounds[3] = {n->b ? eval(r, n->b) : value_none(), n->c ? eval(r, n->c) : value_none(),
                                    n->d ? eval(r, n->d) : value_none()};
    r->pos = n->pos;
    return r->code == ERR_OK ? op_slice(r, object, bounds) : (struct value){0};
}

static struct value eval_call(struct render *r, const struct node *n)
{
    struct value callee = eval(r, n->a);
    struct arguments args = eval_arguments(r, n->b);
    r->pos = n->pos;
    return call_value(r, callee, &args);
}

static struct value eval_filter_or_test(struct render *r, const struct node *n)
{
    struct value v = eval(r, n->a);
    struct arguments args = eval_arguments(r, n->b);
    r->pos = n->pos;
    if (r->code != ERR_OK)
        return v;
    return n->kind == NODE_FILTER ? run_filter(r, n->text, v, &args) : value_bool(run_test(r, n->text, v, &args));
}

static struct value eval_binary(struct render *r, const struct node *n)
{
    struct value a = eval(r, n->a), b = eval(r, n->b);
    r->pos = n->pos;
    return r->code == ERR_OK ? op_binary(r, (enum binary_op)n->op, a, b) : a;
}

static struct value eval_lazy(struct render *r, const struct node *n)
{
    struct value v = eval(r, n->a);
    bool is = value_is_true(r, v);
    switch ((enum node_kind)n->kind) {
    case NODE_NOT: return value_bool(!is);
    case NODE_AND: return is ? eval(r, n->b) : v;
    case NODE_OR: return is ? v : eval(r, n->b);
    default: break;
    }
    if (is || n->c)
        return eval(r, is ? n->b : n->c);
    return value_undefined_sentence("the inline if-expression evaluated to false and no else section was defined");
}

static struct value eval_node(struct render *r, const struct node *n)
{
    struct value v;
    switch ((enum node_kind)n->kind) {
    case NODE_BODY: return r->body;
    case NODE_NONE: return value_none();
    case NODE_BOOL: return value_bool(n->flag);
    case NODE_INT: return value_int(n->integer);
    case NODE_FLOAT: return value_float(n->real);
    case NODE_STRING: return value_string(n->text);
    case NODE_NAME: return lookup(r, n->symbol);
    case NODE_LIST:
    case NODE_TUPLE: return eval_items(r, n);
    case NODE_DICT: return eval_dict(r, n);
    case NODE_ATTRIBUTE:
        v = eval(r, n->a);
        r->pos = n->pos;
        return r->code == ERR_OK ? op_attribute(r, v, n->text) : v;
    case NODE_ITEM: {
        v = eval(r, n->a);
        struct value index = eval(r, n->b);
        r->pos = n->pos;
        return r->code == ERR_OK ? op_item(r, v, index) : v;
    }
    case NODE_SLICE: return eval_slice(r, n);
    case NODE_CALL: return eval_call(r, n);
    case NODE_FILTER:
    case NODE_TEST: return eval_filter_or_test(r, n);
    case NODE_UNARY:
        v = eval(r, n->a);
        r->pos = n->pos;
        return r->code == ERR_OK ? op_negate(r, v, n->op == '-') : v;
    case NODE_BINARY: return eval_binary(r, n);
    case NODE_COMPARE: return eval_compare(r, n);
    case NODE_CONCAT: return eval_concat(r, n);
    default: return eval_lazy(r, n);
    }
}

static struct value eval(struct render *r, const struct node *n)
{
    struct value v = {0};
    r->pos = n->pos;
    if (++r->depth > TMPL_MAX_DEPTH)
        fail_limit(r, "nested too deeply: is there a macro that calls itself without an end?");
    if (charge(r, 0))
        v = eval_node(r, n);
    r->depth--;
    return v;
}

/* ---- statements ---------------------------------------------------------------------------------------------- */

void loop_fetch(struct render *r, struct loop *l, int64_t index0)
{
    struct frame *outer = r->frame;
    uint32_t pos = r->pos;
    struct value item;
    while (!l->complete && l->items->n <= index0 && r->code == ERR_OK) {
        if (!iterator_next(r, &l->source, &item)) {
            l->complete = true;
            break;
        }
        bool chosen = true;
        if (l->node->e) {
            struct frame frame = {.parent = l->outer};
            r->frame = &frame;
            assign(r, l->node->a, item);
            chosen = value_is_true(r, eval(r, l->node->e));
            r->frame = outer;
        }
        if (chosen)
            value_push(r, (struct value){.kind = V_LIST, .seq = l->items}, item);
    }
    r->pos = pos;
}

static struct loop *loop_open(struct render *r, const struct node *n, struct frame *outer, struct value items,
                              int64_t depth0)
{
    struct loop *l = render_alloc(r, sizeof *l);
    if (!l)
        return NULL;
    *l = (struct loop){.node = n, .outer = outer, .index0 = -1, .depth0 = depth0, .changed = {.kind = V_MISSING}};
    if (!iterator_open(r, &l->source, items))
        return NULL;
    if (is_seq(items) && items.kind != V_ITERATOR && !n->e) {
        l->items = items.seq;
        l->complete = true;
    } else {
        l->items = value_seq(r, V_LIST, 0).seq;
    }
    return r->code == ERR_OK ? l : NULL;
}

/* Each round begins with no names but the loop's own. As in jinja2, else is for loops of which no round came to the end
 * of its body, so a break or continue in the first one leads there, too. */
static enum flow run_loop(struct render *r, const struct node *n, struct frame *outer, struct value items,
                          int64_t depth0)
{
    struct frame *saved = r->frame, *frame = NULL;
    bool finished = false;
    struct loop *l = loop_open(r, n, outer, items, depth0);
    while (l && r->code == ERR_OK) {
        loop_fetch(r, l, l->index0 + 1);
        if (r->code != ERR_OK || l->index0 + 1 >= l->items->n)
            break;
        if (!frame || frame->kept)
            frame = frame_open(r, outer);
        if (!frame)
            break;
        frame->n = 0;
        r->frame = frame;
        frame_set(r, frame, r->t->sym_loop, (struct value){.kind = V_LOOP, .loop = l});
        assign(r, n->a, l->items->items[++l->index0]);
        enum flow flow = run_body(r, n->c);
        r->frame = saved;
        finished = finished || flow == FLOW_NEXT;
        if (flow == FLOW_BREAK)
            break;
    }
    r->frame = saved;
    if (!l || finished || !n->d || r->code != ERR_OK)
        return FLOW_NEXT;
    r->frame = frame_open(r, outer);
    enum flow flow = r->frame ? run_body(r, n->d) : FLOW_NEXT;
    r->frame = saved;
    return flow;
}

/* The body's text, through the filters if there are any. */
static struct value capture_filtered(struct render *r, const struct node *n)
{
    struct value text = capture(r, n->b, frame_open(r, r->frame));
    if (n->c && r->code == ERR_OK) {
        struct value outer = r->body;
        r->body = text;
        text = eval(r, n->c);
        r->body = outer;
    }
    return text;
}

static void run_with(struct render *r, const struct node *n)
{
    struct frame *outer = r->frame, *frame = frame_open(r, outer);
    for (const struct node *set = n->a; set && frame && r->code == ERR_OK; set = set->next) {
        struct value v = eval(r, set->b);
        r->frame = frame;
        assign(r, set->a, v);
        r->frame = outer;
    }
    r->frame = frame ? frame : outer;
}

static void define_macro(struct render *r, const struct node *n, struct value *out)
{
    struct macro *m = render_alloc(r, sizeof *m);
    if (!m)
        return;
    *m = (struct macro){n, r->frame};
    frame_keep(r->frame);
    *out = (struct value){.kind = V_MACRO, .macro = m};
}

static void run_call_body(struct render *r, const struct node *n)
{
    struct value caller = {0}, callee = eval(r, n->b->a);
    struct arguments args = eval_arguments(r, n->b->b);
    uint32_t room = args.n_named;
    define_macro(r, n->a, &caller);
    if (r->code == ERR_OK)
        add_named(r, &args, &room, SPAN("caller"), caller);
    r->pos = n->b->pos;
    struct value v = call_value(r, callee, &args);
    if (r->code == ERR_OK)
        text_add_value(r, r->out, v);
}

static enum flow run_scoped(struct render *r, const struct node *n)
{
    struct frame *outer = r->frame;
    if (n->kind == NODE_WITH)
        run_with(r, n);
    else
        r->frame = frame_open(r, outer);
    enum flow flow = r->frame ? run_body(r, n->b) : FLOW_NEXT;
    r->frame = outer;
    return flow;
}

static enum flow run_statement(struct render *r, const struct node *n)
{
    struct value v;
    switch ((enum node_kind)n->kind) {
    case NODE_TEXT: text_add_span(r, r->out, n->text); break;
    case NODE_OUTPUT:
        v = eval(r, n->a);
        if (r->code == ERR_OK)
            text_add_value(r, r->out, v);
        break;
    case NODE_IF: v = eval(r, n->a); return value_is_true(r, v) ? run_body(r, n->b) : run_body(r, n->c);
    case NODE_FOR: return run_loop(r, n, r->frame, eval(r, n->b), 0);
    case NODE_SET:
        v = eval(r, n->b);
        if (r->code == ERR_OK)
            assign(r, n->a, v);
        break;
    case NODE_SET_BODY:
        v = capture_filtered(r, n);
        if (r->code == ERR_OK)
            assign(r, n->a, v);
        break;
    case NODE_FILTER_BODY:
        v = capture_filtered(r, n);
        if (r->code == ERR_OK)
            text_add_value(r, r->out, v);
        break;
    case NODE_WITH:
    case NODE_SCOPE: return run_scoped(r, n);
    case NODE_MACRO:
        v = value_none();
        define_macro(r, n, &v);
        frame_set(r, r->frame, n->symbol, v);
        break;
    case NODE_CALL_BODY: run_call_body(r, n); break;
    case NODE_BREAK: return FLOW_BREAK;
    default: return FLOW_CONTINUE;
    }
    return FLOW_NEXT;
}

static enum flow run_body(struct render *r, const struct node *first)
{
    enum flow flow = FLOW_NEXT;
    if (++r->depth > TMPL_MAX_DEPTH)
        fail_limit(r, "nested too deeply: is there a macro that calls itself without an end?");
    for (const struct node *n = first; n && flow == FLOW_NEXT; n = n->next) {
        r->pos = n->pos;
        if (!charge(r, 0))
            break;
        flow = run_statement(r, n);
    }
    r->depth--;
    return flow;
}

void render_body(struct render *r)
{
    run_body(r, r->t->body);
}
