/* Builds a conversation in the form that templates take: messages {"role", "content", "reasoning_content",
 * "tool_calls", "tool_call_id", "name"} in which every content is a string, and a call's arguments are an object if
 * they are valid.
 *
 * What templates can't take is put into words:
 * - System (and developer) messages at the beginning become one system message. Many templates fail on later ones, so
 *   these are quoted in the user message next to them, and the beginning of the prompt stays the same.
 * - Images, audio and files are refused in new messages. In tool results, and before an answer of the assistant, they
 *   can't be refused without ending the conversation, so a note in brackets replaces them. */
#ifndef SERVER_MESSAGES_H
#define SERVER_MESSAGES_H

#include "base/bytes.h"
#include "server/request_fields.h"

/* A string member of a message that grows piece by piece, in time linear in its final length. */
struct growing_text {
    const char *field; /* the member's name */
    json_t *message;   /* whose member is growing; borrowed. NULL: none is */
    struct bytes text; /* the member so far; empty before there is a second piece */
};

/* Appends `text`, which is taken over, to the member of `message`, with the separator between them unless one is empty.
 * If another message's member was growing, that one is finished first. */
MUST_USE err_code growing_add(struct growing_text *g, json_t *message, const char *separator, json_t *text,
                              struct err *e);
MUST_USE err_code growing_end(struct growing_text *g, struct err *e); /* finishes the growing member */

struct message_list {
    struct server_request *r; /* the result is its `messages` */
    struct growing_text content, reasoning;
    json_t *names;   /* the tool's name for each call's id; owned */
    size_t n_old;    /* how many of the client's messages come before the assistant's last one */
    bool joins_user; /* the last message is a user's that quotes a system message: the next user message joins it */
};

MUST_USE err_code messages_open(struct message_list *list, struct server_request *r, struct err *e);
/* Must be called even after a failure. Returns `code`, the result of the calls before it, or its own error. */
MUST_USE err_code messages_close(struct message_list *list, err_code code, struct err *e);

/* Reads a content, which is a string, an array of parts, or null. is_old: parts that are no text are replaced by notes
 * instead of refused. *out is a string owned by the caller. */
MUST_USE err_code messages_text(struct server_request *r, const char *path, json_t *content, bool is_old, json_t **out,
                                struct err *e);

/* Appends the text of one part of a content to `all`, on a line of its own. */
MUST_USE err_code messages_add_part(struct server_request *r, const char *path, json_t *part, bool is_old,
                                    struct bytes *all, struct err *e);

/* These append a message. Each takes over `text`. */
MUST_USE err_code messages_add_system(struct message_list *list, json_t *text, struct err *e);
MUST_USE err_code messages_add_user(struct message_list *list, json_t *text, struct err *e);
/* The result of a tool call. id and name may be NULL. */
MUST_USE err_code messages_add_result(struct message_list *list, const char *id, const char *name, json_t *text,
                                      struct err *e);

/* Appends an empty message of the assistant, and returns it; with `joins` the last message, if it is the assistant's.
 * Borrowed. NULL: no memory. */
json_t *messages_assistant(struct message_list *list, bool joins);
/* These append to the message's content or reasoning, on a line of its own. Both take over `text`. */
MUST_USE err_code messages_say(struct message_list *list, json_t *assistant, json_t *text, struct err *e);
MUST_USE err_code messages_reason(struct message_list *list, json_t *assistant, json_t *text, struct err *e);
/* Adds a tool call to the message. arguments (borrowed): a string of JSON, or an object. id may be NULL. */
MUST_USE err_code messages_call(struct message_list *list, json_t *assistant, const char *path, const char *id,
                                const char *name, json_t *arguments, struct err *e);

request_setter messages_set_chat; /* the messages of OpenAI's chat API and of Ollama */

#endif
