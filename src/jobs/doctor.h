/* What on this machine makes runs slow or fail, each finding with its remedy.
 *
 * The system's own facts are read below a root folder ("" is the machine, tests have trees of their own); what has to
 * be tried or measured comes in struct doctor_live. What can't be found out is unknown, and is said so: it is neither
 * fine nor a finding. */
#ifndef JOBS_DOCTOR_H
#define JOBS_DOCTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "moebius/moebius.h"

enum doctor_state { DOCTOR_OK, DOCTOR_FINDING, DOCTOR_UNKNOWN };

struct doctor_line {
    enum doctor_state state;
    const char *topic; /* "huge pages" */
    char said[384];    /* what is so */
    char remedy[384];  /* what to do about it; "": nothing */
};

enum { DOCTOR_MAX_LINE = 128 };

/* Beyond DOCTOR_MAX_LINE lines are left out, which takes dozens of cards. */
struct doctor_report {
    struct doctor_line lines[DOCTOR_MAX_LINE];
    int n_line;
};

/* What was tried on the running machine. */
struct doctor_live {
    int n_processors;           /* that the process may use */
    int n_threads;              /* that runs are to have; 0: one for each of those */
    const char *kernels;        /* the level of the CPU kernels that run: "avx2" */
    bool is_lowered;            /* MOEBIUS_CPU asks for that level */
    const char *no_io_uring;    /* why there is no io_uring; NULL: there is */
    bool has_drive;             /* the two numbers that follow are known */
    unsigned major, minor;      /* the device number of the model's file system */
    double drive_bytes_per_s;   /* random reads of 1 MiB, 32 at once, past the page cache; 0: not measured */
    const char *no_drive_speed; /* why not; NULL: nobody asked */
    uint64_t model_bytes;       /* 0: no model */
    const moebius_gpu *gpus;    /* [n_gpu] */
    int n_gpu;
    const char *no_gpu; /* why there are none */
};

/* Appends what the machine says. */
void doctor_look(struct doctor_report *r, const char *root, const struct doctor_live *live);

/* What is looked at in a model's file. */
struct doctor_model {
    const char *path;
    bool deep;     /* all its bytes, too */
    int n_threads; /* that read; 0: as many as suit */
    /* Called from any thread; false ends it. May be NULL. */
    bool (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
};

/* Appends what a model's file says: what its bytes are to blame for is a finding, all else an error, ERR_CANCELLED when
 * progress said so. */
MUST_USE err_code doctor_look_at_model(struct doctor_report *r, const struct doctor_model *m, struct err *e);

/* Random reads of a model's file, for a second at most: live->drive_bytes_per_s or no_drive_speed, where it lies, and
 * how many bytes the model has. */
void doctor_measure_drive(struct doctor_live *live, const char *path);
/* Whether rings can be made: live->no_io_uring, which `why` holds. */
void doctor_try_io_uring(struct doctor_live *live, struct err *why);

int doctor_n_findings(const struct doctor_report *r);
void doctor_print(const struct doctor_report *r, FILE *out);
MUST_USE err_code doctor_print_json(const struct doctor_report *r, FILE *out, struct err *e);

#endif
