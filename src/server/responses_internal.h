/* What the three files of OpenAI's responses API share: responses_request.c parses requests, responses_items.c builds
 * items and responses, and protocol_responses.c sends them. */
#ifndef SERVER_RESPONSES_INTERNAL_H
#define SERVER_RESPONSES_INTERNAL_H

#include "server/writer.h"

extern const char responses_sealed[]; /* the prefix of our encrypted_content; the reasoning's text follows it */

MUST_USE err_code responses_parse(struct server_request *r, json_t *body, struct err *e);
bool responses_include(const struct server_request *r, const char *what); /* whether `include` lists it */
bool responses_want_summary(const struct server_request *r);              /* whether to send reasoning as a summary */

/* An item of an answer. */
struct item {
    enum block kind;
    int64_t index;         /* in the output */
    const char *id, *name; /* of a call; the name is the model's */
    const char *text;      /* [n]: reasoning, content or arguments */
    size_t n;
    json_t *tokens; /* log-probabilities of content; NULL: none */
    bool is_done;   /* the item has ended */
    bool is_cut;    /* the end of the answer cut it */
};

json_t *responses_item_id(const struct answer_head *head, const char *prefix, int64_t index);
json_t *responses_part(const char *type, const struct item *item); /* a part of reasoning or content */
/* A call's arguments, or a custom tool's input, which is empty if the call was cut. */
json_t *responses_call_input(const struct item *item, bool is_custom);
/* The JSON of an item. An item that is done is also kept (kept_items.h), unless the request says "store": false. */
json_t *responses_item(const struct server_request *r, const struct answer_head *head, const struct item *item);

/* The response object. Takes over `output`. reason: why the response is incomplete; NULL: it is complete. usage and
 * error may be NULL. */
json_t *responses_make(const struct server_request *r, const struct answer_head *head, const char *status,
                       json_t *output, const char *reason, const struct answer_usage *usage, const struct err *error);

#endif
