/* Texts go on from what is on disk, and leave their own there, a part at a time, between passes. Where answers wait, a
 * part has the place of the prompts of a pass, so that nobody waits for both: passes have one and the other in turns.
 */
#include "texts/texts_internal.h"

enum { WORTH_LOADING = 512 }; /* tokens more than a text in memory has */

/* ---- loading ------------------------------------------------------------------------------------------------- */

bool texts_disk_has_more(const struct texts *x, const struct text *t, const moebius_session *like, size_t n)
{
    size_t least = n ? n + WORTH_LOADING : PREFIX_BLOCK;
    return x->files && !scores_are_missing(&t->scores) &&
           prefix_files_find(x->files, like, t->ids, t->n_ids - 1) >= least;
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

/* The next part of each text that is loading, or of the first of them; false: there is none. */
static bool load(struct texts *x, bool all)
{
    bool any = false;
    for (size_t i = 0; i < x->n_running && (all || !any); i++) {
        struct text *t = x->running[i];
        any |= t->is_loading;
        if (t->is_loading && !prefix_files_load(x->files, t->session, t->ids, t->n_ids - 1))
            end_loading(x, t);
    }
    return any;
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

/* Writes a part of a text that is not on disk; false: there is none. */
static bool save(struct texts *x)
{
    for (size_t i = 0; i < x->n_running; i++)
        if (save_prompt(x, x->running[i]))
            return true;
    for (size_t i = x->kept.n; i-- > 0;)
        if (save_kept(x, x->kept.texts[i]))
            return true;
    return false;
}

/* ---- both ---------------------------------------------------------------------------------------------------- */

bool texts_use_disk(struct texts *x)
{
    const bool is_alone = texts_n_answers(x) == 0 || x->options.max_stall_ns < 0;
    const bool is_turn = x->files && (is_alone || !x->is_disk_turn || !texts_has_prompts(x));
    x->is_disk_turn = is_turn && (load(x, is_alone) || save(x));
    return x->is_disk_turn;
}
