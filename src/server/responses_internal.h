/* OpenAI's responses in three files: the request, the items of answers, and their telling (protocol_responses.c). */
#ifndef SERVER_RESPONSES_INTERNAL_H
#define SERVER_RESPONSES_INTERNAL_H

#include "server/writer.h"

extern const char responses_sealed[]; /* before the text in encrypted_content */

MUST_USE err_code responses_parse(struct server_request *r, json_t *body, struct err *e);
bool responses_include(const struct server_request *r, const char *what); /* the client asked for more of this kind */
bool responses_want_summary(const struct server_request *r);              /* reasoning is told as a summary */

/* What an item of an answer is made of. */
struct item {
    enum block kind;
    int64_t index;         /* in the output */
    const char *id, *name; /* of a call, the name as the model has it */
    const char *text;      /* [n]: reasoning, content or arguments */
    size_t n;
    json_t *tokens; /* log-probabilities of content; NULL: none */
    bool is_done;   /* it has ended, */
    bool is_cut;    /* with the answer, and is not whole */
};

json_t *responses_item_id(const struct answer_head *head, const char *prefix, int64_t index);
json_t *responses_part(const char *type, const struct item *item); /* of reasoning or content */
/* A call's arguments, or a custom tool's input, of which there is none where the call was cut. */
json_t *responses_call_input(const struct item *item, bool is_custom);
/* One that is done is kept for clients that refer to it, unless the request says that nothing is to be stored. */
json_t *responses_item(const struct server_request *r, const struct answer_head *head, const struct item *item);

/* The response. Takes over output; `reason` says why it is incomplete, NULL: it isn't. usage and error may be NULL. */
json_t *responses_make(const struct server_request *r, const struct answer_head *head, const char *status,
                       json_t *output, const char *reason, const struct answer_usage *usage, const struct err *error);

#endif
