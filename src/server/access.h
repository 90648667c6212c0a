/* Access control: the host names that the server answers to, the web pages that may use it, and the API keys.
 *
 * A web page must not reach a server on the loopback interface by pointing its own domain at that address (DNS
 * rebinding). So there the Host header must be a name of the loopback, unless keys are required, which such a page does
 * not know. Requests of pages from other origins are refused, because a browser alone would only keep the page from
 * reading the answer, not from sending the request. */
#ifndef SERVER_ACCESS_H
#define SERVER_ACCESS_H

#include <stdbool.h>

struct call;

/* Checks a request before anything else is done with it, in HTTP's thread. False: it was refused, and the reply is
 * filled. Sets the call's group (whose key was sent) and the origin whose scripts may read the answer. */
bool access_check(struct call *c);

#endif
