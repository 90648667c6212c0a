/* Finds what on this machine makes runs slow or fail, each finding with its remedy.
 *
 * Facts that the system states are read from files below a root folder ("" is the machine; tests have trees of their
 * own). Facts that must be tried or measured come in struct doctor_live. A fact that can't be found out is reported as
 * unknown; it counts neither as fine nor as a finding. */
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
    char said[384];    /* the fact */
    char remedy[384];  /* what to do about it; "": nothing */
};

enum { DOCTOR_MAX_LINE = 128 };

/* Lines beyond DOCTOR_MAX_LINE are left out; it takes dozens of cards to reach that. */
struct doctor_report {
    struct doctor_line lines[DOCTOR_MAX_LINE];
    int n_line;
};

/* Facts that were tried or measured on the running machine. */
struct doctor_live {
    int n_processors;           /* processors that the process may use */
    int n_threads;              /* threads of runs; 0: one for each of these processors */
    const char *kernels;        /* the level of the CPU kernels that are used: "avx2" */
    bool is_lowered;            /* MOEBIUS_CPU asks for that level */
    const char *no_io_uring;    /* why there is no io_uring; NULL: there is */
    bool has_drive;             /* major and minor are known */
    unsigned major, minor;      /* the device number of the model's file system */
    double drive_bytes_per_s;   /* random reads of 1 MiB, 32 at once, past the page cache; 0: not measured */
    const char *no_drive_speed; /* why it was not measured; NULL: it was not asked for */
    uint64_t model_bytes;       /* 0: no model */
    const moebius_gpu *gpus;    /* [n_gpu] */
    int n_gpu;
    const char *no_gpu; /* why there are no GPUs */
};

/* Appends the findings about the machine. */
void doctor_look(struct doctor_report *r, const char *root, const struct doctor_live *live);

/* How a model's file is checked. */
struct doctor_model {
    const char *path;
    bool deep;     /* reads all its bytes, too */
    int n_threads; /* threads that read; 0: as many as suit */
    /* Called from any thread; false ends the check. May be NULL. */
    bool (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
};

/* Appends the findings about a model's file. Damage of its bytes is a finding; everything else that goes wrong is an
 * error. ERR_CANCELLED: progress returned false. */
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
