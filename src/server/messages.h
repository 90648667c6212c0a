/* A conversation in the form that templates take: {"role", "content", "reasoning_content", "tool_calls",
 * "tool_call_id", "name"}, with every content a text and with calls' arguments as an object where they are one.
 *
 * What templates can't take is put into words:
 * - System (and developer) messages at the beginning become one system message. Later ones, on which many templates
 *   raise, are quoted in the user's message beside them: so the prompt's beginning stays what it was.
 * - Images, audio and files are refused where the model is asked about them. In results of tools, and before an answer
 *   of the assistant, they can't be refused without ending the conversation: a note in brackets stands for them. */
#ifndef SERVER_MESSAGES_H
#define SERVER_MESSAGES_H

#include "base/bytes.h"
#include "server/request_fields.h"

/* A member of a message that grows piece by piece, in time that is linear in its length. */
struct growing_text {
    const char *field;
    json_t *message;   /* that it belongs to; borrowed, NULL: none */
    struct bytes text; /* once there is a second piece */
};

/* Adds to the member, behind a separator unless it is empty, and puts what belongs to another message into that. Takes
 * over `text`. */
MUST_USE err_code growing_add(struct growing_text *g, json_t *message, const char *separator, json_t *text,
                              struct err *e);
MUST_USE err_code growing_end(struct growing_text *g, struct err *e); /* puts the text into its message */

struct message_list {
    struct server_request *r; /* its `messages` is what is made */
    struct growing_text content, reasoning;
    json_t *names;   /* a call's id -> its tool's name; owned */
    size_t n_old;    /* so many of the client's messages lie before the assistant's last one */
    bool joins_user; /* the last message is the user's, made for a system message: the next joins it */
};

MUST_USE err_code messages_open(struct message_list *list, struct server_request *r, struct err *e);
/* To be called in any case; `code`: of what came before, which it returns unless it fails itself. */
MUST_USE err_code messages_close(struct message_list *list, err_code code, struct err *e);

/* The text of a content: a text, an array of parts, or null. Owned by the caller. */
MUST_USE err_code messages_text(struct server_request *r, const char *path, json_t *content, bool is_old, json_t **out,
                                struct err *e);

/* Adds the text of one part to `all`, on a line of its own. */
MUST_USE err_code messages_add_part(struct server_request *r, const char *path, json_t *part, bool is_old,
                                    struct bytes *all, struct err *e);

/* Each takes over `text`. */
MUST_USE err_code messages_add_system(struct message_list *list, json_t *text, struct err *e);
MUST_USE err_code messages_add_user(struct message_list *list, json_t *text, struct err *e);
/* The result of a call. `id` and `name` may be NULL. */
MUST_USE err_code messages_add_result(struct message_list *list, const char *id, const char *name, json_t *text,
                                      struct err *e);

/* A message of the assistant's, borrowed, without content: a new one, or the last message if it is one and `joins`.
 * NULL: there is no memory. */
json_t *messages_assistant(struct message_list *list, bool joins);
/* Adds to its content or its reasoning, on a line of its own. Both take over `text`. */
MUST_USE err_code messages_say(struct message_list *list, json_t *assistant, json_t *text, struct err *e);
MUST_USE err_code messages_reason(struct message_list *list, json_t *assistant, json_t *text, struct err *e);
/* Adds a call to it; `arguments` (borrowed) are a text of JSON or an object. `id` may be NULL. */
MUST_USE err_code messages_call(struct message_list *list, json_t *assistant, const char *path, const char *id,
                                const char *name, json_t *arguments, struct err *e);

request_setter messages_set_chat; /* the messages of Chat and Ollama */

#endif
