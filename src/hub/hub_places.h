/* Where models are kept and where they come from, by environment variables. These are the variables that the Hub's own
 * programs read, so that each finds what another has downloaded.
 *
 *   HF_HUB_CACHE     the folder of models; else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else
 *                    ~/.cache/huggingface/hub
 *   HF_TOKEN         sent to the Hub only; else the first line of $HF_TOKEN_PATH or $HF_HOME/token
 *   HF_ENDPOINT      the Hub's address, for mirrors; else https://huggingface.co
 *   HF_HUB_OFFLINE   1: the network is not used */
#ifndef HUB_HUB_PLACES_H
#define HUB_HUB_PLACES_H

#include <stdbool.h>

#include "base/err.h"
#include "hub/model_name.h"

struct hub_places {
    char cache[HUB_PLACE_BYTES];     /* models of the Hub; "": neither HOME nor another variable says where */
    char downloads[HUB_PLACE_BYTES]; /* models from other addresses: $XDG_CACHE_HOME/moebius/downloads; may be "" */
    char aliases[HUB_PLACE_BYTES];   /* the user's short names: $XDG_CONFIG_HOME/moebius/aliases; may be "" */
    char endpoint[512];              /* without a slash at its end */
    char token[512];                 /* "": none */
    bool is_offline;
};

/* Fails if a variable is invalid: a relative folder, an endpoint that is no address, a token with odd characters. */
MUST_USE err_code hub_places_find(struct hub_places *p, struct err *e);

#endif
