#include "grammar/program.h"

#include <string.h>

int text_ref_compare(const void *a, const void *b)
{
    const struct text_ref *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c != 0 ? c : x->n < y->n ? -1 : x->n > y->n;
}

int schema_prop_compare(const void *a, const void *b)
{
    const struct schema_prop *x = a, *y = b;
    return x->name < y->name ? -1 : x->name > y->name;
}

uint32_t tree_child(const struct string_tree *t, uint32_t node, uint8_t byte)
{
    const struct tree_node *p = &t->nodes[node];
    uint32_t lo = p->first, hi = p->first + p->n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (t->nodes[mid].byte < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < p->first + p->n && t->nodes[lo].byte == byte ? lo : TREE_NONE;
}

/* Level by level: a node's strings lie between lo and hi and have `depth` bytes in common. */
bool tree_build(struct string_tree *t, const struct text_ref *strings, uint32_t n)
{
    LIST(struct tree_node) nodes = {0};
    LIST(uint32_t) depths = {0};
    bool ok = LIST_PUSH(&nodes, (struct tree_node){.lo = 0, .hi = n, .string = -1}) && LIST_PUSH(&depths, 0);
    for (uint32_t at = 0; ok && at < nodes.n; at++) {
        uint32_t i = nodes.at[at].lo, hi = nodes.at[at].hi, depth = depths.at[at];
        if (i < hi && strings[i].n == depth)
            nodes.at[at].string = (int32_t)i++;
        nodes.at[at].first = nodes.n;
        while (ok && i < hi) {
            uint32_t from = i;
            char byte = strings[i].s[depth];
            while (i < hi && strings[i].s[depth] == byte)
                i++;
            ok = LIST_PUSH(&nodes, (struct tree_node){.lo = from, .hi = i, .string = -1, .byte = (uint8_t)byte}) &&
                 LIST_PUSH(&depths, depth + 1);
        }
        nodes.at[at].n = nodes.n - nodes.at[at].first;
    }
    LIST_CLOSE(&depths);
    if (!ok)
        LIST_CLOSE(&nodes);
    *t = (struct string_tree){nodes.at, nodes.n, n};
    return ok;
}

err_code program_open(struct program *p, struct err *e)
{
    *p = (struct program){0};
    struct schema any = {.types = KINDS_ALL}, never = {0};
    if (!LIST_PUSH(&p->schemas, any) || !LIST_PUSH(&p->schemas, never))
        return err_nomem(e, sizeof any, "a grammar");
    return ERR_OK;
}

void program_close(struct program *p)
{
    nfa_close(&p->nfa);
    for (uint32_t i = 0; i < p->sets.n; i++)
        mem_free(p->sets.at[i].nodes);
    LIST_CLOSE(&p->sets);
    LIST_CLOSE(&p->counts);
    LIST_CLOSE(&p->bounds);
    LIST_CLOSE(&p->multiples);
    LIST_CLOSE(&p->names);
    intern_close(&p->name_numbers);
    LIST_CLOSE(&p->schemas);
    LIST_CLOSE(&p->terms);
    LIST_CLOSE(&p->groups);
    LIST_CLOSE(&p->props);
    LIST_CLOSE(&p->patterns);
    LIST_CLOSE(&p->ids);
    LIST_CLOSE(&p->unenforced);
    arena_close(&p->arena);
}
