/* Exit statuses of commands beyond those of base/err.def: they ran, and this is what they found. */
#ifndef CLI_EXIT_STATUS_H
#define CLI_EXIT_STATUS_H

enum {
    EXIT_REFUSED = 20,  /* plan: it can't work */
    EXIT_HOLD = 21,     /* profile --gate: caching experts one by one does not pay */
    EXIT_OUTSIDE = 22,  /* receipts: a measurement is outside the band that was forecast, or above its ceiling */
    EXIT_FINDINGS = 23, /* doctor: something makes runs slow or fail */
};

#endif
