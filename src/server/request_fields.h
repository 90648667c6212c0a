/* The fields of a request's JSON: those that all protocols share (how tokens are chosen, how long the answer may be,
 * what form it must have, how the model reasons), under all the names that clients have for them, and how a protocol
 * says which others it has.
 *
 * A field that is null is as good as none. One that nobody knows is ignored with a note. What can't be honoured is
 * ERR_USAGE with a sentence that begins with the field's path: "options.top_k: -2; expected ...". */
#ifndef SERVER_REQUEST_FIELDS_H
#define SERVER_REQUEST_FIELDS_H

#include <math.h>

#include "server/request.h"

enum { FIELD_PATH_BYTES = 160, REQUEST_MAX_CHOICES = 64 };

/* Where a value is in the body: "messages[2].content". */
struct field_path {
    char s[FIELD_PATH_BYTES];
};
/* The path of a member, of an array's element, or of both: [i] only where i >= 0, the name only unless it is NULL. */
struct field_path field_path(const char *parent, long i, const char *name);
/* Of prompt i: "messages", "prompt", or where there are several "prompt[2]". */
struct field_path request_prompt_path(const struct server_request *r, size_t i);

enum field_kind {
    /* a value for the member of struct server_request at `offset`, numbers from min to max */
    FIELD_FLOAT,
    FIELD_INT32,
    FIELD_INT64,
    FIELD_BOOL,
    FIELD_NEUTRAL, /* only values from min to max, which change nothing (true is 1), can be honoured */
    FIELD_REFUSED, /* can't be honoured, unless false, 0 or empty; `hint` says what can */
    FIELD_UNUSED,  /* ignored without a note: it changes no answer */
    FIELD_SET      /* `set` says */
};

struct request_field {
    const char *name;
    enum field_kind kind;
    size_t offset;
    double min, max;
    err_code (*set)(struct server_request *r, const char *path, json_t *value, struct err *e);
    const char *hint;
};

#define FIELD_NUMBER(name, kind, member, min, max)                                                                     \
    {                                                                                                                  \
        name, kind, offsetof(struct server_request, member), min, max, 0, 0                                            \
    }
/* A number of tokens, from min on. */
#define FIELD_LENGTH(name, member, min) FIELD_NUMBER(name, FIELD_INT64, member, min, INFINITY)
#define FIELD_FLAG(name, member)                                                                                       \
    {                                                                                                                  \
        name, FIELD_BOOL, offsetof(struct server_request, member), 0, 1, 0, 0                                          \
    }
#define FIELD_SETTER(name, set)                                                                                        \
    {                                                                                                                  \
        name, FIELD_SET, 0, 0, 0, set, 0                                                                               \
    }
#define FIELD_IGNORED(name)                                                                                            \
    {                                                                                                                  \
        name, FIELD_UNUSED, 0, 0, 0, 0, 0                                                                              \
    }
#define FIELD_NONE(name, hint)                                                                                         \
    {                                                                                                                  \
        name, FIELD_REFUSED, 0, 0, 0, 0, hint                                                                          \
    }

/* Takes over the body; ERR_USAGE unless it is an object. */
MUST_USE err_code request_take_body(struct server_request *r, json_t *body, struct err *e);

/* Reads all fields of an object, first by the protocol's own table, then by that of all protocols. `path`: of the
 * object, "" for the body. */
MUST_USE err_code request_read_fields(struct server_request *r, const char *path, json_t *object,
                                      const struct request_field *own, size_t n_own, struct err *e);
#define REQUEST_READ_FIELDS(r, path, object, own, e)                                                                   \
    request_read_fields(r, path, object, own, sizeof(own) / sizeof *(own), e)
/* The same of an object that is a field's value: by its own table alone. */
MUST_USE err_code request_read_members(struct server_request *r, const char *path, json_t *object,
                                       const struct request_field *own, size_t n_own, struct err *e);
#define REQUEST_READ_MEMBERS(r, path, object, own, e)                                                                  \
    request_read_members(r, path, object, own, sizeof(own) / sizeof *(own), e)

/* Checks what fields say together, once all are read. */
MUST_USE err_code request_check(struct server_request *r, struct err *e);

/* ERR_USAGE: what there is in place of what was expected. */
err_code request_expected(struct err *e, const char *path, const json_t *value, const char *expected);

/* A member that is a string without zero bytes, borrowed; NULL: it is missing or null. */
MUST_USE err_code request_string(const json_t *object, const char *path, const char *name, const char **out,
                                 struct err *e);

/* A member that is true or false; where it is missing or null, what *out says already. */
MUST_USE err_code request_flag(const json_t *object, const char *path, const char *name, bool *out, struct err *e);

/* Whether a text, which may be NULL, is this word. */
bool request_is(const char *text, const char *word);

/* Keeps a value until the request is closed; takes it over. NULL: there is no memory. */
json_t *request_keep(struct server_request *r, json_t *value);

/* ---- setters that several protocols use under other names ------------------------------------------------------ */

typedef err_code request_setter(struct server_request *r, const char *path, json_t *value, struct err *e);

request_setter request_set_model;
request_setter request_set_prompts;         /* a text, token ids, or a list of these */
request_setter request_set_suffix;          /* what follows the answer; empty: nothing */
request_setter request_set_stops;           /* a string, or an array of them */
request_setter request_set_response_format; /* {"type": "json_schema", ...} of Chat and Responses */
request_setter request_set_schema;          /* a JSON schema itself */
request_setter request_set_effort;          /* "low" ... */
request_setter request_set_reasoning;       /* {"effort", "max_tokens", "enabled", "exclude"} */
request_setter request_set_thinking;        /* {"type": "enabled", "budget_tokens"} */
request_setter request_set_thinks;          /* whether the model reasons: true or false */

/* Whether there is a prompt, and how many answers that makes, once all fields are read. */
MUST_USE err_code request_check_prompts(struct server_request *r, struct err *e);

/* What fields about reasoning say together; request_check calls it. */
MUST_USE err_code request_check_reasoning(struct server_request *r, struct err *e);

#endif
