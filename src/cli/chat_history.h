/* The history of the user's messages, kept from session to session in $XDG_STATE_HOME/moebius/chat_history or
 * ~/.local/state/moebius/chat_history: a JSON string a line, in a file that only the user can read. Several sessions
 * may append to it at once. If it can't be opened, no history is kept. */
#ifndef CLI_CHAT_HISTORY_H
#define CLI_CHAT_HISTORY_H

#include <stddef.h>

#include "base/err.h"

struct chat_history {
    int fd; /* -1: none */
};

/* Opens the file; must be called before the sandbox is entered. chat_history_read passes each message in it to `fn`,
 * oldest first. Of a long file only the later part is kept. */
void chat_history_open(struct chat_history *h);
MUST_USE err_code chat_history_read(const struct chat_history *h, void (*fn)(void *user, const char *text), void *user,
                                    struct err *e);
void chat_history_add(const struct chat_history *h, const char *text);
void chat_history_close(struct chat_history *h);

#endif
