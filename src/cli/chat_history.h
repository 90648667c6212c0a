/* What was said to models, kept from session to session: one JSON string a line in $XDG_STATE_HOME/moebius/chat_history
 * or ~/.local/state/moebius/chat_history, which nobody else can read. Several sessions may add to it at once. Where it
 * can't be opened nothing is kept. */
#ifndef CLI_CHAT_HISTORY_H
#define CLI_CHAT_HISTORY_H

#include <stddef.h>

#include "base/err.h"

struct chat_history {
    int fd; /* -1: none */
};

/* Opens the file, and gives each message in it to `fn`, the oldest first; of a long file the later part stays. To be
 * called before the sandbox is entered. */
void chat_history_open(struct chat_history *h);
MUST_USE err_code chat_history_read(const struct chat_history *h, void (*fn)(void *user, const char *text), void *user,
                                    struct err *e);
void chat_history_add(const struct chat_history *h, const char *text);
void chat_history_close(struct chat_history *h);

#endif
