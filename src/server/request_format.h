/* What an answer's content must be: a JSON object, an instance of a schema, what a grammar or a regular expression
 * accepts. A request has one such form at most. */
#ifndef SERVER_REQUEST_FORMAT_H
#define SERVER_REQUEST_FORMAT_H

#include "server/request_fields.h"

request_setter request_set_grammar;    /* a text: GBNF */
request_setter request_set_regex;      /* a text: a regular expression */
request_setter request_set_choice;     /* a list of texts, one of which is the content */
request_setter request_set_structured; /* vLLM's {"json"|"regex"|"choice"|"grammar"|"json_object": ...} */

MUST_USE err_code request_set_json_object(struct server_request *r, const char *path, struct err *e);

#endif
