/* Guessing how a text goes on: as it did where its last tokens stood before, which is right for long stretches where it
 * quotes or rewrites something; or as the model's layer for multi-token prediction (MTP) has it. Guesses are computed
 * in the pass that computes the token before them (moebius_batch_item is_draft), and those are kept that would have
 * been chosen without them. As the logits of a token are the same in any pass, no answer changes.
 *
 * A pass with more tokens takes longer, above all where each brings further experts. How many guesses pay is decided by
 * what passes of so many tokens took, and by how often guesses of the kind were right in the text: a match of few
 * tokens says less than one of many. Those of MTP take time themselves. */
#ifndef TEXTS_DRAFT_H
#define TEXTS_DRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DRAFT_MOST = 15,      /* guesses of a text in a pass at most */
    DRAFT_MOST_ROWS = 64, /* tokens of a pass with guesses at most */
    DRAFT_N_KIND = 5,     /* kinds of guesses: matches by their length, and MTP's */
};

/* Stands for the tokens of a match where MTP has guessed. */
#define DRAFT_MTP SIZE_MAX

/* What passes without prompts took, of all texts of an engine, by their tokens, and what MTP's guesses took. The first
 * of a kind counts only once there is another one: it may have taken memory. */
struct draft_costs {
    int64_t ns[DRAFT_MOST_ROWS + 1];
    uint8_t n_seen[DRAFT_MOST_ROWS + 1]; /* up to 2: what it takes is known */
    int64_t mtp_ns;                      /* of a guess for each text, */
    uint8_t n_mtp_seen;
};

/* How often a text's guesses were right. */
struct draft_odds {
    double n_tried[DRAFT_N_KIND], n_right[DRAFT_N_KIND]; /* older ones count less */
};

/* Notes what a pass took. */
void draft_note_pass(struct draft_costs *c, size_t n_rows, int64_t took_ns);
/* What a pass of so many tokens takes, 0 where nothing is known; between and beyond those that ran by a line. */
double draft_pass_ns(const struct draft_costs *c, size_t n_rows);

/* The longest end of ids[n] that stands somewhere before, the last place of several. Returns its length in tokens, 0
 * where it is less than 3 (`always`: 1), and in *next where the tokens begin that followed it there. */
size_t draft_match(const int32_t *ids, size_t n, bool always, size_t *next);

/* Notes what MTP took for n guesses of each text. */
void draft_note_mtp(struct draft_costs *c, size_t n, int64_t took_ns);

/* How many guesses of each of n_text texts MTP is to make, most[i] at most, so that a pass yields most tokens a second;
 * else as draft_choose. */
size_t draft_choose_mtp(const struct draft_costs *c, const struct draft_odds *const *odds, const size_t *most,
                        size_t n_text, size_t n_rows, double n_tok, bool always);
/* How likely a guess must be, with those before it, to be worth a token more in a pass. */
double draft_least(const struct draft_costs *c, size_t n_rows, double n_tok);

/* The share of guesses after a match that are right. */
double draft_share(const struct draft_odds *o, size_t match);

/* How many guesses of a text after a match, `most` at most, make a pass yield most tokens a second: 0 where that is not
 * a tenth more than without, unless `always`. The pass has n_rows tokens, and texts will go on by n_tok. */
size_t draft_choose(const struct draft_costs *c, const struct draft_odds *o, size_t match, size_t most, size_t n_rows,
                    double n_tok, bool always);

/* How many of n guesses after a match of so many tokens will be right, on average. */
double draft_expected(const struct draft_odds *o, size_t match, size_t n);
/* Of n guesses the first n_right were. */
void draft_note(struct draft_odds *o, size_t match, size_t n, size_t n_right);
/* In a pass of n_rows tokens a match was not used: what was seen of its kind, and what larger passes took, is forgotten
 * by and by, so that it is tried again. c: NULL where another text's was not used either in this pass. */
void draft_pass_over(struct draft_costs *c, struct draft_odds *o, size_t match, size_t n_rows);
/* What follows a match: n guesses, which go on as ids[n_ids] does from `next` on, over its end where that is reached.
 */
void draft_fill(int32_t *guesses, size_t n, const int32_t *ids, size_t n_ids, size_t next);

#endif
