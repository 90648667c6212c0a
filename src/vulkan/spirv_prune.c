/* Pruning of SPIR-V ("SPIR-V Specification", Khronos, 2.2 to 2.4 and 2.11: layout, instructions, structured control
 * flow). Values that follow from the constants are computed; branches on them are decided; blocks that cannot be
 * reached are left out. A construct whose branch is decided loses its merge instruction, except for loops, and for
 * switches, as nested blocks may break to a switch's merge block. */
#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "vulkan/spirv_prune.h"

enum opcode {
    SPV_NAME = 5,
    SPV_MEMBER_NAME = 6,
    SPV_LINE = 8,
    SPV_CONSTANT_TRUE = 41,
    SPV_CONSTANT_FALSE = 42,
    SPV_CONSTANT = 43,
    SPV_SPEC_TRUE = 48,
    SPV_SPEC_FALSE = 49,
    SPV_SPEC_CONSTANT = 50,
    SPV_SPEC_OP = 52,
    SPV_FUNCTION = 54,
    SPV_DECORATE = 71,
    SPV_IADD = 128,
    SPV_ISUB = 130,
    SPV_IMUL = 132,
    SPV_UDIV = 134,
    SPV_UMOD = 137,
    SPV_LOGICAL_EQUAL = 164,
    SPV_LOGICAL_NOT_EQUAL = 165,
    SPV_LOGICAL_OR = 166,
    SPV_LOGICAL_AND = 167,
    SPV_LOGICAL_NOT = 168,
    SPV_SELECT = 169,
    SPV_IEQUAL = 170,
    SPV_INOT_EQUAL = 171,
    SPV_UGREATER = 172,
    SPV_UGREATER_EQUAL = 174,
    SPV_ULESS = 176,
    SPV_ULESS_EQUAL = 178,
    SPV_PHI = 245,
    SPV_LOOP_MERGE = 246,
    SPV_SELECTION_MERGE = 247,
    SPV_LABEL = 248,
    SPV_BRANCH = 249,
    SPV_BRANCH_CONDITIONAL = 250,
    SPV_SWITCH = 251,
    SPV_UNREACHABLE = 255,
    SPV_NO_LINE = 317,
};

enum { HEADER_WORDS = 5, BOUND_WORD = 3, DECORATION_SPEC_ID = 1 };

struct id {
    uint32_t value;
    bool is_known;   /* its value, of 32 bits or a bool, is known */
    bool is_defined; /* it is defined outside of functions, or by a block that stays */
    int32_t block;   /* the block that begins with this label; -1: none */
};

struct block {
    size_t first; /* where its label is */
    size_t merge; /* its merge instruction; 0: none */
    size_t last;  /* its branch */
    bool is_live;
    bool is_named;  /* a construct that stays names it: if it isn't live, a label and a branch are left of it */
    uint32_t next;  /* the label that a decided branch goes to; 0: it is not decided */
    uint32_t again; /* the header of the loop that it continues, if that stays; 0: there is none */
};

struct module {
    const uint32_t *code;
    size_t n;
    const uint32_t *constant;
    int n_constant;
    struct id *ids;
    uint32_t bound; /* of ids */
    struct block *blocks;
    int32_t n_block;
    uint32_t *out;
    size_t n_out;
};

static enum opcode opcode_of(uint32_t word)
{
    return (enum opcode)(word & 0xffffu);
}

static size_t length_of(uint32_t word)
{
    return word >> 16;
}

static uint32_t first_word(enum opcode op, uint32_t length)
{
    return length << 16 | (uint32_t)op;
}

