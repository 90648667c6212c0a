/* What the protocols' writers have in common: the state of a stream, events on the wire, and JSON that several of them
 * use. */
#ifndef SERVER_WRITER_H
#define SERVER_WRITER_H

#include "server/protocol.h"
#include "server/tools.h"

/* A call of a custom tool, whose arguments must be whole before they can be told. */
struct open_call {
    bool is_open;
    char *id, *name; /* owned; the name is the model's */
    struct bytes arguments;
};

/* What is known of one of the answers. */
struct told_choice {
    struct open_call call; /* the last one */
    json_t *tokens, *ids;  /* arrays of log-probabilities and of ids that wait for their text; owned */
    int64_t text_off;      /* Completions: where the next token begins in the text, bytes */
};

/* A part of an answer that streams open and close. */
enum block { BLOCK_NONE, BLOCK_REASONING, BLOCK_CONTENT, BLOCK_CALL };

struct answer_writer {
    const struct server_request *r;
    struct answer_head head;
    int64_t n_ended;             /* choices */
    struct answer_usage usage;   /* of them together */
    struct told_choice *choices; /* [r->n_choices], owned */

    /* protocols whose answers are made of blocks, with one choice */
    enum block block;  /* that is open */
    int64_t n_block;   /* blocks begun so far */
    struct bytes text; /* of the open block */
    json_t *output;    /* Responses: the blocks that are done; owned */
    int64_t n_sent;    /* Responses: events sent so far */
};

MUST_USE err_code writer_open(struct answer_writer **out, const struct server_request *r,
                              const struct answer_head *head, struct err *e);
void writer_close(struct answer_writer *w); /* accepts NULL */

/* An event of a stream of server-sent events, with a name unless it is NULL. Takes over `data`; NULL: there was no
 * memory. */
MUST_USE err_code writer_send(struct bytes *out, const char *name, json_t *data, struct err *e);
void writer_ping_comment(struct answer_writer *w, struct bytes *out); /* ": ping", which clients skip */

/* Keeps a token for the next text of its choice. */
MUST_USE err_code writer_add_token(struct answer_writer *w, const struct answer_event *event, struct err *e);

/* The value, or NULL where something that belongs into it could not be added. */
json_t *json_unless(int bad, json_t *value);

/* Keeps a call's name and id (ANSWER_CALL) and arguments. */
MUST_USE err_code open_call_begin(struct open_call *call, const struct answer_event *event, struct err *e);
MUST_USE err_code open_call_add(struct open_call *call, const struct answer_event *event, struct err *e);
void open_call_close(struct open_call *call); /* leaves it empty */

/* Adds what one choice took to what all took. */
void answer_usage_add(struct answer_usage *all, const struct answer_usage *one);
struct answer_usage answer_usage_all(const struct gathered_choice *choices, int64_t n);

/* A protocol's usage, with what cache-aware routing did where it did something. Takes over and returns `usage`. */
json_t *usage_with_substitutes(json_t *usage, const struct answer_usage *u);

/* OpenAI's forms. */
json_t *openai_usage(const struct answer_usage *u);
json_t *openai_timings(const struct answer_usage *u); /* the names are those of llama.cpp's server */
json_t *openai_logprob(const struct answer_logprob *token, int n_top);
/* An array of those of n_tok tokens, each with its likeliest. */
json_t *openai_logprobs(const struct answer_logprob *tokens, size_t n_tok, int n_top);
json_t *openai_error(int status, const struct err *error);
const char *openai_finish(enum answer_finish finish);
/* Sends a choice's last chunk, which it takes over, and ends the stream if it is the last choice's. */
MUST_USE err_code openai_end(struct answer_writer *w, const struct answer_usage *usage, json_t *chunk,
                             struct bytes *out, struct err *e);

/* [226, 130, 172]: what is no text by itself. NULL: there is no memory. */
json_t *writer_byte_list(const char *bytes, size_t n);

/* "RFC 3339" of seconds since 1970. */
void format_time(int64_t seconds, char out[32]);

#endif
