/* The tools that a model may call, as far as reading and writing their calls needs them. */
#ifndef REPLY_REPLY_TOOLS_H
#define REPLY_REPLY_TOOLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* How the text of a parameter is read in families that do not write arguments as JSON. */
enum reply_kind {
    REPLY_KIND_STRING,      /* the text is the string */
    REPLY_KIND_STRING_NULL, /* "null" is null; any other text is the string */
    REPLY_KIND_ANY,         /* the text is JSON; where it is not valid, it is a string */
};

struct reply_tool {
    const char *name;         /* borrowed from the JSON */
    const json_t *parameters; /* its schema, an object, borrowed; NULL: none was given */
};

struct reply_tools {
    struct reply_tool *tools; /* [n], owned */
    size_t n;
    json_t *json; /* the document that all of them borrow from, owned */
};

/* Reads a JSON array of tools in the form of OpenAI's interfaces: {"type": "function", "function": {"name",
 * "parameters"}}, or the inner object alone. Tools of other types are skipped. The caller must call reply_tools_close
 * even after a failure. */
MUST_USE err_code reply_tools_open(struct reply_tools *t, const char *json, struct err *e);
void reply_tools_close(struct reply_tools *t); /* accepts zeros */

const struct reply_tool *reply_tools_find(const struct reply_tools *t, const char *name);
/* The kind of a parameter by its schema; references within the tool's schema are followed. */
enum reply_kind reply_tool_kind(const struct reply_tool *tool, const char *parameter);

#endif
