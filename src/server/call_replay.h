/* Keeps answers that called tools, so that a history that a client sends back becomes the very tokens that were
 * sampled.
 *
 * A client returns an answer as a message, with its calls as JSON. The template writes these calls anew, with other
 * spaces and escapes, and often without the reasoning. So the model would see another text than the one that it wrote,
 * and the beginning of the prompt would have to be computed again. Each call's id is random and leads back to its
 * answer: if the message still says the same and follows the same prompt, the sampled tokens replace those that the
 * template made.
 *
 * The most recent answers are kept in memory and, if there is a file, in that, so that they outlive the server.
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
    const json_t
        *message; /* as the client got it, in the form of OpenAI's chat API: content, and tool_calls with ids */
};

/* path: the file, which is created if it is missing; damaged lines in it are skipped. NULL: no file. fingerprint: of
 * the model, since a file may hold answers of several. */
MUST_USE err_code replay_open(struct replay **out, const char *path, uint64_t fingerprint, struct err *e);
void replay_close(struct replay **replay);

/* Keeps an answer. If it can't be written to the file, which is an error, it is kept in memory all the same. */
MUST_USE err_code replay_add(struct replay *replay, const struct replay_answer *answer, struct err *e);

/* Replaces the tokens of turns in a prompt by the tokens that were sampled, where the turns are answers that are kept.
 * messages: what the prompt was rendered from. *ids [*n] was allocated by mem_alloc, and may be replaced. */
MUST_USE err_code replay_apply(struct replay *replay, const json_t *messages, int32_t **ids, size_t *n, struct err *e);

#endif
