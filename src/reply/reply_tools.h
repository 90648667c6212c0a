/* The tools that a model was told of, as far as reading and writing their calls needs them. */
#ifndef REPLY_REPLY_TOOLS_H
#define REPLY_REPLY_TOOLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* How a parameter's text is to be read where a family writes no JSON. */
enum reply_kind {
    REPLY_KIND_STRING,      /* as it is */
    REPLY_KIND_STRING_NULL, /* null, or else as it is */
    REPLY_KIND_ANY,         /* as JSON, and as it is where it is none */
};

struct reply_tool {
    const char *name;         /* borrowed from the JSON */
    const json_t *parameters; /* its schema, an object, borrowed; NULL: none was given */
};

struct reply_tools {
    struct reply_tool *tools; /* [n], owned */
    size_t n;
    json_t *json; /* what all of them borrow from, owned */
};

/* Takes a JSON array of tools in the form of OpenAI's interfaces: {"type": "function", "function": {"name",
 * "parameters"}}, or the inner object alone. Tools of other types are left out. To be closed after a failure, too. */
MUST_USE err_code reply_tools_open(struct reply_tools *t, const char *json, struct err *e);
void reply_tools_close(struct reply_tools *t); /* accepts zeros */

const struct reply_tool *reply_tools_find(const struct reply_tools *t, const char *name);
/* The kind of a parameter by its schema, through references within the tool's schema. */
enum reply_kind reply_tool_kind(const struct reply_tool *tool, const char *parameter);

#endif
