/* The command line's options: one table a command, from which parsing, checking and --help all come. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum option_kind {
    OPT_FLAG,   /* bool *: set to true */
    OPT_LISTED, /* the same, and models by name are read (hub/hub.h) */
    OPT_INT,    /* int64_t *, within [min, max] */
    OPT_INT32,  /* int *, within [min, max] */
    OPT_FLOAT,  /* float *, within [min, max] */
    OPT_SIZE,   /* int64_t *, bytes: "2300M", "16G" */
    OPT_SHARE,  /* struct option_share *: bytes, or a share in percent: "25%" */
    OPT_LIST,   /* struct option_list *: may be given again */
    OPT_DETAIL, /* const char **, "" alone, or behind "=" one of the words in `choices` separated by | */
    OPT_CHOICE, /* const char **, one of the words in `choices` separated by | */
    OPT_STRING, /* const char **, as all that follow */
    /* These name files, which the command may reach (cli/confine.h). */
    OPT_INPUT,          /* a file that is read */
    OPT_INPUT_AGAIN,    /* a file that is read, and again later, when it may have been replaced */
    OPT_INPUT_OLD,      /* a file that an earlier run wrote and this one reads; an output may take its place */
    OPT_OUTPUT,         /* a file that is written, maybe read, too; "-" becomes /dev/stdout */
    OPT_MODEL,          /* a GGUF file, of which all parts are read */
    OPT_MODELS,         /* a folder of GGUF files or links to such, which are read */
    OPT_FOLDERS,        /* "DIR,DIR": folders that are read */
    OPT_OUTPUT_FOLDERS, /* folders that are written */
    OPT_DEVICES,        /* "cpu:4,vulkan:0": for GPUs what their drivers open */
    OPT_GPU,            /* "auto", "none" or a number: the same; not given: gpu_files_default */
};

/* The headings of --help, in this order. */
enum option_group {
    GROUP_COMMON, /* what most people need, and all of a small command's */
    GROUP_OUTPUT,
    GROUP_SAMPLING,
    GROUP_FORM,
    GROUP_SERVER,
    GROUP_MACHINE,
    GROUP_MEMORY,
    GROUP_CAR,
    GROUP_CHECKS,
    N_OPTION_GROUP,
};

struct option_share {
    int64_t n_bytes;
    double share; /* 0 to 1 */
};

enum { OPTION_LIST_MAX = 16 };

struct option_list {
    const char *items[OPTION_LIST_MAX];
    int n;
};

struct option {
    const char *name; /* "--threads"; another form may follow after a comma: "--model,-m" */
    enum option_kind kind;
    void *out;
    const char *arg; /* what --help calls its value */
    const char *help;
    double min, max;
    const char *choices;
    size_t group; /* an enum option_group; GROUP_COMMON where a row doesn't say it */
};

#define N_OPTIONS(table) ((int)(sizeof(table) / sizeof *(table)))

/* What a command does with models that have names (hub/hub.h). */
enum hub_use {
    HUB_NONE,    /* but look for those that are named */
    HUB_READS,   /* lists them */
    HUB_REMOVES, /* removes them */
    HUB_FETCHES, /* gets them over the network */
    HUB_NAMES,   /* gives them names */
};

/* The headings of `moebius help`, in this order. */
enum command_group { COMMAND_RUN, COMMAND_MODELS, COMMAND_LOOK, COMMAND_MAKE, COMMAND_MEASURE, N_COMMAND_GROUP };

/* A first word ("": there is none) of a command with which it takes these options alone. */
struct subcommand {
    const char *word;
    const char *takes[3];
};

struct command {
    const char *name;
    const char *usage;                /* after "moebius NAME" */
    const char *summary;              /* one line */
    const char *details;              /* paragraphs for --help; may be NULL */
    int max_operand;                  /* words that are neither options nor the model */
    const char *hint;                 /* what to do instead, when there are more */
    struct subcommand subcommands[4]; /* those that take some options alone */
    enum option_kind operands[2];     /* what the first of these words name; 0: no file */
    bool keeps_files;  /* knows files that are kept from run to run, and reads drives as the engine does */
    bool runs_model;   /* reads experts through io_uring, and keeps files from run to run */
    bool serves;       /* takes connections from a socket that it opens before the sandbox */
    bool fetches_none; /* tells of models before they are here: what a name means is not fetched for it */
    enum hub_use hub;
    enum command_group group;
    int (*run)(const struct command *c, int argc, char **argv); /* returns the exit code */
};

/* Parses argv[1..*argc): options fill their `out`; the other words are moved to argv[1..], and *argc is left behind
 * the last of them. "--" ends options; values may follow as the next word, as --name=value or -n=5, and numbers as -n5.
 * In a table with --model the model may be the first word, too, and in one with --file "-" stands for `--file -`; else
 * it is a word. After --help or --version was obeyed the result is ERR_CANCELLED without a sentence. */
MUST_USE err_code options_parse(const struct command *c, const struct option *options, int n_option, int *argc,
                                char **argv, struct err *e);

/* Whether it takes no value. */
bool option_is_flag(const struct option *o);

/* The option's first name, and its other form (n_other 0: it has none), borrowed. */
struct option_names {
    const char *name, *other;
    int n_name, n_other; /* bytes */
};
struct option_names option_names(const struct option *o);

/* The option of a table whose name, in one of its forms, is the n bytes of `word`; NULL: there is none. */
const struct option *options_find(const struct option *options, int n_option, const char *word, size_t n);
/* Sets an option to a value that is given as text, and borrowed; `word` is what messages call the option. */
MUST_USE err_code options_set(const struct option *o, const char *word, const char *value, struct err *e);

/* The exit code for how a command ended; prints the error, if it is one, the way all commands do. */
int cli_exit(const struct command *c, err_code code, const struct err *e);

#endif
