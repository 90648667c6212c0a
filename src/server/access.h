/* Who may use the server: which names it goes by, which web pages may reach it, and which keys are known.
 *
 * A web page must not reach a server on the loopback by giving its own name to that address (DNS rebinding): there the
 * Host of a request must be a name of this machine's loopback, unless keys are wanted, which such a page doesn't know.
 * A page of another origin that sends something all the same is refused, as only its reading of the answer would be
 * prevented by the browser. */
#ifndef SERVER_ACCESS_H
#define SERVER_ACCESS_H

#include <stdbool.h>

struct call;

/* In the thread of HTTP, before all else. False: the reply is there. Notes whose key it was, and which origin may read
 * the answer. */
bool access_check(struct call *c);

#endif
