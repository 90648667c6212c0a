/* Texts go on from what is on disk, and leave their own there, a part at a time: between passes, so that nobody waits
 * long. */
#include "texts/texts_internal.h"

enum { WORTH_LOADING = 512 }; /* tokens more than a text in memory has */

/* ---- loading ------------------------------------------------------------------------------------------------- */

bool texts_disk_has_more(const struct texts *x, const struct text *t, const moebius_session *like, size_t n)
{
    size_t least = n ? n + WORTH_LOADING : PREFIX_BLOCK;
    return x->files && prefix_files_find(x->files, like, t->ids, t->n_ids - 1) >= least;
}

/* The text has what there is on disk, and computes the rest. */
static void end_loading(struct texts *x, struct text *t)
{
    size_t pos = (size_t)moebius_session_pos(t->session);
    t->is_loading = false;
    if (t->n_ids > t->n_prompt)
        return; /* it had to wait for memory in the middle of its answer */
    t->n_cached = pos < t->n_prompt ? pos : t->n_prompt;
    x->stats.n_cached += t->n_cached;
    text_tell_prompt(t);
}

void texts_load(struct texts *x)
{
    for (size_t i = 0; i < x->n_running; i++) {
        struct text *t = x->running[i];
        if (t->is_loading && !prefix_files_load(x->files, t->session, t->ids, t->n_ids - 1))
            end_loading(x, t);
    }
}

/* ---- saving -------------------------------------------------------------------------------------------------- */

/* Writes the next part of a text's prompt, first of what the next turn will have in common with it; false: there is
 * nothing to write. */
static bool save_prompt(struct texts *x, struct text *t)
{
    if (t->is_saved || (size_t)moebius_session_pos(t->session) < t->n_prompt)
        return false;
    if ((t->near_end && prefix_files_save(x->files, t->session, t->near_end)) ||
        prefix_files_save(x->files, t->session, t->n_prompt))
        return true;
    t->is_saved = true;
    return false;
}

static bool save_kept(struct texts *x, struct kept_text *k)
{
    if (k->is_saved || prefix_files_save(x->files, k->session, k->entry.n))
        return !k->is_saved;
    k->is_saved = true;
    return false;
}

bool texts_save(struct texts *x)
{
    for (size_t i = 0; x->files && i < x->n_running; i++)
        if (save_prompt(x, x->running[i]))
            return true;
    for (size_t i = x->files ? x->kept.n : 0; i-- > 0;)
        if (save_kept(x, x->kept.texts[i]))
            return true;
    return false;
}
