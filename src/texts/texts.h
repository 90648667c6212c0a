/* Many texts on one engine, which join and leave from one pass over the model to the next. A pass takes one token of
 * each text that is being answered, and beside these so many tokens of prompts that no answer waits much longer for its
 * next token than it would without them.
 *
 * A text whose prompt begins as another text, running or kept (texts/kept.h), goes on from a fork of it. When memory
 * for state is full, kept texts go first; then the text that came last gives its own back and waits until others have
 * ended. None of this changes a token.
 *
 * Thread-safety: texts_submit, texts_cancel, texts_poke, texts_stop and texts_stats may be called by any thread; all
 * else, and the engine, by the one that drives (texts_step or texts_run), which also calls the sinks. */
#ifndef TEXTS_TEXTS_H
#define TEXTS_TEXTS_H

#include "base/err.h"
#include "base/log.h"
#include "moebius/moebius.h"

struct texts;

struct texts_options {
    size_t n_texts;    /* most texts that run at once */
    size_t n_queue;    /* most texts that wait in addition; more are refused */
    int64_t n_ctx;     /* longest context of a text; 0: what the model was trained for */
    int64_t n_batch;   /* most tokens of prompts in a pass; 0: 512, or as it pays */
    int64_t n_draft;   /* most guesses of a text's next tokens in a pass (texts/draft.h), not with `car`; 0: none */
    bool always_draft; /* guess even where it does not pay, and after single tokens; for tests */
    /* How long a pass with prompts may take where answers wait for it; 0: twice as long as one without
     * (texts/pace.h); less than 0: there is no bound. */
    int64_t max_stall_ns;
    bool (*is_interrupted)(
        void *user); /* is asked during passes; true ends texts_step with ERR_CANCELLED. May be NULL */
    void *user;
    /* Is called after each step, by the thread that drives: the engine may be looked at. is_idle: no other step follows
     * at once. May be NULL. */
    void (*stepped)(void *user, bool is_idle);
    void *stepped_user;
    moebius_session_options session; /* for each text's session; n_ctx and n_batch are ignored */
    const char *cache_dir;           /* where prefixes are kept on disk (texts/prefix_files.h); NULL: nowhere */
    int64_t cache_bytes;             /* most bytes of these files */
    const struct log *log;           /* for messages about files that can't be used; borrowed, may be NULL */
};

/* Why a text has ended. */
enum text_end {
    TEXT_END_TOKEN,     /* a token that ends the text or the turn */
    TEXT_END_STOP,      /* a stop string */
    TEXT_END_LENGTH,    /* max_tokens, or its context is full */
    TEXT_END_CANCELLED, /* texts_cancel, or texts_stop */
    TEXT_END_FAILED     /* see the error */
};

/* A token that was added to a text. */
struct text_token {
    int32_t id;
    double logprob;             /* as moebius_logprobs; only where wanted */
    const moebius_logprob *top; /* [n_top]; borrowed during the call */
    int n_top;
};

/* How a text has ended. */
struct text_result {
    enum text_end end;
    const char *stop;                       /* the stop string that came; NULL: none. Borrowed from the request */
    const struct err *error;                /* why it failed; borrowed during the call */
    const int32_t *ids;                     /* [n_prompt + n_answer], all its tokens; borrowed during the call */
    size_t n_prompt;                        /* tokens of the prompt */
    size_t n_answer;                        /* tokens behind it */
    size_t n_reasoning;                     /* those of them that are reasoning */
    size_t n_cached;                        /* tokens of the prompt that were not computed for this text */
    size_t n_guess, n_guess_right;          /* tokens of the answer that were guessed, and those that were right */
    uint64_t n_substituted;                 /* choices of experts that cache-aware routing replaced while it ran */
    int64_t queue_ns, prompt_ns, answer_ns; /* waiting, until the first token, and from then on */
};

/* Receives a text piece by piece. The functions are called by the thread that drives, in order; `end` is called last,
 * and once. They must not call functions of texts, except texts_cancel. Each but `end` may be NULL. */
struct text_sink {
    /* The prompt's tokens that are there, of which n_cached were not computed. Comes at the start, and with each pass.
     */
    void (*prompt)(void *user, size_t n_done, size_t n_cached, size_t n_prompt);
    /* The log-probabilities of the prompt's tokens, [n_prompt][1 + n_logprob] (texts/scores.h), once and before the
     * first token; only where wanted. The first token's is NaN, and the likeliest in its place have id -1. */
    void (*scored)(void *user, const moebius_logprob *scores, size_t n_prompt);
    void (*token)(void *user, const struct text_token *token);
    moebius_reply_fn *part; /* the text as it comes; that of a text without a template as content */
    void (*end)(void *user, const struct text_result *result);
    void *user;
};

