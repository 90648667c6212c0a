/* Models by name; other rooms include this header.
 *
 * The room has the names by which users call models (model_name.h), the cache that models are kept in, which has the
 * Hub's own layout (hub_cache.h), downloads into it (pull.h: libcurl, ranges, checksums of pieces), and short names
 * that users define (aliases.h). Servers are not trusted: names, sizes and JSON are checked before they are used, and a
 * file is checked against its checksum before it gets its name. The room knows nothing of GGUF. Without libcurl it
 * still finds models in the cache. */
#ifndef HUB_HUB_H
#define HUB_HUB_H

#include "hub/aliases.h"
#include "hub/hub_cache.h"
#include "hub/hub_places.h"
#include "hub/model_name.h"
#include "hub/pull.h"

#endif
