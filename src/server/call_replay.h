/* Answers that called tools, so that a history that a client sends back is the very tokens that were sampled.
 *
 * A client returns an answer as a message: its calls as JSON, which the template writes anew, with other spaces, other
 * escapes, and often without the reasoning. The model would see another text than its own, and the prompt's beginning
 * would have to be computed again. A call's id, which is random, leads back to the answer: where the message still says
 * the same and stands behind the same prompt, the sampled tokens take the place of those that the template made.
 *
 * The last answers are kept, and in a file where there is one, so that they outlive the server.
 *
 * Thread-safety: all functions may be called by any thread. */
#ifndef SERVER_CALL_REPLAY_H
#define SERVER_CALL_REPLAY_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"

struct replay;

/* What is kept of an answer; all of it is copied. */
struct replay_answer {
    const int32_t *ids; /* [n_prompt + n_answer], the prompt and the answer; the last one ends the turn */
    size_t n_prompt, n_answer;
    const json_t *message; /* as the client got it, in the form of OpenAI's chat: content, tool_calls with their ids */
};

/* path: the file, which is made where there is none, and of which what is damaged is left out; NULL: none. The model's
 * fingerprint: a file may hold answers of several. */
MUST_USE err_code replay_open(struct replay **out, const char *path, uint64_t fingerprint, struct err *e);
void replay_close(struct replay **replay);

/* Keeps an answer. One that can't be written to the file is in memory alone. */
MUST_USE err_code replay_add(struct replay *replay, const struct replay_answer *answer, struct err *e);

/* Puts sampled tokens where the prompt's tokens are those of answers that are kept. `messages`: what the prompt was
 * made of. *ids [*n], allocated by mem_alloc, may be replaced. */
MUST_USE err_code replay_apply(struct replay *replay, const json_t *messages, int32_t **ids, size_t *n, struct err *e);

#endif