/* Where an answer begins to follow its grammar. */
enum text_grammar_from {
    TEXT_GRAMMAR_FROM_START,   /* at its first token */
    TEXT_GRAMMAR_FROM_CONTENT, /* at its content; the reasoning before it is free */
    TEXT_GRAMMAR_FROM_TRIGGER  /* at each trigger, with which the grammar's text begins, until that text ends */
};

/* What the pointers point to is copied, except the template, the grammar and the sink, which are borrowed until the
 * text has ended. */
struct text_request {
    const int32_t *ids; /* [n_ids], the prompt */
    size_t n_ids;
    int64_t max_tokens;       /* most tokens of the answer; -1: until it or the context ends */
    bool ignore_eos;          /* goes on after a token that ends the answer */
    const char *const *stops; /* [n_stops], the answer ends before these; they don't count in reasoning */
    size_t n_stops;
    moebius_sampler_options sampling; /* its penalties count the prompt's tokens, too */
    int n_logprob;                    /* log-probabilities of each token, and of the likeliest n; -1: none */
    bool scores_prompt;               /* those of the prompt's tokens, too, unless n_logprob is -1 */
    const moebius_template *tmpl;     /* NULL: the text goes on, and what follows is not used */
    const char *prompt;               /* the prompt's end (answer_prompt_end), which may begin the reasoning */
    const char *tools;                /* JSON, as the template got them; NULL: none, and calls are content */
    int64_t reasoning_budget;         /* most tokens of reasoning, which is ended then; -1: no bound */
    moebius_grammar *grammar;         /* what the answer must be, with the engine's vocabulary; NULL: anything */
    enum text_grammar_from grammar_from;
    const char *trigger; /* of TEXT_GRAMMAR_FROM_TRIGGER */
    uint64_t group;      /* texts of several groups that wait take turns */
    bool follows;        /* another one came first of what somebody asks at once: it is taken, however many wait */
    struct text_sink sink;
};

MUST_USE err_code texts_open(struct texts **out, moebius_engine *engine, const struct texts_options *options,
                             struct err *e);
/* Cancels all texts, tells their sinks, and frees what is kept in memory. */
void texts_close(struct texts **texts);
int64_t texts_n_ctx(const struct texts *texts); /* the longest prompt */

/* ERR_LIMIT: the queue is full, or the prompt is longer than a text may be; ERR_USAGE: a value is out of its range;
 * then the sink is never called. *id: the text's number, from 1. */
MUST_USE err_code texts_submit(struct texts *texts, const struct text_request *request, uint64_t *id, struct err *e);
/* Ends a text before the next pass, and interrupts a prompt that is computed alone. Ignored if the text has ended. */
void texts_cancel(struct texts *texts, uint64_t id);

/* Makes one pass over the model for all texts. *is_idle: there were none, and nothing is left to be written to disk.
 * Failures of single texts go to their sinks. An error that is returned concerns all texts; it leaves them as they
 * were, so that the next call can continue. */
MUST_USE err_code texts_step(struct texts *texts, bool *is_idle, struct err *e);
/* Steps until texts_stop, and waits while there is nothing to do. If a step fails, all running texts fail. */
void texts_run(struct texts *texts);
/* Makes texts_run step soon, even if there is nothing to do. */
void texts_poke(struct texts *texts);
/* Ends all texts as cancelled, interrupts the current pass, and makes texts_run return. No more texts are accepted. */
void texts_stop(struct texts *texts);

/* Counts since the start, except those that say "now". */
struct texts_stats {
    size_t n_running, n_waiting;           /* texts now */
    uint64_t n_ended[TEXT_END_FAILED + 1]; /* by enum text_end */
    uint64_t n_refused;                    /* texts for which the queue had no room */
    uint64_t n_prompt, n_cached, n_answer; /* tokens: of prompts computed, of prompts not computed, of answers */
    uint64_t n_pass;                       /* passes over the model */
    uint64_t n_suspended;                  /* how often a text had to wait for memory */
    size_t n_most;                         /* the most texts at once */
    int64_t prefill_ns, decode_ns;         /* time of passes with and without tokens of prompts */
    uint64_t n_decode_pass, n_decoded; /* passes without tokens of prompts, and the tokens that texts gained in them */
    uint64_t n_guess, n_guess_right;   /* guesses of texts' next tokens, and those that were right */
    size_t n_kept;                     /* texts kept in memory now */
    uint64_t kept_bytes;               /* bytes of their state; shared pages count once where that is known */
    uint64_t disk_bytes, n_disk_read, n_disk_written; /* bytes of the disk cache now; parts of texts read and written */
};
struct texts_stats texts_stats(struct texts *texts);

#endif
