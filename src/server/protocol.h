/* A protocol: how a client's body becomes a request, and how what happens to the answer is told, in a stream and whole.
 * Nothing here knows HTTP, sockets or models, so that each protocol is tested as text.
 *
 * Errors: struct err's code says which kind; server_http_status maps it to a status. A sentence about a field begins
 * with the field's path ("options.top_k: ..."), which OpenAI's form also has as "param". */
#ifndef SERVER_PROTOCOL_H
#define SERVER_PROTOCOL_H

#include "base/bytes.h"
#include "server/request.h"

/* What happens to one of the answers to a request, in order. */
enum answer_event_kind {
    ANSWER_BEGIN,  /* the prompt was accepted; comes once, before all others. usage: n_prompt, and n_cached if known */
    ANSWER_PROMPT, /* text: the prompt, before all else of its choice; only where the request wants it echoed. With
                      log-probabilities also token */
    ANSWER_PROGRESS,  /* more of the prompt is done. usage.prompt_s: since it began */
    ANSWER_REASONING, /* text */
    ANSWER_CONTENT,   /* text */
    ANSWER_CALL,      /* a tool call begins: text is its name, id its id */
    ANSWER_ARGUMENTS, /* text: more of the JSON of the call's arguments */
    ANSWER_CALL_END,  /* the call is whole; one without it was cut by the answer's end */
    ANSWER_TOKEN,     /* a token, before its text; only where the request wants log-probabilities or ids */
    ANSWER_END,       /* finish and usage; each choice has its own, of which one counts the prompt */
    ANSWER_FAILED,    /* error, of the whole request; nothing follows */
};

enum answer_finish { FINISH_STOP, FINISH_STOP_STRING, FINISH_LENGTH, FINISH_TOOL_CALLS };

struct answer_usage {
    int64_t n_prompt, n_cached, n_answer, n_reasoning; /* tokens */
    int64_t n_substituted;          /* choices of experts that cache-aware routing replaced; 0 without it */
    int64_t n_guess, n_guess_right; /* tokens of the answer that were guessed (--draft), and those that were right */
    double prompt_s, answer_s, queue_s; /* seconds */
};

struct answer_logprob {
    const char *piece; /* the token's bytes [n_piece]; borrowed from the vocabulary */
    size_t n_piece;
    int32_t id;
    double logprob; /* NaN: it has none */
};

struct answer_event {
    enum answer_event_kind kind;
    int64_t choice;   /* which answer, from 0 */
    const char *text; /* [n], UTF-8, whole characters; borrowed during the call, as all that follows */
    size_t n;
    const char *id;                     /* ANSWER_CALL */
    int64_t call;                       /* ANSWER_CALL, _ARGUMENTS, _CALL_END: which of the answer's calls, from 0 */
    int64_t n_done, n_all, n_cached;    /* ANSWER_PROGRESS: tokens of the prompt */
    const struct answer_logprob *token; /* ANSWER_TOKEN: the token, and behind it [n_top] the likeliest */
    int n_top;
    size_t n_tok;              /* ANSWER_PROMPT: `token` is [n_tok][1 + n_top], of likeliest that have id -1 are none */
    enum answer_finish finish; /* ANSWER_END */
    const char *stop;          /* the string, of FINISH_STOP_STRING */
    struct answer_usage usage;
    const struct err *error; /* ANSWER_FAILED */
};

/* What is said once of all answers to a request. */
struct answer_head {
    char id[48];       /* without the protocol's prefix ("chatcmpl-") */
    const char *model; /* what the answer calls the model; borrowed until the answer is told */
    int64_t created;   /* seconds since 1970 */
};

/* One whole answer, as its events have told it. */
struct gathered_call {
    char *id, *name;        /* owned */
    struct bytes arguments; /* JSON text, or what the model wrote in its place */
    size_t n_content;       /* bytes of content before it */
    size_t n_tokens;        /* members of `logprobs` before it */
    bool is_whole;          /* else the answer's end cut it, and the arguments are no JSON */
};
struct gathered_choice {
    struct bytes prompt;                  /* ANSWER_PROMPT */
    struct answer_logprob *prompt_tokens; /* [n_prompt_tok][1 + n_prompt_top], owned; NULL: none */
    size_t n_prompt_tok;
    int n_prompt_top;
    struct bytes reasoning, content;
    struct gathered_call *calls; /* [n_calls], owned */
    size_t n_calls;
    json_t *logprobs; /* an array of OpenAI's {"token", "bytes", "logprob", "top_logprobs"}; NULL: none. Owned */
    json_t *ids;      /* an array of the tokens' ids; NULL: none. Owned */
    enum answer_finish finish;
    char *stop; /* owned */
    struct answer_usage usage;
};
/* Takes in an event of this choice; of ANSWER_FAILED it forwards the error. */
MUST_USE err_code gathered_choice_add(struct gathered_choice *g, const struct answer_event *event, struct err *e);
void gathered_choice_close(struct gathered_choice *g); /* accepts one that is zero */

/* Tells a stream; each protocol has its own. */
struct answer_writer;

struct protocol {
    const char *name;
    const char *content_type; /* of a stream: text/event-stream, application/x-ndjson */
    /* Clients look for an overflowing context in the stream alone, as ANSWER_FAILED: a stream is to be opened before
     * the prompt's length is checked. */
    bool overflows_in_stream;
    /* Takes over `body`. ERR_USAGE with a sentence that names the field. */
    err_code (*parse)(struct server_request *r, json_t *body, struct err *e);
    /* The body of an error with this HTTP status; owned by the caller. NULL: there is no memory. */
    json_t *(*error)(int status, const struct err *error);
    /* Streams: bytes for the wire are added to `out`. The request and what the head points to are borrowed until the
     * writer is closed. */
    err_code (*open)(struct answer_writer **writer, const struct server_request *r, const struct answer_head *head,
                     struct err *e);
    err_code (*event)(struct answer_writer *writer, const struct answer_event *event, struct bytes *out, struct err *e);
    void (*ping)(struct answer_writer *writer, struct bytes *out);
    void (*close)(struct answer_writer *writer);
    /* The whole answer, of [r->n_choices] choices; owned by the caller. NULL: there is no memory. */
    json_t *(*whole)(const struct server_request *r, const struct answer_head *head,
                     const struct gathered_choice *choices);
};

extern const struct protocol protocol_chat, protocol_completions, protocol_responses; /* OpenAI */
extern const struct protocol protocol_messages;                                       /* Anthropic; count_tokens, too */
extern const struct protocol protocol_ollama_chat, protocol_ollama_generate;
extern const struct protocol protocol_llama, protocol_infill; /* llama.cpp's */

/* ERR_LIMIT in the words by which clients recognise a prompt that doesn't fit; a full queue has other words. */
err_code server_set_overflow(struct err *e, int64_t n_prompt, int64_t n_ctx);
bool server_is_overflow(const struct err *error);
/* A conversation that this server is said to have; Anthropic's clients then send all of it. */
err_code server_set_lost_thread(struct err *e);
bool server_is_lost_thread(const struct err *error);

/* 400 for what is wrong with the request, an overflow among it; 503 for a full queue, cancelled work and memory that is
 * short; 500 for the rest. */
int server_http_status(const struct err *error);

#endif
