/* Speculative decoding: guesses how a text continues. Prompt lookup continues it as it did where its last tokens
 * occurred before, which is right for long stretches of text that quotes or rewrites something. Multi-token prediction
 * (MTP) asks the model's own layer for that. Guesses are computed in the same pass as the token before them
 * (moebius_batch_item is_draft), and those are accepted that would have been sampled anyway. Because a token's logits
 * are the same in any pass, answers do not change.
 *
 * A pass with more tokens takes longer, especially if each needs further experts. How many guesses are worth it is
 * decided by how long passes of that size took, and how often guesses of the same kind were right in this text: a match
 * of few tokens says less than one of many. MTP's guesses also take time to make. */
#ifndef TEXTS_DRAFT_H
#define TEXTS_DRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DRAFT_MOST = 15,      /* the most guesses for a text in a pass */
    DRAFT_MOST_ROWS = 64, /* the most tokens of a pass with guesses */
    DRAFT_N_KIND = 5,     /* kinds of guesses: matches by their length, and MTP */
};

/* In place of the length of a match: the guesses are MTP's. */
#define DRAFT_MTP SIZE_MAX

/* How long passes without prompt tokens took, by their number of tokens, and how long MTP's guesses took; of all texts
 * of an engine. The first time of a kind counts only when there is a second one, since it may include allocating
 * memory. */
struct draft_costs {
    int64_t ns[DRAFT_MOST_ROWS + 1];
    uint8_t n_seen[DRAFT_MOST_ROWS + 1]; /* how often that was measured; 2, the most, means that ns is known */
    int64_t mtp_ns;                      /* for one guess for each text */
    uint8_t n_mtp_seen;                  /* as n_seen */
};

/* How often a text's guesses were right. */
struct draft_odds {
    double n_tried[DRAFT_N_KIND], n_right[DRAFT_N_KIND]; /* older ones count less */
};

/* Notes how long a pass took. */
void draft_note_pass(struct draft_costs *c, size_t n_rows, int64_t took_ns);
/* Estimates the time of a pass with so many tokens, by linear interpolation; 0: nothing is known. */
double draft_pass_ns(const struct draft_costs *c, size_t n_rows);

/* Finds the longest suffix of ids[n] that also occurs earlier; of several occurrences the last one. Returns its length,
 * 0 if it has fewer than 3 tokens (`always`: 1). *next: the index of the token that followed it there. */
size_t draft_match(const int32_t *ids, size_t n, bool always, size_t *next);

/* Notes how long MTP took for n guesses for each text. */
void draft_note_mtp(struct draft_costs *c, size_t n, int64_t took_ns);

/* As draft_choose, for guesses of MTP: how many to make for each of n_text texts, at most most[i]. */
size_t draft_choose_mtp(const struct draft_costs *c, const struct draft_odds *const *odds, const size_t *most,
                        size_t n_text, size_t n_rows, double n_tok, bool always);
/* How likely a guess must be right, together with those before it, to be worth one more token in the pass. */
double draft_least(const struct draft_costs *c, size_t n_rows, double n_tok);

/* The share of guesses after a match of this length that are right. */
double draft_share(const struct draft_odds *o, size_t match);

/* How many guesses after a match, at most `most`, make a pass yield the most tokens a second; 0 if that is not at least
 * a tenth more than without guesses, unless `always`. Without them the pass computes n_rows tokens, and texts advance
 * by n_tok. */
size_t draft_choose(const struct draft_costs *c, const struct draft_odds *o, size_t match, size_t most, size_t n_rows,
                    double n_tok, bool always);

/* The expected number of right guesses among n after a match of this length. */
double draft_expected(const struct draft_odds *o, size_t match, size_t n);
/* Notes that of n guesses the first n_right were right. */
void draft_note(struct draft_odds *o, size_t match, size_t n, size_t n_right);
/* Notes that a match was not used in a pass of n_rows tokens. What is known of its kind, and of larger passes, is
 * gradually forgotten, so that it is tried again some time. c: NULL if this was called for another text of the same
 * pass. */
void draft_pass_over(struct draft_costs *c, struct draft_odds *o, size_t match, size_t n_rows);
/* Fills n guesses with the tokens from ids[next] on. Beyond the end of ids[n_ids] they continue with the guesses
 * themselves. */
void draft_fill(int32_t *guesses, size_t n, const int32_t *ids, size_t n_ids, size_t next);

#endif