static bool ends_block(enum opcode op)
{
    return op >= SPV_BRANCH && op <= SPV_UNREACHABLE;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static void set_value(struct module *m, uint32_t id, uint32_t value)
{
    m->ids[id].value = value;
    m->ids[id].is_known = true;
}

/* The result of an operation on `in`, where all that it needs of these is known. */
static bool compute(const struct module *m, enum opcode op, const uint32_t *in, size_t n_in, uint32_t *y)
{
    bool known[3] = {false};
    uint32_t x[3] = {0};
    for (size_t i = 0; i < n_in && i < 3; i++) {
        known[i] = m->ids[in[i]].is_known;
        x[i] = m->ids[in[i]].value;
    }
    if (op == SPV_SELECT) {
        int chosen = x[0] ? 1 : 2;
        *y = x[chosen];
        return known[0] && known[chosen];
    }
    if ((op == SPV_LOGICAL_OR || op == SPV_LOGICAL_AND) && (!known[0] || !known[1])) { /* one of them may decide */
        int one = known[0] ? 0 : 1;
        *y = x[one] != 0;
        return known[one] && *y == (op == SPV_LOGICAL_OR);
    }
    if (!known[0] || (op != SPV_LOGICAL_NOT && !known[1]))
        return false;
    switch (op) {
    case SPV_IADD: *y = x[0] + x[1]; return true;
    case SPV_ISUB: *y = x[0] - x[1]; return true;
    case SPV_IMUL: *y = x[0] * x[1]; return true;
    case SPV_UDIV: *y = x[1] ? x[0] / x[1] : 0; return x[1] != 0;
    case SPV_UMOD: *y = x[1] ? x[0] % x[1] : 0; return x[1] != 0;
    case SPV_LOGICAL_EQUAL:
    case SPV_IEQUAL: *y = x[0] == x[1]; return true;
    case SPV_LOGICAL_NOT_EQUAL:
    case SPV_INOT_EQUAL: *y = x[0] != x[1]; return true;
    case SPV_LOGICAL_OR: *y = x[0] || x[1]; return true;
    case SPV_LOGICAL_AND: *y = x[0] && x[1]; return true;
    case SPV_LOGICAL_NOT: *y = !x[0]; return true;
    case SPV_UGREATER: *y = x[0] > x[1]; return true;
    case SPV_UGREATER_EQUAL: *y = x[0] >= x[1]; return true;
    case SPV_ULESS: *y = x[0] < x[1]; return true;
    case SPV_ULESS_EQUAL: *y = x[0] <= x[1]; return true;
    default: return false;
    }
}

/* Computes the result of an instruction, if it follows from what is known. Specialization constants that are given
 * are known before it, by their decorations. */
static void learn(struct module *m, const uint32_t *w)
{
    enum { RESULT = 2, VALUE = 3, PLAIN_WORDS = 4 };
    size_t n = length_of(*w);
    uint32_t y;
    switch (opcode_of(*w)) {
    case SPV_CONSTANT_FALSE: set_value(m, w[RESULT], 0); break;
    case SPV_CONSTANT_TRUE: set_value(m, w[RESULT], 1); break;
    case SPV_CONSTANT:
        if (n == PLAIN_WORDS)
            set_value(m, w[RESULT], w[VALUE]);
        break;
    case SPV_SPEC_FALSE:
    case SPV_SPEC_TRUE:
        if (!m->ids[w[RESULT]].is_known)
            set_value(m, w[RESULT], opcode_of(*w) == SPV_SPEC_TRUE);
        break;
    case SPV_SPEC_CONSTANT:
        if (!m->ids[w[RESULT]].is_known && n == PLAIN_WORDS)
            set_value(m, w[RESULT], w[VALUE]);
        m->ids[w[RESULT]].is_known &= n == PLAIN_WORDS; /* constants of 64 bits have no value here */
        break;
    case SPV_SPEC_OP:
        if (compute(m, (enum opcode)w[VALUE], w + VALUE + 1, n - VALUE - 1, &y))
            set_value(m, w[RESULT], y);
        break;
    default:
        if (opcode_of(*w) >= SPV_IADD && opcode_of(*w) <= SPV_ULESS_EQUAL &&
            compute(m, opcode_of(*w), w + VALUE, n - VALUE, &y))
            set_value(m, w[RESULT], y);
    }
}

/* Sets a specialization constant's value, if a decoration says which one it is. */
static void use_constant(struct module *m, const uint32_t *w)
{
    enum { TARGET = 1, DECORATION = 2, LITERAL = 3 };
    if (w[DECORATION] == DECORATION_SPEC_ID && w[LITERAL] < (uint32_t)m->n_constant)
        set_value(m, w[TARGET], m->constant[w[LITERAL]]);
}

/* ---- blocks ---------------------------------------------------------------------------------------------------- */

/* The id that an instruction outside of blocks defines, of those that decorations can name; 0: none. */
static uint32_t result_of(const uint32_t *w)
{
    enum { FIRST_TYPE = 19, LAST_TYPE = 39, FIRST_CONSTANT = 41, UNDEF = 1, PARAMETER = 55, VARIABLE = 59 };
    enum opcode op = opcode_of(*w);
    if ((int)op >= FIRST_TYPE && (int)op <= LAST_TYPE)
        return w[1];
    bool has_type = ((int)op >= FIRST_CONSTANT && op <= SPV_SPEC_OP) || op == SPV_FUNCTION || (int)op == UNDEF ||
                    (int)op == PARAMETER || (int)op == VARIABLE;
    return has_type ? w[2] : 0;
}

/* Notes where blocks are, and learns from what stands before the first function. */
static void find_blocks(struct module *m)
{
    struct block *b = NULL;
    bool in_function = false;
    for (size_t at = HEADER_WORDS; at < m->n; at += length_of(m->code[at])) {
        const uint32_t *w = m->code + at;
        enum opcode op = opcode_of(*w);
        in_function |= op == SPV_FUNCTION;
        if (op == SPV_LABEL) {
            b = &m->blocks[m->n_block];
            *b = (struct block){.first = at};
            m->ids[w[1]].block = m->n_block++;
        } else if (b && (op == SPV_LOOP_MERGE || op == SPV_SELECTION_MERGE)) {
            b->merge = at;
        } else if (b && ends_block(op)) {
            b->last = at;
            b = NULL;
        } else if (op == SPV_DECORATE) {
            use_constant(m, w);
        } else if (!in_function) {
            learn(m, w);
        }
        uint32_t id = b ? 0 : result_of(w);
        m->ids[id].is_defined = true;
    }
}

static struct block *block_of(struct module *m, uint32_t label)
{
    assert(m->ids[label].block >= 0);
    return &m->blocks[m->ids[label].block];
}

/* Where a branch goes; 0: more than one label may follow. */
static uint32_t decide(const struct module *m, const struct block *b)
{
    const uint32_t *w = m->code + b->last;
    if (opcode_of(*w) == SPV_BRANCH)
        return w[1];
    if ((opcode_of(*w) != SPV_BRANCH_CONDITIONAL && opcode_of(*w) != SPV_SWITCH) || !m->ids[w[1]].is_known)
        return 0;
    uint32_t value = m->ids[w[1]].value;
    if (opcode_of(*w) == SPV_BRANCH_CONDITIONAL)
        return value ? w[2] : w[3];
    for (size_t i = 3; i + 1 < length_of(*w); i += 2) /* literals of 32 bits */
        if (w[i] == value)
            return w[i + 1];
    return w[2];
}

/* The nth label that may follow a live block; 0: there are no more. */
static uint32_t successor(const struct module *m, const struct block *b, size_t nth)
{
    const uint32_t *w = m->code + b->last;
    size_t at = nth + 2;
    if (b->next)
        return nth == 0 ? b->next : 0;
    if (opcode_of(*w) == SPV_SWITCH)
        at = nth == 0 ? 2 : 2 * nth + 2;
    else if (opcode_of(*w) != SPV_BRANCH_CONDITIONAL || nth > 1)
        return 0;
    return at < length_of(*w) ? w[at] : 0;
}

static bool follows(const struct module *m, const struct block *from, uint32_t label)
{
    uint32_t next;
    for (size_t i = 0; (next = successor(m, from, i)) != 0; i++)
        if (next == label)
            return true;
    return false;
}

/* Learns from a live block and marks what follows it. */
static bool visit(struct module *m, struct block *b)
{
    bool is_new = false;
    uint32_t next;
    for (size_t at = b->first; at < b->last; at += length_of(m->code[at]))
        learn(m, m->code + at);
    b->next = decide(m, b);
    for (size_t i = 0; (next = successor(m, b, i)) != 0; i++) {
        is_new |= !block_of(m, next)->is_live;
        block_of(m, next)->is_live = true;
    }
    return is_new;
}

/* Marks all blocks that can be reached. The blocks that dominate a use, and so define its values, come first; so values
 * are known when a block is visited. */
static void find_live(struct module *m)
{
    bool is_new = true;
    for (size_t at = HEADER_WORDS; at < m->n; at += length_of(m->code[at])) /* a function begins with its first label */
        if (opcode_of(m->code[at]) == SPV_FUNCTION) {
            while (at < m->n && opcode_of(m->code[at]) != SPV_LABEL)
                at += length_of(m->code[at]);
            if (at >= m->n)
                return;
            block_of(m, m->code[at + 1])->is_live = true;
        }
    while (is_new) {
        is_new = false;
        for (int32_t i = 0; i < m->n_block; i++)
            is_new |= m->blocks[i].is_live && visit(m, &m->blocks[i]);
    }
}

/* Whether a live block keeps its merge instruction. */
static bool keeps_merge(const struct module *m, const struct block *b)
{
    if (!b->merge)
        return false;
    if (opcode_of(m->code[b->merge]) == SPV_LOOP_MERGE || !b->next)
        return true;
    return opcode_of(m->code[b->last]) == SPV_SWITCH && b->next != m->code[b->merge + 1];
}

/* Marks the blocks that cannot be reached, but are named. */
static void find_named(struct module *m)
{
    for (int32_t i = 0; i < m->n_block; i++) {
        const struct block *b = &m->blocks[i];
        if (!b->is_live || !keeps_merge(m, b))
            continue;
        const uint32_t *w = m->code + b->merge;
        block_of(m, w[1])->is_named = true;
        if (opcode_of(*w) == SPV_LOOP_MERGE) {
            block_of(m, w[2])->is_named = true;
            block_of(m, w[2])->again = m->code[b->first + 1];
        }
    }
}

/* ---- what is written ------------------------------------------------------------------------------------------- */

static void put(struct module *m, const uint32_t *words, size_t n)
{
    memcpy(m->out + m->n_out, words, n * sizeof *words);
    m->n_out += n;
}

/* The values of a phi that come from live blocks. What is left of a block that continued the loop gives it its own. */
static void put_phi(struct module *m, const uint32_t *w, uint32_t label)
{
    enum { FIXED = 3 };
    size_t from = m->n_out;
    put(m, w, FIXED);
    for (size_t i = FIXED; i + 1 < length_of(*w); i += 2) {
        const struct block *before = block_of(m, w[i + 1]);
        if (before->is_live && follows(m, before, label))
            put(m, w + i, 2);
        else if (!before->is_live && before->again == label)
            put(m, (const uint32_t[]){w[2], w[i + 1]}, 2);
    }
    m->out[from] = first_word(SPV_PHI, (uint32_t)(m->n_out - from));
}

/* The end of a live block; a switch that is decided keeps one label. */
static void put_branch(struct module *m, const struct block *b)
{
    const uint32_t *w = m->code + b->last;
    if (b->next && opcode_of(*w) == SPV_SWITCH && keeps_merge(m, b))
        put(m, (const uint32_t[]){first_word(SPV_SWITCH, 3), w[1], b->next}, 3);
    else if (b->next)
        put(m, (const uint32_t[]){first_word(SPV_BRANCH, 2), b->next}, 2);
    else
        put(m, w, length_of(*w));
}

static void put_block(struct module *m, const struct block *b)
{
    uint32_t label = m->code[b->first + 1];
    if (!b->is_live) {
        put(m, m->code + b->first, 2);
        if (b->again)
            put(m, (const uint32_t[]){first_word(SPV_BRANCH, 2), b->again}, 2);
        else
            put(m, (const uint32_t[]){first_word(SPV_UNREACHABLE, 1)}, 1);
        return;
    }
    for (size_t at = b->first; at < b->last; at += length_of(m->code[at])) {
        const uint32_t *w = m->code + at;
        if (opcode_of(*w) == SPV_PHI)
            put_phi(m, w, label);
        else if (opcode_of(*w) != SPV_LINE && opcode_of(*w) != SPV_NO_LINE && (at != b->merge || keeps_merge(m, b)))
            put(m, w, length_of(*w));
    }
    put_branch(m, b);
}

/* Ids that live blocks define. Those that these use are defined somewhere, so that a mark too many does no harm. */
static void find_defined(struct module *m)
{
    for (int32_t i = 0; i < m->n_block; i++) {
        const struct block *b = &m->blocks[i];
        for (size_t at = b->first; b->is_live && at < b->last; at += length_of(m->code[at]))
            if (length_of(m->code[at]) > 2 && at != b->merge)
                m->ids[m->code[at + 2]].is_defined = true;
    }
}

/* Names and lines are left out, as is what is said of ids that are gone. */
static bool is_kept(const struct module *m, const uint32_t *w)
{
    switch (opcode_of(*w)) {
    case SPV_NAME:
    case SPV_MEMBER_NAME:
    case SPV_LINE:
    case SPV_NO_LINE: return false;
    case SPV_DECORATE: return m->ids[w[1]].is_defined;
    default: return true;
    }
}

static void put_module(struct module *m)
{
    size_t at = HEADER_WORDS;
    put(m, m->code, HEADER_WORDS);
    while (at < m->n) {
        const uint32_t *w = m->code + at;
        if (opcode_of(*w) == SPV_LABEL) {
            const struct block *b = block_of(m, w[1]);
            if (b->is_live || b->is_named)
                put_block(m, b);
            at = b->last;
        } else if (is_kept(m, w)) {
            put(m, w, length_of(*w));
        }
        at += length_of(m->code[at]);
    }
}

static void prune(struct module *m)
{
    for (uint32_t i = 0; i < m->bound; i++)
        m->ids[i].block = -1;
    find_blocks(m);
    find_live(m);
    find_defined(m);
    find_named(m);
    put_module(m);
}

uint32_t *spirv_prune(const uint32_t *code, size_t n_words, const uint32_t *constant, int n_constant, size_t *n_out)
{
    struct module m = {
        .code = code, .n = n_words, .constant = constant, .n_constant = n_constant, .bound = code[BOUND_WORD]};
    m.ids = mem_calloc(m.bound, sizeof *m.ids);
    m.blocks = mem_calloc(m.bound, sizeof *m.blocks); /* each has a label */
    m.out = mem_calloc(n_words, sizeof *m.out);       /* nothing becomes longer */
    if (m.ids && m.blocks && m.out) {
        prune(&m);
    } else {
        mem_free(m.out);
        m.out = NULL;
    }
    mem_free(m.ids);
    mem_free(m.blocks);
    *n_out = m.n_out;
    return m.out;
}
