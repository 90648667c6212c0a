/* What the doctor's files share. */
#ifndef JOBS_DOCTOR_INTERNAL_H
#define JOBS_DOCTOR_INTERNAL_H

#include <stddef.h>

#include "jobs/doctor.h"

struct doctor {
    struct doctor_report *report;
    const char *root;
    const struct doctor_live *live;
};

/* A line of the report. remedy: NULL for none. */
void doctor_say(struct doctor_report *r, enum doctor_state state, const char *topic, const char *remedy,
                const char *fmt, ...) PRINTF_LIKE(5, 6);

/* The beginning of a file below the root, NUL-terminated and without the newline at its end; false: there is none. */
bool doctor_read(const struct doctor *d, char *out, size_t n_out, const char *path, ...) PRINTF_LIKE(4, 5);
/* The number that a file begins with. */
bool doctor_number(const struct doctor *d, double *out, const char *path, ...) PRINTF_LIKE(3, 4);
/* The number behind a key, such as "MemTotal:", at the beginning of a line of a text. */
bool doctor_find_number(const char *text, const char *key, double *out);
/* Calls fn for each name in a folder below the root; false: there is no such folder. */
typedef void doctor_name_fn(struct doctor *d, const char *name);
bool doctor_each_name(struct doctor *d, const char *folder, doctor_name_fn *fn);

/* What a PCIe device's link does of what it could. */
struct doctor_link {
    double speed, max_speed;           /* GT/s */
    double width, max_width;           /* lanes */
    double slot_max_speed, slot_width; /* of the port that it is plugged into; 0: unknown */
};
/* folder: a PCI device's, below the root. False: it has no link that the system shows. */
bool doctor_read_link(const struct doctor *d, const char *folder, struct doctor_link *out);
/* Bytes a second that a link carries at most, as it runs. */
double doctor_link_bytes_per_s(const struct doctor_link *l);

void doctor_memory(struct doctor *d);
void doctor_processor(struct doctor *d);
void doctor_drive(struct doctor *d);
void doctor_links(struct doctor *d); /* drivers of GPUs, too */

#endif
