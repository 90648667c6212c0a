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
    struct text *next;                  /* in the list of texts that wait */
    struct text *next_live, *prev_live; /* in the list of all texts */
    atomic_bool is_cancelled;

    struct text_request
        request;  /* ids, prompt, tools, trigger and what `sampling` points to are gone; stops are owned */
    int32_t *ids; /* [n_ids], the prompt and behind it the answer; owned */
    size_t n_ids, n_prompt, capacity;
    int64_t n_ctx;            /* most tokens that may be computed */
    moebius_session *session; /* with a beginning of ids; NULL: the text waits. Owned */
    moebius_sampler *sampler; /* has accepted all ids that count for penalties */
    struct answer answer;
    struct constraint constraint;
    struct prefix_entry entry; /* lists ids for other texts that begin alike */
    moebius_logprob *top;      /* [request.n_logprob], owned */
    struct scores scores;      /* of the prompt, as far as one token more than its session has, or further */
    bool is_scored;            /* the sink knows them */

    bool was_running; /* it had a session before */
    bool is_passed;   /* it waits for another text's prompt (texts.c) */
    size_t branch;    /* another text waits for this number of first tokens; 0: none does */
    bool is_loading;  /* it waits while its beginning is read from disk */
    bool is_saved;    /* its prompt is on disk */
    size_t near_end;  /* tokens of the prompt with which the next turn will begin, too; 0: not known */
    size_t parting;   /* tokens in common with another text: more texts may begin alike up to there */
    size_t chunk;     /* tokens in the current pass, without guesses */
    struct draft_odds odds;
    struct text_guess {
        int32_t ids[1 + DRAFT_MOST]; /* the token that the session lacks, and n guesses of the next ones */
        size_t n, match;
        size_t n_planned; /* guesses that were planned; MTP may have made fewer */
        size_t n_right;   /* guesses that were right */
        size_t n_ids;     /* tokens of the text before the pass */
        bool is_over;     /* a guess was wrong, or the text has ended or failed */
        const struct text_setup *setup;
        err_code code;
        struct err error;
    } guess; /* guesses in the current pass; n 0: none */
    bool has_ended;
    enum text_end end;
    struct err error;
    size_t n_cached, n_reasoning, n_guess, n_guess_right;
    size_t n_told;                         /* tokens of the prompt that were reported to the sink */
    uint64_t n_substituted_before;         /* the engine's count when the text began */
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

/* The context length that its session needs. */
int64_t text_context(const struct text *t);
/* The number of tokens that the session lacks. */
size_t text_n_missing(const struct text *t);
/* Chooses the next token, reports it to the sink, and checks whether the answer has ended. The session must have all
 * tokens. If it has lost the logits, no token is chosen, and the session lacks tokens afterwards. */
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

/* Reports to the sink how much of the prompt has been computed. */
void text_tell_prompt(struct text *t);
/* Reports to the sink that the text has ended. */
void text_tell_end(struct text *t, const struct text_setup *setup);

#endif
