/* One text: what was asked for, its tokens so far, and what is needed to go on with it. Its session may be taken away
 * and given back: the tokens that are not in it are computed again, and nothing else changes. */
#ifndef TEXTS_ONE_TEXT_H
#define TEXTS_ONE_TEXT_H

#include <stdatomic.h>

#include "texts/answer.h"
#include "texts/constraint.h"
#include "texts/draft.h"
#include "texts/prefix.h"
#include "texts/scores.h"
#include "texts/texts.h"

struct text {
    uint64_t id;                        /* from 1, in the order in which texts came */
    struct text *next;                  /* of those that wait */
    struct text *next_live, *prev_live; /* of all */
    atomic_bool is_cancelled;

    struct text_request
        request;  /* ids, prompt, tools, trigger and what `sampling` points to are gone; stops are owned */
    int32_t *ids; /* [n_ids], the prompt and behind it the answer; owned */
    size_t n_ids, n_prompt, capacity;
    int64_t n_ctx;            /* tokens that may be computed */
    moebius_session *session; /* with a beginning of ids; NULL: the text waits. Owned */
    moebius_sampler *sampler; /* which knows all of ids that count */
    struct answer answer;
    struct constraint constraint;
    struct prefix_entry entry; /* ids, for others that begin alike */
    moebius_logprob *top;      /* [request.n_logprob], owned */
    struct scores scores;      /* of the prompt, as far as one token more than its session has, or further */
    bool is_scored;            /* the sink knows them */

    bool was_running; /* it had a session before */
    bool is_passed;   /* it waits for another's prompt (texts.c) */
    size_t branch;    /* a text waits for the first so many tokens; 0: none */
    bool is_loading;  /* it gets its beginning from disk, and waits for it */
    bool is_saved;    /* its prompt is on disk */
    size_t near_end;  /* tokens of the prompt that the next turn will begin with, too; 0: wherever they part */
    size_t parting;   /* tokens that it has in common with another: where more texts may want to begin */
    size_t chunk;     /* tokens in the pass in hand, but for guesses */
    struct draft_odds odds;
    struct text_guess {
        int32_t ids[1 + DRAFT_MOST]; /* the token that the session lacks, and n guesses what follows it */
        size_t n, match;
        size_t n_planned; /* guesses that were hoped for, of which MTP may have made fewer */
        size_t n_right;   /* guesses that the text has gone on with */
        size_t n_ids;     /* of the text before the pass */
        bool is_over;     /* it has gone on otherwise, has ended, or failed */
        const struct text_setup *setup;
        err_code code;
        struct err error;
    } guess; /* in the pass in hand; n 0: none */
    bool has_ended;
    enum text_end end;
    struct err error;
    size_t n_cached, n_reasoning, n_guess, n_guess_right;
    size_t n_told;                         /* tokens of the prompt that the sink was told are there */
    uint64_t n_substituted_before;         /* of the engine, when it began */
    int64_t submit_ns, begin_ns, first_ns; /* when it came, had its session, and had its first token; 0: not yet */
};

/* What all texts of an engine share. */
struct text_setup {
    moebius_engine *engine;
    size_t max_piece; /* answer_longest_piece */
    int64_t n_ctx;    /* of a text at most */
};

/* After a failure nothing is open. Thread-safe, beside the engine and other texts. */
MUST_USE err_code text_open(struct text **out, const struct text_setup *setup, const struct text_request *request,
                            struct err *e);
void text_close(struct text **text); /* its entry must be closed */

/* The context that its session needs. */
int64_t text_context(const struct text *t);
/* Tokens that the session lacks. */
size_t text_n_missing(const struct text *t);
/* The session has all tokens: chooses the next one, tells the sink, and sees whether the answer has ended. Where the
 * session has lost the logits there are tokens missing afterwards. */
MUST_USE err_code text_next(struct text *t, const struct text_setup *setup, struct err *e);

/* The function for the logits after each token of the prompt, with the text as `user`, from that on which the next
 * missing score needs. text_settle_scores takes back, after the pass, what failed before it had given its scores. */
bool text_see_scores(void *user, size_t i, const float *logits);
void text_settle_scores(struct text *t);

/* Guesses are part of the pass (t->guess). text_see_logits is the function for the logits after each token, with the
 * text as `user`, and chooses the text's next tokens as long as guesses are right. text_settle takes the wrong ones
 * back after the pass, whatever became of it. What went wrong is in t->guess. */
bool text_see_logits(void *user, size_t i, const float *logits);
void text_settle(struct text *t);

/* Tells the sink how much of the prompt is there. */
void text_tell_prompt(struct text *t);
/* Tells the sink that the text has ended. */
void text_tell_end(struct text *t, const struct text_setup *setup);

#endif
