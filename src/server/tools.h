/* The tools of a request: each protocol's form made into the one that templates take, and back.
 *
 * Templates and models know functions alone. A namespace's tools become functions whose names begin with the
 * namespace's; a custom tool, whose input is free text, becomes a function with one string, "input". What the client
 * calls them is kept in tool_kinds. Other kinds of tools (web_search, ...) run on the vendor's side: they are ignored
 * with a note.
 *
 * Anthropic's clients load tools when the model asks for them: tools with "defer_loading" are not in the prompt until
 * the result of a search refers to them. Their definition stands in that result, so that the prompt's beginning, where
 * the other tools are, stays as it was. */
#ifndef SERVER_TOOLS_H
#define SERVER_TOOLS_H

#include "base/bytes.h"
#include "server/request_fields.h"

request_setter tools_set_chat;            /* {"type": "function", "function": {...}} of Chat and Ollama */
request_setter tools_set_responses;       /* {"type": "function"|"custom"|"namespace", ...} */
request_setter tools_set_messages;        /* {"name", "input_schema"} of Anthropic */
request_setter tools_set_choice;          /* of Chat and Responses */
request_setter tools_set_messages_choice; /* of Anthropic */
request_setter tools_set_parallel;        /* whether several calls may come at once */

/* What defines the deferred tool to which a part of a message, {"type": "tool_reference", "tool_name"}, refers, with a
 * new reference, where it is the first one; the tool can be called from then on. NULL with ERR_OK: it refers to none.
 */
MUST_USE err_code tools_load(struct server_request *r, const json_t *part, json_t **text, struct err *e);

/* Checks the choice against the tools and leaves out those that it does not allow. */
MUST_USE err_code tools_finish(struct server_request *r, struct err *e);

/* What the model calls the tool that the client calls so. Borrowed from the request; `space` may be NULL. NULL: there
 * is no memory. */
const char *tools_model_name(struct server_request *r, const char *space, const char *name);

/* What the client calls the tool that the model calls so: a name, and a namespace or NULL. */
struct tool_name {
    const char *name, *space;
    bool is_custom;
};
struct tool_name tools_client_name(const struct server_request *r, const char *name);

/* A call's arguments as an object: text that holds none becomes {"arguments": TEXT}, empty text {}. NULL: there is no
 * memory. */
json_t *tools_arguments_object(const char *text, size_t n);

/* The free text that a custom tool was called with: of {"input": "..."}, or the arguments themselves where they are
 * something else. NULL: there is no memory. */
json_t *tools_custom_input(const char *arguments, size_t n);

#endif
