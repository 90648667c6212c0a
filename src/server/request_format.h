/* The fields that say which form the answer's content must have: a JSON object, an instance of a schema, or a text that
 * a grammar or regular expression accepts. A request may have one form at most. */
#ifndef SERVER_REQUEST_FORMAT_H
#define SERVER_REQUEST_FORMAT_H

#include "server/request_fields.h"

request_setter request_set_grammar;    /* a string: a grammar in GBNF */
request_setter request_set_regex;      /* a string: a regular expression */
request_setter request_set_choice;     /* a list of strings; the content is one of them */
request_setter request_set_structured; /* vLLM's {"json"|"regex"|"choice"|"grammar"|"json_object": ...} */

MUST_USE err_code request_set_json_object(struct server_request *r, const char *path, struct err *e);

#endif
