/* The tools of a request: converts each protocol's form to the one that templates take, and back.
 *
 * Templates and models know only functions. The tools of a namespace become functions whose names begin with the
 * namespace's name. A custom tool, whose input is free text, becomes a function with one string parameter, "input". The
 * client's names for them are kept in tool_kinds. Other kinds of tools (web_search, ...) run on a vendor's servers:
 * they are ignored with a note.
 *
 * Anthropic's clients load tools when the model asks for them: tools with "defer_loading" are not in the prompt until
 * the result of a search refers to them. Then their definition is part of that result, so that the beginning of the
 * prompt, where the other tools are, does not change. */
#ifndef SERVER_TOOLS_H
#define SERVER_TOOLS_H

#include "base/bytes.h"
#include "server/request_fields.h"

request_setter tools_set_chat;            /* {"type": "function", "function": {...}} of Chat and Ollama */
request_setter tools_set_responses;       /* {"type": "function"|"custom"|"namespace", ...} */
request_setter tools_set_messages;        /* {"name", "input_schema"} of Anthropic */
request_setter tools_set_choice;          /* of Chat and Responses */
request_setter tools_set_messages_choice; /* of Anthropic */
request_setter tools_set_parallel;        /* whether an answer may have several calls */

/* Loads the deferred tool that a part of a message, {"type": "tool_reference", "tool_name"}, refers to, so that it can
 * be called. *text: its definition for the prompt, or a short sentence if it was loaded before; owned by the caller.
 * NULL with ERR_OK: the part refers to no deferred tool. */
MUST_USE err_code tools_load(struct server_request *r, const json_t *part, json_t **text, struct err *e);

/* Checks tool_choice against the tools, and removes the tools that it does not allow. */
MUST_USE err_code tools_finish(struct server_request *r, struct err *e);

/* The model's name for the tool with the client's name and namespace (may be NULL). Borrowed from the request. NULL: no
 * memory. */
const char *tools_model_name(struct server_request *r, const char *space, const char *name);

/* The client's name for a tool; space: its namespace, or NULL. */
struct tool_name {
    const char *name, *space;
    bool is_custom;
};
struct tool_name tools_client_name(const struct server_request *r, const char *name);

/* Parses a call's arguments. Text that is no JSON object becomes {"arguments": TEXT}; empty text becomes {}. NULL: no
 * memory. */
json_t *tools_arguments_object(const char *text, size_t n);

/* The free text that a custom tool was called with: the string in {"input": "..."}, or the arguments themselves if they
 * have another form. NULL: no memory. */
json_t *tools_custom_input(const char *arguments, size_t n);

#endif
