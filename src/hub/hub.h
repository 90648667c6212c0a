/* Models by name: the door of the room.
 *
 * What a user calls a model (model_name.h), where it is kept (hub_cache.h, the Hub's own layout) and how it comes there
 * (pull.h: libcurl, ranges, checksums in pieces), and the short names that the user gave (aliases.h). Nothing that a
 * server says is trusted: names, sizes and JSON are checked before they are used, and bytes against their checksum
 * before they become a file. The room knows no GGUF. Without libcurl what is in the cache is found all the same. */
#ifndef HUB_HUB_H
#define HUB_HUB_H

#include "hub/aliases.h"
#include "hub/hub_cache.h"
#include "hub/hub_places.h"
#include "hub/model_name.h"
#include "hub/pull.h"

#endif
